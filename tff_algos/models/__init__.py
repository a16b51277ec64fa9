"""Models: chains of blocks, and a common view of TFF's two kinds of models."""

from tff_algos.models.block_model import (
    Block,
    BlockModel,
    Mode,
    WeightMask,
    chain,
    layer,
)
from tff_algos.models.local_model import ModelOrFn
from tff_algos.models.variable_model import FunctionalVariableModel

__all__ = [
    "Block",
    "BlockModel",
    "FunctionalVariableModel",
    "Mode",
    "ModelOrFn",
    "WeightMask",
    "chain",
    "layer",
]
