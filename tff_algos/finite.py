"""Checks for finite tensors, norms, and zeroing of excluded tensors."""

from typing import Any

import tensorflow as tf


def all_finite(tensors: Any) -> tf.Tensor:
    """Returns whether no tensor of a structure has NaN or infinity, bool []."""
    floats = [t for t in tf.nest.flatten(tensors) if t.dtype.is_floating]
    finite = [tf.reduce_all(tf.math.is_finite(t)) for t in floats]
    return tf.reduce_all([tf.constant(True), *finite])


def global_norm(tensors: Any) -> tf.Tensor:
    """Returns the L2 norm of all tensors of a structure.

    It is float32 at least, because squares soon overflow in half precision; float64 if
    dtypes are mixed.
    """
    flat = [at_least_float32(tensor) for tensor in tf.nest.flatten(tensors)]
    if len({tensor.dtype for tensor in flat}) > 1:
        flat = [tf.cast(tensor, tf.float64) for tensor in flat]
    return tf.linalg.global_norm(flat)


def at_least_float32(tensor: tf.Tensor) -> tf.Tensor:
    """Returns a tensor of half precision as float32, others unchanged."""
    return tf.cast(tensor, tf.float32) if is_half_precision(tensor.dtype) else tensor


def is_half_precision(dtype: tf.DType) -> bool:
    """Returns whether a dtype is floating point with fewer bits than float32."""
    return dtype.is_floating and dtype.size < tf.float32.size


def zero_unless(keep: tf.Tensor, tensors: Any) -> Any:
    """Returns `tensors` if `keep` (bool []), else zeros of the same structure."""

    def kept(tensor: tf.Tensor) -> tf.Tensor:
        if tensor.dtype.is_floating:
            # tf.where takes longer because it needs a tensor of zeros.
            return tf.math.multiply_no_nan(tensor, tf.cast(keep, tensor.dtype))
        return tf.where(keep, tensor, tf.zeros_like(tensor))

    return tf.nest.map_structure(kept, tensors)
