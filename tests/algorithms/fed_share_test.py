"""FedShare: FedAvg where nothing is shared; what shared examples weigh."""

import numpy as np
import pytest
import tensorflow_federated as tff

import tff_algos
from tests.testing import problems
from tests.testing.linear_processes import CLIENTS, assert_close, cohort, model
from tests.testing.local_steps import (
    SIZES,
    assert_exact,
    data_of,
    run,
    stage_of,
    trained,
)
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


def test_shared_examples_cannot_be_left_out_of_weights_that_do_not_count():
    with pytest.raises(HyperparameterError, match="count_shared=False.*num_examples"):
        stage_of("fedshare", count_shared=False, client_weighting="uniform")
