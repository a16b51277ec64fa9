"""Vectorized loops and lists of tensors, as recurrent layers have them.

`tf.vectorized_map` prepares every loop for clients that leave it at different times: it
adds a branch to each iteration and an array for each variable. Recurrent layers run the
same number of iterations for all clients, so their loops need neither. It also forgets
the shape of a list's elements if any dimension is unknown, as the batch size of Keras'
layers is, and knows no zeros of lists. It repeats what all clients share by `tf.tile`,
which takes twice as long as `tf.broadcast_to`.
"""

import contextlib
import threading
from collections.abc import Iterator, Sequence

import tensorflow as tf
from tensorflow.python.ops import handle_data_util
from tensorflow.python.ops.parallel_for import pfor

from tff_algos.execution import graph_contents, vectorized_branches, vectorized_ops

_REGISTRY_LOCK = threading.RLock()
_ELEMENT_SHAPE_OF_ALL = pfor._stack_tensor_list_shape
_REPEATED = pfor._stack


@contextlib.contextmanager
def converted() -> Iterator[None]:
    """Makes `tf.vectorized_map` convert as this and the other `vectorized_` modules."""
    registry = pfor._pfor_converter_registry
    with _REGISTRY_LOCK:
        before = {op: registry[op] for op in _CONVERTERS if op in registry}
        registry.update(_CONVERTERS)
        pfor._stack_tensor_list_shape = _element_shape_of_all
        pfor._stack = _repeated
        # It would keep the graphs of all traces.
        flattened = pfor._channel_flatten_input_cache
        pfor._channel_flatten_input_cache = {}
        try:
            yield
        finally:
            for op in _CONVERTERS.keys() - before.keys():
                del registry[op]
            registry.update(before)
            pfor._stack_tensor_list_shape = _ELEMENT_SHAPE_OF_ALL
            pfor._stack = _REPEATED
            pfor._channel_flatten_input_cache = flattened


def _convert_loop(pfor_input: pfor._PforInput) -> list[pfor.WrappedTensor]:
    """Converts a loop; the general way if clients may leave it at different times."""
    loop = _Loop(pfor_input)
    while True:
        function = tf.function(loop.run, autograph=False)
        function.get_concrete_function()
        if loop.condition_differs:
            return pfor.WhileV2(pfor_input)()
        if not loop.to_stack:
            break
        # Variables that are the same for all clients at first, but not later.
        pfor_input.stack_inputs(stack_indices=loop.to_stack, tile_variants=True)
    outputs = function()
    return [
        pfor.wrap(output, is_stacked)
        for output, is_stacked in zip(outputs, loop.stacked, strict=True)
    ]


