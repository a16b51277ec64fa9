"""What a worker tells of itself, and what it keeps between shares."""

import os
import re

import numpy as np
import pytest
import tensorflow as tf

from tff_algos import cpus
from tff_algos.execution import op_threads
from tff_algos.execution.distributed import worker


def test_versions_are_those_of_this_process():
    own = worker.versions()
    assert own == worker.versions()
    assert own.tensorflow == tf.__version__ and own.tff == "0.87.0"
    assert own.numpy == np.__version__
    assert re.fullmatch("[0-9a-f]{12}", own.tff_algos)


@pytest.mark.parametrize("name", ["tasks/origin.py", "tff_algos/clients/batching.py"])
def test_code_that_makes_batches_is_a_part_of_the_version(name, tmp_path, monkeypatch):
    file = tmp_path / "tff_algos" / "execution" / "distributed" / "worker.py"
    (tmp_path / name).parent.mkdir(parents=True)
    monkeypatch.setattr(worker, "__file__", str(file))
    found = []
    for text in ("one = 1", "one = 2"):
        (tmp_path / name).write_text(text)
        found.append(worker.versions().tff_algos)
    assert found[0] != found[1]


def test_a_worker_describes_itself():
    info = worker.Worker(1, op_threads.count()).describe()
    assert info.pid == os.getpid() and info.versions == worker.versions()
    assert info.devices[0].startswith("/device:")
    assert info.processor == worker.processor()
    assert info.processor.endswith(f" {cpus.level_2_cache_bytes()} bytes")
