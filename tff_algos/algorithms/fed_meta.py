"""FedMeta: a meta update on the server's own data after every round.

Yao, Huang, Sun: "Federated Learning with Unbiased Gradient Aggregation and
Controllable Meta Updating", 2019, arXiv 1910.08234.

The server holds a small curated set D_meta, which stands for the distribution that
the model is for. After a round of any inner algorithm it takes a gradient step on
it, w <- w' - eta_meta * grad F_meta(w'), and broadcasts the result (or, with
`feed_back=False`, w', so that the meta update only shapes the model returned). With eta_meta = 0
FedMeta is its inner algorithm; with idle clients it is gradient descent on D_meta.
"""

import collections
from collections.abc import Mapping
from typing import Any

import attrs
import tensorflow_federated as tff

from tff_algos import finalizers
from tff_algos.algorithms import algorithm, fed_avg, uga
from tff_algos.experiments import server_examples
from tff_algos.hyperparameters import (
    AT_LEAST_ONE,
    DECAY,
    NON_NEGATIVE,
    SHARE,
    Interval,
    hparam,
    switch,
)
from tff_algos.models.local_model import ModelOrFn

_PAPER = "Yao et al., 2019, arXiv 1910.08234"


@attrs.frozen(kw_only=True, slots=False)
class MetaHParams:
    """The meta update: D_meta, eta_meta."""

    meta_learning_rate: float | None = hparam(
        None, float, NON_NEGATIVE, "learning rate of the meta update (the clients')"
    )
    meta_learning_rate_decay: float | None = hparam(
        None, float, DECAY, "factor on it after every round (the clients')"
    )
    meta_steps: int = hparam(1, int, AT_LEAST_ONE, "meta steps per round")
    meta_batch_size: int | None = hparam(
        None, int, AT_LEAST_ONE, "examples of a meta step (all of D_meta)"
    )
    meta_fraction: float = hparam(
        0.01, float, SHARE, "size of D_meta as a share of the training examples"
    )
    meta_overlap: float = hparam(
        1.0,
        float,
        Interval(low=0, high=1),
        "share of D_meta from clients that train; the rest is from others",
    )
    feed_back: bool = switch(
        True,
        "the next round starts from the meta-updated model; else from the model before "
        "the meta update, which is then only evaluated",
    )


@attrs.frozen(kw_only=True)
class FedMetaHParams(
    MetaHParams, algorithm.LocalTrainingHParams, algorithm.ServerOptimizerHParams
):
    """FedMeta: FedAvg's, and the meta update's."""


@attrs.frozen(kw_only=True)
class FedMetaUGAHParams(
    MetaHParams, uga.UGAClientHParams, algorithm.ServerOptimizerHParams
):
    """FedMeta with UGA: UGA's, and the meta update's."""


@attrs.frozen
class FedMetaState:
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


def build_fed_meta(
    inner: tff.learning.templates.LearningProcess,
    model_fn: ModelOrFn,
    meta_examples: Any,
    *,
    meta_learning_rate: float | None = None,
    meta_optimizer: tff.learning.optimizers.Optimizer | None = None,
    meta_learning_rate_decay: float = 1.0,
    meta_steps: int = 1,
    meta_batch_size: int | None = None,
    feed_back: bool = True,
) -> tff.learning.templates.LearningProcess:
    """Builds FedMeta over any inner algorithm.

    The server sees D_meta, which is a constant of the computation.

    Args:
      inner: Any learning process that trains the model, of this package or TFF's:
        FedAvg for FedMeta, UGA for FedMeta with UGA.
      model_fn: The model that `inner` trains: a
        `tff.learning.models.FunctionalModel`, or a no-argument function that returns
        a `tff.learning.models.VariableModel`.
      meta_examples: D_meta: arrays in the structure of the model's batches, whose
        first axis is the example; 512 MB at most.
      meta_learning_rate: eta_meta of plain SGD, >= 0.
      meta_optimizer: Instead of `meta_learning_rate`.
      meta_learning_rate_decay: Factor on the learning rate after every round, in
        (0, 1].
      meta_steps: Steps per round, >= 1.
      meta_batch_size: Examples of a step, which go round through D_meta; None for
        all of it.
      feed_back: Whether the meta-updated model is what the next round broadcasts. If
        not, training goes on from the inner algorithm's model, and `get_model_weights`
        gives the one after the round's meta update.

    Returns:
      A `tff.learning.templates.LearningProcess`, typed as `inner` but for its state,
      a `FedMetaState`, and its metrics, `inner`'s and `meta` (`gradient_norm`
      float32, `num_rejected_meta_updates` int32).

    Raises:
      HyperparameterError: If a hyperparameter is out of range.
      TypeError: If `inner` is no learning process.
      ValueError: If neither or both of learning rate and optimizer are given, or
        D_meta is empty or too large.
    """
    if not isinstance(inner, tff.learning.templates.LearningProcess):
        raise TypeError(
            "Expected inner to be a tff.learning.templates.LearningProcess, found "
            f"{type(inner)}."
        )
    if (meta_learning_rate is None) == (meta_optimizer is None):
        raise ValueError(
            "Expected one of meta_learning_rate and meta_optimizer, found "
            f"meta_learning_rate={meta_learning_rate}, meta_optimizer={meta_optimizer}."
        )
    MetaHParams(
        meta_learning_rate=meta_learning_rate,
        meta_learning_rate_decay=meta_learning_rate_decay,
        meta_steps=meta_steps,
        meta_batch_size=meta_batch_size,
    )
    meta = finalizers.build_meta_update(
        model_fn,
        meta_examples,
        meta_optimizer or tff.learning.optimizers.build_sgdm(meta_learning_rate),
        num_steps=meta_steps,
        batch_size=meta_batch_size,
        learning_rate_decay=meta_learning_rate_decay,
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

    return tff.learning.templates.LearningProcess(
        initialize, next_fn, get_model_weights, set_model_weights
    )


def _build(inner, task, hparams):
    """Puts the meta update that the record describes after `inner`."""
    rate, decay = hparams.meta_learning_rate, hparams.meta_learning_rate_decay
    return build_fed_meta(
        inner,
        task.model,
        server_examples.draw(task, hparams.meta_fraction, "meta", hparams.meta_overlap),
        meta_learning_rate=hparams.client_learning_rate if rate is None else rate,
        meta_learning_rate_decay=(
            hparams.client_learning_rate_decay if decay is None else decay
        ),
        meta_steps=hparams.meta_steps,
        meta_batch_size=hparams.meta_batch_size,
        feed_back=hparams.feed_back,
    )


def _build_fed_meta_stages(task, hparams):
    inner = fed_avg.build_from(task.model, hparams, algorithm.server_optimizer_from)
    return algorithm.single_stage("fedmeta", _build(inner, task, hparams), hparams)


def _build_fed_meta_uga_stages(task, hparams):
    inner = uga.build_from(task.model, hparams)
    return algorithm.single_stage("fedmeta_uga", _build(inner, task, hparams), hparams)


FED_META = algorithm.Algorithm(
    name="fedmeta",
    title="FedMeta",
    summary="FedAvg, then a gradient step on the server's own data",
    paper=_PAPER,
    hparams=FedMetaHParams,
    build_stages=_build_fed_meta_stages,
)

FED_META_UGA = algorithm.Algorithm(
    name="fedmeta_uga",
    title="FedMeta w/ UGA",
    summary="UGA, then a gradient step on the server's own data",
    paper=_PAPER,
    hparams=FedMetaUGAHParams,
    build_stages=_build_fed_meta_uga_stages,
    settings=uga.UGA.settings,
)
