"""Composed processes: their types, both kinds of models, TFF's numbers, refusals."""

import collections

import attrs
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import tff_algos
from tests.testing import float32_processes, problems, remembering_processes
from tests.testing.block_problems import block_model
from tests.testing.float32_processes import (
    BUILDERS,
    RELATIVES,
    SECOND_ORDER,
    built,
    cohort_for,
    fed_meta,
    functional,
    variable,
)
from tests.testing.local_steps import BATCH, CLIENTS, RATE, told
from tests.testing.numbered_clients import numbered
from tests.testing.speed import some_fast
from tff_algos import client_works
from tff_algos.hyperparameters import HyperparameterError
from tff_algos.models import local_model

SGD = tff.learning.optimizers.build_sgdm
FAST = ("fedavg", "mimelite", "centralized", "fomaml", "afl")
STOCK = {
    "fedsgd": lambda m: tff.learning.algorithms.build_fed_sgd(m, SGD(0.1)),
    "fedavg": lambda m: tff.learning.algorithms.build_weighted_fed_avg(m, SGD(0.1)),
    "mimelite": lambda m: tff.learning.algorithms.build_weighted_mime_lite(
        m, SGD(0.1, momentum=0.9)
    ),
}


@pytest.mark.parametrize("name", STOCK)
def test_the_numbers_are_those_of_tffs_own_builder(name):
    data = float32_processes.cohort()
    ours, output = problems.run(built(name), data, data)
    stock, stock_output = problems.run(STOCK[name](variable), data, data)
    np.testing.assert_allclose(ours, stock, rtol=1e-6, atol=1e-7)
    assert output.metrics["client_work"]["train"]["loss"] == pytest.approx(
        stock_output.metrics["client_work"]["train"]["loss"], rel=1e-5
    )


@pytest.mark.parametrize("name", some_fast(BUILDERS, FAST))
def test_functional_and_variable_models_give_the_same_numbers(name):
    data = cohort_for(name)
    left, left_output = problems.run(built(name), data, data)
    right, right_output = problems.run(BUILDERS[name](variable), data, data)
    np.testing.assert_allclose(left, right, rtol=1e-6, atol=1e-7)
    assert left_output.metrics["client_work"]["train"]["loss"] == pytest.approx(
        right_output.metrics["client_work"]["train"]["loss"], rel=1e-6
    )


@pytest.mark.parametrize("name", BUILDERS | SECOND_ORDER | RELATIVES)
def test_next_has_the_type_of_a_learning_process(name):
    process = built(name)
    assert isinstance(process, tff.learning.templates.LearningProcess)
    state_type = process.initialize.type_signature.result
    assert state_type.placement is tff.SERVER
    weights = state_type.member.global_model_weights
    np.testing.assert_equal([list(t.shape) for t in weights.trainable], [[5], []])
    data_type = process.next.type_signature.parameter[1]
    element = (
        tff.TensorType(np.float32, [None, 5]),
        tff.TensorType(np.float32, [None]),
    )
    expected = tff.SequenceType(element)
    if name == "afl":
        number = tff.SequenceType(np.int32)
        expected = tff.StructType([("examples", expected), ("client_index", number)])
    assert data_type.is_equivalent_to(tff.FederatedType(expected, tff.CLIENTS))
    metrics = process.next.type_signature.result.metrics.member
    assert metrics.client_work.num_non_finite_clients.dtype == np.int32
    assert metrics.client_work.num_empty_clients.dtype == np.int32
    assert metrics.finalizer.num_rejected_rounds.dtype == np.int32
    assert metrics.finalizer.update_norm.dtype == np.float32


@pytest.mark.parametrize("name", ["fedmgda_plus", *RELATIVES])
def test_those_who_see_updates_one_by_one_measure_what_came_of_them(name):
    metrics = built(name).next.type_signature.result.metrics.member
    assert metrics.aggregator.num_zero_updates.dtype == np.int32
    assert metrics.aggregator.qp_fallbacks.dtype == np.int32
    assert metrics.aggregator.lambda_max.dtype == np.float32


@pytest.mark.parametrize("name", ["qfedavg", "afl"])
def test_those_who_look_at_losses_measure_the_largest(name):
    metrics = built(name).next.type_signature.result.metrics.member
    assert metrics.client_work.max_loss.dtype == np.float32


