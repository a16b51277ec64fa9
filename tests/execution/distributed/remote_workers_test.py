"""Passes whose units run elsewhere give what they give here."""

import types

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.testing import local_fleet
from tests.testing.plane_processes import points, process
from tff_algos import execution
from tff_algos.execution.distributed import (
    kept_datasets,
    remote_workers,
    shares,
    worker,
)


def _bits(values):
    return [np.asarray(value) for value in tf.nest.flatten(values)]


def _rounds(context, learning, cohorts):
    with tff.framework.get_context_stack().install(context):
        state = learning.initialize()
        for cohort in cohorts:
            output = learning.next(state, cohort)
            state = output.state
    return _bits((output.state, output.metrics))


def test_a_share_whose_worker_is_lost_before_it_is_sent_again_is_lost():
    calls = remote_workers._Calls.__new__(remote_workers._Calls)
    calls._fleet = types.SimpleNamespace(
        wait=lambda _: [(0, worker.Reply((), 0.1, missing=[7]))],
        has_room=lambda: False,
    )
    calls._directory = kept_datasets.Directory()
    calls._running = {0: remote_workers._Call(range(1), 0, 0)}
    assert calls.wait(None) == [(0, None)]


def test_how_long_a_worker_read_is_in_a_units_outputs():
    reply = shares.UnitReply([np.ones(2, np.float32)], [], reading_seconds=2.0)
    outputs = remote_workers._outputs(reply, range(1), None)
    assert outputs.reading_seconds == 2.0
    np.testing.assert_array_equal(outputs.values[0], np.ones(2))


@pytest.fixture(scope="module")
def cohorts():
    return [[points(3 + k % 5, [r, k]).batch(2) for k in range(11)] for r in (0, 1)]


@pytest.fixture(scope="module")
def learning():
    return process("two layers", "momentum")


@pytest.mark.parametrize("batch_clients", [False, True])
def test_neither_the_number_of_workers_nor_losses_change_a_bit(
    learning, cohorts, batch_clients
):
    expected = _rounds(
        execution.InProcessContext(batch_clients=batch_clients), learning, cohorts
    )
    for num_workers, num_lost in ((1, 0), (3, 2)):
        fleet = local_fleet.LocalFleet(num_workers, num_lost)
        context = local_fleet.context(fleet, batch_clients=batch_clients)
        found = _rounds(context, learning, cohorts)
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_array_equal(one, other)
        assert fleet.num_calls >= 2 + num_lost


def test_bytes_are_counted_once_per_worker(learning, cohorts):
    context = local_fleet.context(local_fleet.LocalFleet(2), batch_clients=False)
    _rounds(context, learning, cohorts[:1])
    traffic = context._resources.workers.traffic
    # Weights of 2 x 4, 4 and 4 x 3; to both workers, and from every client, together
    # with its number of examples and its metrics.
    assert traffic.server_bytes == 2 * 4 * 24
    assert traffic.reply_bytes > 11 * 4 * 24
    assert traffic.pass_bytes > 0
    _rounds(context, learning, cohorts[1:])
    later = context._resources.workers.traffic
    assert later.pass_bytes == 0 and later.reply_bytes == traffic.reply_bytes
    assert later.sent_bytes == later.server_bytes + later.client_bytes


def test_sums_at_workers_are_those_of_consecutive_clients(learning, cohorts):
    expected = _rounds(
        execution.InProcessContext(batch_clients=False), learning, cohorts
    )
    found = []
    for num_workers in (1, 3):
        fleet = local_fleet.LocalFleet(num_workers)
        context = local_fleet.context(fleet, clients_per_sum=4, batch_clients=False)
        found.append(_rounds(context, learning, cohorts))
    for one, other, exact in zip(*found, expected, strict=True):
        np.testing.assert_array_equal(one, other)
        np.testing.assert_allclose(one, exact, rtol=1e-6, atol=1e-6)
    assert any((a != b).any() for a, b in zip(found[0], expected, strict=True))
