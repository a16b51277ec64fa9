"""The workloads' models as PyTorch modules, with conversions of Keras' layout."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from benchmarks.engines import workloads

_POOLED_SIZE = 12  # Side of the convolutions' output after pooling.
_NUM_FILTERS = (32, 64)


class _Cnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, _NUM_FILTERS[0], 3)
        self.conv2 = nn.Conv2d(*_NUM_FILTERS, 3)
        self.hidden = nn.Linear(_NUM_FILTERS[1] * _POOLED_SIZE**2, 128)
        self.output = nn.Linear(128, workloads.NUM_IMAGE_CLASSES)

    def forward(self, x):
        x = functional.relu(self.conv2(functional.relu(self.conv1(x))))
        x = functional.max_pool2d(x, 2).flatten(1)
        return self.output(functional.relu(self.hidden(x)))


class _Dense(nn.Module):
    def __init__(self, hidden_units: int):
        super().__init__()
        self.hidden = None
        if hidden_units:
            self.hidden = nn.Linear(workloads.NUM_FEATURES, hidden_units)
        self.output = nn.Linear(
            hidden_units or workloads.NUM_FEATURES, workloads.NUM_DIGITS
        )

    def forward(self, x):
        if self.hidden is not None:
            x = functional.relu(self.hidden(x))
        return self.output(x)


class _Lstm(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(workloads.VOCAB_SIZE, workloads.EMBEDDING_SIZE)
        self.lstm = nn.LSTM(
            workloads.EMBEDDING_SIZE,
            workloads.UNITS,
            workloads.NUM_LSTM_LAYERS,
            batch_first=True,
        )
        self.output = nn.Linear(workloads.UNITS, workloads.VOCAB_SIZE)
        # PyTorch adds two biases. If both were trained, their sum would take steps
        # twice as long as the single bias of the other engines.
        for layer in range(workloads.NUM_LSTM_LAYERS):
            second_bias = getattr(self.lstm, f"bias_hh_l{layer}")
            nn.init.zeros_(second_bias)
            second_bias.requires_grad_(False)

    def forward(self, x):
        return self.output(self.lstm(self.embedding(x))[0])


def build(workload: workloads.Workload) -> nn.Module:
    """Returns a module from `x` (see `tensors`) to logits `[n, ..., classes]`."""
    if workload.model == "cnn":
        return _Cnn()
    if workload.model == "lstm":
        return _Lstm()
    return _Dense(workload.hidden_units)


def tensors(
    workload: workloads.Workload, x: np.ndarray, y: np.ndarray
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns examples as inputs of the modules: images are `[n, 1, 28, 28]`."""
    if workload.model == "cnn":
        x = np.moveaxis(x, -1, -3)
    if workload.model == "lstm":
        x = x.astype(np.int64)
    return torch.from_numpy(np.ascontiguousarray(x)), torch.from_numpy(
        y.astype(np.int64)
    )


def mean_loss(module: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Returns the mean cross entropy over the examples (and positions)."""
    return functional.cross_entropy(module(x).flatten(0, -2), y.flatten())


def trained_parameters(module: nn.Module) -> list[nn.Parameter]:
    """Returns the parameters in the order of the weights."""
    return [p for p in module.parameters() if p.requires_grad]


def load_weights(module: nn.Module, weights: Sequence[np.ndarray]) -> None:
    """Sets the parameters to weights in Keras' order and layout."""
    values = _exchange(weights, _from_keras)
    with torch.no_grad():
        for parameter, value in zip(trained_parameters(module), values, strict=True):
            parameter.copy_(torch.from_numpy(np.ascontiguousarray(value)))


def get_weights(module: nn.Module) -> list[np.ndarray]:
    """Returns the parameters as weights in Keras' order and layout."""
    parameters = [p.detach().numpy() for p in trained_parameters(module)]
    return _exchange(parameters, _to_keras)


def _exchange(values, convert) -> list[np.ndarray]:
    # The embedding, which only the LSTM model has, and the order of the gates are the
    # same in both (PyTorch calls the candidate g).
    is_embedding = values[0].shape == (workloads.VOCAB_SIZE, workloads.EMBEDDING_SIZE)
    first = [values[0]] if is_embedding else []
    return [*first, *(convert(value) for value in values[len(first) :])]


def _from_keras(weight: np.ndarray) -> np.ndarray:
    if weight.ndim == 4:
        return weight.transpose(3, 2, 0, 1)
    if weight.shape[0] == _NUM_FILTERS[1] * _POOLED_SIZE**2:
        # Flattened images: channels last in Keras, channels first in PyTorch.
        image = weight.reshape(_POOLED_SIZE, _POOLED_SIZE, _NUM_FILTERS[1], -1)
        return image.transpose(3, 2, 0, 1).reshape(weight.shape[1], -1)
    return weight.T


def _to_keras(value: np.ndarray) -> np.ndarray:
    if value.ndim == 4:
        return value.transpose(2, 3, 1, 0)
    if value.shape[-1] == _NUM_FILTERS[1] * _POOLED_SIZE**2:
        image = value.reshape(-1, _NUM_FILTERS[1], _POOLED_SIZE, _POOLED_SIZE)
        return image.transpose(2, 3, 1, 0).reshape(value.shape[1], -1)
    return value.T
