"""Local training with steps that oppose neither earlier nor the server's gradients.

The worker's side of Luo et al., "GradMA: A Gradient-Memory-based Accelerated Federated
Learning with Alleviated Catastrophic Forgetting", CVPR 2023, arXiv 2302.14307.
"""

from collections.abc import Sequence
from typing import Annotated, Literal, NamedTuple, get_args

import attrs
import tensorflow as tf
import tensorflow_federated as tff

from tff_algos.client_works import (
    gradient_correction,
    local_training,
    remembered_weights,
)
from tff_algos.client_works.remembering_process import (
    RememberingInput,
    RememberingReport,
    build_remembering_process,
)
from tff_algos.client_works.round_process import build_round_process
from tff_algos.clients.client_data import ClientDataFields
from tff_algos.hyperparameters import hparam, record
from tff_algos.models import local_model, random_draws
from tff_algos.models.local_model import LocalModel, Tensors
from tff_algos.solvers import cone

Row = Literal["previous", "server", "drift"]


class _Carry(NamedTuple):
    """The local weights before the last step, if needed, and programs not solved."""

    previous: Tensors
    num_fallbacks: tf.Tensor


@record
class StepCorrection:
    """How a local step's gradient is corrected.

    Attributes:
      local_rows: The rows that the step must not oppose: the gradients of the same
        batch at the "previous" local weights and at the "server" weights, and the
        "drift" from the server weights.
      qp_margin: rho, in (-1, 1), the smallest inner product with a row, divided by the
        norms of the row and of the gradient.
      qp_scope: Whether the gradient is corrected as one vector ("global") or each
        tensor by itself ("per_tensor").
    """

    local_rows: Annotated[Sequence[Row], hparam()] = get_args(Row)
    qp_margin: Annotated[float, hparam(above=-1, below=1)] = 0.0
    qp_scope: Annotated[cone.QpScope, hparam()] = "global"

    def step_gradients(
        self, server: local_model.Weights
    ) -> local_training.StepGradients:
        """Returns corrected gradients; `first_carry` says what they carry."""
        if not self.local_rows:
            return local_training.plain_gradients

        def gradients(model, state, batch):
            result = model.loss_gradients(state.weights, state.metrics, batch)
            rows = [
                self._row(name, model, state, server, batch) for name in self.local_rows
            ]
            corrected, num_fallbacks = gradient_correction.correct(
                result.gradients, rows, self.qp_margin, self.qp_scope
            )
            previous = state.weights.trainable if "previous" in self.local_rows else ()
            carry = _Carry(previous, state.carry.num_fallbacks + num_fallbacks)
            return attrs.evolve(result, gradients=corrected), carry

        return gradients

    def first_carry(self, previous: Tensors) -> "_Carry":
        """Returns the carry of the first step, given the weights before it."""
        kept = previous if "previous" in self.local_rows else ()
        return _Carry(kept, tf.constant(0))

    def _row(self, name, model, state, server, batch) -> Tensors:
        if name == "drift":
            return tf.nest.map_structure(
                tf.subtract, state.weights.trainable, server.trainable
            )
        # Both rows use the statistics and the dropout masks of the step itself.
        trainable = state.carry.previous if name == "previous" else server.trainable
        weights = attrs.evolve(state.weights, trainable=trainable)
        return model.loss_gradients(
            weights, state.metrics, batch, masks_of=state.weights
        ).gradients


def build_gradma_training_client_work(
    model: tff.learning.models.FunctionalModel,
    optimizer: tff.learning.optimizers.Optimizer,
    correction: StepCorrection,
    *,
    persist_previous: bool = False,
    client_weighting: tff.learning.ClientWeighting = (
        tff.learning.ClientWeighting.NUM_EXAMPLES
    ),
    client_learning_rate_decay: float = 1.0,
    metrics_aggregator: tff.learning.metrics.MetricsAggregatorType | None = None,
    with_client_index: bool = False,
    with_num_examples: bool = False,
) -> tff.learning.templates.ClientWorkProcess:
    """Builds GradMA's client work.

    A step follows g~, the vector nearest to the batch's gradient g with <g~, a> >= rho
    ||g|| ||a|| for every row a. The rows are the gradients of the same batch at the
    local weights before the previous step and at the server's weights, and the drift
    from the server's weights. Without `persist_previous`, and in a client's first
    round, the first step's previous weights are the server's, so it is a plain step.

    Args:
      model: A `tff.learning.models.FunctionalModel`: the rows are gradients of one
        batch at several weights.
      optimizer: The client optimizer.
      correction: The rows, rho, and the scope of the quadratic program.
      persist_previous: Whether clients remember their final weights and use them as
        the previous weights in the first local step of their next round.
      client_weighting: As in `build_local_training_client_work`.
      client_learning_rate_decay: As in `build_local_training_client_work`.
      metrics_aggregator: As in `tff.learning.algorithms.build_weighted_fed_avg`.
      with_client_index: As in `build_local_training_client_work`.
      with_num_examples: As in `build_local_training_client_work`.

    Returns:
      A process typed as `build_local_training_client_work`'s or, with
      `persist_previous`, as `build_remembering_process`'s. It also measures
      `client_qp_fallbacks` (int32): the programs of all clients' steps whose
      solution was not accepted, so that the gradient was taken as it is.

    Raises:
      TypeError: If `model` is not a functional model.
      ValueError: If the step's gradient and a row would have different dropout masks,
        because the model draws at random and not as a function of weights and batch.
    """
    if not local_model.is_functional(model):
        raise TypeError(
            "Expected a tff.learning.models.FunctionalModel, whose gradients can be "
            "computed for one batch at several weights, found a function. Tip: "
            "tff.learning.models.functional_model_from_keras makes one of a Keras model."
        )
    if {"previous", "server"} & set(correction.local_rows):
        random_draws.require_none(
            model,
            "a step's gradient and those it must not oppose would not be comparable",
        )
    local_update = local_training.build_local_update(
        optimizer, client_learning_rate_decay=client_learning_rate_decay
    )

    def train(view, round_num, server_weights, dataset, previous=None):
        server = local_model.flatten(server_weights)
        first = server.trainable if previous is None else previous
        update = local_update(
            view,
            round_num,
            server_weights,
            dataset,
            correction.step_gradients(server),
            correction.first_carry(first),
        )
        report = update.report(view, server_weights, client_weighting)
        num_fallbacks = update.final.carry.num_fallbacks
        return update, report.with_count("client_qp_fallbacks", num_fallbacks)

    if not persist_previous:

        def client_update(view, round_num, server_weights, data):
            return train(view, round_num, server_weights, data.batches)[1], {}

        return build_round_process(
            model,
            client_update,
            metrics_aggregator,
            fields=ClientDataFields(
                client_index=with_client_index, num_examples=with_num_examples
            ),
        )

    # Steps are corrected by the trainable weights alone.
    part = attrs.evolve(
        remembered_weights.everything(model),
        non_trainable=(False,) * len(local_model.non_trainable_specs(model)),
    )

    def remembering_update(view: LocalModel, given: RememberingInput):
        server = local_model.flatten(given.server_weights)
        previous = remembered_weights.read(given.row, server, part).trainable
        update, report = train(
            view, given.round_num, given.server_weights, given.dataset, previous
        )
        row = remembered_weights.row(update.final.weights, part)
        return RememberingReport(report, row)

    return build_remembering_process(
        model,
        remembering_update,
        remembered_weights.specs(model, part),
        metrics_aggregator=metrics_aggregator,
        update_with_index=with_client_index,
        with_num_examples=with_num_examples,
    )
