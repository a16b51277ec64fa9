"""Tiny ImageNet, divided among clients.

Le and Yang, "Tiny ImageNet visual recognition challenge", 2015: 64 x 64 images of 200
classes of ImageNet, 100,000 to train on; the 10,000 validation images are the test set,
because the test labels are not published. The model, the 100 clients and their
division are those of Luo et al., "GradMA: a gradient-memory-based accelerated federated
learning with alleviated catastrophic forgetting" (https://arxiv.org/abs/2302.14307).
"""

import contextlib
import os
import tempfile
import types
from typing import Annotated, Literal

import attrs
import numpy as np
from absl import logging

from tasks import (
    array_data,
    array_source,
    download,
    generated_images,
    tiny_imagenet_file,
)
from tasks.array_source import Arrays
from tasks.models import normalized
from tasks.partition import PartitionOption
from tasks.task import DataOptions, Pace, Task, TaskEntry
from tff_algos.hyperparameters import hparam, record

ARCHIVE = download.PublishedFile(
    name=f"{tiny_imagenet_file.FOLDER}.zip",
    url=f"http://cs231n.stanford.edu/{tiny_imagenet_file.FOLDER}.zip",
    num_bytes=248_100_043,
    md5="90528d7ca1a48142e341f4ef8d21d0de",
)
LAYOUT = tiny_imagenet_file.Layout()

# The customary statistics of ImageNet's red, green and blue in [0, 1].
CHANNEL_MEANS = (0.485, 0.456, 0.406)
CHANNEL_DEVIATIONS = (0.229, 0.224, 0.225)

_SETTINGS = types.MappingProxyType(
    {
        "client_batch_size": 64,
        "client_epochs_per_round": 2,
        "client_learning_rate": 0.05,
        "clients_per_round": 5,
    }
)


@record
class TinyImagenetOptions(array_data.ClientTests):
    """The options of `--task=tiny_imagenet`.

    Attributes:
      model: Architecture: 19 convolutions of residual units and a dense layer.
      norm: Normalization, for models that have it; batch by default.
      partition: Partition of the examples: iid:N, shards:K[:N] (of sorted labels) or
        dirichlet:ALPHA[:N]; N clients, 100 if omitted.
    """

    model: Annotated[Literal["resnet20"], hparam()] = "resnet20"
    norm: normalized.NormOption = None
    partition: PartitionOption = "dirichlet:0.1"

    def __attrs_post_init__(self):
        normalized.check_norm(self.model, self.norm, ("resnet20",))


def preprocess(images: np.ndarray) -> np.ndarray:
    """Returns the uint8 `images` as float32, standardized per channel."""
    return array_data.standardized(images, CHANNEL_MEANS, CHANNEL_DEVIATIONS)


def load(options: TinyImagenetOptions, data_options: DataOptions) -> Task:
    """Returns the task.

    Examples are `x` float32 [n, 64, 64, 3], scaled to [0, 1] and standardized per
    channel, and `y` int32 [n] in [0, 200).

    Args:
      options: Model and partition.
      data_options: Real data or the stand-in.

    Raises:
      TaskError: If the real data are unavailable, invalid, or too few for the
        partition.
    """
    return array_data.load_task(
        DATA_SET,
        data_options,
        partition_text=options.partition,
        client_test_fraction=options.client_test_fraction,
        model=normalized.build_resnet20(
            DATA_SET.num_classes,
            data_options.seed,
            options.norm or "batch",
            DATA_SET.image_shape,
        ),
    )


def _read(path: str) -> Arrays:
    """Decodes the images and caches them in an npz file."""
    arrays = tiny_imagenet_file.read(path, LAYOUT)
    npz_path = os.path.join(os.path.dirname(path), f"{DATA_SET.name}.npz")
    try:
        with download.lock(npz_path) as locked:
            if locked:
                download.remove_leftovers(npz_path)
            _write_npz(npz_path, arrays)
    except OSError as error:
        logging.warning("Cannot keep the decoded images in %s: %s.", npz_path, error)
    return arrays


def _write_npz(path: str, arrays: Arrays) -> None:
    """Writes the file atomically."""
    descriptor, partial = tempfile.mkstemp(
        prefix=os.path.basename(path) + ".",
        suffix=".partial",
        dir=os.path.dirname(path) or ".",
    )
    try:
        with open(descriptor, "wb") as file:
            np.savez(file, **attrs.asdict(arrays))
            file.flush()
            os.fsync(file.fileno())
        # Temporary files are private to their owner, but the cache may be shared.
        os.chmod(partial, 0o644)
        os.replace(partial, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.remove(partial)


DATA_SET = array_source.ArrayDataSet(
    name="tiny_imagenet",
    tfds_name=None,
    image_shape=tiny_imagenet_file.IMAGE_SHAPE,
    num_classes=LAYOUT.num_classes,
    generate=generated_images.large_tinted_shapes,
    preprocess=preprocess,
    own_form=array_source.OwnForm(
        names=(tiny_imagenet_file.FOLDER, ARCHIVE.name),
        read=_read,
        obtain=lambda cache_dir: download.obtain_published(ARCHIVE, cache_dir),
    ),
)

ENTRY = TaskEntry(
    name=DATA_SET.name,
    summary="Tiny ImageNet, 64 x 64 images of 200 classes, divided among clients",
    options=TinyImagenetOptions,
    load=load,
    settings=_SETTINGS,
    pace=Pace(
        rounds=100,
        text="the model learns little in few rounds here: the default settings reach "
        "3 % in 30 rounds and 5 % in 50, of 200 classes of 0.5 % each. Increase "
        "--total_rounds; a smaller --clients_per_round makes a round shorter.",
    ),
)
