"""Local training whose steps are corrected by what a client remembers.

SCAFFOLD: Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated
Learning", 2020, arXiv 1910.06378. FedDyn: Acar et al., "Federated Learning Based on
Dynamic Regularization", 2021, arXiv 2111.04263.
"""

from typing import Literal, get_args

import tensorflow as tf
import tensorflow_federated as tff

from tff_algos.client_works import full_gradient, local_training
from tff_algos.client_works.remembering_process import (
    RememberingInput,
    RememberingReport,
    build_remembering_process,
)
from tff_algos.clients.client_data import ClientData
from tff_algos.models import local_model
from tff_algos.models.local_model import LocalModel, ModelOrFn, Tensors

ControlVariate = Literal["mean_step", "full_gradient"]

_UNIFORM = tff.learning.ClientWeighting.UNIFORM


def _zeros(specs: tuple[tf.TensorSpec, ...]) -> Tensors:
    return tuple(tf.zeros(spec.shape, spec.dtype) for spec in specs)


def _add(left: Tensors, right: Tensors, factor: float | tf.Tensor = 1.0) -> Tensors:
    """Returns `left + factor * right`."""
    # Without the hint, a Python number would be rounded to float32 on the way.
    factor = tf.convert_to_tensor(factor, dtype_hint=tf.float64)
    return tuple(
        a + tf.cast(factor, b.dtype) * b for a, b in zip(left, right, strict=True)
    )


def _count(dataset: tf.data.Dataset) -> tf.Tensor:
    """Returns how many examples a client's batches have, int64 []."""

    def add_batch(total, batch):
        return total + tf.shape(tf.nest.flatten(batch)[0], out_type=tf.int64)[0]

    return dataset.reduce(tf.constant(0, tf.int64), add_batch)


def build_scaffold_client_work(
    model: ModelOrFn,
    *,
    client_learning_rate: float,
    num_clients: int,
    control_variate: ControlVariate = "mean_step",
    learning_rate_decay: float = 1.0,
    metrics_aggregator: tff.learning.metrics.MetricsAggregatorType | None = None,
    with_num_examples: bool = False,
    with_full_pass: bool = False,
) -> tff.learning.templates.ClientWorkProcess:
    """Builds SCAFFOLD's client work: y <- y - eta * (grad f(y) - c_k + c).

    A client remembers its control variate c_k, the server shares c, the mean of the
    c_k over all clients: c <- c + sum over the cohort of the changes / N.

    Args:
      model: A `tff.learning.models.FunctionalModel`, or a no-argument function
        that returns a `tff.learning.models.VariableModel`.
      client_learning_rate: eta of plain SGD.
      num_clients: N, all clients there are.
      control_variate: What the new c_k is: "mean_step" (the paper's option II), c_k -
        c + delta_k / (J_k * eta), the mean gradient of the J_k steps; or
        "full_gradient" (option I), that of the client's examples at the server's
        model, one more pass over them.
      learning_rate_decay: As in `build_local_training_client_work`.
      metrics_aggregator: As in `tff.learning.algorithms.build_weighted_fed_avg`.
      with_num_examples: As in `build_local_training_client_work`.
      with_full_pass: Whether clients' data hold `full_pass`, for option I; without it,
        the gradient is that of the round's batches. See `client_data`.

    Returns:
      A process as of `build_remembering_process`: rows are c_k, `shared` is c. All
      clients weigh alike.

    Raises:
      ValueError: If `control_variate` is neither of the two.
    """
    if control_variate not in get_args(ControlVariate):
        raise ValueError(
            f"Expected control_variate out of {get_args(ControlVariate)}, found "
            f"{control_variate!r}."
        )
    specs = local_model.trainable_specs(model)
    optimizer = tff.learning.optimizers.build_sgdm(client_learning_rate)
    local_update = local_training.build_local_update(
        optimizer, learning_rate_decay=learning_rate_decay
    )

    def new_control(view, given, update):
        if control_variate == "full_gradient":
            weights = local_model.flatten(given.server_weights)
            return full_gradient.mean_gradient(
                view, weights, given.data.full_pass
            ).gradient_sum
        rate = optimizer.get_hparams(update.final.optimizer_state)["learning_rate"]
        distance = tf.cast(update.final.num_steps, tf.float64) * tf.cast(
            rate, tf.float64
        )
        per_step = tf.math.divide_no_nan(tf.ones_like(distance), distance)
        return _add(_add(given.row, given.shared, -1.0), update.delta, per_step)

    def client_update(view: LocalModel, given: RememberingInput):
        step_gradients = local_training.corrected_gradients(
            lambda gradient, _, own, mean: gradient - own + mean,
            given.row,
            given.shared,
        )
        update = local_update(
            view, given.round_num, given.server_weights, given.dataset, step_gradients
        )
        row = new_control(view, given, update)
        report = update.report(view, given.server_weights, _UNIFORM, row)
        return RememberingReport(report, row, _add(row, given.row, -1.0))

    return build_remembering_process(
        model,
        client_update,
        specs,
        initial_shared=lambda: _zeros(specs),
        next_shared=lambda mean, change: _add(mean, change, 1 / num_clients),
        metrics_aggregator=metrics_aggregator,
        with_num_examples=with_num_examples,
        with_full_pass=with_full_pass,
    )


