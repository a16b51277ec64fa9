"""What a worker tells of itself, and what it keeps between shares."""

import os
import re

import tensorflow as tf

from tff_algos import cpus
from tff_algos.execution import op_threads
from tff_algos.execution.distributed import worker


def test_versions_are_those_of_this_process():
    own = worker.versions()
    assert own == worker.versions()
    assert own.tensorflow == tf.__version__ and own.tff == "0.87.0"
    assert re.fullmatch("[0-9a-f]{12}", own.tff_algos)


def test_a_worker_describes_itself():
    info = worker.Worker(1, op_threads.count()).describe()
    assert info.pid == os.getpid() and info.versions == worker.versions()
    assert info.devices[0].startswith("/device:")
    assert info.processor == worker.processor()
    assert info.processor.endswith(f" {cpus.level_2_cache_bytes()} bytes")
