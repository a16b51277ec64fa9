"""Fashion-MNIST, divided among clients.

Xiao et al., "Fashion-MNIST: a novel image dataset for benchmarking machine learning
algorithms", 2017 (https://arxiv.org/abs/1708.07747); 60,000 pictures of clothes to
train on, 10,000 to test, 10 classes. Clients, model and settings are those of Hu et
al., "Federated learning meets multi-objective optimization"
(https://arxiv.org/abs/2006.11489): 500 shards of one label or few, five for each of
100 clients. Their code deals 200 shards, `--partition=shards:2`. They do not report
the batch size and learning rate for this dataset; here, those for CIFAR-10 are used.
`--model=tiny_nn` is MNIST's.
"""

import types
from typing import Annotated, Literal

import numpy as np

from tasks import array_data, array_source, generated_images
from tasks.models import fashion, normalized
from tasks.partition import PartitionOption
from tasks.task import DataOptions, Task, TaskEntry
from tff_algos.hyperparameters import hparam, record

# The statistics of pixels in [0, 1]. The authors use MNIST's for these images too.
MEAN, DEVIATION = 0.1307, 0.3081

_SETTINGS = types.MappingProxyType(
    {
        "client_batch_size": 10,
        "client_epochs_per_round": 1,
        "client_learning_rate": 0.01,
        "clients_per_round": 10,
    }
)


@record
class FashionMnistOptions(array_data.ClientTests):
    """The options of `--task=fashion_mnist`.

    Attributes:
      model: Architecture: cnn is two convolutions, two dense layers and dropout,
        tiny_nn three dense layers with normalization.
      norm: Normalization, for models that have it; batch by default.
      partition: Partition of the examples: iid:N, shards:K[:N] (of sorted labels) or
        dirichlet:ALPHA[:N]; N clients, 100 if omitted.
    """

    model: Annotated[Literal["cnn", "tiny_nn"], hparam()] = "cnn"
    norm: normalized.NormOption = None
    partition: PartitionOption = "shards:5"

    def __attrs_post_init__(self):
        normalized.check_norm(self.model, self.norm, ("tiny_nn",))


def preprocess(images: np.ndarray) -> np.ndarray:
    """Returns the uint8 `images` as standardized float32."""
    return array_data.standardized(images, (MEAN,), (DEVIATION,))


DATA_SET = array_source.ArrayDataSet(
    name="fashion_mnist",
    tfds_name="fashion_mnist",
    image_shape=fashion.IMAGE_SHAPE,
    num_classes=10,
    generate=generated_images.letters,
    preprocess=preprocess,
)


def load(options: FashionMnistOptions, data_options: DataOptions) -> Task:
    """Returns the task.

    Examples are `x` float32 [n, 28, 28, 1], scaled to [0, 1] and standardized, and
    `y` int32 [n].

    Args:
      options: Model and partition.
      data_options: Real data or the stand-in.

    Raises:
      TaskError: If the real data are unavailable or too few for the partition.
    """
    seed = data_options.seed
    if options.model == "tiny_nn":
        model = normalized.build_tiny_nn(
            DATA_SET.image_shape, DATA_SET.num_classes, seed, options.norm or "batch"
        )
    else:
        model = fashion.build_fashion_model(seed)
    return array_data.load_task(
        DATA_SET,
        data_options,
        partition_text=options.partition,
        client_test_fraction=options.client_test_fraction,
        model=model,
    )


ENTRY = TaskEntry(
    name=DATA_SET.name,
    summary="Fashion-MNIST pictures of clothes, divided among clients",
    options=FashionMnistOptions,
    load=load,
    settings=_SETTINGS,
)
