"""Local training of features that also have to work with the server's later blocks.

Kim, Kim, Han: "Multi-Level Branched Regularization for Federated Learning", ICML 2022,
arXiv 2207.06936 (FedMLB).
"""

from collections.abc import Sequence
from typing import Annotated

import attrs
import tensorflow as tf
import tensorflow_federated as tff

from tff_algos.client_works import local_training
from tff_algos.client_works.round_process import build_round_process
from tff_algos.clients.client_data import ClientDataFields
from tff_algos.hyperparameters import HyperparameterError, checked, hparam, record
from tff_algos.models import local_model
from tff_algos.models.block_model import BlockModel
from tff_algos.models.local_model import BlockLocalModel, Forward, Weights


@record
class BranchLosses:
    """The terms of a client's objective and their weights.

    Attributes:
      local_loss_weight: Weight of the local model's loss, >= 0.
      hybrid_loss_weight: Weight of the mean loss of the hybrid models, >= 0.
      distillation_weight: Weight of the mean divergence of the local model's
        distribution from the hybrid models', >= 0; of sequences, over the positions
        that count in the loss.
      distillation_temperature: T, > 0, of both distributions.
      splits: The numbers of the blocks, from 1, after which the local model branches;
        None for every block except the last.
    """

    local_loss_weight: Annotated[float, hparam(low=0)] = 1.0
    hybrid_loss_weight: Annotated[float, hparam(low=0)] = 1.0
    distillation_weight: Annotated[float, hparam(low=0)] = 1.0
    distillation_temperature: Annotated[float, hparam(above=0)] = 1.0
    splits: Sequence[int] | None = None

    def objective(
        self, model: BlockLocalModel, server: Weights, forward: Forward
    ) -> tf.Tensor:
        """Returns the objective of a local step, []."""
        total = self.local_loss_weight * forward.loss
        # Skipped, not multiplied by zero, so that plain training is bit-identical to
        # FedAvg.
        if not (self.hybrid_loss_weight or self.distillation_weight):
            return total
        outputs = hybrid_outputs(model, server, forward, self.splits)
        for weight, loss in (
            (self.hybrid_loss_weight, lambda output: model.loss(output, forward.batch)),
            (
                self.distillation_weight,
                lambda output: model.mean_over_targets(
                    divergences(output, forward.output, self.distillation_temperature),
                    forward.batch,
                ),
            ),
        ):
            if weight and outputs:
                total += weight / len(outputs) * tf.add_n([loss(o) for o in outputs])
        return total


def hybrid_outputs(
    model: BlockLocalModel,
    server: Weights,
    forward: Forward,
    splits: Sequence[int] | None = None,
) -> list[tf.Tensor]:
    """Returns the outputs of the server's later blocks for local blocks' outputs.

    They use the local model's dropout masks; batch normalization in the server's blocks
    uses its moving statistics.

    Args:
      model: The model.
      server: The server's weights.
      forward: The local model's pass over a batch.
      splits: As in `BranchLosses`.
    """
    frozen = attrs.evolve(forward.mode, batch_statistics=False)
    return [
        model.apply_blocks(server, forward.blocks.inputs[split], frozen, split).output
        for split in (range(1, model.num_blocks) if splits is None else splits)
    ]


def divergences(
    hybrid: tf.Tensor, local: tf.Tensor, distillation_temperature: float
) -> tf.Tensor:
    """Returns KL(softmax(hybrid / T) || softmax(local / T)), [...].

    Args:
      hybrid: Logits [..., classes].
      local: The same.
      distillation_temperature: T.
    """
    target = tf.nn.log_softmax(hybrid / distillation_temperature)
    log_ratio = target - tf.nn.log_softmax(local / distillation_temperature)
    return tf.reduce_sum(tf.exp(target) * log_ratio, axis=-1)


def _check_splits(splits: Sequence[int] | None, num_blocks: int) -> None:
    """Raises `HyperparameterError` for splits that a model does not have."""
    if splits is None:
        return
    if not splits or not set(splits) <= set(range(1, num_blocks)):
        valid = ", ".join(map(str, range(1, num_blocks)))
        raise HyperparameterError(
            "splits",
            ",".join(map(str, splits)),
            f"numbers out of {valid} for a model of {num_blocks} blocks"
            if valid
            else "none: a model of one block has no branches",
        )


@checked
def build_multi_level_training_client_work(
    model: BlockModel,
    optimizer: tff.learning.optimizers.Optimizer,
    losses: BranchLosses,
    *,
    gradient_clip_norm: Annotated[float | None, hparam(above=0)] = None,
    client_weighting: tff.learning.ClientWeighting = (
        tff.learning.ClientWeighting.NUM_EXAMPLES
    ),
    client_learning_rate_decay: float = 1.0,
    metrics_aggregator: tff.learning.metrics.MetricsAggregatorType | None = None,
    with_num_examples: bool = False,
) -> tff.learning.templates.ClientWorkProcess:
    """Builds FedMLB's client work.

    After each block except the last, or after those of `losses.splits`, the local model
    branches into the server's remaining blocks. These are frozen; gradients flow through
    them into local blocks.

    Args:
      model: A block model of a classifier; a model of one block has no branches.
      optimizer: The client optimizer.
      losses: The terms of the objective.
      gradient_clip_norm: Largest L2 norm of a step's gradient, > 0; None for no limit.
      client_weighting: As in `build_local_training_client_work`.
      client_learning_rate_decay: As in `build_local_training_client_work`.
      metrics_aggregator: As in `tff.learning.algorithms.build_weighted_fed_avg`.
      with_num_examples: As in `build_local_training_client_work`.

    Returns:
      A process typed as `build_local_training_client_work`'s.

    Raises:
      HyperparameterError: If an argument is out of range, or the model has no such
        splits.
      TypeError: If `model` is not a block model.
    """
    local_model.require_blocks(model)
    _check_splits(losses.splits, model.num_blocks)
    local_update = local_training.build_local_update(
        optimizer, client_learning_rate_decay=client_learning_rate_decay
    )

    def client_update(view: BlockLocalModel, round_num, server_weights, data):
        server = local_model.flatten(server_weights)

        def gradients(model, state, batch):
            result = model.loss_gradients(
                state.weights,
                state.metrics,
                batch,
                objective=lambda forward: losses.objective(model, server, forward),
            )
            clipped = local_training.clip_by_norm(result.gradients, gradient_clip_norm)
            return attrs.evolve(result, gradients=clipped), state.carry

        update = local_update(view, round_num, server_weights, data.batches, gradients)
        return update.report(view, server_weights, client_weighting), {}

    fields = ClientDataFields(num_examples=with_num_examples)
    return build_round_process(model, client_update, metrics_aggregator, fields=fields)
