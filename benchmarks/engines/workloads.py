"""The engines' workloads: models, sizes, clients' data, and their files.

This module uses only the standard library and NumPy, because every engine's environment
imports it.
"""

import dataclasses
import json
import math
import os
from typing import Literal

import numpy as np

ModelId = Literal["cnn", "lstm", "dense", "resnet", "transformer"]

NUM_FEATURES = 784  # Features of the dense model: pixels of an EMNIST image.
NUM_DIGITS = 10  # Classes of the dense model.
IMAGE_SHAPE = (28, 28, 1)
NUM_IMAGE_CLASSES = 62
VOCAB_SIZE = 90  # Characters; the data do not contain id 0, padding.
SEQUENCE_LENGTH = 80
EMBEDDING_SIZE = 8
UNITS = 256  # Units of each LSTM layer.
NUM_LSTM_LAYERS = 2

# ResNet-20 with group normalization.
COLOR_IMAGE_SHAPE = (32, 32, 3)
NUM_COLOR_CLASSES = 10
RESNET_CHANNELS = (16, 32, 64)
RESNET_UNITS = 3  # Residual units per stage.
NUM_GROUPS = 2

# The transformer: normalization before attention and before the hidden layer.
CONTEXT_LENGTH = 64
WIDTH = 128
NUM_HEADS = 4
HEAD_SIZE = WIDTH // NUM_HEADS
HIDDEN_WIDTH = 4 * WIDTH
NUM_TRANSFORMER_LAYERS = 2

NORM_EPSILON = 1e-5  # Of group and layer normalization.

# Shapes of one example, with the number of its classes or without, by model.
_IMAGES = {
    "cnn": (IMAGE_SHAPE, NUM_IMAGE_CLASSES),
    "dense": ((NUM_FEATURES,), NUM_DIGITS),
    "resnet": (COLOR_IMAGE_SHAPE, NUM_COLOR_CLASSES),
}
_LENGTHS = {"lstm": SEQUENCE_LENGTH, "transformer": CONTEXT_LENGTH}


class _Scale(tuple):
    """The shape of a normalization's scale, whose initial values are one."""


@dataclasses.dataclass(frozen=True)
class Workload:
    """One round of Federated Averaging: one epoch of plain SGD at every client.

    Attributes:
      name: The name in tables.
      model: "cnn" (two 3 x 3 convolutions, dense 128, 1,206,590 weights), "lstm"
        (embedding, two LSTM layers of 256, 820,522 weights), "dense" (784 features,
        `hidden_units`, 10 classes), "resnet" (ResNet-20, group normalization,
        shortcuts without weights) or "transformer" (two causal layers of width 128).
      num_clients: Number of clients, the same in every round.
      examples_per_client: A multiple of `batch_size`.
      batch_size: Examples per local step.
      learning_rate: The clients' learning rate; the server's is 1.
      hidden_units: Units of the dense model's hidden layer; 0 for no hidden layer,
        which is logistic regression.
    """

    name: str
    model: ModelId
    num_clients: int
    examples_per_client: int
    batch_size: int
    learning_rate: float = 0.1
    hidden_units: int = 0

    def __post_init__(self):
        if self.examples_per_client % self.batch_size:
            raise ValueError(
                f"{self.name}: {self.examples_per_client} examples per client are "
                f"not a multiple of the batch size {self.batch_size}."
            )

    @property
    def num_steps(self) -> int:
        """Local steps of each client per round."""
        return self.examples_per_client // self.batch_size

    @property
    def weight_shapes(self) -> tuple[tuple[int, ...], ...]:
        """Shapes of the weights in Keras' order and layout."""
        if self.model == "cnn":
            kernels = [(3, 3, 1, 32), (3, 3, 32, 64), (9216, 128)]
            return _with_biases([*kernels, (128, NUM_IMAGE_CLASSES)])
        if self.model == "lstm":
            return _lstm_shapes()
        if self.model == "resnet":
            return _resnet_shapes()
        if self.model == "transformer":
            return _transformer_shapes()
        if self.hidden_units:
            kernels = [(NUM_FEATURES, self.hidden_units)]
            return _with_biases([*kernels, (self.hidden_units, NUM_DIGITS)])
        return _with_biases([(NUM_FEATURES, NUM_DIGITS)])

    @property
    def num_weights(self) -> int:
        """Number of scalars in the model."""
        return sum(math.prod(shape) for shape in self.weight_shapes)


def _with_biases(kernels: list[tuple[int, ...]]) -> tuple[tuple[int, ...], ...]:
    return tuple(shape for kernel in kernels for shape in (kernel, kernel[-1:]))


def _lstm_shapes() -> tuple[tuple[int, ...], ...]:
    shapes = [(VOCAB_SIZE, EMBEDDING_SIZE)]
    for layer in range(NUM_LSTM_LAYERS):
        input_size = UNITS if layer else EMBEDDING_SIZE
        shapes += [(input_size, 4 * UNITS), (UNITS, 4 * UNITS), (4 * UNITS,)]
    return (*shapes, (UNITS, VOCAB_SIZE), (VOCAB_SIZE,))


