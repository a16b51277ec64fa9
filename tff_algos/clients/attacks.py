"""Malicious clients, for any client work of a functional model.

The attacks of Hu et al., "Federated Learning Meets Multi-Objective Optimization",
2022, arXiv 2006.11489. A malicious client scales its loss, and with it its gradients,
adds a bias to the losses that it reports, or scales the update that it sends after
honest training. The attack is part of the client's batches, so it is applied before an
aggregator sees the update and needs no support from the algorithm.
"""

import collections
import contextlib
import contextvars
from collections.abc import Iterator, Mapping
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff

from tff_algos.autograph import convertible
from tff_algos.models.block_model import BlockModel
from tff_algos.models.local_model import Tensors

_LABEL = "label"
_LOSS_SCALE, _LOSS_BIAS, _UPDATE_SCALE = "loss_scale", "loss_bias", "update_scale"
_KEYS = (_LABEL, _LOSS_SCALE, _LOSS_BIAS, _UPDATE_SCALE)
_applied: contextvars.ContextVar[set[str] | None] = contextvars.ContextVar(
    "applied", default=None
)


def _is_attacked(label: Any) -> bool:
    return isinstance(label, Mapping) and tuple(label) == _KEYS


def attacked_model(
    model: tff.learning.models.FunctionalModel,
) -> tff.learning.models.FunctionalModel:
    """Returns the model for batches of `attacked_batches`.

    It has the same weights and accepts the model's own batches as well. With scale 1
    its losses and gradients are bit-identical to the model's.

    Args:
      model: A model whose batches are pairs `(x, y)`.

    Raises:
      TypeError: If `model` is not a `tff.learning.models.FunctionalModel`, or its
        batches are not pairs.
    """
    if not isinstance(model, tff.learning.models.FunctionalModel):
        raise TypeError(
            "Expected model to be a tff.learning.models.FunctionalModel, found "
            f"{type(model)}."
        )
    if isinstance(model.input_spec, Mapping) or len(model.input_spec) != 2:
        raise TypeError(
            f"Expected a model whose batches are pairs (x, y), found input_spec "
            f"{model.input_spec}."
        )
    x_spec, y_spec = model.input_spec
    per_example = tf.TensorSpec([None], tf.float32)
    honest_loss = convertible(model.loss)

    def loss(output, label, sample_weight=None):
        if not _is_attacked(label):
            return honest_loss(output, label, sample_weight)
        honest = honest_loss(output, label[_LABEL], sample_weight)
        return honest * tf.cast(tf.reduce_max(label[_LOSS_SCALE]), honest.dtype)

    def update_metrics_state(state, labels, batch_output, sample_weight=None):
        labels = labels[_LABEL] if _is_attacked(labels) else labels
        return model.update_metrics_state(state, labels, batch_output, sample_weight)

    changed = {
        "loss_fn": loss,
        "metrics_fns": (
            model.initialize_metrics_state,
            update_metrics_state,
            model.finalize_metrics,
        ),
        "input_spec": (x_spec, _label(y_spec, *[per_example] * 3)),
    }
    if isinstance(model, BlockModel):

        def target_weights(label):
            return model.target_weights(label[_LABEL] if _is_attacked(label) else label)

        return model.with_loss(**changed, target_weights_fn=target_weights)
    return tff.learning.models.FunctionalModel(
        initial_weights=model.initial_weights,
        predict_on_batch_fn=model.predict_on_batch,
        **changed,
    )


def _label(label: Any, *told: Any) -> collections.OrderedDict[str, Any]:
    return collections.OrderedDict(zip(_KEYS, (label, *told), strict=True))


def attacked_batches(
    batches: tf.data.Dataset,
    loss_scale: float = 1.0,
    loss_bias: float = 0.0,
    update_scale: float = 1.0,
) -> tf.data.Dataset:
    """Returns a client's batches with its attack.

    Args:
      batches: Pairs `(x, y)`.
      loss_scale: Factor on the loss.
      loss_bias: Added to reported losses; only this package's client works apply it.
      update_scale: Factor on the transmitted update; only this package's client works
        apply it.

    Returns:
      Pairs `(x, y)` whose `y` is a mapping of the label and the three numbers, float32
      `[b]`, for a model of `attacked_model`.
    """
    told = [float(each) for each in (loss_scale, loss_bias, update_scale)]

    def tell(x, y):
        size = tf.shape(tf.nest.flatten(y)[0])[:1]
        return x, _label(y, *[tf.fill(size, each) for each in told])

    return batches.map(tell)


def honest_batch(batch: Any) -> Any:
    """Returns a batch, or its specs, as it is without an attack."""
    if not isinstance(batch, tuple) or not _is_attacked(batch[-1]):
        return batch
    return (*batch[:-1], batch[-1][_LABEL])


def reported_loss(loss: tf.Tensor, dataset: tf.data.Dataset) -> tf.Tensor:
    """Returns the loss that a client reports, given its true loss.

    Args:
      loss: The client's loss, [].
      dataset: The client's batches, with or without an attack.
    """
    bias = _told(dataset, _LOSS_BIAS, 0.0)
    return loss if bias is None else loss + tf.cast(bias, loss.dtype)


def sent_update(update: Tensors, dataset: tf.data.Dataset) -> Tensors:
    """Returns the update that a client sends, given its true update.

    Args:
      update: The client's update, flat.
      dataset: As in `reported_loss`.
    """
    scale = _told(dataset, _UPDATE_SCALE, 1.0)
    if scale is None:
        return update
    return tuple(tensor * tf.cast(scale, tensor.dtype) for tensor in update)


@contextlib.contextmanager
def applied_by_client_works() -> Iterator[set[str]]:
    """Yields the attacks that client works apply which are built within the context.

    They are named like the arguments of `attacked_batches`. What does not appear has no
    effect on those client works; a loss is scaled by the model itself.
    """
    names: set[str] = set()
    token = _applied.set(names)
    try:
        yield names
    finally:
        _applied.reset(token)


def _told(dataset: tf.data.Dataset, key: str, default: float) -> tf.Tensor | None:
    """Returns an attack's value, float32 []; None if the batches have no attack."""
    spec = dataset.element_spec
    if not isinstance(spec, tuple) or not _is_attacked(spec[-1]):
        return None
    applied = _applied.get()
    if applied is not None:
        applied.add(key)
    # All batches of a client have the same value, so the first one suffices.
    first = dataset.take(1)
    return first.reduce(tf.constant(default), lambda _, batch: batch[-1][key][0])
