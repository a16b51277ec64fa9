"""Computations made of computations in this process, as on TFF's own runtime."""

import asyncio
import collections
import contextlib
import sys

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.testing import equivalence, problems
from tests.testing import learning_models as models
from tff_algos import execution

same = equivalence.assert_same_in_both
CLIENT_FLOATS = tff.FederatedType(np.float32, tff.CLIENTS)


@tff.tensorflow.computation(np.float32)
def _plus_one(x):
    return x + 1


@tff.federated_computation(CLIENT_FLOATS)
def _mean(x):
    return tff.federated_mean(x)


def test_computations_that_call_others():
    @tff.tensorflow.computation(np.float32, np.float32)
    def difference(a, b):
        return a - b

    @tff.federated_computation(CLIENT_FLOATS)
    def centred(x):
        mean = tff.federated_broadcast(_mean(x))
        return tff.federated_map(difference, (x, mean))

    @tff.federated_computation(CLIENT_FLOATS)
    def twice_centred(x):
        return centred(centred(x)), _mean(centred(tff.federated_map(_plus_one, x)))

    found, mean = same(twice_centred, [1.0, 2.0, 6.0])
    assert found == [-2.0, -1.0, 3.0]
    assert mean == 0.0


def test_tensorflow_that_calls_tensorflow():
    @tff.tensorflow.computation(np.float32)
    def twice(x):
        return _plus_one(_plus_one(x)) * 2

    assert same(twice, 1.0) == 6.0


def test_aggregations_that_depend_on_each_other():
    @tff.tensorflow.computation(np.float32, np.float32)
    def scaled(x, total):
        return x / (1 + total)

    @tff.federated_computation(CLIENT_FLOATS)
    def repeated(x):
        totals = []
        for _ in range(4):
            total = tff.federated_sum(x)
            totals.append(total)
            x = tff.federated_map(scaled, (x, tff.federated_broadcast(total)))
        return totals, x

    same(repeated, [1.0, 2.0, 5.0])


SELECT_KEYS = tff.FederatedType(tff.TensorType(np.int32, [2]), tff.CLIENTS)


def _select(select):
    @tff.tensorflow.computation(tff.TensorType(np.str_, [5]), np.int32)
    def pick(values, key):
        return tf.gather(values, key), key

    @tff.tensorflow.computation(tff.SequenceType((np.str_, np.int32)))
    def join(chosen):
        return chosen.reduce("", lambda text, pair: text + pair[0])

    @tff.federated_computation(
        SELECT_KEYS,
        tff.FederatedType(np.int32, tff.SERVER),
        tff.FederatedType(tff.TensorType(np.str_, [5]), tff.SERVER),
    )
    def select_and_join(keys, max_key, values):
        return tff.federated_map(join, select(keys, max_key, values, pick))

    return select_and_join


def test_selection():
    joined = same(
        _select(tff.federated_select), [[0, 1], [4, 0]], 5, ["a", "b", "c", "d", "e"]
    )
    assert joined == [b"ab", b"ea"]


def test_selection_of_elements_whose_names_are_not_in_order():
    @tff.tensorflow.computation(tff.TensorType(np.str_, [3]), np.int32)
    def pick(values, key):
        return collections.OrderedDict(value=tf.gather(values, key), key=key)

    @tff.tensorflow.computation(tff.SequenceType(pick.type_signature.result))
    def join(chosen):
        return chosen.reduce((0, ""), lambda s, e: (s[0] + e["key"], s[1] + e["value"]))

    @tff.federated_computation(
        SELECT_KEYS,
        tff.FederatedType(np.int32, tff.SERVER),
        tff.FederatedType(tff.TensorType(np.str_, [3]), tff.SERVER),
    )
    def select(keys, max_key, values):
        chosen = tff.federated_select(keys, max_key, values, pick)
        return tff.federated_map(join, chosen)

    # Where TFF's own runtime fails: it takes the values for the keys.
    context = equivalence.in_process()
    found = equivalence.call(context, select, [[0, 1], [2, 0]], 3, ["a", "b", "c"])
    assert [tuple(each) for each in found] == [(1, b"ab"), (2, b"ca")]


def test_secure_selection_only_in_the_clear():
    arguments = ([[0, 1], [4, 0]], 5, ["a", "b", "c", "d", "e"])
    secure = _select(tff.federated_secure_select)
    context = equivalence.in_process(insecure_aggregation=True)
    assert equivalence.call(context, secure, *arguments) == [b"ab", b"ea"]
    with pytest.raises(
        execution.UnsupportedComputationError, match="federated_secure_select"
    ):
        equivalence.call(equivalence.in_process(), secure, *arguments)


