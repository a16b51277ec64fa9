"""FedShare: FedAvg where nothing is shared; what shared examples weigh."""

import numpy as np
import pytest
import tensorflow_federated as tff

import tff_algos
from tests.testing import problems
from tests.testing.linear_processes import CLIENTS, assert_close, cohort, model
from tests.testing.local_steps import (
    BATCH,
    RATE,
    SIZES,
    assert_exact,
    data_of,
    run,
    stage_of,
    task,
    trained,
)
from tff_algos.experiments import catalog, cohorts
from tff_algos.hyperparameters import HyperparameterError

SGD = tff.learning.optimizers.build_sgdm
START = problems.initial_vector()


def test_fedshare_with_nothing_to_share_is_fedavg_to_the_bit():
    examples = {str(k): (c.x, c.y) for k, c in enumerate(CLIENTS)}
    nothing = (np.zeros((0, problems.NUM_FEATURES)), np.zeros(0))
    for mode in ("full", "split"):
        united = tff_algos.with_shared_examples(
            examples.get, tuple(examples), nothing, mode
        )
        shared = [problems.Client(*united(k)).batches(2, 2) for k in examples]
        left, _ = problems.run(
            tff_algos.build_fed_share(model(), SGD(0.1)), shared, shared
        )
        data = cohort(epochs=2)
        right, _ = problems.run(tff_algos.build_fed_avg(model(), SGD(0.1)), data, data)
        np.testing.assert_array_equal(left, right)


def test_fedshare_of_a_clients_own_full_batch_is_fedavg():
    client = CLIENTS[0]
    united = tff_algos.with_shared_examples(
        lambda _: (client.x, client.y), ["0"], (client.x, client.y)
    )
    twice = problems.Client(*united("0"))
    assert len(twice.y) == 2 * len(client.y)
    left, _ = problems.run(
        tff_algos.build_fed_share(model(), SGD(0.1)), [twice.batches()]
    )
    right, _ = problems.run(
        tff_algos.build_fed_avg(model(), SGD(0.1)), [client.batches()]
    )
    assert_close(left, right, rtol=1e-12, atol=1e-14)


def _data_of_stage(epochs, **chosen):
    """A stage that shares as many examples as half of all, its data, and their numbers."""
    stage = stage_of(
        "fedshare",
        client_steps_per_round=None,
        client_epochs_per_round=epochs,
        shared_fraction=0.5,
        **chosen,
    )
    data, read = data_of(stage)
    num_shared = [
        sum(len(y) for _, y in read[k]["examples"]) // epochs - n
        for k, n in enumerate(SIZES)
    ]
    return stage, data, read, num_shared


@pytest.mark.parametrize("count_shared", [True, False])
def test_shared_examples_count_in_fedshares_weights_or_not(count_shared):
    stage, data, read, num_shared = _data_of_stage(2, count_shared=count_shared)
    assert min(num_shared) > 0
    ends = [trained(START, read[k]["examples"]) for k in range(3)]
    counted = num_shared if count_shared else [0] * 3
    weights = [own + shared for own, shared in zip(SIZES, counted, strict=True)]
    assert_exact(run(stage, data), np.average(ends, axis=0, weights=weights))


def test_shared_examples_are_split_among_clients_or_everyones():
    *_, everyones = _data_of_stage(1, share_mode="full")
    *_, split = _data_of_stage(1, share_mode="split")
    assert set(everyones) == {sum(split)} and sum(split) > 3
    assert max(split) - min(split) <= 1


def test_a_warm_start_is_the_servers_training_on_the_shared_set():
    chosen = {"total_rounds": 5, "clients_per_round": 3, "client_batch_size": BATCH}
    chosen |= {"client_learning_rate": RATE, "shared_fraction": 0.5}
    warm_start, rest = _stages(warm_start_rounds=2, **chosen)
    assert (warm_start.num_rounds, rest.num_rounds) == (2, 3)
    (alone,) = _stages(**chosen)
    assert alone.num_rounds == 5

    state, expected = warm_start.process.initialize(), START
    for round_num in (1, 2):
        (data,) = cohorts.cohort_datasets(warm_start, task(), 0, round_num)
        batches = list(data.as_numpy_iterator())
        # Each example of the shared set once.
        np.testing.assert_array_equal(
            np.sort(np.concatenate([y for _, y in batches])),
            np.sort(warm_start.pooled_examples[1]),
        )
        expected = trained(expected, batches)
        state = warm_start.process.next(state, [data]).state
    assert_exact(problems.vector_of(warm_start.process, state), expected)


def _stages(**chosen):
    recipe = catalog.get("fedshare")
    return recipe.stages(task(), recipe.resolve("linear", {}, chosen))


def test_a_warm_start_takes_no_more_than_all_rounds():
    _stages(warm_start_rounds=5, total_rounds=5)
    with pytest.raises(
        HyperparameterError, match="warm_start_rounds=6 .*at most --total_rounds=5"
    ):
        _stages(warm_start_rounds=6, total_rounds=5)


def test_shared_examples_cannot_be_left_out_of_weights_that_do_not_count():
    with pytest.raises(HyperparameterError, match="count_shared=False.*num_examples"):
        stage_of("fedshare", count_shared=False, client_weighting="uniform")
