"""Sums whose values clients send in fewer bytes, at the price of some accuracy.

They take the place of the sum in a mean, in TFF's code or this package's:

    tff.learning.algorithms.build_weighted_fed_avg(
        model_fn,
        tff.learning.optimizers.build_sgdm(0.1),
        model_aggregator=tff.aggregators.MeanFactory(
            tff_algos.aggregators.build_quantized_sum(bits=8)
        ),
    )

`tff_algos.execution.measured_communication` tells what they save.
"""

import collections
import math
from collections.abc import Sequence
from typing import Annotated

import tensorflow as tf
import tensorflow_federated as tff
from tensorflow_model_optimization.python.core.internal import tensor_encoding

from tff_algos.aggregators.exclude_non_finite import check_floating_point
from tff_algos.hyperparameters import checked, hparam

_LEAST_SIZE = 1000


@checked
def build_quantized_sum(
    bits: Annotated[int, hparam(low=1, high=16)] = 8,
    *,
    rotate: Annotated[bool, hparam()] = False,
    least_size: Annotated[int, hparam(low=0)] = _LEAST_SIZE,
) -> tff.aggregators.EncodedSumFactory:
    """Builds a sum of values that clients round to `bits` bits per number.

    The numbers of a tensor are rounded to 2^bits levels between its least and its
    largest, up or down at random, so that their expectation is exact. With `rotate`,
    they are first multiplied by a random rotation (Hadamard's), which narrows the range
    of tensors in which a few numbers are large. Suresh, Yu, Kumar, McMahan: "Distributed
    Mean Estimation with Limited Communication", 2017, arXiv 1611.00429, sections 2 and 3.

    A client sends size * bits * 32 / 28 bits of a tensor, because TFF's encoders use 28
    bits of each integer, and its range; with `rotate`, the size is that of the next power
    of two.

    Args:
      bits: Bits per number.
      rotate: Whether to rotate tensors.
      least_size: Tensors of fewer numbers are sent as they are.

    Returns:
      TFF's factory, with its encoders for uniform or for rotated quantization. Its
      `create` raises TypeError for tensors of unknown shape.

    Raises:
      HyperparameterError: If an argument is invalid.
    """
    encoders = tensor_encoding.encoders
    quantization = (
        encoders.hadamard_quantization if rotate else encoders.uniform_quantization
    )

    def encoder(spec: tf.TensorSpec) -> tensor_encoding.core.GatherEncoder:
        if not spec.shape.is_fully_defined():
            raise TypeError(
                "Expected value_type to be a structure of tensors of known shape, found "
                f"{tff.TensorType(spec.dtype.as_numpy_dtype, spec.shape)}."
            )
        small = spec.shape.num_elements() < least_size
        chosen = encoders.identity() if small else quantization(bits)
        return encoders.as_gather_encoder(chosen, spec)

    return tff.aggregators.EncodedSumFactory(encoder)


class TopKSumFactory(tff.aggregators.UnweightedAggregationFactory):
    """A sum of the numbers of largest magnitude of every client; others count as zeros.

    A client sends k numbers and their positions, as int32: k is the share of all numbers
    of its value, rounded up. What is not sent is lost, not kept for later rounds. Aji,
    Heafield: "Sparse Communication for Distributed Gradient Descent", 2017, arXiv
    1704.05021, without its residuals.
    """

    @checked
    def __init__(self, share: Annotated[float, hparam(above=0, high=1)] = 0.01) -> None:
        """Initializes the factory.

        Args:
          share: The share of numbers that are sent.

        Raises:
          HyperparameterError: If `share` is invalid.
        """
        self._share = share

    def create(self, value_type: tff.Type) -> tff.templates.AggregationProcess:
        """Returns the process for values of a type; it has no state or measurements.

        Raises:
          TypeError: If `value_type` has tensors that are not floating point, of unknown
            shape, or of different dtypes.
        """
        check_floating_point(value_type)
        specs = tff.types.type_to_tf_tensor_specs(value_type)
        dtype, sizes = _dtype_and_sizes(value_type, tf.nest.flatten(specs))
        size = sum(sizes)
        num_sent = math.ceil(self._share * size)

        @tff.tensorflow.computation(value_type)
        @tf.function
        def encode(value):
            numbers = tf.concat(
                [tf.reshape(each, [-1]) for each in tf.nest.flatten(value)], axis=0
            )
            _, positions = tf.math.top_k(tf.abs(numbers), num_sent, sorted=False)
            return collections.OrderedDict(
                numbers=tf.ensure_shape(tf.gather(numbers, positions), [num_sent]),
                positions=tf.ensure_shape(positions, [num_sent]),
            )

        total_type = tff.TensorType(dtype.as_numpy_dtype, [size])

        @tff.tensorflow.computation
        def zero():
            return tf.zeros([size], dtype)

        @tff.tensorflow.computation(total_type, encode.type_signature.result)
        def accumulate(total, encoded):
            positions = encoded["positions"][:, tf.newaxis]
            return tf.tensor_scatter_nd_add(total, positions, encoded["numbers"])

        @tff.tensorflow.computation(total_type, total_type)
        def merge(one, other):
            return one + other

        @tff.tensorflow.computation(total_type)
        def decode(total):
            parts = [
                tf.reshape(part, spec.shape)
                for part, spec in zip(
                    tf.split(total, sizes), tf.nest.flatten(specs), strict=True
                )
            ]
            return tf.nest.pack_sequence_as(specs, parts)

        @tff.federated_computation
        def initialize():
            return tff.federated_value((), tff.SERVER)

        @tff.federated_computation(
            initialize.type_signature.result, tff.FederatedType(value_type, tff.CLIENTS)
        )
        def next_fn(state, value):
            total = tff.federated_aggregate(
                tff.federated_map(encode, value), zero(), accumulate, merge, decode
            )
            return tff.templates.MeasuredProcessOutput(
                state, total, tff.federated_value((), tff.SERVER)
            )

        return tff.templates.AggregationProcess(initialize, next_fn)


def _dtype_and_sizes(
    value_type: tff.Type, specs: Sequence[tf.TensorSpec]
) -> tuple[tf.DType, list[int]]:
    """Returns the dtype that tensors share, and their numbers of elements."""
    dtypes = {spec.dtype for spec in specs}
    if len(dtypes) != 1 or not all(spec.shape.is_fully_defined() for spec in specs):
        raise TypeError(
            "Expected value_type to be a structure of tensors of known shape and of one "
            f"dtype, found {value_type}."
        )
    return dtypes.pop(), [spec.shape.num_elements() for spec in specs]
