"""CIFAR-10, divided among clients.

Krizhevsky, "Learning multiple layers of features from tiny images", 2009; 50,000
images to train on, 10,000 to test. Clients, 10 by default, model and batches are
those of Yao et al., "Federated learning with unbiased gradient aggregation and
controllable meta updating" (https://arxiv.org/abs/1910.08234). Those of Hu et al.,
"Federated learning meets multi-objective optimization"
(https://arxiv.org/abs/2006.11489), are `--model=cnn_lrn --partition=shards:5`: 500
shards of 100 images, five for each of 100 clients. `--model=lenet` is that of Luo et
al., "GradMA: a gradient-memory-based accelerated federated learning with alleviated
catastrophic forgetting" (https://arxiv.org/abs/2302.14307), who use vgg11 for
CIFAR-100; unlike theirs, images are not randomly cropped and flipped. Each model has
its own preprocessing.
"""

import types
from typing import Annotated, Literal

import attrs
import numpy as np

from tasks import array_data, array_source, generated_images
from tasks.models import cifar, normalized
from tasks.partition import PartitionOption
from tasks.task import DataOptions, Task, TaskEntry
from tff_algos.hyperparameters import hparam, record
from tff_algos.models.block_model import BlockModel

# The customary statistics of red, green and blue in [0, 1]. The deviations are means of
# each training image's deviation and thus smaller than those of all pixels.
CHANNEL_MEANS = (0.4914, 0.4822, 0.4465)
CHANNEL_DEVIATIONS = (0.2023, 0.1994, 0.2010)

# The statistics for `cnn_lrn`: they map pixels to [-1, 1].
_MIDDLE = (0.5, 0.5, 0.5)

_SETTINGS = types.MappingProxyType(
    {
        "client_batch_size": 64,
        "client_epochs_per_round": 2,
        "client_learning_rate": 0.05,
        "clients_per_round": 2,
    }
)

_NORMALIZED = types.MappingProxyType(
    {"lenet": normalized.build_lenet, "vgg11": normalized.build_vgg11}
)


@record
class Cifar10Options(array_data.ClientTests):
    """The options of `--task=cifar10`.

    Attributes:
      model: Architecture: cnn is two convolutions and three dense layers, with dropout;
        cnn_lrn has response normalization and pixels in [-1, 1], lenet normalization
        and dropout; vgg11 has eight convolutions.
      norm: Normalization, for models that have it; batch by default.
      partition: Partition of the examples: iid:N, shards:K[:N] (of sorted labels) or
        dirichlet:ALPHA[:N]; N clients, 100 if omitted.
    """

    model: Annotated[Literal["cnn", "cnn_lrn", "lenet", "vgg11"], hparam()] = "cnn"
    norm: normalized.NormOption = None
    partition: PartitionOption = "iid:10"

    def __attrs_post_init__(self):
        normalized.check_norm(self.model, self.norm, _NORMALIZED)


def preprocess(images: np.ndarray) -> np.ndarray:
    """Returns the uint8 `images` as float32, standardized per channel."""
    return array_data.standardized(images, CHANNEL_MEANS, CHANNEL_DEVIATIONS)


def preprocess_lrn(images: np.ndarray) -> np.ndarray:
    """Returns the uint8 `images` as float32 in [-1, 1]."""
    return array_data.standardized(images, _MIDDLE, _MIDDLE)


DATA_SET = array_source.ArrayDataSet(
    name="cifar10",
    tfds_name="cifar10",
    image_shape=cifar.IMAGE_SHAPE,
    num_classes=10,
    generate=generated_images.shapes,
    preprocess=preprocess,
)


def load(options: Cifar10Options, data_options: DataOptions) -> Task:
    """Returns the task.

    Examples are `x` float32 [n, 32, 32, 3], scaled to [0, 1] and standardized per
    channel, or for `cnn_lrn` in [-1, 1], and `y` int32 [n].

    Args:
      options: Model and partition.
      data_options: Real data or the stand-in.

    Raises:
      TaskError: If the real data are unavailable or too few for the partition.
    """
    data_set = DATA_SET
    if options.model == "cnn_lrn":
        data_set = attrs.evolve(data_set, preprocess=preprocess_lrn)
    return array_data.load_task(
        data_set,
        data_options,
        partition_text=options.partition,
        client_test_fraction=options.client_test_fraction,
        model=_build_model(options, data_set.num_classes, data_options.seed),
    )


def _build_model(options: Cifar10Options, num_classes: int, seed: int) -> BlockModel:
    if options.model in _NORMALIZED:
        build = _NORMALIZED[options.model]
        return build(num_classes, seed, options.norm or "batch")
    return cifar.build_cifar_model(options.model, num_classes, seed)


ENTRY = TaskEntry(
    name=DATA_SET.name,
    summary="CIFAR-10 images, divided among clients",
    options=Cifar10Options,
    load=load,
    settings=_SETTINGS,
)
