"""CIFAR-100, divided among clients.

Krizhevsky, "Learning multiple layers of features from tiny images", 2009; 50,000
images of 100 classes to train on, 10,000 to test. The 100 clients and their division
are those of Luo et al., "GradMA: a gradient-memory-based accelerated federated learning
with alleviated catastrophic forgetting" (https://arxiv.org/abs/2302.14307), and so is
the model vgg11; unlike theirs, images are not randomly cropped and flipped.

`--partition=pachinko` is TFF's own dataset: the training images of its 500 clients,
100 for each, by the Pachinko allocation of Reddi et al., "Adaptive federated
optimization" (https://arxiv.org/abs/2003.00295). Its test images, which TFF assigns to
100 other clients, are the undivided test set.
"""

import os
import types
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

import numpy as np
import tensorflow_federated as tff

from tasks import (
    array_data,
    array_source,
    client_examples,
    download,
    generated_images,
    pachinko,
    partition,
    sqlite_file,
)
from tasks.array_source import Arrays
from tasks.models import cifar, normalized
from tasks.task import DataOptions, Task, TaskEntry
from tff_algos.clients.batching import Examples
from tff_algos.hyperparameters import Form, HyperparameterError, hparam, record
from tff_algos.models.block_model import BlockModel

FILE_NAME = "cifar100.sqlite"
NUM_CLASSES = 100

# The statistics of red, green and blue in [0, 1].
CHANNEL_MEANS = (0.50708, 0.48655, 0.44092)
CHANNEL_DEVIATIONS = (0.26733, 0.25644, 0.27615)

_PACHINKO = "pachinko"
_FORMS = f"{_PACHINKO}, {partition.FORM.expected}"
_FORM = Form(f"{_PACHINKO}|{partition.PATTERN}", _FORMS)
_EXAMPLES_PER_CLIENT = 100
_GENERATED_CLASSES_PER_GROUP = 5

# For the small model. In 30 rounds VGG-11 learns no more, takes three times as long, and
# some algorithms need more than 3 GB for it.
_SETTINGS = types.MappingProxyType(
    {
        "client_batch_size": 20,
        "client_epochs_per_round": 5,
        "client_learning_rate": 0.02,
        "clients_per_round": 10,
    }
)


def _check_partition(value: str) -> None:
    if value != _PACHINKO:
        try:
            partition.parse(value)
        except HyperparameterError as error:
            raise HyperparameterError("partition", value, _FORMS) from error


@record
class Cifar100Options(array_data.ClientTests):
    """The options of `--task=cifar100`.

    Attributes:
      model: Architecture: cifar10's cnn, or eight normalized convolutions and two dense
        layers.
      norm: Normalization, for models that have it; batch by default.
      partition: Partition of the images: dirichlet:ALPHA[:N], iid:N, shards:K[:N] (of
        sorted labels), N clients, 100 if omitted; or pachinko, TFF's own.
    """

    model: Annotated[Literal["cnn", "vgg11"], hparam()] = "cnn"
    norm: normalized.NormOption = None
    partition: Annotated[str, hparam(form=_FORM, check=_check_partition)] = (
        "dirichlet:0.1"
    )

    def __attrs_post_init__(self):
        normalized.check_norm(self.model, self.norm, ("vgg11",))


def preprocess(images: np.ndarray) -> np.ndarray:
    """Returns the uint8 `images` as float32, standardized per channel."""
    return array_data.standardized(images, CHANNEL_MEANS, CHANNEL_DEVIATIONS)


