"""The in-process context: results, concurrency, errors, caching."""

import asyncio
import collections
import gc
import threading
from concurrent import futures

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.testing import equivalence, problems
from tests.testing import learning_models as models
from tff_algos import execution
from tff_algos.execution import compilation

CLIENT_FLOATS = tff.FederatedType(np.float32, tff.CLIENTS)


@tff.tensorflow.computation(np.float32)
def _double(x):
    return 2 * x


@tff.federated_computation(CLIENT_FLOATS)
def _mean_of_doubles(x):
    return tff.federated_mean(tff.federated_map(_double, x))


@pytest.fixture(scope="module")
def fed_avg():
    return tff.learning.algorithms.build_weighted_fed_avg(
        models.functional_model(),
        tff.learning.optimizers.build_adam(0.1),
        tff.learning.optimizers.build_sgdm(1.0, 0.9),
    )


def train(process, cohorts):
    state = process.initialize()
    for cohort in cohorts:
        output = process.next(state, cohort)
        state = output.state
    return output


def exactly_equal(one, other):
    one, other = tf.nest.flatten(one), tf.nest.flatten(other)
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("batch_clients", [True, False])
def test_results_do_not_depend_on_the_number_of_threads(fed_avg, batch_clients):
    cohorts = models.cohorts((6, 3, 9, 1, 0, 4, 7), (2, 5, 5))
    outputs = []
    for num_threads in (1, 2, 5, 5):
        context = execution.InProcessContext(
            num_threads=num_threads, batch_clients=batch_clients
        )
        outputs.append(equivalence.call(context, train, fed_avg, cohorts))
    assert all(exactly_equal(outputs[0], output) for output in outputs[1:])


def test_the_same_call_gives_the_same_bits(fed_avg):
    cohorts = models.cohorts((6, 3, 9))
    context = equivalence.in_process()
    first = equivalence.call(context, train, fed_avg, cohorts)
    assert exactly_equal(first, equivalence.call(context, train, fed_avg, cohorts))


@pytest.mark.parametrize(
    "arguments", [{}, {"num_threads": 1}, {"num_threads": 8, "batch_clients": False}]
)
def test_variables_are_each_clients_own(arguments):
    @tff.tensorflow.computation(tff.SequenceType(np.int64))
    def count(data):
        seen = tf.Variable(tf.constant(0, tf.int64))
        table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, 0)

        @tf.function
        def step(state, x):
            seen.assign_add(x)
            table.insert(x, table.lookup(x) + 1)
            return state + seen

        total = data.reduce(tf.constant(0, tf.int64), step)
        with tf.control_dependencies([total]):
            return seen.read_value(), table.size(), total

    @tff.federated_computation(
        tff.FederatedType(tff.SequenceType(np.int64), tff.CLIENTS)
    )
    def counts(data):
        return tff.federated_map(count, data)

    sizes = [size % 7 for size in range(60)]
    with execution.in_process_context(**arguments):
        found = counts([tf.data.Dataset.range(size) for size in sizes])
    running = [np.cumsum(range(size)) for size in sizes]
    assert [tuple(client) for client in found] == [
        (sum(range(size)), size, sum(sums)) for size, sums in zip(sizes, running)
    ]


def test_without_clients_in_arguments_there_are_as_many_as_by_default():
    @tff.federated_computation
    def count():
        return tff.federated_sum(tff.federated_value(1, tff.CLIENTS))

    @tff.federated_computation(tff.FederatedType(np.int32, tff.CLIENTS))
    def count_and_sum(x):
        return tff.federated_sum(
            tff.federated_value(1, tff.CLIENTS)
        ), tff.federated_sum(x)

    with execution.in_process_context():
        assert count() == 0
    with execution.in_process_context(default_num_clients=3):
        assert count() == 3
        # Arguments tell better.
        assert tuple(count_and_sum([1, 1])) == (2, 2)
        assert tuple(count_and_sum([])) == (0, 0)


@pytest.mark.parametrize(
    "arguments",
    [
        {"default_num_clients": -1},
        {"num_threads": 0},
        {"num_threads": "4"},
        {"insecure_aggregation": "False"},
        {"batch_clients": "never"},
        {"max_cached_bytes": "1GB"},
        {"max_kept_bytes": -1},
        {"runtime_devices": "CPU:0"},
    ],
)
def test_arguments_out_of_range_are_named(arguments):
    ((name, value),) = arguments.items()
    with pytest.raises(ValueError, match=f"{name}.*found {value!r}"):
        execution.InProcessContext(**arguments)