class _Loop(pfor.WhileV2):
    """A vectorized loop whose iterations all clients run.

    Attributes:
      condition_differs: Whether the condition, as last traced, differs between clients.
      to_stack: Positions of variables that differ after an iteration, not before.
    """

    def __init__(self, pfor_input: pfor._PforInput):
        super().__init__(pfor_input)
        self.condition_differs = False
        self.to_stack: list[int] = []

    @property
    def stacked(self) -> list[bool]:
        """Whether each variable has an axis of clients."""
        return [each.is_stacked for each in self._pfor_input.inputs]

    def run(self) -> Sequence[tf.Tensor]:
        """Adds the loop to the current graph."""
        return tf.while_loop(
            self._condition,
            self._body,
            [each.t for each in self._pfor_input.inputs],
            shape_invariants=self._output_shapes(),
            parallel_iterations=self._parallel_iterations,
        )

    def _condition(self, *variables: tf.Tensor) -> tf.Tensor:
        (condition,) = self._call(self._cond_func, variables)
        self.condition_differs = condition.is_stacked
        return tf.reduce_any(condition.t)

    def _body(self, *variables: tf.Tensor) -> list[tf.Tensor]:
        outputs = self._call(self._body_func, variables)
        pairs = list(zip(outputs, self.stacked, strict=True))
        self.to_stack = [
            n for n, (out, own) in enumerate(pairs) if out.is_stacked > own
        ]
        if self.condition_differs or self.to_stack:
            return list(variables)  # To be traced again.
        results = [self._as_before(*pair) for pair in pairs]
        for result, shape in zip(results, self._output_shapes(), strict=True):
            result.set_shape(shape)
        return results

    def _as_before(self, output: pfor.WrappedTensor, is_stacked: bool) -> tf.Tensor:
        if output.is_stacked == is_stacked:
            return output.t
        return pfor._stack(output.t, self._pfor.loop_len_vector).t

    def _call(
        self,
        function: tf.types.experimental.ConcreteFunction,
        variables: Sequence[tf.Tensor],
    ) -> list[pfor.WrappedTensor]:
        """Calls a vectorized function of the loop's variables."""
        converter = pfor.PFor(
            loop_var=self._pfor.loop_var,
            loop_len=self._pfor.loop_len_vector[0],
            pfor_ops=function.graph.get_operations(),
            fallback_to_while_loop=self._pfor.fallback_to_while_loop,
            all_indices=self._pfor.all_indices,
            all_indices_partitioned=self._pfor.all_indices_partitioned,
            pfor_config=self._pfor.pfor_config,
        )
        wrapped = [
            pfor.wrap(tensor, is_stacked)
            for tensor, is_stacked in zip(variables, self.stacked, strict=True)
        ]
        return pfor._convert_function_call(function, converter, wrapped)


def _convert_zeros_like(pfor_input: pfor._PforInput) -> pfor.WrappedTensor:
    """Converts zeros, also in the form of a list, to which gradients are added."""
    tensor = pfor_input.stacked_input(0)
    if tensor.dtype != tf.variant:
        return pfor._convert_zeros_like(pfor_input)
    zeros = tf.raw_ops.ZerosLike(x=tensor)
    handle_data_util.copy_handle_data(tensor, zeros)
    return pfor.wrap(zeros)


def _repeated(tensor: tf.Tensor, num_clients: tf.Tensor) -> pfor.WrappedTensor:
    """Repeats a tensor for each client."""
    if tensor.dtype == tf.variant:
        return _REPEATED(tensor, num_clients)
    count = tf.reshape(tf.cast(num_clients, tf.int32), [1])
    shape = tf.concat([count, tf.shape(tensor)], axis=0)
    return pfor.wrap(tf.broadcast_to(tensor, shape))


def _element_shape_of_all(shape: tf.Tensor, num_clients: tf.Tensor) -> tf.Tensor:
    """Returns the shape of the elements of a list with all clients.

    Args:
      shape: The shape of one client's elements; a scalar -1 if it is unknown.
      num_clients: int32 [1].
    """
    unknown = tf.constant(-1, shape.dtype)

    def with_clients() -> tf.Tensor:
        dimensions = tf.reshape(shape, [-1])
        return tf.concat([tf.cast(num_clients, shape.dtype), dimensions], axis=0)

    match shape.shape.rank:
        case 0:
            return unknown
        case None:
            return tf.cond(tf.equal(tf.rank(shape), 0), lambda: unknown, with_clients)
    return with_clients()


def _convert_element_shape(pfor_input: pfor._PforInput) -> pfor.WrappedTensor:
    """Converts the shape of a list's elements; a scalar -1 if it is unknown."""
    of_all = tf.raw_ops.TensorListElementShape(
        input_handle=pfor._untile_variant(pfor_input.stacked_input(0)),
        shape_type=pfor_input.get_attr("shape_type"),
    )
    is_unknown = tf.equal(tf.rank(of_all), 0)
    shape = tf.cond(is_unknown, lambda: of_all, lambda: tf.reshape(of_all, [-1])[1:])
    return pfor.wrap(shape, False)


_CONVERTERS = {
    **vectorized_branches.CONVERTERS,
    **vectorized_ops.CONVERTERS,
    "TensorListElementShape": _convert_element_shape,
    **dict.fromkeys(graph_contents.LOOPS, _convert_loop),
    "ZerosLike": _convert_zeros_like,
}
