"""The in-process context in programs of their own: devices, forks, memory."""

import os
import pathlib
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.testing import learning_models as models
from tff_algos import execution

_ROOT = pathlib.Path(__file__).parents[2]

_HEAD = """
import os
from tff_algos import execution
import numpy as np, tensorflow as tf, tensorflow_federated as tff

cpu, = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(
    cpu, [tf.config.LogicalDeviceConfiguration()] * 4
)

@tff.tensorflow.computation(np.float32)
def double(x):
    return 2 * x

@tff.federated_computation(tff.FederatedType(np.float32, tff.CLIENTS))
def mean_of_doubles(x):
    return tff.federated_mean(tff.federated_map(double, x))
"""


def run(body: str, **environment: str) -> subprocess.CompletedProcess:
    done = subprocess.run(
        [sys.executable, "-c", _HEAD + textwrap.dedent(body)],
        capture_output=True,
        text=True,
        timeout=200,
        cwd=_ROOT,
        check=False,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stderr
    return done


def test_clients_take_turns_on_devices_and_results_are_the_same():
    out = run(
        """
        from tests.testing import learning_models as models
        from tff_algos.execution import graph_functions
        process = tff.learning.algorithms.build_weighted_fed_avg(
            models.functional_model(), tff.learning.optimizers.build_sgdm(0.1)
        )
        cohorts = models.cohorts((6, 3, 9, 1, 0, 4, 7), (2, 5, 5))

        def train():
            state = process.initialize()
            for cohort in cohorts:
                output = process.next(state, cohort)
                state = output.state
            return tf.nest.flatten(output)

        for batch_clients in (True, False):
            results = []
            for devices in (["CPU:0"], ["CPU:2", "CPU:1"], ["CPU:2", "CPU:1", "CPU:3"]):
                with execution.in_process_context(
                    runtime_devices=devices, batch_clients=batch_clients
                ):
                    results.append(train())
            for other in results[1:]:
                for one, two in zip(results[0], other, strict=True):
                    np.testing.assert_array_equal(one, two)
        print("equal")
        """
    ).stdout
    assert out.split() == ["equal"]


def test_ops_with_seeds_of_their_own_draw_the_same_on_several_devices():
    out = run(
        """
        @tff.tensorflow.computation(np.float32)
        def draw(_):
            return tf.random.uniform([], seed=7)

        draws = tff.federated_computation(
            lambda values: tff.federated_map(draw, values),
            tff.FederatedType(np.float32, tff.CLIENTS),
        )
        drawn = []
        for devices in (["CPU:0"], ["CPU:2", "CPU:1"]):
            with execution.in_process_context(runtime_devices=devices):
                drawn.append(draws([0.0] * 8))
        print(drawn[0] == drawn[1], len(set(drawn[0])))
        """
    ).stdout
    assert out.split() == ["True", "8"]


def test_ops_run_where_they_were_told_to():
    done = run(
        """
        tf.debugging.set_log_device_placement(True)
        with execution.in_process_context(runtime_devices=["CPU:3", "CPU:1"], batch_clients=False):
            assert mean_of_doubles([1.0, 2.0, 3.0]) == 4.0
        """,
        TF_CPP_MIN_LOG_LEVEL="0",
    )
    placed = [line for line in done.stderr.splitlines() if ": (Mul): " in line]
    assert {line[-5:] for line in placed} == {"CPU:1", "CPU:3"}


def test_an_unknown_device_is_one_line_and_no_other_process_is_needed():
    out = run(
        """
        import psutil
        try:
            execution.set_in_process_context(runtime_devices=["CPU:4"])
        except execution.UnknownDeviceError as error:
            print(error)
        execution.set_in_process_context()
        print(mean_of_doubles([1.0, 2.0]), psutil.Process().children())
        """
    ).stdout
    assert out.splitlines() == [
        "Expected runtime_devices out of CPU:0, CPU:1, CPU:2, CPU:3, found 'CPU:4'.",
        "3.0 []",
    ]


def test_a_forked_child_is_told_and_the_parent_goes_on():
    out = run(
        """
        context = execution.set_in_process_context()
        print(mean_of_doubles([1.0, 2.0]), flush=True)
        child = os.fork()
        if child == 0:
            try:
                mean_of_doubles([1.0, 2.0])
            except RuntimeError as error:
                print(error, flush=True)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        print(mean_of_doubles([3.0]), flush=True)
        """
    ).stdout
    first, error, last = out.splitlines()
    assert (first, last) == ("3.0", "6.0")
    assert "forked" in error
    assert "spawn" in error


def resident_mb() -> float:
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


needs_proc = pytest.mark.skipif(
    not pathlib.Path("/proc/self/statm").exists(), reason="no /proc"
)


@needs_proc
def test_thousands_of_clients_do_not_need_more_memory_than_their_data():
    size = 20_000

    @tff.tensorflow.computation(tff.SequenceType(np.int64))
    def long_vector(data):
        return data.reduce(
            tf.zeros([size]), lambda total, x: total + tf.cast(x, tf.float32)
        )

    @tff.federated_computation(
        tff.FederatedType(tff.SequenceType(np.int64), tff.CLIENTS)
    )
    def mean(data):
        return tff.federated_mean(tff.federated_map(long_vector, data))

    with execution.in_process_context(num_threads=2):
        mean([tf.data.Dataset.range(2)] * 100)
        before = resident_mb()
        result = mean([tf.data.Dataset.range(3)] * 3000)
        grown = resident_mb() - before
    np.testing.assert_array_equal(result, np.full([size], 3.0))
    # All clients' vectors at once would take 240 MB.
    print(f"3,000 clients: {grown:.0f} MB more")
    assert grown < 100


@needs_proc
@pytest.mark.slow
def test_hundreds_of_rounds_do_not_need_more_and_more_memory():
    process = tff.learning.algorithms.build_weighted_fed_avg(
        models.functional_model(), tff.learning.optimizers.build_sgdm(0.01)
    )
    seen = []

    def train():
        state = process.initialize()
        for number in range(500):
            (cohort,) = models.cohorts((6, 3, 9, 5, 7))
            state = process.next(state, cohort).state
            if number % 100 == 99:
                seen.append(resident_mb())

    with execution.in_process_context():
        train()
    print("MB after every 100 rounds:", *(f"{mb:.0f}" for mb in seen))
    assert seen[-1] - seen[0] < 60
