"""TFF computations with clients in Ray workers: the bits of one process."""

import collections
import re

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import tff_algos
from tasks.models import image
from tests.testing import ray_workers, remembering_processes, tiny_task
from tests.testing.plane_processes import SGDM, points, process
from tests.testing.remembering_cohorts import run
from tests.testing.remembering_processes import some_rounds
from tff_algos import execution
from tff_algos.execution import op_threads

_LABELS = 10


def _examples(count, seed):
    rng = np.random.default_rng(seed)
    x = rng.uniform(size=(count, *image.IMAGE_SHAPE)).astype(np.float32)
    return x, rng.integers(0, _LABELS, count).astype(np.int32)


def _cohort(seed=0, num_clients=5):
    return [
        tf.data.Dataset.from_tensor_slices(_examples(4 + k, [seed, k])).batch(4)
        for k in range(num_clients)
    ]


def _keras_model():
    model = tf.keras.Sequential(
        [
            tf.keras.layers.InputLayer(image.IMAGE_SHAPE),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(_LABELS),
        ]
    )
    return tff.learning.models.from_keras_model(
        model,
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        input_spec=(
            tf.TensorSpec([None, *image.IMAGE_SHAPE]),
            tf.TensorSpec([None], tf.int32),
        ),
    )


# One of each family: stateless clients, Keras' variables, rows of clients, gathered
# updates, tables at the server, values kept for a second pass, clients' own numbers.
_PROCESSES = {
    "fedavg": lambda m: tff_algos.build_fed_avg(m, SGDM(0.1)),
    "fedavg of keras": lambda m: tff.learning.algorithms.build_weighted_fed_avg(
        _keras_model, SGDM(0.1)
    ),
    "robust": lambda m: tff.learning.algorithms.build_weighted_fed_avg(
        m, SGDM(0.1), model_aggregator=tff.learning.robust_aggregator()
    ),
    "fedmgda_plus": lambda m: tff_algos.build_fed_mgda_plus(m, SGDM(0.05), SGDM(0.1)),
    "min norm in blocks": lambda m: tff.learning.algorithms.build_weighted_fed_avg(
        m,
        SGDM(0.1),
        model_aggregator=tff_algos.aggregators.MinNormFactory(num_blocks=3),
    ),
    "maml": lambda m: tff_algos.build_maml(
        m, SGDM(0.1), client_learning_rate=0.05, client_steps_per_round=2
    ),
    "mimelite": lambda m: tff_algos.build_mime_lite(m, SGDM(0.05, momentum=0.9)),
    "qfedavg": lambda m: tff_algos.build_q_fed_avg(
        m, SGDM(0.05), q=0.5, lipschitz=20.0
    ),
}
# Rows of clients, in float64 and in blocks; tables at the server; both.
_REMEMBERING = ("scaffold", "feddyn", "moon", "mifa", "gradma", "ditto", "fedper")


def _bits(values):
    return [np.asarray(value) for value in tf.nest.flatten(values)]


def _assert_same_bits(one, other):
    one, other = _bits(one), _bits(other)
    assert len(one) == len(other)
    for a, b in zip(one, other, strict=True):
        np.testing.assert_array_equal(a, b)


def _rounds(learning, cohorts, context):
    with tff.framework.get_context_stack().install(context):
        state = learning.initialize()
        for cohort in cohorts:
            output = learning.next(state, cohort)
            state = output.state
    return output.state, output.metrics


def _assert_same_rounds(two_workers, learning, cohorts, **kwargs):
    here = _rounds(learning, cohorts, execution.InProcessContext(**kwargs))
    there = _rounds(learning, cohorts, ray_workers.sharing(two_workers, **kwargs))
    _assert_same_bits(there, here)


@pytest.mark.parametrize("batch_clients", [False, True])
def test_rounds_have_one_processs_bits(two_workers, batch_clients):
    cohorts = [[points(3 + k % 5, [r, k]).batch(2) for k in range(40)] for r in (0, 1)]
    learning = process("two layers", "adam")
    _assert_same_rounds(two_workers, learning, cohorts, batch_clients=batch_clients)


