"""Type signatures, TFF's own builders as a reference, and bad input."""

import functools

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import tff_algos
from tests.testing import problems
from tests.testing.numbered_clients import numbered
from tests.testing.speed import some_fast
from tff_algos.experiments.settings import ClientOptimizer
from tff_algos.hyperparameters import HyperparameterError
from tff_algos.models.variable_model import FunctionalVariableModel

SGD = tff.learning.optimizers.build_sgdm
CLIENTS = problems.clients(sizes=(6, 3, 7))


def functional():
    return problems.linear_model(np.float32)


def variable():
    return FunctionalVariableModel(functional())


def cohort(epochs=2):
    return [client.batches(2, epochs, np.float32) for client in CLIENTS]


BUILDERS = {
    "fedsgd": lambda m: tff_algos.build_fed_sgd(m, SGD(0.1)),
    "fedavg": lambda m: tff_algos.build_fed_avg(m, SGD(0.1)),
    "fedprox": lambda m: tff_algos.build_fed_prox(m, SGD(0.1), proximal_strength=0.5),
    "mimelite": lambda m: tff_algos.build_mime_lite(m, SGD(0.1, momentum=0.9)),
    "centralized": lambda m: tff_algos.build_centralized(m, SGD(0.1)),
    "fomaml": lambda m: tff_algos.build_fomaml(
        m, SGD(0.1), client_learning_rate=0.1, client_steps_per_round=2
    ),
    "fedmgda_plus": lambda m: tff_algos.build_fed_mgda_plus(m, SGD(0.1)),
    "qfedavg": lambda m: tff_algos.build_q_fed_avg(m, SGD(0.1), q=0.5, lipschitz=10.0),
    "afl": lambda m: tff_algos.build_agnostic_federated_learning(
        m, SGD(0.1), num_clients=3, mixture_learning_rate=0.1
    ),
}
# Gradients go back through functional models only.
SECOND_ORDER = {
    "uga": lambda m: tff_algos.build_unbiased_gradient_aggregation(
        m, SGD(0.1), client_learning_rate=0.1
    ),
    "maml": lambda m: tff_algos.build_maml(
        m, SGD(0.1), client_learning_rate=0.1, client_steps_per_round=2
    ),
}
# Differ from others by their aggregators alone.
RELATIVES = {
    "fedmgda": lambda m: tff_algos.build_fed_mgda(m, SGD(0.1)),
    "mgda_prox": lambda m: tff_algos.build_mgda_prox(
        m, SGD(0.1), proximal_strength=0.5
    ),
    "fedavg_n": lambda m: tff_algos.build_fed_avg_n(m, SGD(0.1)),
}
STOCK = {
    "fedsgd": lambda m: tff.learning.algorithms.build_fed_sgd(m, SGD(0.1)),
    "fedavg": lambda m: tff.learning.algorithms.build_weighted_fed_avg(m, SGD(0.1)),
    "mimelite": lambda m: tff.learning.algorithms.build_weighted_mime_lite(
        m, SGD(0.1, momentum=0.9)
    ),
}


@functools.cache
def built(name):
    """The process on a functional model."""
    return (BUILDERS | SECOND_ORDER | RELATIVES)[name](functional())


def cohort_for(name):
    if name == "centralized":
        return cohort()[:1]
    return numbered(cohort()) if name == "afl" else cohort()


@pytest.mark.parametrize("name", STOCK)
def test_the_numbers_are_those_of_tffs_own_builder(name):
    data = cohort()
    ours, output = problems.run(built(name), data, data)
    stock, stock_output = problems.run(STOCK[name](variable), data, data)
    np.testing.assert_allclose(ours, stock, rtol=1e-6, atol=1e-7)
    assert output.metrics["client_work"]["train"]["loss"] == pytest.approx(
        stock_output.metrics["client_work"]["train"]["loss"], rel=1e-5
    )


def test_fedprox_holds_clients_near_the_server_where_tffs_own_drives_them_away():
    data, start = cohort(), problems.initial_vector(np.float32)
    stock = tff.learning.algorithms.build_weighted_fed_prox(
        variable, proximal_strength=0.5, client_optimizer_fn=SGD(0.1)
    )
    moved = [
        np.linalg.norm(problems.run(process, data)[0] - start)
        for process in (built("fedprox"), built("fedavg"), stock)
    ]
    assert moved[0] < 0.95 * moved[1]
    assert moved[2] > 1.05 * moved[1]


FAST = ("fedavg", "mimelite", "centralized", "fomaml", "afl")


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


def test_afls_state_holds_the_weights_of_all_clients():
    state = built("afl").initialize.type_signature.result.member
    assert state.client_work.mixture.is_equivalent_to(tff.TensorType(np.float64, [3]))
    assert state.finalizer.average.is_equivalent_to(state.global_model_weights)
    metrics = built("afl").next.type_signature.result.metrics.member
    assert metrics.client_work.lambda_min.dtype == np.float32
    assert metrics.client_work.lambda_max.dtype == np.float32


