"""Programs: planned computations called with Python values."""

import numpy as np
import pytest
import tensorflow_federated as tff

from tests.testing.leaves import CLIENT_FLOATS, double, mean_of_doubles
from tff_algos.execution import (
    client_batches,
    client_passes,
    compilation,
    devices,
    pass_runner,
    program,
    row_memory,
)


def program_of(computation, default_num_clients=2):
    resources = pass_runner.Resources(
        devices=devices.resolve(["CPU:0"]),
        workers=client_passes.Workers(1),
        cache=client_batches.BatchCache(1 << 20),
        row_memory=row_memory.RowMemory(),
        batch_clients=None,
        default_num_clients=default_num_clients,
        max_kept_bytes=1 << 20,
    )
    return program.Program(
        compilation.compile_to_plan(computation), computation.type_signature, resources
    )


def test_a_program_runs_with_any_number_of_clients():
    mean = program_of(mean_of_doubles)
    assert mean.run([1.0, 2.0, 6.0]) == 6.0
    assert mean.run([5.0]) == 10.0


def test_results_are_structs_with_a_list_for_clients():
    @tff.federated_computation(CLIENT_FLOATS)
    def both(x):
        return tff.structure.Struct(
            [("sum", tff.federated_sum(x)), ("doubles", tff.federated_map(double, x))]
        )

    found = program_of(both).run([1.0, 4.0])
    assert found == tff.structure.Struct([("sum", 5.0), ("doubles", [2.0, 8.0])])


def test_without_arguments_there_are_as_many_clients_as_said():
    @tff.tensorflow.computation
    def one():
        return np.int32(1)

    @tff.federated_computation
    def count():
        return tff.federated_sum(tff.federated_eval(one, tff.CLIENTS))

    assert program_of(count, default_num_clients=7).run(None) == 7


def test_a_clients_value_of_another_type_is_named():
    with pytest.raises(TypeError, match="^Client 1 of 2: "):
        program_of(mean_of_doubles).run([1.0, "two"])


def test_functional_arguments_come_in_the_order_of_the_type():
    unary = tff.FunctionType(np.float32, np.float32)
    type_spec = tff.to_type([("f", unary), ("x", np.float32), ("more", [("g", unary)])])
    arg = tff.structure.Struct([("f", "first"), ("x", 1.0), ("more", {"g": "second"})])
    assert program.functional_arguments(arg, type_spec) == ["first", "second"]
    assert program.functional_arguments(None, None) == []
