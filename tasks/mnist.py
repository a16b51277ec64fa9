"""MNIST, divided among clients.

LeCun et al., "Gradient-based learning applied to document recognition", 1998;
60,000 digits to train on, 10,000 to test. The clients, 100 by default, and the
settings are those of McMahan et al., "Communication-efficient learning of deep
networks from decentralized data" (https://arxiv.org/abs/1602.05629), whose other
division is `--partition=shards:2`. `--model=tiny_nn` is the model of Luo et al.,
"GradMA: a gradient-memory-based accelerated federated learning with alleviated
catastrophic forgetting" (https://arxiv.org/abs/2302.14307), on standardized images.
"""

import types
from typing import Annotated, Literal

import attrs
import numpy as np

from tasks import array_data, array_source, generated_images
from tasks.models import image, normalized
from tasks.partition import PartitionOption
from tasks.task import DataOptions, Task, TaskEntry
from tff_algos.hyperparameters import hparam, record

# The statistics of all training pixels in [0, 1].
MEAN, DEVIATION = 0.1307, 0.3081

_SETTINGS = types.MappingProxyType(
    {
        "client_batch_size": 10,
        "client_epochs_per_round": 5,
        "client_learning_rate": 0.05,
        "clients_per_round": 10,
    }
)


@record
class MnistOptions(array_data.ClientTests):
    """The options of `--task=mnist`.

    Attributes:
      model: Architecture, named as in TFF's baselines; tiny_nn is three dense
        layers with normalization, on standardized images.
      norm: Normalization, for models that have it; batch by default.
      partition: Partition of the examples: iid:N, shards:K[:N] (of sorted labels) or
        dirichlet:ALPHA[:N]; N clients, 100 if omitted.
    """

    model: Annotated[Literal["cnn", "2nn", "tiny_nn"], hparam()] = "cnn"
    norm: normalized.NormOption = None
    partition: PartitionOption = "iid:100"

    def __attrs_post_init__(self):
        normalized.check_norm(self.model, self.norm, ("tiny_nn",))


def preprocess(images: np.ndarray) -> np.ndarray:
    """Returns the uint8 `images` as float32 in [0, 1], ink 1.0."""
    return images.astype(np.float32) / np.float32(255.0)


def preprocess_standardized(images: np.ndarray) -> np.ndarray:
    """Returns the uint8 `images` as standardized float32."""
    return array_data.standardized(images, (MEAN,), (DEVIATION,))


DATA_SET = array_source.ArrayDataSet(
    name="mnist",
    tfds_name="mnist",
    image_shape=image.IMAGE_SHAPE,
    num_classes=10,
    generate=generated_images.digits,
    preprocess=preprocess,
)


def load(options: MnistOptions, data_options: DataOptions) -> Task:
    """Returns the task.

    Examples are `x` float32 [n, 28, 28, 1] in [0, 1], ink 1.0, or for `tiny_nn`
    standardized, and `y` int32 [n].

    Args:
      options: Model and partition.
      data_options: Real data or the stand-in.

    Raises:
      TaskError: If the real data are unavailable or too few for the partition.
    """
    data_set, seed = DATA_SET, data_options.seed
    if options.model == "tiny_nn":
        data_set = attrs.evolve(data_set, preprocess=preprocess_standardized)
        model = normalized.build_tiny_nn(
            data_set.image_shape, data_set.num_classes, seed, options.norm or "batch"
        )
    else:
        model = image.build_emnist_model(options.model, only_digits=True, seed=seed)
    return array_data.load_task(
        data_set,
        data_options,
        partition_text=options.partition,
        client_test_fraction=options.client_test_fraction,
        model=model,
    )


ENTRY = TaskEntry(
    name=DATA_SET.name,
    summary="MNIST digits, divided among clients",
    options=MnistOptions,
    load=load,
    settings=_SETTINGS,
)