def test_our_client_work_composes_with_tffs_aggregators():
    clipped = tff.aggregators.clipping_factory(0.01, tff.aggregators.MeanFactory())
    process = tff_algos.build_fed_avg(functional(), SGD(0.1), model_aggregator=clipped)
    weights, output = problems.run(process, cohort())
    step = problems.initial_vector(np.float32) - weights
    assert np.linalg.norm(step) <= 0.01 * (1 + 1e-5)
    assert output.metrics["aggregator"]["clipping_norm"] == pytest.approx(0.01)


def test_centralized_refuses_more_than_one_client():
    process = built("centralized")
    with pytest.raises(Exception, match="takes one client, the pooled examples"):
        process.next(process.initialize(), cohort())


@pytest.mark.parametrize("bad", [-0.1, np.nan, np.inf])
def test_bad_proximal_strength_is_named(bad):
    with pytest.raises(HyperparameterError, match="proximal_strength=.*>= 0"):
        tff_algos.build_fed_prox(functional(), SGD(0.1), proximal_strength=bad)


@pytest.mark.parametrize("bad", [-0.1, 1.0, np.nan])
def test_bad_momentum_is_named(bad):
    with pytest.raises(HyperparameterError, match="server_momentum=.*in \\[0, 1\\)"):
        tff_algos.build_fed_avg_m(functional(), SGD(0.1), server_momentum=bad)


def fed_meta(inner=None, **kwargs):
    return tff_algos.build_fed_meta(
        inner or built("fedavg"),
        functional(),
        (np.ones((4, 5), np.float32), np.ones(4, np.float32)),
        **kwargs,
    )


def test_fedmeta_adds_the_meta_update_to_the_inner_types():
    process = fed_meta(meta_learning_rate=0.1)
    inner = built("fedavg")
    assert process.next.type_signature.parameter[1].is_equivalent_to(
        inner.next.type_signature.parameter[1]
    )
    state = process.initialize.type_signature.result.member
    assert state.inner.is_equivalent_to(inner.initialize.type_signature.result.member)
    metrics = process.next.type_signature.result.metrics.member
    assert metrics.meta.gradient_norm.dtype == np.float32
    assert metrics.meta.num_rejected_meta_updates.dtype == np.int32
    assert metrics.client_work.num_empty_clients.dtype == np.int32


def test_fedmetas_weights_can_be_set_and_got():
    process = fed_meta(meta_learning_rate=0.1)
    w = np.arange(5, dtype=np.float32)
    weights = tff.learning.models.ModelWeights((w, np.float32(7)), ())
    state = process.set_model_weights(process.initialize(), weights)
    np.testing.assert_array_equal(problems.vector_of(process, state), [*range(5), 7])


@pytest.mark.parametrize("name", ["fedprox", "mimelite", "fomaml", "uga"])
def test_fedmeta_composes_with_every_inner_algorithm(name):
    inner = built(name)
    plain, _ = problems.run(inner, cohort(1))
    moved, _ = problems.run(fed_meta(inner, meta_learning_rate=0.5), cohort(1))
    client = problems.Client(np.ones((4, 5)), np.ones(4))
    np.testing.assert_allclose(
        moved, plain - 0.5 * client.gradient(plain), rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({}, "one of meta_learning_rate and meta_optimizer_fn"),
        (
            {"meta_learning_rate": 0.1, "meta_optimizer_fn": SGD(0.1)},
            "one of meta_learning_rate and meta_optimizer_fn",
        ),
        ({"meta_learning_rate": -1.0}, "meta_learning_rate=-1.0.*>= 0"),
        ({"meta_learning_rate": 0.1, "meta_steps": 0}, "meta_steps=0.*>= 1"),
        (
            {"meta_learning_rate": 0.1, "meta_batch_size": 0},
            "meta_batch_size=0.*>= 1",
        ),
    ],
)
def test_bad_meta_updates_are_named(kwargs, message):
    with pytest.raises(ValueError, match=message):
        fed_meta(**kwargs)


def test_fedmetas_inner_must_be_a_process():
    with pytest.raises(TypeError, match="inner to be a .*LearningProcess"):
        fed_meta(inner=3, meta_learning_rate=0.1)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"client_learning_rate": 0.0}, "client_learning_rate=0.0.*> 0"),
        ({"client_epochs_per_round": 0}, "client_epochs_per_round=0.*>= 1"),
        ({"eval_reduction": "max"}, "eval_reduction='max'.*mean, sum"),
        ({"gradient_clip_norm": 0.0}, "gradient_clip_norm=0.0.*> 0"),
        ({"client_learning_rate_decay": 1.5}, "decay=1.5"),
    ],
)
def test_bad_hyperparameters_of_uga_are_named(kwargs, message):
    with pytest.raises(HyperparameterError, match=message):
        tff_algos.build_unbiased_gradient_aggregation(
            functional(), SGD(0.1), **{"client_learning_rate": 0.1} | kwargs
        )


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"client_steps_per_round": -1}, "client_steps_per_round=-1.*>= 0"),
        ({"query": "none"}, "query='none'.*next_batch, all, held_out"),
    ],
)
def test_bad_hyperparameters_of_maml_are_named(kwargs, message):
    for build in (tff_algos.build_maml, tff_algos.build_fomaml):
        with pytest.raises(HyperparameterError, match=message):
            build(
                functional(),
                SGD(0.1),
                **{"client_learning_rate": 0.1, "client_steps_per_round": 1} | kwargs,
            )


