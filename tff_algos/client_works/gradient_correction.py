"""The gradient nearest to a given one that opposes none of a few rows.

The quadratic program of a local step of GradMA (Luo et al., 2023, arXiv 2302.14307).
"""

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import tensorflow as tf

from tff_algos import xla_marks
from tff_algos.models.local_model import Tensors
from tff_algos.solvers import cone

# Float32 tensors of at least this size are multiplied in float32, as they are if their
# squared norms are at least this.
_LARGE_TENSOR, _LEAST_SQUARE = 1 << 16, 1e-20
# Sums of float32 have at most this many summands.
_SUMMANDS = 128
# Inner products are computed block by block. The same block of four tensors fits into a
# core's cache, so every tensor is read from memory once instead of once per product.
_BLOCK = 1 << 15


class Correction(NamedTuple):
    """The corrected gradient, by tensor, and the programs that were not solved, int32 []."""

    gradients: Tensors
    num_fallbacks: tf.Tensor


def correct(
    gradients: Tensors,
    rows: Sequence[Tensors],
    qp_margin: float,
    qp_scope: cone.QpScope,
) -> Correction:
    """Finds the vector nearest to a gradient that opposes none of up to three rows.

    Args:
      gradients: The gradient, by tensor.
      rows: The rows, by tensor.
      qp_margin: The smallest inner product with a row, divided by both norms.
      qp_scope: Whether tensors are corrected together or each by itself.
    """
    corrected = functools.partial(_correct, qp_margin=qp_margin, qp_scope=qp_scope)
    if any(map(_is_large, gradients)):
        # XLA writes none of the products' summands to memory.
        corrected = xla_marks.compiled_on_cpu(corrected)
    return corrected(gradients, tuple(rows))


def _correct(
    gradients: Tensors,
    rows: Sequence[Tensors],
    qp_margin: float,
    qp_scope: cone.QpScope,
) -> Correction:
    vectors = list(zip(gradients, *rows, strict=True))
    products = [_inner_products(same) for same in vectors]
    dtypes = [gradient.dtype for gradient in gradients]
    if qp_scope == "global":
        widest = max(dtypes, key=lambda dtype: dtype.size)
        solutions = [_solution(tf.add_n(products), qp_margin, widest)]
        used = solutions * len(vectors)
    else:
        used = solutions = [
            _solution(product, qp_margin, dtype)
            for product, dtype in zip(products, dtypes, strict=True)
        ]
    corrected = itertools.starmap(_combined, zip(vectors, used, strict=True))
    failed = [tf.cast(tf.logical_not(each.accepted), tf.int32) for each in solutions]
    return Correction(tuple(corrected), tf.add_n(failed))


def _is_large(tensor: tf.Tensor) -> bool:
    size = tensor.shape.num_elements() or 0
    return tensor.dtype == tf.float32 and size >= _LARGE_TENSOR


def _inner_products(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    """Returns the inner products of tensors of one shape with each other, float64.

    Computed in float64: a rounded Gram matrix need not be positive semidefinite, and the
    corrected steps could be longer than the gradient allows. Large tensors of float32
    are multiplied as they are, and up to 128 products summed; the errors are below
    those of the tensors themselves. Where squares overflow or underflow, tensors are
    divided by their largest element first.
    """
    if not _is_large(tensors[0]):
        return _pairwise(_exact_product, tensors)
    quick = _quick_products(tensors)
    squares = tf.linalg.diag_part(quick)
    held = tf.reduce_all(tf.math.is_finite(squares) & (squares >= _LEAST_SQUARE))
    return tf.cond(held, lambda: quick, lambda: _scaled_products(tensors))


def _scaled_products(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    largest = tf.stack([tf.reduce_max(tf.abs(tensor)) for tensor in tensors])
    scales = tf.where(largest == 0, tf.ones_like(largest), largest)
    scaled = [x / scale for x, scale in zip(tensors, tf.unstack(scales), strict=True)]
    units = tf.cast(scales, tf.float64)
    products = _quick_products(scaled)
    return products * units * units[:, tf.newaxis]


def _pairwise(
    product: Callable[[tf.Tensor, tf.Tensor], tf.Tensor], tensors: Sequence[tf.Tensor]
) -> tf.Tensor:
    """Returns the symmetric matrix of the products of all pairs."""
    products = {}
    for i, j in itertools.combinations_with_replacement(range(len(tensors)), 2):
        products[i, j] = products[j, i] = product(tensors[i], tensors[j])
    size = range(len(tensors))
    return tf.stack([tf.stack([products[i, j] for j in size]) for i in size])


def _exact_product(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(tf.cast(a, tf.float64) * tf.cast(b, tf.float64))


def _quick_products(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    """Returns the inner products, from sums of at most `_SUMMANDS` in float32."""
    flat = [tf.reshape(tensor, [-1]) for tensor in tensors]
    # On a GPU, every block would launch kernels of its own.
    on_cpu = not tf.config.list_physical_devices("GPU")
    size = _BLOCK if on_cpu else flat[0].shape[0] // _SUMMANDS * _SUMMANDS
    count = flat[0].shape[0] // size

    def add(index: tf.Tensor, total: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        block = [tf.slice(tensor, [index * size], [size]) for tensor in flat]
        return index + 1, total + _pairwise(_quick_product, block)

    num_rows = len(tensors)
    zeros = tf.zeros([num_rows, num_rows], tf.float64)
    _, total = tf.while_loop(lambda index, _: index < count, add, (0, zeros))
    rest = [tensor[count * size :] for tensor in flat]
    return total + _pairwise(_exact_product, rest)


def _quick_product(a: tf.Tensor, b: tf.Tensor) -> tf.Tensor:
    sums = tf.reduce_sum(tf.reshape(a * b, [_SUMMANDS, -1]), axis=0)
    return tf.reduce_sum(tf.cast(sums, tf.float64))


def _combined(tensors: Sequence[tf.Tensor], solution: cone.ConeSolution) -> tf.Tensor:
    """Returns a gradient plus multiples of rows, without the rows that are not used."""
    gradient, *rows = tensors
    factors = tf.unstack(tf.cast(solution.multipliers, gradient.dtype), len(rows))
    # Not a plain product: 0 * inf is NaN.
    used = [
        tf.math.multiply_no_nan(row, z) for row, z in zip(rows, factors, strict=True)
    ]
    return tf.add_n([gradient, *used])


def _solution(
    products: tf.Tensor, qp_margin: float, dtype: tf.DType
) -> cone.ConeSolution:
    """Returns the multipliers of the rows, from the inner products.

    Args:
      products: float64 [1 + n, 1 + n], of the gradient (first) and the rows.
      qp_margin: As in `correct`.
      dtype: The dtype that the vectors were computed in.
    """
    # After one full-batch step, the drift is a negative multiple of the server's
    # gradient, up to the rounding of the weights.
    rounding = {} if dtype == tf.float64 else {"tolerance": cone.FLOAT32_TOLERANCE}
    return cone.solve_few(
        products[1:, 1:], products[0, 1:], products[0, 0], qp_margin, **rounding
    )
