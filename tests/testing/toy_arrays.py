"""A toy dataset of arrays whose first pixel is the example's number."""

import numpy as np

from tasks import array_source
from tasks.task import DataOptions

NUM_CLASSES = 3


def arrays(num_train=60, num_test=30, shape=(28, 28, 1)):
    """Returns arrays whose first pixel is the example's number."""
    found = {}
    for split, n in (("train", num_train), ("test", num_test)):
        x = np.zeros((n, *shape), np.uint8)
        x[(slice(None), *(0,) * len(shape))] = np.arange(n)
        found[f"x_{split}"], found[f"y_{split}"] = x, np.arange(n) % NUM_CLASSES
    return found


def generate(num_train=90):
    found = arrays(num_train)
    labels = {key: found[key].astype(np.int32) for key in ("y_train", "y_test")}
    return array_source.Arrays(**{**found, **labels})


def preprocess(images):
    return images.astype(np.float32) + 1000.0


def data_set():
    """The description of the arrays as a dataset of a task."""
    return array_source.ArrayDataSet(
        name="toy",
        tfds_name="mnist",
        image_shape=(28, 28, 1),
        num_classes=NUM_CLASSES,
        generate=generate,
        preprocess=preprocess,
    )


def options(folder, data="auto", seed=0):
    return DataOptions(data=data, cache_dir=str(folder), seed=seed)
