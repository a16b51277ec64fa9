"""Agnostic federated learning (AFL): the best model for the worst mixture of clients.

Mohri, Sivek, Suresh: "Agnostic Federated Learning", 2019, arXiv 1902.00146.

Clients' weights lambda are learned: after every round they rise for clients with large
losses and stay on the simplex, which is gradient ascent while the model descends. The
model returned is the mean of the models of all rounds. With gamma_lambda = 0 the last
model is that of FedAvg with uniform weights; so it is while all losses are equal.

In the paper a client takes one gradient of one batch, afl_mode "batch"; by default it
trains for its local epochs, as in Hu et al., arXiv 2006.11489.
"""

from typing import Literal, get_args

import attrs
import tensorflow_federated as tff

from tff_algos import client_works, finalizers
from tff_algos.algorithms import algorithm
from tff_algos.client_works.afl_training import AflLoss, AflMode
from tff_algos.hyperparameters import NON_NEGATIVE, choice, hparam
from tff_algos.models import local_model
from tff_algos.models.local_model import ModelOrFn

ReturnedModel = Literal["average", "last"]


@attrs.frozen(kw_only=True, slots=False)
class MixtureHParams:
    """What AFL has and FedAvg has not."""

    mixture_learning_rate: float = hparam(
        0.1,
        float,
        NON_NEGATIVE,
        "learning rate of the clients' weights",
        "gamma_lambda",
    )
    afl_mode: str = choice(
        "epochs",
        get_args(AflMode),
        "what AFL's clients do: their local epochs, or a step on their first batch alone",
    )
    afl_loss: str = choice(
        "batches",
        get_args(AflLoss),
        "a client's loss for AFL: mean over its steps of the batches' mean losses, or "
        "mean over the examples in them",
    )
    returned_model: str = choice(
        "average",
        get_args(ReturnedModel),
        "model of AFL: the mean over rounds or the last",
    )


@attrs.frozen(kw_only=True)
class AgnosticHParams(
    MixtureHParams,
    algorithm.UnweightedTrainingHParams,
    algorithm.ServerOptimizerHParams,
):
    """AFL: FedAvg's without weights, and gamma_lambda."""