def build_dynamic_regularization_client_work(
    model: ModelOrFn,
    optimizer: tff.learning.optimizers.Optimizer,
    *,
    regularization: float,
    mean_examples: float | None = None,
    learning_rate_decay: float = 1.0,
    metrics_aggregator: tff.learning.metrics.MetricsAggregatorType | None = None,
    with_num_examples: bool = False,
) -> tff.learning.templates.ClientWorkProcess:
    """Builds FedDyn's client work.

    A client minimises f(y) - <lambda_k, y> + alpha/2 * ||y - w||^2, and remembers
    lambda_k <- lambda_k + alpha * delta_k.

    Args:
      model: A `tff.learning.models.FunctionalModel`, or a no-argument function
        that returns a `tff.learning.models.VariableModel`.
      optimizer: The client optimizer.
      regularization: alpha, loss per squared weight, >= 0; with 0 clients train
        plainly.
      mean_examples: n, the mean over all clients of n_k, > 0; client k then has alpha *
        n/n_k and lambda_k * n/n_k for alpha and lambda_k in what it minimises. n_k is
        the number of examples in its batches, or the number that its data tell. None:
        alpha is everybody's.
      learning_rate_decay: As in `build_local_training_client_work`.
      metrics_aggregator: As in `tff.learning.algorithms.build_weighted_fed_avg`.
      with_num_examples: As in `build_local_training_client_work`.

    Returns:
      A process as of `build_remembering_process`: rows are lambda_k, `shared` is
      empty. All clients weigh alike.
    """
    local_update = local_training.build_local_update(
        optimizer, learning_rate_decay=learning_rate_decay
    )

    def relative_strength(data: ClientData) -> tf.Tensor:
        """Returns n/n_k, float64 []; 1 where alpha is everybody's."""
        if mean_examples is None:
            return tf.constant(1.0, tf.float64)
        own = data.num_examples
        if own is None:
            own = _count(data.batches)
        mean = tf.constant(mean_examples, tf.float64)
        return tf.math.divide_no_nan(mean, tf.cast(own, tf.float64))

    def regularized_gradients(given: RememberingInput):
        strength = relative_strength(given.data)

        def correct(gradient, weight, linear, anchor):
            alpha = tf.constant(regularization, gradient.dtype)
            own = tf.cast(strength, gradient.dtype)
            return gradient + own * (alpha * (weight - anchor) - linear)

        anchor = local_model.flatten(given.server_weights).trainable
        return local_training.corrected_gradients(correct, given.row, anchor)

    def client_update(view: LocalModel, given: RememberingInput):
        step_gradients = local_training.plain_gradients
        # Skipped, not multiplied by zero, so that alpha = 0 is FedAvg to the bit.
        if regularization:
            step_gradients = regularized_gradients(given)
        update = local_update(
            view, given.round_num, given.server_weights, given.dataset, step_gradients
        )
        row = _add(given.row, update.delta, regularization)
        report = update.report(view, given.server_weights, _UNIFORM, row)
        return RememberingReport(report, row)

    return build_remembering_process(
        model,
        client_update,
        local_model.trainable_specs(model),
        metrics_aggregator=metrics_aggregator,
        with_num_examples=with_num_examples,
    )
