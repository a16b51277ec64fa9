"""SCAFFOLD's client work: local steps corrected by two control variates.

Karimireddy et al., "SCAFFOLD: Stochastic Controlled Averaging for Federated Learning",
2020, arXiv 1910.06378.
"""

from typing import Annotated, Literal

import tensorflow as tf
import tensorflow_federated as tff

from tff_algos.client_works import full_gradient, local_training
from tff_algos.client_works.remembering_process import (
    RememberingInput,
    RememberingReport,
    add_scaled,
    build_remembering_process,
)
from tff_algos.hyperparameters import checked, hparam
from tff_algos.models import local_model
from tff_algos.models.local_model import LocalModel, ModelOrFn, Tensors

ControlVariate = Literal["mean_step", "full_gradient"]

_UNIFORM = tff.learning.ClientWeighting.UNIFORM


def _zeros(specs: tuple[tf.TensorSpec, ...]) -> Tensors:
    return tuple(tf.zeros(spec.shape, spec.dtype) for spec in specs)


@checked
def build_scaffold_client_work(
    model: ModelOrFn,
    *,
    client_learning_rate: Annotated[float, hparam(above=0, symbol="eta")],
    num_clients: Annotated[int, hparam(low=1, symbol="N")],
    control_variate: Annotated[ControlVariate, hparam()] = "mean_step",
    client_learning_rate_decay: float = 1.0,
    metrics_aggregator: tff.learning.metrics.MetricsAggregatorType | None = None,
    with_num_examples: bool = False,
    with_full_pass: bool = False,
) -> tff.learning.templates.ClientWorkProcess:
    """Builds SCAFFOLD's client work: y <- y - eta * (grad f(y) - c_k + c).

    A client remembers its control variate c_k. The server shares c, the mean of c_k
    over all clients: c <- c + (sum of the cohort's changes of c_k) / N.

    Args:
      model: A `tff.learning.models.FunctionalModel`, or a no-argument function
        that returns a `tff.learning.models.VariableModel`.
      client_learning_rate: Learning rate of plain SGD.
      num_clients: The number of all clients.
      control_variate: The new c_k: "mean_step" (the paper's option II), c_k - c +
        delta_k / (J_k * eta), the mean gradient of the J_k steps; or "full_gradient"
        (option I), the gradient of the client's examples at the server's model, which
        takes another pass over them.
      client_learning_rate_decay: As in `build_local_training_client_work`.
      metrics_aggregator: As in `tff.learning.algorithms.build_weighted_fed_avg`.
      with_num_examples: As in `build_local_training_client_work`.
      with_full_pass: Whether clients' data include `full_pass`, for option I; without
        it, the gradient is that of the round's batches. See `client_data`.

    Returns:
      A process typed as `build_remembering_process`'s: rows are c_k, `shared` is c.
      Clients are weighted uniformly.

    Raises:
      HyperparameterError: If an argument is invalid.
    """
    specs = local_model.trainable_specs(model)
    optimizer = tff.learning.optimizers.build_sgdm(client_learning_rate)
    local_update = local_training.build_local_update(
        optimizer, client_learning_rate_decay=client_learning_rate_decay
    )

    def new_control(view, given, update):
        if control_variate == "full_gradient":
            weights = local_model.flatten(given.server_weights)
            with view.uncounted():
                full = full_gradient.mean_gradient(view, weights, given.data.full_pass)
            return full.gradient_sum
        rate = optimizer.get_hparams(update.final.optimizer_state)["learning_rate"]
        distance = tf.cast(update.final.num_steps, tf.float64) * tf.cast(
            rate, tf.float64
        )
        per_step = tf.math.divide_no_nan(tf.ones_like(distance), distance)
        return add_scaled(
            add_scaled(given.row, given.shared, -1.0), update.delta, per_step
        )

    def client_update(view: LocalModel, given: RememberingInput):
        # Once per client: each step then reads one more tensor than a plain one.
        shift = add_scaled(given.shared, given.row, -1.0)
        step_gradients = local_training.corrected_gradients(
            lambda gradient, _, shift: gradient + shift, shift
        )
        update = local_update(
            view, given.round_num, given.server_weights, given.dataset, step_gradients
        )
        row = new_control(view, given, update)
        report = update.report(view, given.server_weights, _UNIFORM, row)
        return RememberingReport(report, row, add_scaled(row, given.row, -1.0))

    return build_remembering_process(
        model,
        client_update,
        specs,
        initial_shared=lambda: _zeros(specs),
        next_shared=lambda mean, change: add_scaled(mean, change, 1 / num_clients),
        metrics_aggregator=metrics_aggregator,
        with_num_examples=with_num_examples,
        with_full_pass=with_full_pass,
    )
