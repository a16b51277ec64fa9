"""Functional models that are chains of blocks, for algorithms that need features.

    x --> block 0 --> block 1 --> ... --> block M --> output

`BlockModel.predict_on_batch` runs the whole chain, so such a model is a
`tff.learning.models.FunctionalModel` like any other. `BlockModel.apply_blocks` runs a
part of it and also returns every block's input. Uses are

  * a loss on features, the last block's input: MOON, Li et al., "Model-contrastive
    federated learning", CVPR 2021 (https://arxiv.org/abs/2103.16257);
  * one model's features passed through another's later blocks: FedMLB, Kim et al.,
    "Multi-level branched regularization for federated learning", ICML 2022
    (https://arxiv.org/abs/2207.06936);
  * the moving statistics of batch normalization, which `predict_on_batch` drops.

A chain of blocks is a block (`chain`), so a layer, a part of a model and a whole
network have the same type.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import attrs
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_algos.autograph import convertible

Tensors = tuple[tf.Tensor, ...]
TargetWeightsFn = Callable[[Any], tf.Tensor | None]


@attrs.frozen(eq=False)
class Mode:
    """The mode of a forward pass.

    Passes of the same mode have the same dropout masks, whatever their weights.
    `attrs.evolve(mode, batch_statistics=False)` keeps the masks and freezes the
    statistics.

    Attributes:
      dropout_seed: The seed of the dropout masks, uint32 []; None for no dropout.
      batch_statistics: Whether batch normalization uses the batch's mean and variance
        and updates the moving statistics, or uses the moving statistics.
    """

    dropout_seed: tf.Tensor | None
    batch_statistics: bool


# The mode of evaluation.
EVALUATION = Mode(dropout_seed=None, batch_statistics=False)


@attrs.frozen(kw_only=True, eq=False)
class Block:
    """A part of a model: a pure function of weights and input, and initial weights.

    Attributes:
      apply: `(trainable, non_trainable, x, mode) -> (output, non_trainable)`, with all
        of the block's weights, in order; the second result is the new non-trainable
        weights.
      trainable: The initial trainable weights.
      non_trainable: The initial non-trainable weights.
      has_dropout: Whether `apply` needs a `Mode.dropout_seed` in training.
      batch_norm: Whether each trainable weight is a scale or shift of batch
        normalization; empty if none is.
      frozen: Whether each non-trainable weight never changes; empty if all are
        statistics that training changes.
      parts: The blocks that it is a chain of; empty if it is none.
    """

    apply: Callable[[Tensors, Tensors, Any, Mode], tuple[tf.Tensor, Tensors]]
    trainable: tuple[np.ndarray, ...] = ()
    non_trainable: tuple[np.ndarray, ...] = ()
    has_dropout: bool = False
    batch_norm: tuple[bool, ...] = ()
    frozen: tuple[bool, ...] = ()
    parts: tuple["Block", ...] = ()


def layer(function: Callable[..., tf.Tensor], *weights: np.ndarray) -> Block:
    """Returns the block of a function that is the same in every mode.

    Args:
      function: `(x, *weights) -> output`, of TensorFlow operations. For Python's `if`
        and loops on tensors, make it a `tf.function`.
      *weights: The initial weights, all of them trainable.
    """

    def apply(trainable, non_trainable, x, mode):
        del non_trainable, mode  # A plain layer has neither statistics nor dropout.
        return function(x, *trainable), ()

    return Block(apply=apply, trainable=weights)


def chain(*blocks: Block) -> Block:
    """Returns the composition of the blocks; the identity if there are none."""

    def apply(trainable, non_trainable, x, mode):
        result = _run(blocks, trainable, non_trainable, x, mode)
        return result.output, result.non_trainable

    return Block(
        apply=apply,
        trainable=_joined(block.trainable for block in blocks),
        non_trainable=_joined(block.non_trainable for block in blocks),
        has_dropout=any(block.has_dropout for block in blocks),
        batch_norm=_joined(
            block.batch_norm or (False,) * len(block.trainable) for block in blocks
        ),
        frozen=_joined(
            block.frozen or (False,) * len(block.non_trainable) for block in blocks
        ),
        parts=blocks,
    )


@attrs.frozen
class WeightMask:
    """A part of a model's weights.

    Attributes:
      trainable: For each trainable weight, whether it belongs to the part.
      non_trainable: For each non-trainable weight, whether it belongs to the part;
        False for frozen ones, which are everywhere the same.
    """

    trainable: tuple[bool, ...]
    non_trainable: tuple[bool, ...]


@attrs.frozen(eq=False)
class ForwardPass:
    """The results of a chain of blocks.

    Attributes:
      inputs: The input of each block; the first is the input of the chain.
      output: The output of the last block.
      non_trainable: The new values of the non-trainable weights.
    """

    inputs: tuple[Any, ...]
    output: tf.Tensor
    non_trainable: Tensors

    @property
    def features(self) -> tf.Tensor:
        """The last block's input: the features, if the chain is a whole model."""
        return self.inputs[-1]


