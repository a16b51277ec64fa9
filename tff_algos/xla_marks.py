"""A mark on TensorFlow functions that XLA should compile where that is known to pay.

`jit_compile=True` would force every runtime to compile. TFF's own cannot, and XLA
compiles anew for every shape. So a function only carries a mark, which runtimes that do
not know it ignore; the in-process runtime compiles marked functions on CPUs
(`execution.graph_rewrites.compile_marked_functions`).
"""

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import function_pb2

_MARK = "tff_algos.compile_on_cpu"
_ATTRIBUTE = "_implements"


def compiled_on_cpu(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns `function` as a `tf.function` with the mark.

    Args:
      function: A function of tensors and tuples of them, without variables and without
        effects, all ops of which XLA supports. It should get few different shapes.
    """

    @functools.cache
    def flat_function(structure: Any) -> Callable[..., Any]:
        # TensorFlow passes tensors alone to functions with this attribute.
        return tf.function(
            lambda *flat: function(*tf.nest.pack_sequence_as(structure, flat)),
            autograph=False,
            experimental_implements=_MARK,
        )

    def call(*arguments: Any) -> Any:
        structure = tf.nest.map_structure(lambda _: None, arguments)
        return flat_function(structure)(*tf.nest.flatten(arguments))

    return call


def is_marked(function_def: function_pb2.FunctionDef) -> bool:
    """Returns whether a function in a graph has the mark."""
    attributes = function_def.attr
    return _ATTRIBUTE in attributes and attributes[_ATTRIBUTE].s == _MARK.encode()
