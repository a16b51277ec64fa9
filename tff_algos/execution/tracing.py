"""TensorFlow functions of lists of tensors, without the costs of `tf.function`."""

import contextlib
import functools
import weakref
from collections.abc import Callable, Iterator, Sequence

import tensorflow as tf
from tensorflow.core.protobuf import config_pb2, rewriter_config_pb2
from tensorflow.python.eager import context as eager_context
from tensorflow.python.framework import func_graph

Function = Callable[..., Sequence[tf.Tensor]]


def concrete_function(
    function: Function, specs: Sequence[tf.TensorSpec]
) -> tf.types.experimental.ConcreteFunction:
    """Traces a function of one tensor per spec; its graph is freed with it."""
    traced = tf.function(function, autograph=False).get_concrete_function(*specs)
    weakref.finalize(traced, _dismantle, traced.graph).atexit = False
    return traced


def _dismantle(graph: func_graph.FuncGraph) -> None:
    """Breaks the reference cycles of a graph whose function was freed.

    Otherwise its constants, which may be a model's weights, would stay alive until the
    garbage collector runs, which is triggered by object counts, not by bytes.
    """
    func_graph.dismantle_func_graph(graph)
    graph.inputs = graph.outputs = graph.structured_outputs = None


def trace(function: Function, specs: Sequence[tf.TensorSpec]) -> Function:
    """Traces a function of tensors.

    Args:
      function: Maps one tensor for each of `specs` to a list of tensors.
      specs: The tensors' specs. Calls do not check them, because the check costs more
        than a small computation.

    Returns:
      The traced function; it must be called with tensors.
    """
    traced = concrete_function(function, specs)

    def call(*tensors: tf.Tensor) -> list[tf.Tensor]:
        with _no_temporary_variables():
            return traced._call_flat(list(tensors), traced.captured_inputs)

    return call


@contextlib.contextmanager
def _no_temporary_variables() -> Iterator[None]:
    """Keeps TensorFlow from accumulating `AddN` in temporary variables.

    TensorFlow's memory optimizer rewrites `AddN` this way if it estimates that tensors
    take much memory. The variables are named by op and step, and all eager calls are
    step 0, so two clients that run concurrently would collide and one would fail.
    """
    options = eager_context.context().function_call_options
    eager_context.context().function_call_options = _without_memory_optimizer(
        options.config_proto_serialized, options.executor_type
    )
    try:
        yield
    finally:
        eager_context.context().function_call_options = options


@functools.lru_cache(maxsize=16)
def _without_memory_optimizer(
    config: bytes, executor_type: str | None
) -> eager_context.FunctionCallOptions:
    changed = config_pb2.ConfigProto.FromString(config)
    rewrites = changed.graph_options.rewrite_options
    rewrites.memory_optimization = rewriter_config_pb2.RewriterConfig.NO_MEM_OPT
    return eager_context.FunctionCallOptions(executor_type, changed)