def build_agnostic_federated_learning(
    model_fn: ModelOrFn,
    client_optimizer: tff.learning.optimizers.Optimizer,
    server_optimizer: tff.learning.optimizers.Optimizer | None = None,
    *,
    num_clients: int,
    mixture_learning_rate: float,
    afl_mode: AflMode = "epochs",
    afl_loss: AflLoss = "batches",
    returned_model: ReturnedModel = "average",
    client_learning_rate_decay: float = 1.0,
    model_distributor: tff.learning.templates.DistributionProcess | None = None,
    model_aggregator: tff.aggregators.WeightedAggregationFactory | None = None,
    metrics_aggregator: tff.learning.metrics.MetricsAggregatorType | None = None,
    with_num_examples: bool = False,
) -> tff.learning.templates.LearningProcess:
    """Builds agnostic federated learning.

    w <- w - eta_g * sum_i lambda_i delta_i, and lambda <- the projection on the
    simplex of lambda + gamma_lambda * (F_1, ..., F_N), both with the old lambda.

    Clients whose report is missing (not in the cohort, dropped out, or excluded since
    something in it is not finite) keep their lambda. The others' lambdas move within
    the mass that they had together: they are projected on the simplex of that sum. The
    model delta is then the mean of those that report, weighted by lambda.

    Args:
      model_fn: A `tff.learning.models.FunctionalModel`, or a no-argument function
        that returns a `tff.learning.models.VariableModel`.
      client_optimizer: The optimizer of local steps, one per batch.
      server_optimizer: Takes the mean model delta for a gradient; SGD with learning
        rate 1 by default.
      num_clients: N, all clients that there are, >= 1.
      mixture_learning_rate: gamma_lambda, per loss, >= 0.
      afl_mode: Whether a client trains on all its batches of the round, "epochs", or
        takes a step on the first alone, "batch", as in the paper.
      afl_loss: A client's F_i: the mean over its "batches" of their mean losses, each
        before its step (the authors' code), or over the "examples" in them.
      returned_model: What `get_model_weights` gives: the "average" of the models
        after every round, or the "last".
      client_learning_rate_decay: Factor on the client learning rate after every
        round, in (0, 1].
      model_distributor: Instead of a plain broadcast.
      model_aggregator: Instead of the weighted mean.
      metrics_aggregator: As in `tff.learning.algorithms.build_weighted_fed_avg`.
      with_num_examples: As in `build_fed_avg`.

    Returns:
      A `tff.learning.templates.LearningProcess` whose `next` has the type
      `(<S@SERVER, {<examples=B*, client_index=int32*>}@CLIENTS> -> <state=S@SERVER,
      metrics=M@SERVER>)`: beside its batches a client tells its own number in
      [0, N), as a sequence of one element.

    Raises:
      HyperparameterError: If a hyperparameter is out of range.
    """
    MixtureHParams(
        mixture_learning_rate=mixture_learning_rate,
        afl_mode=afl_mode,
        afl_loss=afl_loss,
        returned_model=returned_model,
    )
    algorithm.check_num_clients(num_clients)
    client_work = client_works.build_agnostic_training_client_work(
        model_fn,
        client_optimizer,
        num_clients=num_clients,
        mixture_learning_rate=mixture_learning_rate,
        afl_mode=afl_mode,
        afl_loss=afl_loss,
        learning_rate_decay=client_learning_rate_decay,
        metrics_aggregator=metrics_aggregator,
        with_num_examples=with_num_examples,
    )
    initial_weights = local_model.build_initial_weights_computation(model_fn)
    last = finalizers.build_apply_optimizer_finalizer(
        server_optimizer or tff.learning.optimizers.build_sgdm(1.0),
        initial_weights.type_signature.result,
    )
    process = algorithm.compose(
        model_fn,
        client_work,
        finalizer=finalizers.build_average_iterates_finalizer(last, initial_weights),
        model_distributor=model_distributor,
        model_aggregator=model_aggregator,
    )
    return process if returned_model == "last" else _returning_average(process)


def _returning_average(process):
    """Returns the process with the mean of its models for its model."""
    state_type = process.initialize.type_signature.result.member
    weights_type = process.get_model_weights.type_signature.result

    @tff.tensorflow.computation(state_type)
    def get_model_weights(state):
        return state.finalizer.average

    @tff.tensorflow.computation(state_type, weights_type)
    def set_model_weights(state, weights):
        averaged = attrs.evolve(
            state.finalizer, average=weights, num_rounds=0 * state.finalizer.num_rounds
        )
        return state._replace(global_model_weights=weights, finalizer=averaged)

    return tff.learning.templates.LearningProcess(
        process.initialize,
        process.next,
        get_model_weights=get_model_weights,
        set_model_weights=set_model_weights,
    )


def _build_stages(task, hparams):
    process = build_agnostic_federated_learning(
        task.model,
        algorithm.build_client_optimizer(hparams),
        algorithm.server_optimizer_from(hparams),
        num_clients=len(task.train_client_ids),
        mixture_learning_rate=hparams.mixture_learning_rate,
        afl_mode=hparams.afl_mode,
        afl_loss=hparams.afl_loss,
        returned_model=hparams.returned_model,
        client_learning_rate_decay=hparams.client_learning_rate_decay,
        with_num_examples=algorithm.tells_num_examples(hparams, task.model),
    )
    return algorithm.single_stage("afl", process, hparams)


AGNOSTIC = algorithm.Algorithm(
    name="afl",
    title="AFL",
    summary="FedAvg whose clients' weights rise with their losses, for the worst mix",
    paper="Mohri et al., 2019, arXiv 1902.00146",
    hparams=AgnosticHParams,
    build_stages=_build_stages,
)