@contextlib.contextmanager
def deep_tracing():
    """TFF's tracing recurses too; the runtime must not need this."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(100_000)
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)


def test_a_chain_of_hundreds_of_maps():
    with deep_tracing():

        @tff.federated_computation(CLIENT_FLOATS)
        def chain(x):
            for _ in range(400):
                x = tff.federated_map(_plus_one, x)
            return tff.federated_sum(x)

    assert equivalence.call(equivalence.in_process(), chain, [1.0, 2.0]) == 803.0


def test_a_chain_of_hundreds_of_calls():
    with deep_tracing():

        @tff.federated_computation(np.float32)
        def chain(x):
            for _ in range(300):
                x = _plus_one(x)
            return x

    limit = sys.getrecursionlimit()
    assert equivalence.call(equivalence.in_process(), chain, 1.0) == 301.0
    assert sys.getrecursionlimit() == limit


def test_simulated_data_behind_a_process():
    client_data = tff.simulation.datasets.TestClientData(
        {
            str(number): (client.x.astype(np.float32), client.y.astype(np.float32))
            for number, client in enumerate(problems.clients((6, 3, 5)))
        }
    )
    batched = client_data.preprocess(lambda data: data.batch(4))
    process = tff.learning.algorithms.build_weighted_fed_avg(
        models.functional_model(), tff.learning.optimizers.build_sgdm(0.1)
    )
    simulated = tff.simulation.compose_dataset_computation_with_learning_process(
        batched.dataset_computation, process
    )
    rounds = [(["0", "2"],), (["1"],), (["2", "1", "0"],)]
    outputs = equivalence.assert_same_rounds(simulated, *rounds, atol=1e-6)
    context = equivalence.in_process()
    state = equivalence.call(context, process.initialize)
    for (ids,) in rounds:
        cohort = [batched.create_tf_dataset_for_client(each) for each in ids]
        state = equivalence.call(context, process.next, state, cohort).state
    np.testing.assert_allclose(
        problems.vector_of(simulated, outputs[-1].state),
        problems.vector_of(process, state),
        rtol=1e-6,
    )


def test_simulated_data_behind_a_computation():
    client_data = tff.simulation.datasets.TestClientData(
        {"a": [0.0, 1.0, 2.0], "b": 5 * [1.0]}
    )

    @tff.tensorflow.computation(tff.SequenceType(np.float32))
    def total(data):
        return data.reduce(0.0, lambda a, b: a + b)

    @tff.federated_computation(
        tff.FederatedType(tff.SequenceType(np.float32), tff.CLIENTS)
    )
    def totals(data):
        each = tff.federated_map(total, data)
        return each, tff.federated_sum(each)

    composed = tff.simulation.compose_dataset_computation_with_computation(
        client_data.dataset_computation, totals
    )
    assert same(composed, ["b", "a", "b"]) == ([5.0, 3.0, 5.0], 13.0)


def test_a_leaf_of_another_framework_is_refused_by_name():
    jax = pytest.importorskip("jax")

    @tff.jax.computation(np.float32)
    def jax_add(x):
        return jax.numpy.add(x, 1)

    @tff.federated_computation(CLIENT_FLOATS)
    def at_clients(x):
        return tff.federated_map(jax_add, x)

    for computation, argument in ((jax_add, 1.0), (at_clients, [1.0])):
        with pytest.raises(execution.UnsupportedComputationError, match="xla"):
            equivalence.call(equivalence.in_process(), computation, argument)


def test_variables_of_tensorflow_1_are_refused_by_name():
    @tff.tensorflow.computation
    def old():
        variable = tf.compat.v1.get_variable("v", [], use_resource=False)
        return variable + 1.0

    with pytest.raises(execution.UnsupportedComputationError, match="VariableV2 'v'"):
        equivalence.call(equivalence.in_process(), old)


def test_the_training_loop_of_tff():
    process = tff.learning.algorithms.build_weighted_fed_avg(
        models.functional_model(), tff.learning.optimizers.build_sgdm(0.1)
    )
    evaluation = tff.learning.algorithms.build_fed_eval(models.functional_model())
    cohorts = models.cohorts((3, 5), (2, 6), (4, 1))

    def evaluate(state, data):
        evaluated = evaluation.set_model_weights(
            evaluation.initialize(), process.get_model_weights(state)
        )
        output = evaluation.next(evaluated, data)
        return output.metrics["client_work"]["eval"]["current_round_metrics"]

    def train():
        return tff.simulation.run_training_process(
            training_process=process,
            training_selection_fn=lambda number: cohorts[number - 1],
            total_rounds=3,
            evaluation_fn=evaluate,
            evaluation_selection_fn=lambda number: cohorts[0],
        )

    # TFF's loop takes the thread's event loop, which `asyncio.run` removes.
    with contextlib.closing(asyncio.new_event_loop()) as event_loop:
        asyncio.set_event_loop(event_loop)
        ours = equivalence.call(equivalence.in_process(), train)
        equivalence.assert_same(ours, train(), atol=1e-6)
    asyncio.set_event_loop(None)
