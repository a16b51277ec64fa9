"""Sums weighted by powers of the clients' losses (q-FedAvg).

Li, Sanjabi, Beirami, Smith: "Fair Resource Allocation in Federated Learning", 2020,
arXiv 1905.10497.
"""

import collections
from typing import Annotated

import tensorflow as tf
import tensorflow_federated as tff

from tff_algos.aggregators.exclude_non_finite import build_exclude_computation
from tff_algos.aggregators.normalized_mean import squared_norm
from tff_algos.finite import at_least_float32
from tff_algos.hyperparameters import checked, hparam

# The authors' floor, needed for q < 1: the sums contain negative powers of the loss.
LOSS_FLOOR = 1e-10


class QFairFactory(tff.aggregators.WeightedAggregationFactory):
    """Combines model deltas by powers of the clients' losses before training.

        sum_k F_k^q * D_k / sum_k (q * F_k^(q-1) * ||D_k||^2 + L * F_k^q)

    delta_k is a client's update and D_k = L * delta_k. Its weight is its loss F_k at
    the server's model plus `LOSS_FLOOR`, which distinguishes a zero loss from an
    excluded client. Clients with weight zero or an update that is not finite are
    excluded. With q = 0 the result is the mean over clients, for every L.

    The server needs only sums over clients, not individual updates.

    Because powers of large losses overflow, clients divide their loss by the previous
    round's mean loss (1 in the first round), which is the state; it cancels out.
    """

    @checked
    def __init__(
        self,
        q: Annotated[float, hparam(low=0, symbol="q")],
        lipschitz: Annotated[float, hparam(above=0, symbol="L")],
    ) -> None:
        """Initializes the factory.

        Args:
          q: Fairness exponent: larger values give clients with large losses more
            weight; 0 is uniform.
          lipschitz: Gradient per weight: an estimate of the gradient's Lipschitz
            constant; the inverse of the client learning rate.

        Raises:
          HyperparameterError: If an argument is invalid.
        """
        self._q = q
        self._lipschitz = lipschitz

    def create(
        self, value_type: tff.Type, weight_type: tff.Type
    ) -> tff.templates.AggregationProcess:
        """Returns the process for model deltas and losses of the given types.

        Its state is the mean loss of the last round that had one, float64. Its
        measurements are `num_non_finite_clients` and `num_negative_losses` (int32, clients
        that are left out, because negative losses have no powers) and `mean_loss`
        (float32; NaN if no client is left). If no client is left or a sum overflows, the
        result is not finite, and learning processes reject it.

        Raises:
          TypeError: If `value_type` has tensors that are not floating point.
        """
        exclude = build_exclude_computation(value_type, weight_type)
        dtypes = tff.types.structure_from_tensor_type_tree(
            lambda tensor: tf.as_dtype(tensor.dtype), value_type
        )
        q, lipschitz = self._q, self._lipschitz

        @tff.tensorflow.computation
        def first_scale():
            return tf.constant(1.0, tf.float64)

        @tff.federated_computation
        def initialize():
            return tff.federated_eval(first_scale, tff.SERVER)

        @tff.tensorflow.computation(value_type, weight_type, tf.float64)
        @tf.function
        def terms(delta, loss, scale):
            loss = tf.cast(loss, tf.float64)
            present = loss > 0
            relative = tf.where(present, loss / scale, 1.0)
            squared = lipschitz**2 * squared_norm(delta)
            power = tf.where(present, tf.pow(relative, q), 0.0)
            slope = tf.where(present, q * tf.pow(relative, q - 1) / scale, 0.0)
            # The sum would soon overflow in half precision.
            numerator = tf.nest.map_structure(
                lambda t: t * tf.cast(lipschitz * power, t.dtype),
                tf.nest.map_structure(at_least_float32, delta),
            )
            denominator = slope * squared + lipschitz * power
            count = tf.cast(present, tf.float64)
            negative = tf.cast(loss < 0, tf.int32)
            return numerator, denominator, loss * count, count, negative

        @tff.tensorflow.computation(terms.type_signature.result[0], tf.float64)
        @tf.function
        def divide(numerator, denominator):
            # It may exceed the numbers of a half-precision model.
            return tf.nest.map_structure(
                lambda t, dtype: tf.cast(tf.cast(t, tf.float64) / denominator, dtype),
                numerator,
                dtypes,
            )

        @tff.tensorflow.computation(tf.float64, tf.float64, tf.float64)
        @tf.function
        def next_scale(scale, total, count):
            return tf.where(count > 0, total / count, scale)

        @tff.tensorflow.computation(tf.float64, tf.float64)
        def mean(total, count):
            return tf.cast(total / count, tf.float32)

        @tff.federated_computation(
            initialize.type_signature.result,
            tff.FederatedType(value_type, tff.CLIENTS),
            tff.FederatedType(weight_type, tff.CLIENTS),
        )
        def next_fn(scale, value, weight):
            value, weight, excluded = tff.federated_map(exclude, (value, weight))
            numerator, denominator, loss, count, negative = tff.federated_map(
                terms, (value, weight, tff.federated_broadcast(scale))
            )
            result = tff.federated_map(
                divide,
                (tff.federated_sum(numerator), tff.federated_sum(denominator)),
            )
            loss, count = tff.federated_sum(loss), tff.federated_sum(count)
            new_scale = tff.federated_map(next_scale, (scale, loss, count))
            measurements = tff.federated_zip(
                collections.OrderedDict(
                    num_non_finite_clients=tff.federated_sum(excluded),
                    num_negative_losses=tff.federated_sum(negative),
                    mean_loss=tff.federated_map(mean, (loss, count)),
                )
            )
            return tff.templates.MeasuredProcessOutput(new_scale, result, measurements)

        return tff.templates.AggregationProcess(initialize, next_fn)
