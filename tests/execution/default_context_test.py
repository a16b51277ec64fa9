"""Without a call, TFF's default context is the in-process one, made when it is used."""

import subprocess
import sys

import numpy as np
import pytest
import tensorflow_federated as tff

from tff_algos import execution
from tff_algos.execution.default_context import DefaultContext


@tff.tensorflow.computation(np.float32)
def _double(x):
    return 2 * x


def test_it_is_created_once_by_the_first_computation():
    context = DefaultContext()
    assert context._created is None
    with tff.framework.get_context_stack().install(context):
        assert [_double(1.0), _double(4.0)] == [2.0, 8.0]
        made = context.created()
        assert isinstance(made, execution.InProcessContext)
        assert context.created() is made


def test_what_ran_in_it_can_be_explained(capsys):
    with tff.framework.get_context_stack().install(DefaultContext()):
        execution.explain(_double, 3.0)
    assert "server" in capsys.readouterr().out


_SHOW = """
stack = tff.framework.get_context_stack()
print(type(stack.current).__name__)
print(tff.tensorflow.computation(lambda: 1 + 1)())
import psutil
children = psutil.Process().children()
print(len(children))
for child in children:  # TFF would wait for a worker that ignores SIGINT.
    child.kill()
"""


@pytest.mark.parametrize(
    ("first", "expected"),
    [
        (
            "import tff_algos\nimport tensorflow_federated as tff",
            ["DefaultContext", "2", "0"],
        ),
        (
            "import tff_algos.execution\nimport tensorflow_federated as tff",
            ["DefaultContext", "2", "0"],
        ),
        (
            (
                "import tff_algos\nimport tensorflow_federated as tff\n"
                "tff.backends.native.set_sync_local_cpp_execution_context()"
            ),
            ["SyncExecutionContext", "2", "1"],
        ),
    ],
)
def test_it_is_the_default_unless_the_program_sets_another(first, expected):
    finished = subprocess.run(
        [sys.executable, "-c", first + _SHOW],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": "/usr/bin:/bin"},
    )
    assert finished.stdout.split() == expected, finished.stderr
    if expected[0] == "DefaultContext":
        assert finished.stderr == ""
