"""Keras' recurrent layers and group normalization with faster gradients.

On a CPU, the gradients of LSTM and GRU take a half to a seventh of Keras' time.
"""

from tff_algos.layers.keras_group_norm import GroupNormalization
from tff_algos.layers.keras_recurrent import GRU, LSTM

__all__ = ["GRU", "LSTM", "GroupNormalization"]