@pytest.mark.parametrize("name", _PROCESSES)
def test_algorithms_have_one_processs_bits(two_workers, name):
    learning = _PROCESSES[name](
        image.build_emnist_model("2nn", only_digits=True, seed=0)
    )
    _assert_same_rounds(two_workers, learning, [_cohort(0), _cohort(1)])


@pytest.mark.parametrize("name", _REMEMBERING)
def test_what_clients_and_servers_remember_has_one_processs_bits(two_workers, name):
    learning = remembering_processes.process(name)
    cohorts = some_rounds(remembering_processes.model_of(name))
    trained = {}
    for context in (execution.InProcessContext(), ray_workers.sharing(two_workers)):
        with tff.framework.get_context_stack().install(context):
            trained[context] = run(
                learning, remembering_processes.NUM_CLIENTS, *cohorts
            )
    here, there = trained.values()
    _assert_same_bits(there.state, here.state)
    if here.memory is not None:
        for client in range(remembering_processes.NUM_CLIENTS):
            _assert_same_bits(there.memory.row(client), here.memory.row(client))


def test_personalization_has_one_processs_bits(two_workers):
    model = tiny_task.model()
    evaluation = tff_algos.build_personalization_eval(
        model, SGDM(0.1), num_epochs=2, batch_size=3
    )
    clients = [
        collections.OrderedDict(train_data=points(5 + k, k), test_data=points(4, 9 + k))
        for k in range(6)
    ]
    weights = tff.learning.models.ModelWeights(*model.initial_weights)
    metrics = []
    for context in (execution.InProcessContext(), ray_workers.sharing(two_workers)):
        with tff.framework.get_context_stack().install(context):
            metrics.append(evaluation(weights, clients))
    _assert_same_bits(*metrics)


def test_clients_per_sum_changes_results_by_rounding_and_sends_less(two_workers):
    learning = process("two layers", "sgd")
    cohort = [points(3 + k % 5, k).batch(2) for k in range(20)]
    runs = {}
    for size in (1, 4):
        context = ray_workers.sharing(
            two_workers, batch_clients=False, clients_per_sum=size
        )
        runs[size] = _rounds(learning, [cohort], context)
        runs[size, "bytes"] = context._resources.workers.traffic.reply_bytes
    for a, b in zip(_bits(runs[1]), _bits(runs[4]), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)
    assert runs[1, "bytes"] == 4 * runs[4, "bytes"]


def test_a_worker_uses_the_threads_within_an_op_that_it_is_given(two_workers):
    own = execution.InProcessContext()
    learning = process("two layers", "sgd")
    cohort = [points(3 + k, k).batch(2) for k in range(5)]
    # Beside the two workers, which have all CPUs.
    with execution.ray_context(
        1, resources_per_worker={"memory": 1}, intra_op_threads=3
    ) as context:
        (info,) = context.workers
        runs = [_bits(_rounds(learning, [cohort], each)) for each in (context, own)]
    assert info.intra_op_threads == 3
    assert {w.intra_op_threads for w in two_workers.workers} == {op_threads.count()}
    for a, b in zip(*runs, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)


def test_random_numbers_of_clients_in_turn_stay_here(two_workers):
    @tff.tensorflow.computation(np.float32)
    def noisy(x):
        return x + tf.random.normal([], seed=3)

    @tff.federated_computation(tff.FederatedType(np.float32, tff.CLIENTS))
    def noise(values):
        return tff.federated_map(noisy, values)

    context = ray_workers.sharing(two_workers)
    with tff.framework.get_context_stack().install(context):
        assert len(set(noise([1.0] * 6))) == 6
        assert "in this process" in context.describe(noise)


