"""The number of threads within an op."""

import os
import subprocess
import sys

import pytest
import tensorflow as tf

from tff_algos import execution
from tff_algos.execution import op_threads


def test_it_is_the_number_that_tensorflow_uses(monkeypatch):
    monkeypatch.delenv("TF_NUM_INTRAOP_THREADS", raising=False)
    assert op_threads.count() == len(os.sched_getaffinity(0))
    monkeypatch.setenv("TF_NUM_INTRAOP_THREADS", "3")
    assert op_threads.count() == 3


def test_the_context_sets_it_before_tensorflow_runs():
    program = """
import tff_algos
from tff_algos import execution
from tff_algos.execution import op_threads
execution.set_in_process_context(intra_op_threads=5)
print(op_threads.count())
"""
    environment = {n: v for n, v in os.environ.items() if n != "TF_NUM_INTRAOP_THREADS"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        check=False,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.stdout == "5\n", done.stderr


def test_once_tensorflow_runs_it_says_what_to_do():
    tf.constant(0)  # TensorFlow runs from here on.
    found = op_threads.count() + 1
    with pytest.raises(RuntimeError, match=f"TF_NUM_INTRAOP_THREADS={found}"):
        execution.InProcessContext(intra_op_threads=found)
    execution.InProcessContext(intra_op_threads=op_threads.count())


def test_less_than_one_is_refused():
    with pytest.raises(ValueError, match="intra_op_threads of at least 1, found 0"):
        execution.InProcessContext(intra_op_threads=0)
