"""Types of the arguments that builders share, with TFF's words in TFF's places."""

from typing import Annotated

import tensorflow_federated as tff

from tff_algos.hyperparameters import hparam

ClientWeighting = tff.learning.ClientWeighting
Distributor = tff.learning.templates.DistributionProcess
LearningProcess = tff.learning.templates.LearningProcess
MetricsAggregator = tff.learning.metrics.MetricsAggregatorType
Optimizer = tff.learning.optimizers.Optimizer
WeightedAggregator = tff.aggregators.WeightedAggregationFactory

BY_NUM_EXAMPLES = ClientWeighting.NUM_EXAMPLES
UNIFORM = ClientWeighting.UNIFORM

# Hyperparameters of many builders; each builder describes its own.
ClientLearningRate = Annotated[float, hparam(above=0, symbol="eta")]
ClientLearningRateDecay = Annotated[float, hparam(above=0, high=1)]
GradientClipNorm = Annotated[float | None, hparam(above=0)]
NumClients = Annotated[int, hparam(low=1)]
ServerLearningRate = Annotated[float, hparam(low=0, symbol="eta_g")]
ServerMomentum = Annotated[float, hparam(low=0, below=1, symbol="beta_1")]
