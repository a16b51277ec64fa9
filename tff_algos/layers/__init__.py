"""Recurrent layers whose gradients take a half to a seventh of Keras' time on a CPU."""

from tff_algos.layers.keras_layers import GRU, LSTM

__all__ = ["GRU", "LSTM"]
