"""FedDyn's client work: a loss with a proximal term and a learned linear term.

Acar et al., "Federated Learning Based on Dynamic Regularization", 2021, arXiv
2111.04263.
"""

from typing import Annotated

import tensorflow as tf
import tensorflow_federated as tff

from tff_algos.client_works import local_training
from tff_algos.client_works.remembering_process import (
    RememberingInput,
    RememberingReport,
    add_scaled,
    build_remembering_process,
)
from tff_algos.clients.client_data import ClientData
from tff_algos.hyperparameters import checked, hparam
from tff_algos.models import local_model
from tff_algos.models.local_model import LocalModel, ModelOrFn

_UNIFORM = tff.learning.ClientWeighting.UNIFORM


def _count(dataset: tf.data.Dataset) -> tf.Tensor:
    """Returns how many examples a client's batches have, int64 []."""

    def add_batch(total, batch):
        return total + tf.shape(tf.nest.flatten(batch)[0], out_type=tf.int64)[0]

    return dataset.reduce(tf.constant(0, tf.int64), add_batch)


@checked
def build_dynamic_regularization_client_work(
    model: ModelOrFn,
    optimizer: tff.learning.optimizers.Optimizer,
    *,
    dynamic_regularization: Annotated[float, hparam(low=0)],
    mean_examples: Annotated[float | None, hparam(above=0)] = None,
    client_learning_rate_decay: float = 1.0,
    metrics_aggregator: tff.learning.metrics.MetricsAggregatorType | None = None,
    with_num_examples: bool = False,
) -> tff.learning.templates.ClientWorkProcess:
    """Builds FedDyn's client work.

    A client minimizes f(y) - <lambda_k, y> + alpha/2 * ||y - w||^2 and remembers
    lambda_k <- lambda_k + alpha * delta_k.

    Args:
      model: A `tff.learning.models.FunctionalModel`, or a no-argument function
        that returns a `tff.learning.models.VariableModel`.
      optimizer: The client optimizer.
      dynamic_regularization: alpha, loss per squared weight, >= 0; 0 is plain training.
      mean_examples: n, the mean over all clients of n_k, > 0. Client k's objective then
        has alpha * n/n_k and lambda_k * n/n_k for alpha and lambda_k, n_k being its
        `num_examples` if its data hold them, else the examples in its batches. With
        None, all clients use alpha.
      client_learning_rate_decay: As in `build_local_training_client_work`.
      metrics_aggregator: As in `tff.learning.algorithms.build_weighted_fed_avg`.
      with_num_examples: As in `build_local_training_client_work`.

    Returns:
      A process typed as `build_remembering_process`'s: rows are lambda_k, `shared` is
      empty. Clients are weighted uniformly.

    Raises:
      HyperparameterError: If an argument is out of range, or the optimizer has no
        learning rate that could decay.
    """
    local_update = local_training.build_local_update(
        optimizer, client_learning_rate_decay=client_learning_rate_decay
    )

    def relative_strength(data: ClientData) -> tf.Tensor:
        """Returns n/n_k, float64 []; 1 if all clients use alpha."""
        if mean_examples is None:
            return tf.constant(1.0, tf.float64)
        own = data.num_examples
        if own is None:
            own = _count(data.batches)
        mean = tf.constant(mean_examples, tf.float64)
        return tf.math.divide_no_nan(mean, tf.cast(own, tf.float64))

    def regularized_gradients(given: RememberingInput):
        strength = relative_strength(given.data)
        linear = tuple(-tf.cast(strength, each.dtype) * each for each in given.row)
        return local_training.regularized_gradients(
            local_model.flatten(given.server_weights).trainable,
            strength * dynamic_regularization,
            linear,
        )

    def client_update(view: LocalModel, given: RememberingInput):
        step_gradients = local_training.plain_gradients
        # Skipped, not multiplied by zero, so that alpha = 0 is bit-identical to FedAvg.
        if dynamic_regularization:
            step_gradients = regularized_gradients(given)
        update = local_update(
            view, given.round_num, given.server_weights, given.dataset, step_gradients
        )
        row = add_scaled(given.row, update.delta, dynamic_regularization)
        report = update.report(view, given.server_weights, _UNIFORM, row)
        return RememberingReport(report, row)

    return build_remembering_process(
        model,
        client_update,
        local_model.trainable_specs(model),
        metrics_aggregator=metrics_aggregator,
        with_num_examples=with_num_examples,
    )
