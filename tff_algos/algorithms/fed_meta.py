"""FedMeta: a meta update on the server's own data after every round.

Yao, Huang, Sun: "Federated Learning with Unbiased Gradient Aggregation and Controllable
Meta Updating", 2019, arXiv 1910.08234.

The server holds a small curated set D_meta, which stands for the distribution that the
model is for. A round of any inner algorithm, w' the model after it:

    w <- w' - eta_meta * grad F_meta(w')

The next round broadcasts w (or, with `feed_back=False`, w', so that the meta update only
shapes the model returned).

Reduces to: the inner algorithm with eta_meta = 0; gradient descent on D_meta with idle
clients. A round that the inner algorithm rejects leaves w' = w, and the meta update
follows all the same: it needs no client.

Cost per round: the inner algorithm's; `meta_steps` gradient steps at the server.
"""

import collections
from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

import tensorflow_federated as tff

from tff_algos import finalizers
from tff_algos.algorithms.arguments import LearningProcess, Optimizer
from tff_algos.client_works.unrolled_training import Reduction
from tff_algos.hyperparameters import checked, hparam
from tff_algos.models import ModelOrFn


class FedMetaState(NamedTuple):
    """The state of FedMeta.

    Attributes:
      inner: The inner algorithm's state, with the model's weights.
      meta: A `finalizers.MetaState`.
      updated: The weights after the last meta update where they are not fed back to
        `inner`, else ().
    """

    inner: Any
    meta: Any
    updated: Any = ()


@checked
def build_fed_meta(
    inner: LearningProcess,
    model_fn: ModelOrFn,
    meta_examples: Any,
    *,
    meta_learning_rate: Annotated[
        float | None, hparam(low=0, symbol="eta_meta")
    ] = None,
    meta_optimizer_fn: Optimizer | None = None,
    meta_learning_rate_decay: Annotated[float, hparam(above=0, high=1)] = 1.0,
    meta_steps: Annotated[int, hparam(low=1)] = 1,
    meta_batch_size: Annotated[int | None, hparam(low=1)] = None,
    meta_reduction: Annotated[Reduction, hparam()] = "mean",
    feed_back: Annotated[bool, hparam()] = True,
) -> LearningProcess:
    """Builds FedMeta around any inner algorithm.

    The server sees D_meta, which is a constant of the computation.

    Args:
      inner: Any learning process that trains the model, of this package or TFF's:
        FedAvg for FedMeta, UGA for FedMeta with UGA. The meta update starts from its
        `get_model_weights`, so AFL needs `returned_model="last"`.
      model_fn: The model that `inner` trains: a `tff.learning.models.FunctionalModel`, or
        a no-argument function that returns a `tff.learning.models.VariableModel`.
      meta_examples: D_meta: arrays in the structure of the model's batches, whose first
        axis is the example; 512 MiB at most.
      meta_learning_rate: Learning rate of the meta update, which is plain SGD.
      meta_optimizer_fn: Instead of `meta_learning_rate`.
      meta_learning_rate_decay: Decay factor of the meta learning rate per round.
      meta_steps: Meta steps per round.
      meta_batch_size: Examples of a meta step, taken from D_meta in turn; None for all.
      meta_reduction: Reduction of the loss over a meta step's examples. The paper defines
        losses as sums; `mean` makes the step independent of the size of D_meta.
      feed_back: Start the next round from the meta-updated model; otherwise from the
        model before the meta update, and the updated model is only evaluated.

    Returns:
      A `tff.learning.templates.LearningProcess`, typed as `inner` except for its state,
      a `FedMetaState`, and its metrics, `inner`'s and `meta` (`gradient_norm` float32,
      `num_rejected_meta_updates` int32). Its `get_hparams` and `set_hparams` are
      `inner`'s.

    Raises:
      HyperparameterError: If a hyperparameter is out of range.
      TypeError: If `inner` is not a learning process.
      ValueError: If not exactly one of learning rate and optimizer is given, or D_meta
        is empty, too large or not what the model takes.
    """
    if not isinstance(inner, tff.learning.templates.LearningProcess):
        raise TypeError(
            "Expected inner to be a tff.learning.templates.LearningProcess, found "
            f"{type(inner)}."
        )
    if (meta_learning_rate is None) == (meta_optimizer_fn is None):
        raise ValueError(
            "Expected exactly one of meta_learning_rate and meta_optimizer_fn, found "
            f"meta_learning_rate={meta_learning_rate}, meta_optimizer_fn={meta_optimizer_fn}."
        )
    meta = finalizers.build_meta_update(
        model_fn,
        meta_examples,
        meta_optimizer_fn or tff.learning.optimizers.build_sgdm(meta_learning_rate),
        meta_steps=meta_steps,
        meta_batch_size=meta_batch_size,
        meta_reduction=meta_reduction,
        meta_learning_rate_decay=meta_learning_rate_decay,
    )
    return _with_meta_update(inner, meta, feed_back)


def _with_meta_update(inner, meta, feed_back):
    def updated_weights(weights):
        return tff.federated_value((), tff.SERVER) if feed_back else weights

    @tff.federated_computation
    def initialize():
        state = inner.initialize()
        weights = tff.federated_map(inner.get_model_weights, state)
        return tff.federated_zip(
            FedMetaState(
                state,
                tff.federated_eval(meta.initialize, tff.SERVER),
                updated_weights(weights),
            )
        )

    state_type = initialize.type_signature.result
    metrics_type = inner.next.type_signature.result.metrics.member
    measurements_type = meta.next.type_signature.result.measurements

    @tff.tensorflow.computation(metrics_type, measurements_type)
    def add_measurements(metrics, measurements):
        named = isinstance(metrics, Mapping)
        metrics = metrics if named else collections.OrderedDict(inner=metrics)
        return collections.OrderedDict(**metrics, meta=measurements)

    @tff.federated_computation(state_type, inner.next.type_signature.parameter[1])
    def next_fn(state, client_data):
        output = inner.next(state.inner, client_data)
        weights = tff.federated_map(inner.get_model_weights, output.state)
        update = tff.federated_map(meta.next, (state.meta, weights))
        inner_state = output.state
        if feed_back:
            inner_state = tff.federated_map(
                inner.set_model_weights, (inner_state, update.weights)
            )
        return tff.learning.templates.LearningProcessOutput(
            tff.federated_zip(
                FedMetaState(inner_state, update.state, updated_weights(update.weights))
            ),
            tff.federated_map(add_measurements, (output.metrics, update.measurements)),
        )

    @tff.federated_computation(state_type.member)
    def get_model_weights(state):
        return inner.get_model_weights(state.inner) if feed_back else state.updated

    weights_type = inner.set_model_weights.type_signature.parameter[1]

    @tff.federated_computation(state_type.member, weights_type)
    def set_model_weights(state, weights):
        return FedMetaState(
            inner.set_model_weights(state.inner, weights),
            state.meta,
            state.updated if feed_back else weights,
        )

    @tff.federated_computation(state_type.member)
    def get_hparams(state):
        return inner.get_hparams(state.inner)

    @tff.federated_computation(
        state_type.member, inner.get_hparams.type_signature.result
    )
    def set_hparams(state, hparams):
        return FedMetaState(
            inner.set_hparams(state.inner, hparams), state.meta, state.updated
        )

    return tff.learning.templates.LearningProcess(
        initialize,
        next_fn,
        get_model_weights,
        set_model_weights,
        get_hparams_fn=get_hparams,
        set_hparams_fn=set_hparams,
    )
