"""Ditto's client work: FedAvg's, and steps of the client's own model beside it.

Li, Hu, Beirami, Smith: "Ditto: Fair and Robust Federated Learning Through
Personalization", 2021, arXiv 2012.04221.
"""

from typing import Annotated

import tensorflow_federated as tff

from tff_algos.client_works import local_training, remembered_weights
from tff_algos.client_works.remembering_process import (
    RememberingInput,
    RememberingReport,
    build_remembering_process,
)
from tff_algos.hyperparameters import checked, hparam
from tff_algos.models import local_model
from tff_algos.models.local_model import LocalModel, ModelOrFn


@checked
def build_ditto_client_work(
    model: ModelOrFn,
    optimizer: tff.learning.optimizers.Optimizer,
    *,
    personal_strength: Annotated[float, hparam(low=0)],
    client_weighting: tff.learning.ClientWeighting = (
        tff.learning.ClientWeighting.NUM_EXAMPLES
    ),
    client_learning_rate_decay: float = 1.0,
    metrics_aggregator: tff.learning.metrics.MetricsAggregatorType | None = None,
    with_num_examples: bool = False,
) -> tff.learning.templates.ClientWorkProcess:
    """Builds Ditto's client work.

    Args:
      model: A `tff.learning.models.FunctionalModel`, or a no-argument function that
        returns a `tff.learning.models.VariableModel`.
      optimizer: The client optimizer, of the shared and of the client's own model.
      personal_strength: lambda, >= 0, in the penalty (lambda/2) * ||v - w||^2 on the
        client's own model v; 0 trains it on the client alone.
      client_weighting: As in `build_local_training_client_work`.
      client_learning_rate_decay: As in `build_local_training_client_work`.
      metrics_aggregator: As in `tff.learning.algorithms.build_weighted_fed_avg`; of the
        shared model.
      with_num_examples: As in `build_local_training_client_work`.

    Returns:
      A process typed as `build_remembering_process`'s; a row is v, as in
      `remembered_weights`.

    Raises:
      HyperparameterError: If an argument is out of range, or the optimizer has no
        learning rate that could decay.
    """
    decay = {"client_learning_rate_decay": client_learning_rate_decay}
    local_update = local_training.build_local_update(optimizer, **decay)
    train = local_training.build_train(optimizer, **decay)
    part = remembered_weights.everything(model)

    def client_update(view: LocalModel, given: RememberingInput):
        update = local_update(
            view, given.round_num, given.server_weights, given.dataset
        )
        server = local_model.flatten(given.server_weights)
        with view.uncounted():
            own = train(
                view,
                given.round_num,
                remembered_weights.read(given.row, server, part),
                given.dataset,
                local_training.proximal_gradients(server.trainable, personal_strength),
            )
        row = remembered_weights.row(own.weights, part)
        report = update.report(view, given.server_weights, client_weighting, row)
        return RememberingReport(report, row)

    return build_remembering_process(
        model,
        client_update,
        remembered_weights.specs(model, part),
        metrics_aggregator=metrics_aggregator,
        with_num_examples=with_num_examples,
    )