def test_an_empty_cohort_gives_the_zeros(two_workers):
    @tff.federated_computation(tff.FederatedType(np.float32, tff.CLIENTS))
    def total(values):
        return tff.federated_sum(values)

    with tff.framework.get_context_stack().install(two_workers):
        assert total([]) == 0.0
        assert total([1.0, 2.0, 4.0]) == 7.0


def test_explain_tells_workers_and_bytes(two_workers, capsys):
    learning = process("linear", "sgd")
    with tff.framework.get_context_stack().install(two_workers):
        before = execution.total_traffic()
        state = learning.initialize()
        cohort = [points(4, k).batch(2) for k in range(6)]
        execution.explain(learning.next, state, cohort)
        since = execution.total_traffic() - before
        last = two_workers.traffic
        assert since.sent_bytes == last.sent_bytes > 0
        assert since.reply_bytes == last.reply_bytes > 0
    with execution.in_process_context():
        assert execution.total_traffic() is None
    shown = capsys.readouterr().out
    assert "on 2 workers, 1 calls: sent " in shown
    assert re.search(r"reading their data: [\d.]+ m?s in all processes", shown)
    # 3 x 2 weights and 3 biases, 6 clients of 4 examples (x, y), rows and row splits.
    sent = two_workers.traffic
    assert sent.server_bytes == 4 * 9
    assert sent.client_bytes == 6 * (4 * (2 * 4 + 4) + 4 * 8 + 3 * 8)


@pytest.mark.parametrize("batch_clients", [False, True])
def test_a_failing_client_is_named_as_in_one_process(two_workers, batch_clients):
    @tff.tensorflow.computation(tff.SequenceType(np.float32))
    def total(dataset):
        return dataset.reduce(0.0, lambda s, x: s + x)

    @tff.federated_computation(
        tff.FederatedType(tff.SequenceType(np.float32), tff.CLIENTS)
    )
    def totals(data):
        return tff.federated_sum(tff.federated_map(total, data))

    def numbers(*text):
        return tf.data.Dataset.from_tensor_slices(list(text)).map(tf.strings.to_number)

    context = ray_workers.sharing(two_workers, batch_clients=batch_clients)
    cohort = [numbers("1", "2")] * 9
    with tff.framework.get_context_stack().install(context):
        assert totals(cohort) == 27.0
        cohort[5], cohort[7] = numbers("1", "six"), numbers("eight")
        with pytest.raises(execution.ClientError, match=r"Client 5 of 9: .*six") as e:
            totals(cohort)
        assert e.value.position == 5
        assert totals(cohort[:5]) == 15.0


def test_what_cannot_be_sent_names_the_client(two_workers):
    @tff.federated_computation(
        tff.FederatedType(tff.SequenceType(np.int64), tff.CLIENTS)
    )
    def counts(data):
        return tff.federated_sum(
            tff.federated_map(
                tff.tensorflow.computation(
                    lambda d: d.reduce(np.int64(0), lambda s, _: s + 1),
                    tff.SequenceType(np.int64),
                ),
                data,
            )
        )

    local = tf.data.Dataset.from_generator(
        lambda: iter([1, 2]), output_signature=tf.TensorSpec([], tf.int64)
    )
    context = ray_workers.sharing(two_workers)
    with (
        tff.framework.get_context_stack().install(context),
        pytest.raises(execution.CannotTravelError, match=r"Client 1 of 2: .*Array"),
    ):
        counts([[1, 2], local])


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"num_workers": 0}, "num_workers of at least 1, found 0"),
        ({"num_workers": 1, "clients_per_sum": 0}, "clients_per_sum of at least 1"),
        ({"num_workers": 1, "num_threads": 4}, "num_threads=4 cannot be set: a worker"),
        ({"num_workers": 1, "intra_op_threads": 0}, "intra_op_threads of at least 1"),
        (
            {"num_workers": 1, "resources_per_worker": {"GPU": -1}},
            "more than 0, found GPU: -1",
        ),
    ],
)
def test_bad_arguments_are_named(kwargs, message):
    with pytest.raises(ValueError, match=message):
        execution.RayContext(**kwargs)
