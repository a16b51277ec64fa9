"""Client work for models of which each client keeps a part to itself.

The shared part is averaged as in FedAvg; FedPer, FedRep, LG-FedAvg and FedBN differ in
which part is whose, and in the order of training. With everything personal, clients
train alone.
"""

import contextlib
import itertools
from collections.abc import Sequence

import attrs
import tensorflow as tf
import tensorflow_federated as tff

from tff_algos.client_works import local_training, remembered_weights
from tff_algos.client_works.local_training import LocalUpdate
from tff_algos.client_works.remembering_process import (
    RememberingInput,
    RememberingReport,
    build_remembering_process,
)
from tff_algos.clients import attacks
from tff_algos.hyperparameters import HyperparameterError
from tff_algos.models import local_model
from tff_algos.models.block_model import WeightMask
from tff_algos.models.local_model import LocalModel, ModelOrFn, Tensors, Weights
from tff_algos.optimizers import of_some_weights


@attrs.frozen
class Phase:
    """Passes over the round's batches that train some of the weights.

    Attributes:
      trains: For each trainable weight, whether it is trained; None for all of them.
      passes: Number of passes, >= 0.
    """

    trains: tuple[bool, ...] | None = None
    passes: int = 1


_TOGETHER = (Phase(),)


def _zero_where(mask: Sequence[bool], tensors: Tensors) -> Tensors:
    return tuple(
        tf.zeros_like(tensor) if masked else tensor
        for tensor, masked in zip(tensors, mask, strict=True)
    )


def build_partly_personal_client_work(
    model: ModelOrFn,
    optimizer: tff.learning.optimizers.Optimizer,
    *,
    personal: WeightMask,
    phases: Sequence[Phase] = _TOGETHER,
    client_weighting: tff.learning.ClientWeighting = (
        tff.learning.ClientWeighting.NUM_EXAMPLES
    ),
    client_learning_rate_decay: float = 1.0,
    metrics_aggregator: tff.learning.metrics.MetricsAggregatorType | None = None,
    with_num_examples: bool = False,
) -> tff.learning.templates.ClientWorkProcess:
    """Builds the client work that trains a client's own part with the shared one.

    A client starts from its own part (the server's, in its first round) and the server's
    shared part. Updates of the personal part are zero, so the server's stays what it
    was, which is what new clients start from.

    Args:
      model: A `tff.learning.models.FunctionalModel`, or a no-argument function that
        returns a `tff.learning.models.VariableModel`.
      optimizer: The client optimizer, reinitialized in every phase.
      personal: The part of the weights that clients keep.
      phases: What is trained in turn; by default all weights in one pass.
      client_weighting: As in `build_local_training_client_work`.
      client_learning_rate_decay: As in `build_local_training_client_work`.
      metrics_aggregator: As in `tff.learning.algorithms.build_weighted_fed_avg`; of the
        clients' models in the first phase that takes a step.
      with_num_examples: As in `build_local_training_client_work`.

    Returns:
      A process typed as `build_remembering_process`'s; a row is the personal part, as in
      `remembered_weights`. Where all statistics are personal, updates have none.

    Raises:
      HyperparameterError: If `client_learning_rate_decay` is out of range, the optimizer
        has no learning rate that could decay, or no phase has passes.
    """
    taken = [phase for phase in phases if phase.passes]
    if not taken:
        raise HyperparameterError("phases", phases, "at least one with passes >= 1")
    trains = [
        local_training.build_train(
            optimizer
            if phase.trains is None
            else of_some_weights(optimizer, phase.trains),
            client_learning_rate_decay=client_learning_rate_decay,
        )
        for phase in taken
    ]
    keeps_statistics = all(
        itertools.compress(personal.non_trainable, local_model.statistics_of(model))
    )

    def client_update(view: LocalModel, given: RememberingInput):
        server = local_model.flatten(given.server_weights)
        weights = remembered_weights.read(given.row, server, personal)
        first = None
        for phase, train in zip(taken, trains, strict=True):
            counted = contextlib.nullcontext() if first is None else view.uncounted()
            with counted:
                final = train(
                    view,
                    given.round_num,
                    weights,
                    given.dataset
                    if phase.passes == 1
                    else given.dataset.repeat(phase.passes),
                )
            weights = final.weights
            first = final if first is None else first
        delta = tuple(map(tf.subtract, server.trainable, weights.trainable))
        delta = _zero_where(personal.trainable, delta)
        sent = Weights(
            weights.trainable,
            tuple(
                old if kept else new
                for old, new, kept in zip(
                    server.non_trainable,
                    weights.non_trainable,
                    personal.non_trainable,
                    strict=True,
                )
            ),
        )
        update = LocalUpdate(
            delta,
            attacks.sent_update(delta, given.dataset),
            attrs.evolve(
                first,
                weights=sent,
                num_examples=first.num_examples // taken[0].passes,
            ),
        )
        row = remembered_weights.row(weights, personal)
        report = update.report(view, given.server_weights, client_weighting, row)
        if keeps_statistics:
            report = report.without_statistics()
        return RememberingReport(report, row)

    return build_remembering_process(
        model,
        client_update,
        remembered_weights.specs(model, personal),
        metrics_aggregator=metrics_aggregator,
        with_num_examples=with_num_examples,
    )


def others(mask: tuple[bool, ...]) -> tuple[bool, ...]:
    """Returns the weights that do not belong to a part."""
    return tuple(not each for each in mask)
