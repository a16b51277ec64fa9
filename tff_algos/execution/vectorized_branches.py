"""Conversion of branches, of which nearly always all clients take the same one.

TFF's client works end with one: a client whose update has a value that is not finite
sends zeros. `tf.vectorized_map` sorts the clients' tensors by branch and merges the
results, which copies every update twice.
"""

import tensorflow as tf
from tensorflow.python.ops.parallel_for import pfor

from tff_algos.execution import graph_contents

# Longer branches are converted once, not for all clients and again for some.
_MAX_OPS = 100


def _convert_branch(pfor_input: pfor._PforInput) -> list[pfor.WrappedTensor]:
    """Converts a branch; where all clients take the same one, without sorting them."""
    first = pfor_input.inputs[0]
    names = [pfor_input.get_attr(f"{each}_branch").name for each in ("then", "else")]
    # TensorFlow takes numbers and strings, too, for conditions.
    is_usual = first.is_stacked and first.t.dtype == tf.bool and pfor_input.outputs
    if not is_usual or not all(_is_short(pfor_input, name) for name in names):
        return pfor._convert_if(pfor_input)
    outputs = tf.cond(
        tf.reduce_all(first.t),
        lambda: _taken_by_all(pfor_input, names[0]),
        lambda: tf.cond(
            tf.reduce_any(first.t),
            lambda: _sorted(pfor_input),
            lambda: _taken_by_all(pfor_input, names[1]),
        ),
    )
    return [pfor.wrap(output, True) for output in tf.nest.flatten(outputs)]


def _is_short(pfor_input: pfor._PforInput, name: str) -> bool:
    """Returns whether a branch has few ops and calls no functions."""
    ops = pfor_input.op.graph._get_function(name).graph.get_operations()
    calls = (graph_contents.called_functions(op.node_def) for op in ops)
    return len(ops) <= _MAX_OPS and not any(map(any, calls))


def _taken_by_all(pfor_input: pfor._PforInput, name: str) -> list[tf.Tensor]:
    return pfor._outputs_for_branch(name, None, pfor_input, pfor_input.inputs[1:])


def _sorted(pfor_input: pfor._PforInput) -> list[tf.Tensor]:
    return [each.t for each in pfor._convert_if(pfor_input)]


CONVERTERS = {"If": _convert_branch, "StatelessIf": _convert_branch}
