"""The weighted mean, of half-precision values too."""

import tensorflow as tf
import tensorflow_federated as tff

from tff_algos.finite import at_least_float32


class MeanFactory(tff.aggregators.WeightedAggregationFactory):
    """`tff.aggregators.MeanFactory`, which sums half-precision values in float32.

    TFF multiplies by weights, sums and divides in the dtype of the values. In float16
    sums overflow, and beyond a total weight of 65,504 examples the mean is 0 or NaN.
    """

    def create(
        self, value_type: tff.Type, weight_type: tff.Type
    ) -> tff.templates.AggregationProcess:
        """Returns the process for values and weights of the given types.

        It is TFF's own unless values have tensors of half precision.
        """

        @tff.tensorflow.computation(value_type)
        def widen(value):
            return tf.nest.map_structure(at_least_float32, value)

        wide_type = widen.type_signature.result
        process = tff.aggregators.MeanFactory().create(wide_type, weight_type)
        if tff.to_type(value_type).is_equivalent_to(wide_type):
            return process
        dtypes = tff.types.structure_from_tensor_type_tree(
            lambda tensor: tensor.dtype, value_type
        )

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
