"""Computations made of computations in this process, as on TFF's own runtime."""

import asyncio
import contextlib

import numpy as np
import tensorflow_federated as tff

from tests.testing import equivalence, problems
from tests.testing import learning_models as models

CLIENT_FLOATS = tff.FederatedType(np.float32, tff.CLIENTS)

same = equivalence.assert_same_in_both


@tff.tensorflow.computation(np.float32)
def _plus_one(x):
    return x + 1


@tff.federated_computation(CLIENT_FLOATS)
def _mean(x):
    return tff.federated_mean(x)


def test_computations_may_call_others():
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


def test_tensorflow_may_call_tensorflow():
    @tff.tensorflow.computation(np.float32)
    def twice(x):
        return _plus_one(_plus_one(x)) * 2

    assert same(twice, 1.0) == 6.0


def test_a_process_may_have_simulated_data_behind_it():
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


def test_a_computation_may_have_simulated_data_behind_it():
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


def test_the_training_loop_of_tff_gives_the_same():
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
