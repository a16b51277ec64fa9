"""Agnostic federated learning (AFL): the best model for the worst mixture of clients.

Mohri, Sivek, Suresh: "Agnostic Federated Learning", 2019, arXiv 1902.00146.

Clients' weights lambda, on the simplex of N, are learned: gradient ascent while the model
descends. A round, both lines with the old lambda and F_i the loss that client i reports
(of w in the paper; with several local steps, the mean of the losses before each):

    server:  w <- w - eta_g * sum_i lambda_i delta_i
             lambda <- projection on the simplex of lambda + gamma_lambda * (F_1, ..., F_N)

The model returned is the mean of the models after every round that was not rejected, or
the last (`returned_model`). In the paper a client takes one gradient of one batch
(afl_mode "batch"); by default it trains for its local epochs, as in Hu et al., arXiv
2006.11489.

Clients whose report is missing (not in the cohort, dropped out, or excluded because
something in it is not finite) keep their lambda. The lambdas of the others move within
the mass that they had together: they are projected on the simplex of that sum. The model
delta is then the mean of those that report, weighted by lambda. If their lambdas are all
zero, the round changes nothing and counts as rejected. Such rounds become common as a few
clients gather the mass, so most of the N clients should take part in every round.

Reduces to: with gamma_lambda = 0, and while all losses are equal, the last model is that
of FedAvg with uniform weights.

Cost per round: FedAvg's communication; a client also receives lambda and sends two vectors
of length N, its loss and its presence as one-hot vectors. The server keeps two models.
"""

from typing import Annotated, Literal

import tensorflow_federated as tff

from tff_algos import client_works, finalizers
from tff_algos.algorithms.arguments import (
    ClientLearningRateDecay,
    Distributor,
    LearningProcess,
    MetricsAggregator,
    NumClients,
    Optimizer,
    WeightedAggregator,
)
from tff_algos.algorithms.composition import compose
from tff_algos.client_works.afl_training import AflLoss, AflMode
from tff_algos.hyperparameters import checked, hparam
from tff_algos.models import ModelOrFn, local_model

ReturnedModel = Literal["average", "last"]


@checked
def build_agnostic_federated_learning(
    model_fn: ModelOrFn,
    client_optimizer_fn: Optimizer,
    server_optimizer_fn: Optimizer | None = None,
    *,
    num_clients: NumClients,
    mixture_learning_rate: Annotated[float, hparam(low=0, symbol="gamma_lambda")] = 0.1,
    afl_mode: Annotated[AflMode, hparam()] = "epochs",
    afl_loss: Annotated[AflLoss, hparam()] = "batches",
    returned_model: Annotated[ReturnedModel, hparam()] = "average",
    client_learning_rate_decay: ClientLearningRateDecay = 1.0,
    model_distributor: Distributor | None = None,
    model_aggregator: WeightedAggregator | None = None,
    metrics_aggregator: MetricsAggregator | None = None,
    with_num_examples: bool = False,
) -> LearningProcess:
    """Builds agnostic federated learning.

    Args:
      model_fn: As in `build_fed_avg`, and so is every argument not listed here.
      client_optimizer_fn: The optimizer of local steps, one step per batch.
      server_optimizer_fn: Takes the mean model delta as gradient; SGD with learning
        rate 1 by default.
      num_clients: N, all clients in the population.
      mixture_learning_rate: gamma_lambda, the learning rate of the clients' weights.
      afl_mode: What clients do: train on all batches of the round (epochs), or take one
        step on the first batch (batch), as in the paper.
      afl_loss: A client's loss, taken on each batch before its step: the mean of the
        batches' mean losses (batches, as in the authors' code), or the mean over all
        examples in them (examples).
      returned_model: Model that the process returns and a run evaluates: the average over
        all rounds, or the last.

    Returns:
      A `tff.learning.templates.LearningProcess`, typed as `build_mifa`'s.

    Raises:
      HyperparameterError: If a hyperparameter is out of range.
    """
    client_work = client_works.build_agnostic_training_client_work(
        model_fn,
        client_optimizer_fn,
        num_clients=num_clients,
        mixture_learning_rate=mixture_learning_rate,
        afl_mode=afl_mode,
        afl_loss=afl_loss,
        client_learning_rate_decay=client_learning_rate_decay,
        metrics_aggregator=metrics_aggregator,
        with_num_examples=with_num_examples,
    )
    initial_weights = local_model.build_initial_weights_computation(model_fn)
    last = finalizers.build_apply_optimizer_finalizer(
        server_optimizer_fn or tff.learning.optimizers.build_sgdm(1.0),
        initial_weights.type_signature.result,
    )
    process = compose(
        model_fn,
        client_work,
        finalizer=last,
        wrap_finalizer=lambda inner: finalizers.build_average_iterates_finalizer(
            inner, initial_weights
        ),
        model_distributor=model_distributor,
        model_aggregator=model_aggregator,
    )
    return process if returned_model == "last" else _returning_average(process)


def _returning_average(process: LearningProcess) -> LearningProcess:
    """Returns the process with the mean of its models as its model."""
    state_type = process.initialize.type_signature.result.member
    weights_type = process.get_model_weights.type_signature.result

    @tff.tensorflow.computation(state_type)
    def get_model_weights(state):
        return state.finalizer.average

    @tff.tensorflow.computation(state_type, weights_type)
    def set_model_weights(state, weights):
        averaged = state.finalizer._replace(
            average=weights, num_rounds=0 * state.finalizer.num_rounds
        )
        return state._replace(global_model_weights=weights, finalizer=averaged)

    return tff.learning.templates.LearningProcess(
        process.initialize,
        process.next,
        get_model_weights=get_model_weights,
        set_model_weights=set_model_weights,
        get_hparams_fn=process.get_hparams,
        set_hparams_fn=process.set_hparams,
    )