class BlockModel(tff.learning.models.FunctionalModel):
    """A functional model that is a chain of blocks, the last being the classifier."""

    def __init__(
        self,
        blocks: Sequence[Block],
        *,
        loss_fn: Callable[..., tf.Tensor],
        metrics_fns: tuple[Callable, Callable, Callable],
        input_spec: Any,
        dropout_seed_fn: Callable[[Tensors, Any], tf.Tensor] | None = None,
        target_weights_fn: TargetWeightsFn | None = None,
    ):
        """Initializes the model; its initial weights are those of the blocks.

        Args:
          blocks: At least one block; the first takes `x` of `input_spec`.
          loss_fn: As in `tff.learning.models.FunctionalModel`.
          metrics_fns: As in `tff.learning.models.FunctionalModel`.
          input_spec: As in `tff.learning.models.FunctionalModel`.
          dropout_seed_fn: `(trainable, x) -> uint32 []`, a pure function whose seed
            differs between weights and between batches; required if blocks have
            dropout.
          target_weights_fn: From labels [n, ...] to the weight of each target in the
            loss, float [n, ...]; None if all targets have weight 1.

        Raises:
          ValueError: If there are no blocks, or dropout without `dropout_seed_fn`.
        """
        if not blocks:
            raise ValueError("Expected at least one block, found none.")
        whole = chain(*blocks)
        if whole.has_dropout and dropout_seed_fn is None:
            raise ValueError("Expected a dropout_seed_fn: the blocks have dropout.")
        self._blocks = tuple(blocks)
        self._dropout_seed_fn = dropout_seed_fn if whole.has_dropout else None
        self._target_weights_fn = target_weights_fn

        @tf.function
        def predict_on_batch(model_weights, x, training):
            mode = self.mode(model_weights, x, training)
            return self.apply_blocks(model_weights, x, mode).output

        super().__init__(
            initial_weights=(whole.trainable, whole.non_trainable),
            predict_on_batch_fn=predict_on_batch,
            loss_fn=loss_fn,
            metrics_fns=metrics_fns,
            input_spec=input_spec,
        )

    @property
    def num_blocks(self) -> int:
        """The number of blocks, M + 1."""
        return len(self._blocks)

    def target_weights(self, label: Any) -> tf.Tensor | None:
        """Returns targets' weights in the loss, like labels; None if all have weight 1."""
        if self._target_weights_fn is None:
            return None
        return convertible(self._target_weights_fn)(label)

    @property
    def statistics(self) -> tuple[bool, ...]:
        """For each non-trainable weight, whether it is a statistic: training changes it."""
        return tuple(not each for each in chain(*self._blocks).frozen)

    def mask_of_blocks(self, start: int, stop: int) -> WeightMask:
        """Returns which weights are those of blocks `start` to `stop` - 1."""

        def mask(weights: Callable[[Block], tuple]) -> tuple[bool, ...]:
            return _joined(
                (start <= number < stop,) * len(weights(block))
                for number, block in enumerate(self._blocks)
            )

        inside = mask(lambda block: block.non_trainable)
        changing = (a and b for a, b in zip(inside, self.statistics, strict=True))
        return WeightMask(mask(lambda block: block.trainable), tuple(changing))

    def mask_of_batch_norm(self) -> WeightMask:
        """Returns which weights are batch normalization's: scales, shifts, statistics."""
        return WeightMask(chain(*self._blocks).batch_norm, self.statistics)

    @tf.autograph.experimental.do_not_convert
    def mode(self, model_weights: Any, x: Any, training: bool = True) -> Mode:
        """Returns the mode that `predict_on_batch` runs in.

        Args:
          model_weights: `(trainable, non_trainable)`, like `initial_weights`.
          x: A batch's inputs; with the weights they determine the dropout masks.
          training: Whether the pass is for training.
        """
        if not training:
            return EVALUATION
        if self._dropout_seed_fn is None:
            return Mode(dropout_seed=None, batch_statistics=True)
        seed = self._dropout_seed_fn(tuple(model_weights[0]), x)
        return Mode(dropout_seed=seed, batch_statistics=True)

    @tf.autograph.experimental.do_not_convert
    def apply_blocks(
        self,
        model_weights: Any,
        x: Any,
        mode: Mode,
        start: int = 0,
        stop: int | None = None,
    ) -> ForwardPass:
        """Runs blocks `start` to `stop` - 1; without blocks, the output is `x`.

        With `result = model.apply_blocks(weights, x, mode)`, `result.inputs[i]` is the
        input of block i and valid for `apply_blocks(other_weights, ..., start=i)`.

        Args:
          model_weights: `(trainable, non_trainable)` of the whole model, like
            `initial_weights`.
          x: The input of block `start`: the batch's inputs or an earlier block's
            output.
          mode: The mode; the method `mode` returns that of `predict_on_batch`.
          start: The first block to run.
          stop: The first block not to run; None for `num_blocks`.

        Returns:
          The blocks' inputs and output, and all of the model's non-trainable weights,
          unchanged for the other blocks.

        Raises:
          ValueError: If the range is invalid or the number of weights is wrong.
        """
        stop = self.num_blocks if stop is None else stop
        if not 0 <= start <= stop <= self.num_blocks:
            raise ValueError(
                f"Expected 0 <= start <= stop <= {self.num_blocks}, the number of "
                f"blocks, found start={start}, stop={stop}."
            )
        trainable, non_trainable = map(tuple, model_weights)
        for name, found, expected in zip(
            ("trainable", "non-trainable"),
            (trainable, non_trainable),
            self.initial_weights,
            strict=True,
        ):
            if len(found) != len(expected):
                raise ValueError(
                    f"Expected {len(expected)} {name} weights, found {len(found)}."
                )
        before = chain(*self._blocks[:start])
        result = _run(
            self._blocks[start:stop],
            trainable[len(before.trainable) :],
            non_trainable[len(before.non_trainable) :],
            x,
            mode,
        )
        first = len(before.non_trainable)
        last = first + len(result.non_trainable)
        return attrs.evolve(
            result,
            non_trainable=(
                *non_trainable[:first],
                *result.non_trainable,
                *non_trainable[last:],
            ),
        )

    def with_block(self, index: int, block: Block) -> "BlockModel":
        """Returns a model with one more block.

        Args:
          index: The blocks that come before it, in [0, `num_blocks`].
          block: The block.
        """
        return self._of((*self._blocks[:index], block, *self._blocks[index:]))

    def with_classifier_apart(self) -> "BlockModel":
        """Returns this model with no more than one layer that has weights in its last block.

        Earlier layers of that block become a block of their own, so that the features are
        the output of the penultimate layer.
        """
        *blocks, last = self._blocks
        layers = list(_layers(last))
        with_weights = [i for i, each in enumerate(layers) if each.trainable]
        if len(with_weights) < 2:
            return self
        cut = with_weights[-1]
        return self._of((*blocks, chain(*layers[:cut]), chain(*layers[cut:])))

    def _of(self, blocks: Sequence[Block]) -> "BlockModel":
        return BlockModel(
            blocks,
            loss_fn=self.loss,
            metrics_fns=(
                self.initialize_metrics_state,
                self.update_metrics_state,
                self.finalize_metrics,
            ),
            input_spec=self.input_spec,
            dropout_seed_fn=self._dropout_seed_fn,
            target_weights_fn=self._target_weights_fn,
        )

    def with_loss(
        self,
        *,
        loss_fn: Callable[..., tf.Tensor],
        metrics_fns: tuple[Callable, Callable, Callable],
        input_spec: Any,
        target_weights_fn: TargetWeightsFn | None = None,
    ) -> "BlockModel":
        """Returns a model of the same blocks with another loss.

        Args:
          loss_fn: As in `tff.learning.models.FunctionalModel`.
          metrics_fns: As in `tff.learning.models.FunctionalModel`.
          input_spec: As in `tff.learning.models.FunctionalModel`; `x` is unchanged.
          target_weights_fn: Of the new loss; None if all targets have weight 1.
        """
        return BlockModel(
            self._blocks,
            loss_fn=loss_fn,
            metrics_fns=metrics_fns,
            input_spec=input_spec,
            dropout_seed_fn=self._dropout_seed_fn,
            target_weights_fn=target_weights_fn,
        )


def _layers(block: Block) -> Iterator[Block]:
    if not block.parts:
        yield block
    for part in block.parts:
        yield from _layers(part)


def _joined(groups) -> tuple:
    return tuple(itertools.chain.from_iterable(groups))


def _run(
    blocks: Sequence[Block],
    trainable: Sequence[tf.Tensor],
    non_trainable: Sequence[tf.Tensor],
    x: Any,
    mode: Mode,
) -> ForwardPass:
    """Runs blocks on the leading weights, as many as the blocks have."""
    trainable, non_trainable = iter(trainable), iter(non_trainable)
    inputs, updated = [], []
    for block in blocks:
        inputs.append(x)
        x, new_values = block.apply(
            tuple(itertools.islice(trainable, len(block.trainable))),
            tuple(itertools.islice(non_trainable, len(block.non_trainable))),
            x,
            mode,
        )
        updated += new_values
    return ForwardPass(inputs=tuple(inputs), output=x, non_trainable=tuple(updated))
