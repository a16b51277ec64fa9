"""MimeLite: local steps with the server's optimizer statistics.

Karimireddy, Jaggi, Kale, Mohri, Reddi, Stich, Suresh: "Breaking the centralized
barrier for cross-device federated learning", 2021, arXiv 2008.03606.

Clients step with the server's momentum, frozen for the round; the server
advances it with the clients' mean full gradient. The momentum is undamped, as
TFF's: y <- y - eta * (g + beta * m). With beta = 0, and in the first round, it is
FedAvg. With one full-batch step and every client it is heavy-ball gradient
descent on the pooled data.
"""

import attrs
import tensorflow_federated as tff

from tff_algos import client_works
from tff_algos.algorithms import algorithm
from tff_algos.hyperparameters import MOMENTUM, choice, hparam
from tff_algos.models.local_model import ModelOrFn


@attrs.frozen(kw_only=True)
class MimeLiteHParams(
    algorithm.LocalStepsHParams,
    algorithm.CohortHParams,
    algorithm.ServerOptimizerHParams,
):
    """MimeLite: FedAvg's, and the base optimizer's momentum."""

    client_optimizer: str = choice(
        "sgd", ("sgd", "adam"), "base optimizer, whose state the clients share"
    )
    base_momentum: float = hparam(
        0.9, float, MOMENTUM, "momentum of the base optimizer (of sgd)", "beta"
    )

    def __attrs_post_init__(self):
        algorithm.check_momentum(
            "base_momentum", self.base_momentum, self.client_optimizer
        )


def build_mime_lite(
    model_fn: ModelOrFn,
    base_optimizer: tff.learning.optimizers.Optimizer,
    server_optimizer: tff.learning.optimizers.Optimizer | None = None,
    *,
    client_weighting: tff.learning.ClientWeighting = (
        tff.learning.ClientWeighting.NUM_EXAMPLES
    ),
    client_learning_rate_decay: float = 1.0,
    model_distributor: tff.learning.templates.DistributionProcess | None = None,
    model_aggregator: tff.aggregators.WeightedAggregationFactory | None = None,
    full_gradient_aggregator: tff.aggregators.WeightedAggregationFactory | None = None,
    metrics_aggregator: tff.learning.metrics.MetricsAggregatorType | None = None,
    with_num_examples: bool = False,
    with_full_pass: bool = False,
) -> tff.learning.templates.LearningProcess:
    """Builds MimeLite.

    The same numbers as `tff.learning.algorithms.build_weighted_mime_lite`, and
    besides: a client whose full gradient is not finite is excluded before it can
    spoil the shared optimizer state, and invalid clients are counted.

    Args:
      model_fn: A `tff.learning.models.FunctionalModel`, or a no-argument function
        that returns a `tff.learning.models.VariableModel`.
      base_optimizer: The optimizer of the local steps, whose state the server
        keeps; `build_sgdm(eta, momentum=beta)` for momentum.
      server_optimizer: Takes the mean model delta for a gradient; SGD with
        learning rate 1 by default.
      client_weighting: Whether clients weigh by the examples they processed or
        all alike.
      client_learning_rate_decay: Factor on the client learning rate after every
        round, in (0, 1].
      model_distributor: Instead of a plain broadcast.
      model_aggregator: Instead of the weighted mean of deltas.
      full_gradient_aggregator: Instead of the weighted mean of full gradients.
      metrics_aggregator: As in
        `tff.learning.algorithms.build_weighted_mime_lite`.
      with_num_examples: As in `build_fed_avg`, for the full gradients too.
      with_full_pass: Whether clients' data hold `full_pass`, as in `build_q_fed_avg`, over
        which the full gradient is taken.

    Returns:
      A `tff.learning.templates.LearningProcess`, typed as `build_fed_avg`'s.
    """
    client_work = client_works.build_mime_lite_client_work(
        model_fn,
        base_optimizer,
        client_weighting=client_weighting,
        learning_rate_decay=client_learning_rate_decay,
        full_gradient_aggregator=full_gradient_aggregator,
        metrics_aggregator=metrics_aggregator,
        with_num_examples=with_num_examples,
        with_full_pass=with_full_pass,
    )
    return algorithm.compose(
        model_fn,
        client_work,
        server_optimizer or tff.learning.optimizers.build_sgdm(1.0),
        model_distributor=model_distributor,
        model_aggregator=model_aggregator,
    )


def _build_stages(task, hparams):
    process = build_mime_lite(
        task.model,
        algorithm.build_optimizer(
            hparams.client_optimizer,
            hparams.client_learning_rate,
            momentum=hparams.base_momentum,
        ),
        algorithm.server_optimizer_from(hparams),
        client_weighting=algorithm.client_weighting(hparams),
        client_learning_rate_decay=hparams.client_learning_rate_decay,
        with_num_examples=algorithm.tells_num_examples(hparams, task.model),
        with_full_pass=algorithm.needs_full_pass(hparams),
    )
    return algorithm.single_stage("mimelite", process, hparams)


MIME_LITE = algorithm.Algorithm(
    name="mimelite",
    title="MimeLite",
    summary="local steps with the server's frozen momentum",
    paper="Karimireddy et al., 2021, arXiv 2008.03606",
    hparams=MimeLiteHParams,
    build_stages=_build_stages,
    # Undamped momentum 0.9 multiplies steps by 10: the tasks' rates times 1 - 0.9.
    settings={
        "emnist": {"client_learning_rate": 0.002},
        "shakespeare": {"client_learning_rate": 0.1},
    },
)