def _resnet_shapes() -> tuple[tuple[int, ...], ...]:
    """Returns kernel, scale and bias of each convolution, then the dense layer's."""
    shapes, channels_in = [], COLOR_IMAGE_SHAPE[-1]
    convolutions = [RESNET_CHANNELS[0]]
    for channels in RESNET_CHANNELS:
        convolutions += [channels] * (2 * RESNET_UNITS)
    for channels in convolutions:
        shapes += [(3, 3, channels_in, channels), _Scale((channels,)), (channels,)]
        channels_in = channels
    return (*shapes, (channels_in, NUM_COLOR_CLASSES), (NUM_COLOR_CLASSES,))


def _transformer_shapes() -> tuple[tuple[int, ...], ...]:
    norm = [_Scale((WIDTH,)), (WIDTH,)]
    projection = [(WIDTH, NUM_HEADS, HEAD_SIZE), (NUM_HEADS, HEAD_SIZE)]
    layer = [*norm, *projection * 3, (NUM_HEADS, HEAD_SIZE, WIDTH), (WIDTH,)]
    layer += [*norm, (WIDTH, HIDDEN_WIDTH), (HIDDEN_WIDTH,)]
    layer += [(HIDDEN_WIDTH, WIDTH), (WIDTH,)]
    head = [*norm, (WIDTH, VOCAB_SIZE), (VOCAB_SIZE,)]
    return (
        (VOCAB_SIZE, WIDTH),
        (CONTEXT_LENGTH, WIDTH),
        *layer * NUM_TRANSFORMER_LAYERS,
        *head,
    )


@dataclasses.dataclass(frozen=True)
class Inputs:
    """A workload with its data and initial weights.

    Attributes:
      workload: The workload.
      x: `[clients, examples, ...]`: float32 images or features, or int32 characters.
      y: int32 labels `[clients, examples]`, or for characters like `x`.
      weights: Initial weights, float32, of `workload.weight_shapes`.
    """

    workload: Workload
    x: np.ndarray
    y: np.ndarray
    weights: tuple[np.ndarray, ...]

    def batches(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns `x` and `y` as `[clients, steps, batch, ...]`."""
        shape = (
            self.workload.num_clients,
            self.workload.num_steps,
            self.workload.batch_size,
        )
        return tuple(
            values.reshape(*shape, *values.shape[2:]) for values in (self.x, self.y)
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes a .npz file that `load` reads."""
        np.savez(
            path,
            workload=json.dumps(dataclasses.asdict(self.workload)),
            x=self.x,
            y=self.y,
            **{f"weight_{n:02d}": weight for n, weight in enumerate(self.weights)},
        )


def load(path: str | os.PathLike[str]) -> Inputs:
    """Returns the inputs that `Inputs.save` wrote."""
    with np.load(path) as file:
        names = sorted(name for name in file.files if name.startswith("weight_"))
        return Inputs(
            workload=Workload(**json.loads(str(file["workload"]))),
            x=file["x"],
            y=file["y"],
            weights=tuple(file[name] for name in names),
        )


def example_bytes(workload: Workload) -> int:
    """Returns the size of an example's numbers, which are of four bytes."""
    if workload.model in _LENGTHS:
        return 4 * 2 * _LENGTHS[workload.model]
    return 4 * (math.prod(_IMAGES[workload.model][0]) + 1)


def generate(workload: Workload, seed: int) -> Inputs:
    """Returns random data and initial weights, determined by the arguments."""
    rng = np.random.default_rng(seed)
    shape = (workload.num_clients, workload.examples_per_client)
    if workload.model in _LENGTHS:
        length = _LENGTHS[workload.model]
        text = rng.integers(1, VOCAB_SIZE, size=(*shape, length + 1), dtype=np.int32)
        x, y = text[..., :-1].copy(), text[..., 1:].copy()
    else:
        features, num_classes = _IMAGES[workload.model]
        x = rng.standard_normal((*shape, *features), dtype=np.float32)
        y = rng.integers(num_classes, size=shape, dtype=np.int32)
    weights = tuple(_initial_weight(rng, s) for s in workload.weight_shapes)
    return Inputs(workload, x, y, weights)


def _initial_weight(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Returns Glorot uniform kernels, scales of one and zero biases.

    Attention's biases have two axes, so they are random, too.
    """
    if isinstance(shape, _Scale):
        return np.ones(shape, np.float32)
    if len(shape) == 1:
        return np.zeros(shape, np.float32)
    receptive_field = math.prod(shape[:-2])
    limit = math.sqrt(6 / (receptive_field * (shape[-2] + shape[-1])))
    return rng.uniform(-limit, limit, size=shape).astype(np.float32)
