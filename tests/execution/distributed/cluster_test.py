"""Starting and ending Ray: what is wrong is one line, and nothing is left behind."""

import pathlib
import re
import subprocess
import sys
import types

import pytest

from tff_algos.execution.distributed import cluster

_ROOT = pathlib.Path(__file__).parents[3]


def test_a_missing_package_names_the_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(cluster.ClusterError, match="make setup RAY=1") as error:
        cluster.open_cluster(None, 1, {"CPU": 1})
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("num_workers", "per_worker", "message"),
    [
        (3, {"CPU": 1}, "3 workers with CPU: 1 each need 3, found 2"),
        (1, {"CPU": 1, "GPU": 1}, "1 worker with GPU: 1 each need 1, found 0"),
        (2, {"CPU": 0.5, "big": 2}, "2 workers with big: 2 each need 4, found 3"),
    ],
)
def test_too_few_resources_are_named(num_workers, per_worker, message):
    with pytest.raises(cluster.ClusterError, match=re.escape(message)):
        cluster.fitting(num_workers, per_worker, [{"CPU": 2.0, "big": 3.0}])


def test_as_many_workers_start_as_fit():
    machine = {"CPU": 8.0, "GPU": 3.0}
    assert cluster.fitting(None, {"CPU": 2}, [machine]) == 4
    assert cluster.fitting(None, {"CPU": 2, "GPU": 1}, [machine, machine]) == 6
    assert cluster.fitting(2, {"CPU": 2}, [machine]) == 2
    assert cluster.fitting(None, {"CPU": 0.14}, [{"CPU": 7.0}]) == 50
    with pytest.raises(cluster.ClusterError, match="1 worker with big: 1 each need 1"):
        cluster.fitting(None, {"big": 1}, [machine])


def test_a_worker_fits_on_one_machine():
    machines = [{"CPU": 3.0}, {"CPU": 3.0}, {"memory": 1e9}]
    assert cluster.fitting(None, {"CPU": 2}, machines) == 2
    with pytest.raises(
        cluster.ClusterError,
        match="3 workers with CPU: 2 each do not fit: the machines .* room for 2: ask",
    ):
        cluster.fitting(3, {"CPU": 2}, machines)


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("nowhere", "expected HOST:PORT .*found 'nowhere'"),
        ("ray://head:10001", "expected HOST:PORT"),
        ("127.0.0.1:1", "nothing answers at '127.0.0.1:1' .*ray start --head --port=1"),
        ("127.0.0.1:99999", "nothing answers"),
    ],
)
@pytest.mark.parametrize("is_initialized", [False, True])
def test_an_unreachable_address_is_named(monkeypatch, address, message, is_initialized):
    ray = types.SimpleNamespace(is_initialized=lambda: is_initialized)
    monkeypatch.setitem(sys.modules, "ray", ray)
    with pytest.raises(cluster.ClusterError, match=message) as error:
        cluster.open_cluster(address, 1, {"CPU": 1})
    assert "\n" not in str(error.value)


def test_workers_get_the_environment_that_decides_numbers(monkeypatch):
    monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", "0")
    monkeypatch.setenv("PYTHONPATH", "/other")
    environment = cluster.worker_environment()
    assert environment["TF_ENABLE_ONEDNN_OPTS"] == "0"
    assert environment["PYTHONPATH"] == f"{_ROOT}:/other"


def test_ray_ends_with_its_process():
    pytest.importorskip("ray", reason="ray is not installed (requirements-ray.txt)")
    # More of them: python -m tests.testing.ray_exits 100.
    done = subprocess.run(
        [sys.executable, "-m", "tests.testing.ray_exits", "8"],
        capture_output=True,
        text=True,
        check=False,
        cwd=_ROOT,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    last = done.stdout.splitlines()[-1]
    assert re.fullmatch("8 exits in .*, 0 left something behind.", last)
