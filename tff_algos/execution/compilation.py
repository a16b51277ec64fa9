"""Compiles TFF computations to plans, with TFF's own compiler."""

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from typing import Any, TypeVar

import tensorflow_federated as tff
from tensorflow_federated.python.common_libs import structure
from tensorflow_federated.python.core.backends.mapreduce import (
    compiler as mapreduce_compiler,
)
from tensorflow_federated.python.core.backends.test import compiler as test_compiler
from tensorflow_federated.python.core.environments.tensorflow_backend import (
    tensorflow_tree_transformations,
)

from tff_algos.execution import dataflow as dataflow_lib
from tff_algos.execution import plan as plan_lib

_T = TypeVar("_T")

# TFF's compiler recurses along chains of calls. Each level takes a few Python frames,
# which are small, and some C frames, for which the stack needs room.
_RECURSION_LIMIT = 1_000_000
_STACK_BYTES = 512 * 2**20
_recursion_lock = threading.Lock()


def compile_to_plan(
    computation: tff.framework.ConcreteComputation,
    functions: Sequence[tff.framework.ConcreteComputation] = (),
    insecure_aggregation: bool = False,
) -> plan_lib.Plan:
    """Compiles a computation for this runtime.

    Args:
      computation: A computation whose leaves are TensorFlow.
      functions: Its functional arguments, in the order of the parameter's type.
      insecure_aggregation: Computes secure sums and selections in the clear instead of
        rejecting them.

    Returns:
      The plan.

    Raises:
      dataflow.UnsupportedComputationError: If this runtime cannot run a block.
    """

    return _deep(lambda: _compile(computation, functions, insecure_aggregation))


def _compile(
    computation: tff.framework.ConcreteComputation,
    functions: Sequence[tff.framework.ConcreteComputation],
    insecure_aggregation: bool,
) -> plan_lib.Plan:
    # Keep building blocks throughout: deeply nested protos cannot be parsed again.
    block = computation.to_building_block()
    if functions:
        block = _bind(block, functions)
    if insecure_aggregation:
        block, _ = test_compiler._replace_secure_intrinsics_with_insecure_bodies(block)
    block, _ = tensorflow_tree_transformations.replace_intrinsics_with_bodies(block)
    block = tff.framework.to_call_dominant(block)
    block = mapreduce_compiler.compile_local_subcomputations_to_tensorflow(block)
    return plan_lib.build(dataflow_lib.build(block))


def _bind(
    computation: tff.framework.ComputationBuildingBlock,
    functions: Sequence[tff.framework.ConcreteComputation],
) -> tff.framework.ComputationBuildingBlock:
    """Returns the computation with its functional arguments bound.

    Its parameter has empty structures in their place.
    """
    remaining = iter(functions)
    name = "bound_argument"

    def without_functions(type_spec: tff.Type) -> tff.Type:
        if isinstance(type_spec, tff.FunctionType):
            return tff.StructType([])
        if not isinstance(type_spec, tff.StructType):
            return type_spec
        return tff.StructType(
            [
                (key, without_functions(e))
                for key, e in structure.iter_elements(type_spec)
            ]
        )

    def argument(type_spec: tff.Type, source: Any) -> Any:
        if isinstance(type_spec, tff.FunctionType):
            return next(remaining).to_building_block()
        if not isinstance(type_spec, tff.StructType):
            return source
        elements = enumerate(structure.iter_elements(type_spec))
        return tff.framework.Struct(
            [
                (key, argument(e, tff.framework.Selection(source, index=index)))
                for index, (key, e) in elements
            ]
        )

    parameter = computation.type_signature.parameter
    bound = without_functions(parameter)
    reference = tff.framework.Reference(name, bound)
    call = tff.framework.Call(computation, argument(parameter, reference))
    return tff.framework.Lambda(name, bound, call)


def _deep(function: Callable[[], _T]) -> _T:
    """Calls a function that recurses as deeply as its argument is nested.

    The call runs in its own thread, to have a larger stack, and one at a time, because
    the recursion limit applies to the whole interpreter.
    """
    with _recursion_lock, _raised_recursion_limit():
        previous = threading.stack_size(_STACK_BYTES)
        try:
            with futures.ThreadPoolExecutor(1) as thread:
                return thread.submit(function).result()
        finally:
            threading.stack_size(previous)


@contextlib.contextmanager
def _raised_recursion_limit() -> Iterator[None]:
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(max(limit, _RECURSION_LIMIT))
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)
