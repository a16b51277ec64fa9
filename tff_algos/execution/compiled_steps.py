"""Vectorized steps that XLA compiles for the shapes that recur.

A step of a small model is hundreds of ops, each of which a GPU starts separately. XLA
fuses them into a few, but takes seconds for every new combination of shapes.
"""

import collections
from collections.abc import Mapping, Sequence

import tensorflow as tf
from absl import logging
from tensorflow.core.framework.node_def_pb2 import NodeDef

from tff_algos import messages
from tff_algos.execution import assertions, graph_contents, tracing
from tff_algos.execution.graph_contents import GraphDef
from tff_algos.execution.lazy import Lazy

# Steps without XLA before the first combination of shapes is compiled; for each further
# one, this many times as many, so that sizes of clients' last batches rarely are.
_STEPS_BEFORE, _GROWTH = 16, 4
_MAX_COUNTED = 1024
# All begin with "Stateless", as branches and loops do.
_SEEDED = ("Random", "TruncatedNormal", "Multinomial", "Parameterized", "Shuffle")


class CompiledStep:
    """A function that runs by XLA for the shapes that recur.

    Attributes:
      obstacle: Why XLA compiles nothing; empty if it may.
    """

    def __init__(
        self,
        function: tracing.Function,
        specs: Sequence[tf.TensorSpec],
        device: str,
        obstacle: str,
    ):
        """Traces the function without XLA.

        Args:
          function: Maps one tensor for each of `specs` to a list of tensors.
          specs: The tensors' specs.
          device: The device to run on.
          obstacle: Why XLA must not compile it; may be empty.
        """
        self.obstacle = obstacle
        self._device = device
        self._plain = tracing.trace(function, specs)
        self._compiled = Lazy(lambda: tracing.trace(function, specs, jit_compile=True))
        self._steps = collections.Counter()
        self._compiled_shapes = set()

    @property
    def num_compiled(self) -> int:
        """For how many combinations of shapes XLA has compiled the function."""
        return len(self._compiled_shapes)

    def __call__(self, *tensors: tf.Tensor) -> Sequence[tf.Tensor]:
        """Runs the function.

        Raises:
          tf.errors.OpError: If it fails also without XLA.
        """
        if not self.obstacle and self._recur(tensors):
            try:
                with tf.device(self._device):
                    return self._compiled()(*tensors)
            except tf.errors.OpError as error:
                self.obstacle = messages.shortened(str(error).splitlines()[0], 200)
                logging.info("XLA does not compile a step: %s", self.obstacle)
        return self._plain(*tensors)

    def _recur(self, tensors: Sequence[tf.Tensor]) -> bool:
        """Counts a step, and returns whether to run it by XLA."""
        shapes = tuple(tensor._shape_tuple() for tensor in tensors)
        if shapes in self._compiled_shapes:
            return True
        if len(self._steps) < _MAX_COUNTED:
            self._steps[shapes] += 1
        if self._steps[shapes] <= _STEPS_BEFORE * _GROWTH**self.num_compiled:
            return False
        self._compiled_shapes.add(shapes)
        return True


def obstacle(graph_def: GraphDef) -> str:
    """Returns why XLA must not compile a graph; empty if it may.

    XLA would skip assertions, and draw other numbers from the same seeds. Assertions
    about shapes do not matter: the first steps with a shape run without XLA.
    """
    nodes = {node.name: node for node in graph_def.node}
    of_shapes = [
        node
        for node in graph_def.node
        if node.op == "Assert" and _depends_on_shapes(node.input[0], nodes)
    ]
    for node in graph_contents.all_nodes(graph_def):
        if node.op in assertions.OPS and node not in of_shapes:
            return f"XLA would skip an assertion ({node.op})"
        if node.op.startswith(tuple(f"Stateless{kind}" for kind in _SEEDED)):
            return f"XLA would draw other random numbers ({node.op})"
    return ""


def _depends_on_shapes(tensor: str, nodes: Mapping[str, NodeDef]) -> bool:
    """Returns whether a tensor is a function of only shapes and constants."""
    node = nodes[graph_contents.node_name(tensor)]
    if node.op in ("Shape", "ShapeN", "Size", "Rank", "Const"):
        return True
    return bool(node.input) and all(
        _depends_on_shapes(each, nodes) for each in node.input
    )
