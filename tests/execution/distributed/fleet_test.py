"""Workers that are killed, and those that are not like this process."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time
import types

import attrs
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
from absl import logging

from tests.testing import ray_workers
from tests.testing.ended_processes import assert_gone
from tests.testing.plane_processes import points, process
from tff_algos import execution
from tff_algos.execution.distributed import fleet as fleet_lib
from tff_algos.execution.distributed import schedule, worker


def _wait_for_two(fleet, old_pids):
    """Waits until lost workers are replaced."""
    deadline = time.monotonic() + 180
    while time.monotonic() < deadline:
        fleet.wait(1.0)
        pids = {info.pid for info in fleet.infos}
        if len(pids) == 2 and pids != old_pids:
            return pids
    pytest.fail("A lost worker was not replaced.")


def test_nobody_waits_for_ever_for_a_worker():
    alone = types.SimpleNamespace(infos=[], _alone_since=None, _start_seconds=0.0)
    fleet_lib.Fleet._check_alone(alone)
    with pytest.raises(schedule.WorkerLostError, match="no other one started within 0"):
        fleet_lib.Fleet._check_alone(alone)
    alone.infos = ["a worker"]
    fleet_lib.Fleet._check_alone(alone)
    assert alone._alone_since is None


@pytest.mark.parametrize("num_killed", [1, 2])
def test_a_killed_workers_clients_run_elsewhere_with_the_same_bits(
    two_workers, monkeypatch, caplog, num_killed
):
    logging.set_verbosity(logging.WARNING)
    learning = process("two layers", "sgd")
    cohort = [points(3 + k % 5, k).batch(2) for k in range(40)]
    fleet = two_workers._fleet
    before = {info.pid for info in fleet.infos}
    assert len(before) == 2
    submit, killed = fleet.submit, []

    def submit_and_kill(num_units, run):
        call = submit(num_units, run)
        if len(killed) < num_killed:
            killed.append(sorted(before)[len(killed)])
            os.kill(killed[-1], signal.SIGKILL)
        return call

    monkeypatch.setattr(fleet, "submit", submit_and_kill)
    runs = []
    for context in (
        execution.InProcessContext(batch_clients=False),
        ray_workers.sharing(two_workers, batch_clients=False),
    ):
        with tff.framework.get_context_stack().install(context):
            state = learning.initialize()
            runs.append(tf.nest.flatten(learning.next(state, cohort).state))
    for one, other in zip(*runs, strict=True):
        np.testing.assert_array_equal(one, other)
    lost = [r.getMessage() for r in caplog.records if "was lost" in r.getMessage()]
    assert len(lost) == num_killed
    assert all("clients run elsewhere" in each and "\n" not in each for each in lost)
    after = _wait_for_two(fleet, before)
    assert len(after & before) == 2 - num_killed
    for pid in killed:
        assert_gone(pid)


@pytest.mark.parametrize("field", [f.name for f in attrs.fields(worker.Versions)])
def test_a_worker_with_another_version_is_refused_by_name(field):
    own = worker.versions()
    changed = attrs.evolve(own, **{field: "other"})
    info = worker.WorkerInfo(changed, "somewhere", 1, (), "", 1)
    with pytest.raises(
        execution.ClusterError, match=f"somewhere has {field} other, this process has"
    ):
        fleet_lib._check_same(info)
    fleet_lib._check_same(attrs.evolve(info, versions=own))


def test_a_lost_node_and_an_added_one_change_no_bit():
    pytest.importorskip("ray", reason="ray is not installed (requirements-ray.txt)")
    done = subprocess.run(
        [sys.executable, "-m", "tests.testing.ray_nodes"],
        capture_output=True,
        text=True,
        check=False,
        cwd=pathlib.Path(__file__).parents[3],
    )
    told = json.loads(done.stdout.splitlines()[-1])
    # Two nodes with a logical GPU each.
    assert "3 workers with GPU: 1 each need 3, found 2" in told.pop("too many")
    assert "this process has 2.7.18: both must be the same" in told.pop("other version")
    assert told == {
        "nothing left": True,
        "workers": 2,
        "workers after the loss": 1,
        "workers after the addition": 2,
        "same bits": True,
        "nothing left at the end": True,
    }
    assert "was lost" in done.stderr and "clients run elsewhere" in done.stderr
