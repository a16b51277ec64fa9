"""CIFAR-10, divided among clients.

Krizhevsky, "Learning multiple layers of features from tiny images", 2009; 50,000
images to train on, 10,000 to test. Clients, 10 by default, model and batches are
those of Yao et al., "Federated learning with unbiased gradient aggregation and
controllable meta updating" (https://arxiv.org/abs/1910.08234).
"""

import types
from typing import Literal

import attrs
import numpy as np

from tasks import array_data, generated_images, partition
from tasks.models import cifar
from tasks.task import DataOptions, TaskEntry
from tff_algos.hyperparameters import choice
from tff_algos.simulation.task import Task

# Of red, green and blue in [0, 1], as is customary: the deviations are means over
# the training images of each image's own, hence smaller than those of all pixels.
CHANNEL_MEANS = (0.4914, 0.4822, 0.4465)
CHANNEL_DEVIATIONS = (0.2023, 0.1994, 0.2010)

_SETTINGS = types.MappingProxyType(
    {
        "client_batch_size": 64,
        "client_epochs_per_round": 2,
        "client_learning_rate": 0.05,
        "clients_per_round": 2,
    }
)


@attrs.frozen(kw_only=True)
class Cifar10Options:
    """The options of `--task=cifar10`."""

    model: Literal["cnn"] = choice(
        default="cnn",
        choices=("cnn",),
        help="Architecture: two convolutions, three dense layers, dropout.",
    )
    partition: str = partition.option(default="iid:10")


def preprocess(images: np.ndarray) -> np.ndarray:
    """Returns float32, every channel standardised, of the uint8 `images`."""
    return array_data.standardised(images, CHANNEL_MEANS, CHANNEL_DEVIATIONS)


DATA_SET = array_data.ArrayDataSet(
    name="cifar10",
    tfds_name="cifar10",
    image_shape=cifar.IMAGE_SHAPE,
    num_classes=10,
    generate=generated_images.shapes,
    preprocess=preprocess,
)


def load(options: Cifar10Options, data_options: DataOptions) -> Task:
    """Returns the task.

    Examples are `x` float32 [n, 32, 32, 3], scaled to [0, 1] and standardised per
    channel, and `y` int32 [n].

    Args:
      options: Model and partition.
      data_options: Real data or the stand-in.

    Raises:
      TaskError: If the real data cannot be had, or are too few for the partition.
    """
    return array_data.load_task(
        DATA_SET,
        data_options,
        partition_text=options.partition,
        model=cifar.build_cifar_model(
            options.model, DATA_SET.num_classes, data_options.seed
        ),
    )


ENTRY = TaskEntry(
    name=DATA_SET.name,
    summary="CIFAR-10 images, divided among clients",
    options=Cifar10Options,
    load=load,
    settings=_SETTINGS,
)