@pytest.mark.parametrize("name", ["mimelite", "afl", "centralized"])
def test_a_rejected_round_leaves_the_state_of_the_client_work(name):
    process = built(name)
    if name == "centralized":
        process = tff_algos.build_centralized(functional(), SGD(0.1, momentum=0.9))
    state = process.next(process.initialize(), cohort_for(name)).state
    # Its update of about 1e22 is finite, and the update's squared norm is not.
    far = np.full((1, 5), 2e11, np.float32), np.full(1, 2e11, np.float32)
    data = [tf.data.Dataset.from_tensors(far), *float32_processes.cohort()[1:]]
    data = data[:1] if name == "centralized" else data
    data = numbered(data) if name == "afl" else data
    output = process.next(state, data)
    assert output.metrics["finalizer"]["num_rejected_rounds"] == 1
    assert output.metrics["client_work"]["num_non_finite_clients"] == 0
    leaves = [tf.nest.flatten(each.client_work) for each in (state, output.state)]
    changes = [np.asarray(b) - np.asarray(a) for a, b in zip(*leaves, strict=True)]
    counted = [each for each in changes if np.any(each)]
    # The round counts all the same.
    assert counted == ([] if name == "centralized" else [1])
    assert any(np.size(each) > 1 for each in changes)


@pytest.mark.parametrize("container", ["mapping", "record", "tuple"])
def test_a_rejected_round_leaves_the_state_of_a_client_work_of_ones_own(container):
    """Whatever its state and its measurements are made of; the round counts."""

    @attrs.frozen
    class State:
        round_num: object
        total: object

    def state_of(number, total):
        if container == "mapping":
            return collections.OrderedDict(round_num=number, total=total)
        return State(number, total) if container == "record" else (number, total)

    model = functional()
    weights_type = local_model.weights_type(model)
    data_type = local_model.data_type(model)
    first = tff.tensorflow.computation(lambda: state_of(tf.constant(0), tf.zeros([2])))
    state_type = first.type_signature.result

    @tff.tensorflow.computation(weights_type, data_type)
    def client(weights, dataset):
        size = dataset.reduce(0.0, lambda total, _: total + 1.0)
        update = tf.nest.map_structure(lambda w: w * 0 + 1e30, weights.trainable)
        return tff.learning.templates.ClientResult(update, size)

    @tff.tensorflow.computation(state_type)
    def following(state):
        number, total = tf.nest.flatten(state)
        return state_of(number + 1, total + 1.0)

    @tff.federated_computation
    def initialize():
        return tff.federated_eval(first, tff.SERVER)

    @tff.federated_computation(
        initialize.type_signature.result,
        tff.FederatedType(weights_type, tff.CLIENTS),
        tff.FederatedType(data_type, tff.CLIENTS),
    )
    def next_fn(state, weights, data):
        return tff.templates.MeasuredProcessOutput(
            tff.federated_map(following, state),
            tff.federated_map(client, (weights, data)),
            tff.federated_value(1.0, tff.SERVER),
        )

    work = tff.learning.templates.ClientWorkProcess(initialize, next_fn)
    process = tff_algos.compose(model, work)
    output = process.next(process.initialize(), float32_processes.cohort())
    assert output.metrics["finalizer"]["num_rejected_rounds"] == 1
    number, total = map(np.asarray, tf.nest.flatten(output.state.client_work))
    # Of a mapping, as of an optimizer with a schedule, all stays.
    assert number == (1 if container == "record" else 0)
    np.testing.assert_array_equal(total, [0.0, 0.0])


def test_our_client_work_composes_with_tffs_aggregators():
    clipped = tff.aggregators.clipping_factory(0.01, tff.aggregators.MeanFactory())
    process = tff_algos.build_fed_avg(functional(), SGD(0.1), model_aggregator=clipped)
    weights, output = problems.run(process, float32_processes.cohort())
    step = problems.initial_vector(np.float32) - weights
    assert np.linalg.norm(step) <= 0.01 * (1 + 1e-5)
    assert output.metrics["aggregator"]["clipping_norm"] == pytest.approx(0.01)


