"""What a worker tells of itself, and what it keeps between shares."""

import os
import re

import tensorflow as tf

from tff_algos.execution.distributed import worker


def test_versions_are_those_of_this_process():
    own = worker.versions()
    assert own == worker.versions()
    assert own.tensorflow == tf.__version__ and own.tff == "0.87.0"
    assert re.fullmatch("[0-9a-f]{12}", own.tff_algos)


def test_threads_within_an_op_are_those_that_tensorflow_uses(monkeypatch):
    monkeypatch.delenv("TF_NUM_INTRAOP_THREADS", raising=False)
    assert worker.intra_op_threads() == len(os.sched_getaffinity(0))
    monkeypatch.setenv("TF_NUM_INTRAOP_THREADS", "3")
    assert worker.intra_op_threads() == 3


def test_a_worker_describes_itself():
    info = worker.Worker(1, worker.intra_op_threads()).describe()
    assert info.pid == os.getpid() and info.versions == worker.versions()
    assert info.devices[0].startswith("/device:")
    assert info.processor == worker.processor() != ""