BAD_FAIRNESS = [
    (tff_algos.build_fed_mgda, {"epsilon": -0.1}, "epsilon=-0.1.*>= 0"),
    (tff_algos.build_fed_mgda, {"epsilon": np.nan}, "epsilon=nan.*>= 0"),
    (tff_algos.build_fed_mgda, {"cap": 0.0}, r"cap=0.0.*in \(0, 1\]"),
    (tff_algos.build_fed_mgda_plus, {"cap": 1.5}, r"cap=1.5.*in \(0, 1\]"),
    (
        tff_algos.build_fed_mgda_plus,
        {"zero_update_policy": "drop"},
        "zero_update_policy='drop'.*exclude, keep",
    ),
    (
        tff_algos.build_mgda_prox,
        {"proximal_strength": -1.0},
        "proximal_strength=-1.0.*>= 0",
    ),
    (
        tff_algos.build_mgda_prox,
        {"proximal_strength": 0.1, "epsilon": np.inf},
        "epsilon=inf.*>= 0",
    ),
    (
        tff_algos.build_fed_avg_n,
        {"normalize_at": "home"},
        "normalize_at='home'.*server, clients",
    ),
    (tff_algos.build_q_fed_avg, {"q": -1.0}, "q=-1.0.*>= 0"),
    (tff_algos.build_q_fed_avg, {"lipschitz": 0.0}, "lipschitz=0.0.*> 0"),
    (tff_algos.build_q_fed_avg, {"lipschitz": None}, "lipschitz=None.*> 0"),
    (
        tff_algos.build_q_fed_avg,
        {"loss_reduction": "sum"},
        "loss_reduction='sum'.*mean, total",
    ),
    (
        tff_algos.build_agnostic_federated_learning,
        {"num_clients": 0},
        "num_clients=0.*an integer >= 1",
    ),
    (
        tff_algos.build_agnostic_federated_learning,
        {"num_clients": 2.5},
        "num_clients=2.5.*an integer >= 1",
    ),
    (
        tff_algos.build_agnostic_federated_learning,
        {"mixture_learning_rate": -0.1},
        "mixture_learning_rate=-0.1.*>= 0",
    ),
    (
        tff_algos.build_agnostic_federated_learning,
        {"returned_model": "best"},
        "returned_model='best'.*average, last",
    ),
    (
        tff_algos.build_agnostic_federated_learning,
        {"afl_mode": "step"},
        "afl_mode='step'.*epochs, batch",
    ),
]
REQUIRED = {
    tff_algos.build_q_fed_avg: {"q": 1.0, "lipschitz": 1.0},
    tff_algos.build_agnostic_federated_learning: {
        "num_clients": 3,
        "mixture_learning_rate": 0.1,
    },
}


@pytest.mark.parametrize(("build", "kwargs", "message"), BAD_FAIRNESS)
def test_bad_hyperparameters_of_fair_algorithms_are_named(build, kwargs, message):
    with pytest.raises(HyperparameterError, match=message):
        build(functional(), SGD(0.1), **REQUIRED.get(build, {}) | kwargs)


@pytest.mark.parametrize("number", [-1, 3])
def test_afl_refuses_a_client_with_a_number_that_there_is_not(number):
    process = built("afl")
    with pytest.raises(Exception, match=r"\[0, 3\)"):
        process.next(process.initialize(), numbered(cohort(), [0, 1, number]))


def test_momentum_of_an_optimizer_that_has_none_is_refused():
    with pytest.raises(HyperparameterError, match="client_momentum=0.9.*0, adam has"):
        ClientOptimizer(client_optimizer="adam", client_momentum=0.9)


def test_second_order_algorithms_refuse_variable_models():
    for build in SECOND_ORDER.values():
        with pytest.raises(TypeError, match="pure functions of weights"):
            build(variable)


def test_a_model_of_the_wrong_kind_is_named():
    with pytest.raises(TypeError, match="FunctionalModel.*found <class 'int'>"):
        tff_algos.build_fed_avg(3, SGD(0.1))


def test_an_unweighted_aggregator_is_refused_with_a_tip():
    with pytest.raises(TypeError, match="as_weighted_aggregator"):
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
