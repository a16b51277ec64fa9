"""Types of the arguments that builders share, with TFF's words in TFF's places."""

from collections.abc import Callable
from typing import Annotated

import tensorflow_federated as tff

from tff_algos import optimizers
from tff_algos.hyperparameters import hparam, instance

ClientWeighting = Annotated[
    tff.learning.ClientWeighting, instance("a member of tff.learning.ClientWeighting")
]
Distributor = Annotated[
    tff.learning.templates.DistributionProcess,
    instance("a tff.learning.templates.DistributionProcess"),
]
LearningProcess = tff.learning.templates.LearningProcess
# isinstance does not take tff.learning.metrics.MetricsAggregatorType.
MetricsAggregator = Annotated[
    Callable,
    instance("a function such as tff.learning.metrics.sum_then_finalize"),
]
Optimizer = optimizers.Optimizer
WeightedAggregator = Annotated[
    tff.aggregators.WeightedAggregationFactory,
    instance(
        "a weighted factory of tff.aggregators (as_weighted_aggregator makes one of an "
        "unweighted one)"
    ),
]

BY_NUM_EXAMPLES = tff.learning.ClientWeighting.NUM_EXAMPLES
UNIFORM = tff.learning.ClientWeighting.UNIFORM

# Hyperparameters of many builders; each builder describes its own.
ClientLearningRate = Annotated[float, hparam(above=0, symbol="eta")]
ClientLearningRateDecay = Annotated[float, hparam(above=0, high=1)]
GradientClipNorm = Annotated[float | None, hparam(above=0)]
NumClients = Annotated[int, hparam(low=1)]
ServerLearningRate = Annotated[float, hparam(low=0, symbol="eta_g")]
ServerMomentum = Annotated[float, hparam(low=0, below=1, symbol="beta_1")]
