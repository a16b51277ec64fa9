"""The description of a computation's last call says what ran how, and why."""

import re

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.testing.plane_processes import points, process
from tff_algos import execution
from tff_algos.execution import explanation, pass_runner


def description_of(num_clients, **options):
    learning = process("linear", "sgd")
    with execution.in_process_context(**options) as context:
        cohort = [points(4, seed).batch(2) for seed in range(num_clients)]
        learning.next(learning.initialize(), cohort)
        return context.describe(learning.next)


def test_a_vectorized_pass_shows_its_chunks_and_the_memory_of_a_client():
    text = description_of(5)
    lines = text.splitlines()
    assert re.fullmatch(r"call 1: .* m?s, with the tracing of its functions", lines[0])
    assert re.match(r"1\. server: \d+ leaves on \S*CPU:0, ", lines[1])
    assert re.match(r"2\. clients: 5 clients, .* 3 aggregates on \S*CPU:0", lines[2])
    assert lines[3].strip() == "vectorized: 1 chunk of up to 5 clients"
    assert re.fullmatch(r"reading their data: [\d.]+ ms", lines[4].strip())
    assert re.fullmatch(r"memory of a client: [\d.]+ bytes", lines[5].strip())
    # Two weights and a bias, of float32, of which the sums for the metrics are more.
    assert re.fullmatch(
        r"sent per client: 36 bytes down, 72 bytes up", lines[6].strip()
    )
    assert re.match(r"3\. server: ", lines[7])
    assert lines[8].startswith("argument and result: ")


def test_the_memory_of_a_client_that_runs_alone_is_that_of_its_values():
    # Deltas of two weights and a bias, what is added up for two metrics, and the weight.
    assert "    memory of a client: 72 bytes" in description_of(3)


def test_chunks_are_of_equal_size_and_so_end_together():
    assert "vectorized: 2 chunks of up to 33 clients" in description_of(65)


def test_clients_that_run_one_by_one_do_so_for_a_reason(monkeypatch):
    assert "one by one: fewer than 4 clients" in description_of(3)
    assert "one by one: batch_clients is False" in description_of(
        5, batch_clients=False
    )
    monkeypatch.setattr(pass_runner, "_MAX_CPU_CLIENT_BYTES", 8)
    assert "one by one: above 0 kB per client this is faster" in description_of(5)


def test_an_op_that_cannot_be_vectorized_is_named():
    @tff.tensorflow.computation(np.float32)
    def printed(x):
        with tf.control_dependencies([tf.print(x, output_stream="file:///dev/null")]):
            return tf.identity(x)

    @tff.federated_computation(tff.FederatedType(np.float32, tff.CLIENTS))
    def total(values):
        return tff.federated_sum(tff.federated_map(printed, values))

    with execution.in_process_context() as context:
        total([1.0, 2.0, 3.0, 4.0])
        assert "one by one: PrintV2, which has effects" in context.describe(total)


def test_explain_runs_the_computation_and_prints_its_description(capsys):
    learning = process("linear", "sgd")
    with execution.in_process_context() as context:
        state = learning.initialize()
        cohort = [points(4, seed).batch(2) for seed in range(4)]
        for call in (1, 2):
            execution.explain(learning.next, state, cohort)
            shown = capsys.readouterr().out
            assert shown == context.describe(learning.next) + "\n"
            assert shown.startswith(f"call {call}: ")


def test_explain_describes_what_a_function_calls(capsys):
    increased = tff.tensorflow.computation(lambda x: x + 1)  # Of any type.
    doubled = tff.tensorflow.computation(lambda x: 2 * x, np.float32)
    found = []
    with execution.in_process_context() as context:
        execution.explain(increased, 3.0)
        assert capsys.readouterr().out.startswith("call 1: ")
        execution.explain(lambda x: found.append(doubled(doubled(increased(x)))), 3.0)
        first, second = capsys.readouterr().out.split("\n\n")
        assert found == [16.0]
        assert first.startswith("call 2: ")
        assert second == context.describe(doubled) + "\n"
        assert second.startswith("call 2: ")
        with pytest.raises(TypeError, match="found <class 'dict'>, which ran none"):
            execution.explain(dict)


def test_explain_needs_the_context_and_describe_a_call():
    learning = process("linear", "sgd")
    with (
        execution.in_process_context() as context,
        pytest.raises(ValueError, match="that this context has run"),
    ):
        context.describe(learning.next)
    with (
        execution.native_context(),
        pytest.raises(TypeError, match="found NativeContext: call"),
    ):
        execution.explain(learning.initialize)


def test_the_first_call_is_described_in_the_log_once(monkeypatch):
    said = []
    monkeypatch.setattr(
        "tff_algos.execution.program.logging.debug", lambda *text: said.append(text)
    )
    learning = process("linear", "sgd")
    with execution.in_process_context():
        for _ in range(2):
            learning.initialize()
    assert len([text for *_, text in said if text.startswith("call 1")]) == 1


@pytest.mark.parametrize(
    ("num_bytes", "shown"),
    [(12, "12 bytes"), (31400, "31.4 kB"), (5e6, "5 MB"), (2.5e9, "2.5 GB")],
)
def test_memory_has_units(num_bytes, shown):
    report = explanation.PassReport(1, 1, ["leaf"], ["CPU:0"], "", num_bytes, 1, 0.5)
    assert f"memory of a client: {shown}\n" in str(report)
    assert "1 client, 1 leaf and 1 aggregate on CPU:0, 500.0 ms" in str(report)