def test_second_order_algorithms_refuse_variable_models():
    for build in SECOND_ORDER.values():
        with pytest.raises(TypeError, match="pure functions of weights"):
            build(variable)


def test_a_model_of_the_wrong_kind_is_named():
    with pytest.raises(TypeError, match="FunctionalModel.*found <class 'int'>"):
        tff_algos.build_fed_avg(3, SGD(0.1))


def test_an_unweighted_aggregator_is_refused_with_a_tip():
    with pytest.raises(HyperparameterError, match="as_weighted_aggregator"):
        tff_algos.build_fed_avg(
            functional(),
            SGD(0.1),
            model_aggregator=tff.aggregators.UnweightedMeanFactory(),
        )


def test_state_restored_from_plain_arrays_goes_on_to_the_same_bits():
    # X43 for every process with state of its own.
    processes = {name: built(name) for name in BUILDERS | SECOND_ORDER}
    processes["fedmeta"] = fed_meta(
        meta_optimizer_fn=SGD(0.1, momentum=0.9), meta_learning_rate_decay=0.9
    )
    for name, process in processes.items():
        data = cohort_for(name)
        state = process.next(process.initialize(), data).state
        flat = [np.asarray(leaf) for leaf in tf.nest.flatten(state)]
        restored = tf.nest.pack_sequence_as(process.initialize(), flat)
        np.testing.assert_array_equal(
            problems.vector_of(process, process.next(restored, data).state),
            problems.vector_of(process, process.next(state, data).state),
        )


WITH_NUM_EXAMPLES = {
    "fedavgm": lambda m, **kw: tff_algos.build_fed_avg_m(m, SGD(RATE), **kw),
    "fedprox": lambda m, **kw: tff_algos.build_fed_prox(
        m, SGD(RATE), proximal_strength=0.5, **kw
    ),
    "mimelite": lambda m, **kw: tff_algos.build_mime_lite(
        m, SGD(RATE, momentum=0.5), **kw
    ),
    "gradma_w": lambda m, **kw: tff_algos.build_gradma_w(m, SGD(RATE), **kw),
    "fedmgda_plus": lambda m, **kw: tff_algos.build_fed_mgda_plus(
        m, SGD(RATE), epsilon=0.1, **kw
    ),
    "fedmlb": lambda m, **kw: tff_algos.build_fed_mlb(m, SGD(RATE), **kw),
}


@pytest.mark.parametrize("name", WITH_NUM_EXAMPLES)
def test_clients_told_to_have_one_example_each_weigh_alike(name):
    model = problems.linear_model(np.float32)
    batches = [client.batches(BATCH, dtype=np.float32) for client in CLIENTS]
    if name == "fedmlb":
        model = block_model(np.float32)
        batches = [
            client_batches.map(lambda x, y: (x, tf.cast(y > 0, tf.int32)))
            for client_batches in batches
        ]
    weighting = tff.learning.ClientWeighting
    by_told = WITH_NUM_EXAMPLES[name](
        model, client_weighting=weighting.NUM_EXAMPLES, with_num_examples=True
    )
    alike = WITH_NUM_EXAMPLES[name](model, client_weighting=weighting.UNIFORM)
    cohort = told(batches, (1, 1, 1))
    found, _ = problems.run(by_told, cohort, cohort)
    expected, _ = problems.run(alike, batches, batches)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("kind", ["statistics", "memory"])
def test_a_finalizer_that_does_not_tell_of_rejected_rounds_is_named(kind):
    model = functional()
    if kind == "statistics":
        model = remembering_processes.linear_model_with_statistics()
        work = client_works.build_local_training_client_work(model, SGD(0.1))
    else:
        work = client_works.build_dynamic_regularization_client_work(
            model, SGD(0.1), dynamic_regularization=0.1
        )
    weights_type = local_model.weights_type(model)
    stock = tff.learning.templates.build_apply_optimizer_finalizer(
        SGD(1.0), weights_type
    )
    with pytest.raises(HyperparameterError, match="^finalizer=.*num_rejected_rounds"):
        tff_algos.compose(model, work, finalizer=stock)
    plain = client_works.build_local_training_client_work(functional(), SGD(0.1))
    if kind == "memory":
        tff_algos.compose(model, plain, finalizer=stock)