def load(options: Cifar100Options, data_options: DataOptions) -> Task:
    """Returns the task.

    Examples are `x` float32 [n, 32, 32, 3], scaled to [0, 1] and standardized per
    channel, and `y` int32 [n] in [0, 100). Clients are "client_000" and so on, except
    for TFF's ids with `--partition=pachinko` of TFF's dataset.

    Every client trains and is evaluated on its own test set, which is drawn from the
    undivided one with label proportions of the client's training examples, or held out
    from its own examples.

    Args:
      options: Model, partition, and clients' test sets.
      data_options: Real data or the stand-in.

    Raises:
      TaskError: If the real data are unavailable, invalid, or too few for the
        partition.
    """
    model = _build_model(options, data_options.seed)
    if options.partition != _PACHINKO:
        return array_data.load_task(
            DATA_SET,
            data_options,
            partition_text=options.partition,
            client_test_fraction=options.client_test_fraction,
            model=model,
        )
    source, notice = download.resolve_source(
        data_options.data, FILE_NAME, data_options.cache_dir
    )
    if source == "tff":
        path = download.cached_path(FILE_NAME, data_options.cache_dir)
        arrays, client_ids, train = _read_clients(path)
    else:
        arrays = generated_images.tinted_shapes()
        train = divide_generated(arrays.y_train, data_options.seed)
        client_ids = array_data.client_ids(len(train))
    division = array_data.with_tests(
        arrays, client_ids, train, options.client_test_fraction, data_options.seed
    )
    return array_data.divided_task(
        arrays,
        division,
        name=DATA_SET.name,
        source=source,
        preprocess=preprocess,
        model=model,
        seed=data_options.seed,
        notice=notice,
    )


def divide_generated(labels: np.ndarray, seed: int) -> tuple[np.ndarray, ...]:
    """Divides the stand-in like TFF's dataset, with 100 examples per client.

    Args:
      labels: int [n], the labels of `generated_images.tinted_shapes`.
      seed: Seed of the division.

    Returns:
      For each client int64 [100] indices.
    """
    return pachinko.divide(
        labels,
        np.arange(NUM_CLASSES) // _GENERATED_CLASSES_PER_GROUP,
        num_clients=len(labels) // _EXAMPLES_PER_CLIENT,
        examples_per_client=_EXAMPLES_PER_CLIENT,
        seed=seed,
    )


def _build_model(options: Cifar100Options, seed: int) -> BlockModel:
    if options.model == "vgg11":
        return normalized.build_vgg11(NUM_CLASSES, seed, options.norm or "batch")
    return cifar.build_cifar_model(options.model, NUM_CLASSES, seed)


def _read_clients(path: str) -> tuple[Arrays, tuple[str, ...], Sequence[np.ndarray]]:
    """Reads TFF's file.

    Returns:
      Its images; the training clients; for each of them int64 indices of its examples.
    """
    found, client_ids, sizes = {}, {}, {}
    for split, data in _client_data(path).items():
        read = client_examples.tff_reader({"train": data}, _convert, path)
        client_ids[split] = tuple(data.client_ids)
        parts = [read(client_id, "train") for client_id in data.client_ids]
        images, labels = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        found |= {f"x_{split}": images, f"y_{split}": labels}
        sizes[split] = [len(labels) for _, labels in parts]
    arrays = array_source.checked(path, found, DATA_SET)
    ends = np.cumsum(sizes["train"])
    train = np.split(np.arange(len(arrays.y_train)), ends[:-1])
    return arrays, client_ids["train"], train


def _client_data(path: str) -> Mapping[str, tff.simulation.datasets.ClientData]:
    """Returns the clients of the splits "train" and "test"."""
    sqlite_file.verify(path)
    with client_examples.naming_missing_clients(path, "train or test"):
        train, test = tff.simulation.datasets.cifar100.load_data(
            cache_dir=os.path.dirname(path)
        )
    return {"train": train, "test": test}


def _convert(elements: Mapping[str, np.ndarray]) -> Examples:
    return elements["image"], elements["label"].astype(np.int32)


DATA_SET = array_source.ArrayDataSet(
    name="cifar100",
    tfds_name="cifar100",
    image_shape=cifar.IMAGE_SHAPE,
    num_classes=NUM_CLASSES,
    generate=generated_images.tinted_shapes,
    preprocess=preprocess,
    own_form=array_source.OwnForm(
        names=(FILE_NAME,), read=lambda path: _read_clients(path)[0]
    ),
)

ENTRY = TaskEntry(
    name=DATA_SET.name,
    summary="CIFAR-100 images, divided among clients",
    options=Cifar100Options,
    load=load,
    settings=_SETTINGS,
)
