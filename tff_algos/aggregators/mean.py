"""The weighted mean, of half-precision values too."""

import tensorflow as tf
import tensorflow_federated as tff

from tff_algos.finite import at_least_float32, is_half_precision


class MeanFactory(tff.aggregators.WeightedAggregationFactory):
    """`tff.aggregators.MeanFactory`, which sums half-precision values in float32.

    TFF multiplies by weights, sums and divides in the dtype of the values. In float16
    sums overflow, and beyond a total weight of 65,504 examples the mean is 0 or NaN.
    Here clients send weighted values of half precision as float32.
    """

    def __init__(
        self,
        value_sum_factory: tff.aggregators.UnweightedAggregationFactory | None = None,
    ) -> None:
        """Initializes it; `value_sum_factory` is as in `tff.aggregators.MeanFactory`."""
        self._mean = tff.aggregators.MeanFactory(value_sum_factory)

    def create(
        self, value_type: tff.Type, weight_type: tff.Type
    ) -> tff.templates.AggregationProcess:
        """Returns the process for values and weights of the given types.

        It is TFF's own unless values have tensors of half precision.

        Raises:
          TypeError: If `value_type` has tensors that are not floating point.
        """
        dtypes = tff.types.structure_from_tensor_type_tree(
            lambda tensor: tf.as_dtype(tensor.dtype), value_type
        )
        if not any(map(is_half_precision, tf.nest.flatten(dtypes))):
            return self._mean.create(value_type, weight_type)

        @tff.tensorflow.computation(value_type)
        def widen(value):
            return tf.nest.map_structure(at_least_float32, value)

        wide_type = widen.type_signature.result
        process = self._mean.create(wide_type, weight_type)

        @tff.tensorflow.computation(wide_type)
        def narrow(mean):
            return tf.nest.map_structure(tf.cast, mean, dtypes)

        @tff.federated_computation(
            process.initialize.type_signature.result,
            tff.FederatedType(value_type, tff.CLIENTS),
            tff.FederatedType(weight_type, tff.CLIENTS),
        )
        def next_fn(state, value, weight):
            output = process.next(state, tff.federated_map(widen, value), weight)
            return tff.templates.MeasuredProcessOutput(
                output.state,
                tff.federated_map(narrow, output.result),
                output.measurements,
            )

        return tff.templates.AggregationProcess(process.initialize, next_fn)
