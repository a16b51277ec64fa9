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


class _NormalizedConv(nn.Module):
    def __init__(self, channels_in: int, channels_out: int, strides: int = 1):
        super().__init__()
        self.conv = nn.Conv2d(channels_in, channels_out, 3, strides, 1, bias=False)
        self.norm = nn.GroupNorm(
            workloads.NUM_GROUPS, channels_out, workloads.NORM_EPSILON
        )

    def forward(self, x):
        return self.norm(self.conv(x))


class _ResidualUnit(nn.Module):
    def __init__(self, channels_in: int, channels_out: int):
        super().__init__()
        self._added = channels_out - channels_in
        self.first = _NormalizedConv(
            channels_in, channels_out, channels_out // channels_in
        )
        self.second = _NormalizedConv(channels_out, channels_out)

    def forward(self, x):
        body = self.second(functional.relu(self.first(x)))
        if self._added:
            x = functional.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 0, self._added))
        return functional.relu(body + x)


class _Resnet(nn.Module):
    def __init__(self):
        super().__init__()
        channels_in = workloads.RESNET_CHANNELS[0]
        self.first = _NormalizedConv(workloads.COLOR_IMAGE_SHAPE[-1], channels_in)
        self.units = nn.Sequential()
        for channels in workloads.RESNET_CHANNELS:
            for _ in range(workloads.RESNET_UNITS):
                self.units.append(_ResidualUnit(channels_in, channels))
                channels_in = channels
        self.output = nn.Linear(channels_in, workloads.NUM_COLOR_CLASSES)

    def forward(self, x):
        x = self.units(functional.relu(self.first(x)))
        return self.output(x.mean((2, 3)))


def _layer_norm() -> nn.LayerNorm:
    return nn.LayerNorm(workloads.WIDTH, workloads.NORM_EPSILON)


class _TransformerLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention_norm = _layer_norm()
        width = workloads.WIDTH
        self.query, self.key, self.value, self.mixed = (
            nn.Linear(width, width) for _ in range(4)
        )
        self.hidden_norm = _layer_norm()
        self.hidden = nn.Linear(width, workloads.HIDDEN_WIDTH)
        self.output = nn.Linear(workloads.HIDDEN_WIDTH, width)

    def forward(self, x):
        normalized = self.attention_norm(x)
        heads = (
            linear(normalized).unflatten(-1, (workloads.NUM_HEADS, -1)).transpose(1, 2)
            for linear in (self.query, self.key, self.value)
        )
        attended = functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.mixed(attended.transpose(1, 2).flatten(2))
        return x + self.output(functional.relu(self.hidden(self.hidden_norm(x))))


class _Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.characters = nn.Embedding(workloads.VOCAB_SIZE, workloads.WIDTH)
        self.positions = nn.Embedding(workloads.CONTEXT_LENGTH, workloads.WIDTH)
        self.layers = nn.Sequential(
            *(_TransformerLayer() for _ in range(workloads.NUM_TRANSFORMER_LAYERS))
        )
        self.norm = _layer_norm()
        self.output = nn.Linear(workloads.WIDTH, workloads.VOCAB_SIZE)

    def forward(self, x):
        x = self.characters(x) + self.positions.weight
        return self.output(self.norm(self.layers(x)))


def build(workload: workloads.Workload) -> nn.Module:
    """Returns a module from `x` (see `tensors`) to logits `[n, ..., classes]`."""
    match workload.model:
        case "cnn":
            return _Cnn()
        case "lstm":
            return _Lstm()
        case "dense":
            return _Dense(workload.hidden_units)
        case "resnet":
            return _Resnet()
        case "transformer":
            return _Transformer()


def tensors(
    workload: workloads.Workload, x: np.ndarray, y: np.ndarray
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns examples as inputs of the modules: images are channels first."""
    if workload.model in ("cnn", "resnet"):
        x = np.moveaxis(x, -1, -3)
    if x.dtype == np.int32:
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
    tables = _embeddings(module)
    with torch.no_grad():
        for parameter, weight in zip(trained_parameters(module), weights, strict=True):
            if parameter not in tables:
                weight = _from_keras(weight, tuple(parameter.shape))
            parameter.copy_(torch.from_numpy(np.ascontiguousarray(weight)))


def get_weights(workload: workloads.Workload, module: nn.Module) -> list[np.ndarray]:
    """Returns the parameters as weights in Keras' order and layout."""
    tables = _embeddings(module)
    weights = []
    for parameter in trained_parameters(module):
        value = parameter.detach().numpy()
        weights.append(value if parameter in tables else _to_keras(value))
    return [w.reshape(s) for w, s in zip(weights, workload.weight_shapes, strict=True)]


def _embeddings(module: nn.Module) -> set[nn.Parameter]:
    """Returns the tables of embeddings, which are the same in both.

    So is the order of an LSTM's gates (PyTorch calls the candidate g).
    """
    return {m.weight for m in module.modules() if isinstance(m, nn.Embedding)}


def _from_keras(weight: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    if len(shape) == 4:
        return weight.transpose(3, 2, 0, 1)
    if shape[-1] == _NUM_FILTERS[1] * _POOLED_SIZE**2:
        # Flattened images: channels last in Keras, channels first in PyTorch.
        image = weight.reshape(_POOLED_SIZE, _POOLED_SIZE, _NUM_FILTERS[1], -1)
        return image.transpose(3, 2, 0, 1).reshape(shape)
    # Keras splits the axis of attention's heads, PyTorch does not.
    return weight.reshape(shape[::-1]).T


def _to_keras(value: np.ndarray) -> np.ndarray:
    if value.ndim == 4:
        return value.transpose(2, 3, 1, 0)
    if value.shape[-1] == _NUM_FILTERS[1] * _POOLED_SIZE**2:
        image = value.reshape(-1, _NUM_FILTERS[1], _POOLED_SIZE, _POOLED_SIZE)
        return image.transpose(2, 3, 1, 0).reshape(value.shape[::-1])
    return value.T
