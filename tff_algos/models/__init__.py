"""Models: chains of blocks, and a common view of TFF's two kinds of models."""

from tff_algos.models.block_model import BlockModel, WeightMask
from tff_algos.models.local_model import ModelOrFn
from tff_algos.models.variable_model import FunctionalVariableModel

__all__ = ["BlockModel", "FunctionalVariableModel", "ModelOrFn", "WeightMask"]