@pytest.fixture
def compiled(monkeypatch):
    """The computations that are compiled, as they are."""
    seen = []
    compile_to_plan = compilation.compile_to_plan

    def spy(computation, *args, **kwargs):
        seen.append(computation)
        return compile_to_plan(computation, *args, **kwargs)

    monkeypatch.setattr(compilation, "compile_to_plan", spy)
    return seen


def test_an_equal_computation_is_not_compiled_again(compiled):
    def trace(factor):
        @tff.tensorflow.computation(np.float32)
        def scale(x):
            return factor * x

        @tff.federated_computation(CLIENT_FLOATS)
        def total(x):
            return tff.federated_sum(tff.federated_map(scale, x))

        return total

    with execution.in_process_context():
        computation = trace(3.0)
        assert computation([1.0, 2.0]) == 9.0
        assert computation([1.0]) == 3.0
        assert trace(3.0)([1.0, 4.0]) == 15.0
        assert len(compiled) == 1
        assert trace(4.0)([1.0]) == 4.0
        assert len(compiled) == 2


def test_functional_arguments_are_compiled_once_each(compiled):
    unary = tff.FunctionType(np.float32, np.float32)

    @tff.federated_computation(unary, np.float32)
    def apply(function, x):
        return function(function(x))

    @tff.tensorflow.computation(np.float32)
    def half(x):
        return x / 2

    with execution.in_process_context():
        assert [apply(_double, 1.0), apply(half, 8.0)] == [4.0, 2.0]
        assert [apply(_double, 2.0), apply(half, 4.0)] == [8.0, 1.0]
    assert len(compiled) == 2


def test_what_is_described_is_the_latest_call_whatever_the_functional_arguments():
    number = tff.TensorType(np.float32)

    @tff.federated_computation(tff.FunctionType(number, number), number)
    def apply(function, x):
        return function(x)

    twice = tff.tensorflow.computation(lambda x: 2 * x, np.float32)
    halved = tff.tensorflow.computation(lambda x: x / 2, np.float32)
    with execution.in_process_context() as context:
        for calls, function in enumerate([twice, halved, twice, twice], start=1):
            apply(function, 1.0)
            own_calls = calls - 1 if function is twice and calls > 1 else 1
            assert context.describe(apply).startswith(f"call {own_calls}: ")


def test_a_computation_asked_for_by_many_threads_is_compiled_once(compiled):
    context = execution.InProcessContext()
    with futures.ThreadPoolExecutor(8) as threads:
        results = threads.map(
            lambda n: equivalence.call(context, _mean_of_doubles, [n, n + 1.0]),
            np.arange(24.0, dtype=np.float32),
        )
        assert list(results) == [2 * n + 1.0 for n in range(24)]
    assert len(compiled) == 1


def test_computations_that_go_leave_nothing_behind():
    context = execution.InProcessContext()

    def double_again():
        computation = tff.tensorflow.computation(lambda x: 2 * x, np.float32)
        assert equivalence.call(context, computation, 2.0) == 4.0
        assert len(context._programs._by_object) == 1

    for _ in range(3):
        double_again()
        gc.collect()
        assert not context._programs._by_object


def test_two_contexts_work_in_two_threads(fed_avg):
    cohorts = models.cohorts((6, 3, 9), (2, 5, 5))

    def work(num_threads):
        context = execution.InProcessContext(num_threads=num_threads)
        return equivalence.call(context, train, fed_avg, cohorts)

    with futures.ThreadPoolExecutor(2) as threads:
        one, other = threads.map(work, [1, 4])
    assert exactly_equal(one, other)


def test_it_works_beside_the_native_context(fed_avg):
    cohorts = models.cohorts((6, 3, 9), (2, 5, 5))
    native = tff.framework.get_context_stack().current
    with futures.ThreadPoolExecutor(2) as threads:
        ours = threads.submit(
            equivalence.call, equivalence.in_process(), train, fed_avg, cohorts
        )
        theirs = threads.submit(equivalence.call, native, train, fed_avg, cohorts)
        equivalence.assert_same(ours.result(), theirs.result(), atol=1e-6)
    assert _mean_of_doubles([1.0]) == 2.0
    with execution.in_process_context():
        assert _mean_of_doubles([1.0]) == 2.0
        with execution.native_context():
            assert _mean_of_doubles([1.0]) == 2.0


def test_many_threads_train_at_once(fed_avg):
    cohorts = models.cohorts((6, 3, 9))
    context = equivalence.in_process()
    alone = equivalence.call(context, train, fed_avg, cohorts)
    with futures.ThreadPoolExecutor(6) as threads:
        jobs = [
            threads.submit(equivalence.call, context, train, fed_avg, cohorts)
            for _ in range(12)
        ]
        assert all(exactly_equal(alone, job.result()) for job in jobs)


def test_clients_that_add_up_large_tensors_at_once_do_not_meet():
    # TensorFlow itself fails at this: see `graph_functions`.
    size, count = 10_000_000, 8

    @tff.tensorflow.computation(np.float32)
    def work(x):
        parts = [tf.sin(tf.fill([size], x + i)) for i in range(count)]
        total = tf.reduce_mean(tf.add_n(parts))
        return total - tf.add_n([tf.reduce_max(part) for part in parts])

    @tff.federated_computation(tff.FederatedType(np.float32, tff.CLIENTS))
    def difference(x):
        return tff.federated_map(work, x)

    with execution.in_process_context(num_threads=2, batch_clients=False):
        found = difference([np.float32(i) for i in range(4)])
    np.testing.assert_allclose(found, 0, atol=1e-3)


def test_it_works_in_a_running_event_loop():
    async def work():
        with execution.in_process_context():
            return _mean_of_doubles([1.0, 3.0])

    assert asyncio.run(work()) == 4.0


def test_inside_of_a_graph_values_are_values():
    with execution.in_process_context():
        with tf.Graph().as_default():
            assert _mean_of_doubles([1.0, 3.0]) == 4.0

        @tf.function
        def traced():
            return tf.constant(_mean_of_doubles([1.0, 3.0]))

        assert traced().numpy() == 4.0


def test_the_default_context_is_the_threads():
    outcome = {}

    def work():
        context = execution.set_in_process_context(default_num_clients=2)
        outcome["current"] = tff.framework.get_context_stack().current is context
        outcome["mean"] = _mean_of_doubles([1.0, 3.0])

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert outcome == {"current": True, "mean": 4.0}
    assert isinstance(
        tff.framework.get_context_stack().current, execution.NativeContext
    )


def test_results_are_numpy_in_the_containers_of_their_types():
    @tff.tensorflow.computation(np.float32)
    def describe(x):
        return collections.OrderedDict(x=x, pair=(tf.stack([x, x]), "text"))

    with execution.in_process_context():
        found = describe(1.5)
    assert isinstance(found, collections.OrderedDict)
    assert isinstance(found["x"], np.float32)
    assert isinstance(found["pair"], tuple)
    assert isinstance(found["pair"][0], np.ndarray)
    assert found["pair"][1] == b"text"


def test_results_may_be_changed_without_changing_later_ones():
    with execution.in_process_context():
        first = _constant()
        first[0] = 7.0
        np.testing.assert_array_equal(_constant(), [1.0, 1.0])


@tff.tensorflow.computation
def _constant():
    return tf.ones([2])


def test_arguments_are_not_changed(fed_avg):
    with execution.in_process_context():
        state = fed_avg.initialize()
        before = [np.array(x) for x in tf.nest.flatten(state)]
        (cohort,) = models.cohorts((4, 5))
        fed_avg.next(state, cohort)
        assert exactly_equal(before, tf.nest.flatten(state))
    assert problems.vector_of(fed_avg, state).shape == (6,)


def test_clients_whose_noise_is_seeded_by_the_time_never_share_it():
    @tff.tensorflow.computation(np.float32)
    def seed(_):
        return tf.cast(tf.timestamp() * 1e6, tf.int64)

    @tff.federated_computation(tff.FederatedType(np.float32, tff.CLIENTS))
    def seeds(values):
        return tff.federated_map(seed, values)

    with execution.in_process_context(num_threads=8):
        for _ in range(20):
            drawn = seeds([0.0] * 50)
            assert drawn == sorted(set(drawn))


def test_ops_with_seeds_of_their_own_draw_in_the_order_of_the_clients():
    @tff.tensorflow.computation(np.float32)
    def draw(_):
        return tf.random.uniform([], seed=7)

    @tff.federated_computation(tff.FederatedType(np.float32, tff.CLIENTS))
    def draws(values):
        return tff.federated_map(draw, values)

    drawn = []
    for num_threads in (1, 8):
        with execution.in_process_context(num_threads=num_threads):
            drawn.append(draws([0.0] * 30))
    assert drawn[0] == drawn[1]
    assert len(set(drawn[0])) == 30
