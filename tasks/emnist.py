"""Federated EMNIST: characters by the people who wrote them.

Caldas et al., "LEAF: a benchmark for federated settings"
(https://arxiv.org/abs/1812.01097); 3,400 writers, 62 classes (3,383 writers with
the digits only). The split of the writers and the settings are those of Jiang et
al., "Improving federated learning personalization via model agnostic meta
learning" (https://arxiv.org/abs/1909.12488).
"""

import functools
import types
from collections.abc import Mapping
from typing import Annotated

import numpy as np
import tensorflow_federated as tff

from tasks import client_examples, download, generated_glyphs
from tasks.damage import Unfit
from tasks.models import image
from tasks.task import DataOptions, Split, Task, TaskEntry, TaskError
from tff_algos.clients.batching import Examples
from tff_algos.hyperparameters import hparam, record

FILE_NAME = "emnist_all.sqlite"

_SETTINGS = types.MappingProxyType(
    {
        "client_batch_size": 20,
        "client_epochs_per_round": 5,
        "client_learning_rate": 0.02,
        "clients_per_round": 5,
    }
)


@record
class EmnistOptions(client_examples.Population):
    """The options of `--task=emnist`.

    Attributes:
      only_digits: Use only the 10 digits, not all 62 characters.
      model: Architecture, named as in TFF's baselines; cnn_dense_dropout is cnn
        with dropout after its dense layer.
    """

    only_digits: Annotated[bool, hparam()] = False
    model: Annotated[image.ModelId, hparam()] = "cnn"


def load(options: EmnistOptions, data_options: DataOptions) -> Task:
    """Returns the task.

    Examples are `x` float32 [n, 28, 28, 1] in [0, 1], background 1.0, and `y` int32
    [n]: digits 0-9, capitals 10-35, small letters 36-61.

    Args:
      options: Classes, model and population.
      data_options: Real data or the stand-in, and the seed.

    Raises:
      TaskError: If the data are unavailable or lack what `options` require.
    """
    source, notice = download.resolve_source(
        data_options.data, FILE_NAME, data_options.cache_dir
    )
    if source == "tff":
        client_ids, read = _real_clients(options.only_digits, data_options.cache_dir)
    else:
        client_ids, read = _generated_clients(options.only_digits)
    train_client_ids, eval_client_ids = options.choose_clients(
        client_ids, data_options.seed
    )
    return Task(
        name=ENTRY.name,
        data_source=source,
        train_client_ids=train_client_ids,
        eval_client_ids=eval_client_ids,
        examples=client_examples.cached(read),
        model=image.build_emnist_model(
            options.model, options.only_digits, data_options.seed
        ),
        seed=data_options.seed,
        notice=notice,
    )


def _generated_clients(only_digits: bool):
    numbers = {name: i for i, name in enumerate(generated_glyphs.client_ids())}

    def read(client_id: str, split: Split) -> Examples:
        return generated_glyphs.examples(
            numbers[client_id], split, only_digits=only_digits
        )

    return tuple(numbers), read


def _real_clients(only_digits: bool, cache_dir: str | None):
    path = download.cached_path(FILE_NAME, cache_dir)
    try:
        train, test = tff.simulation.datasets.emnist.load_data(
            only_digits=only_digits, cache_dir=download.cache_folder(cache_dir)
        )
    except StopIteration:
        # TFF reads the first client immediately, and there is none of these classes.
        missing, remedy = (
            ("digits", "--only_digits=false")
            if only_digits
            else ("letters", "--only_digits")
        )
        raise TaskError(
            f"--only_digits={str(only_digits).lower()}: {path} holds no {missing}; "
            f"use {remedy}, or a whole file."
        ) from None
    convert = functools.partial(_convert, num_classes=10 if only_digits else 62)
    read = client_examples.tff_reader({"train": train, "test": test}, convert, path)
    return tuple(train.client_ids), read


def _convert(elements: Mapping[str, np.ndarray], num_classes: int) -> Examples:
    pixels = elements["pixels"].astype(np.float32)
    labels = elements["label"].astype(np.int32)
    # A damaged record may still parse. The comparisons are false for NaN.
    if not np.all((pixels >= 0) & (pixels <= 1)):
        raise Unfit("pixels are not in [0, 1]")
    if not np.all((labels >= 0) & (labels < num_classes)):
        raise Unfit(f"labels are not in [0, {num_classes})")
    return pixels[..., np.newaxis], labels


ENTRY = TaskEntry(
    name="emnist",
    summary="EMNIST characters by writer, 62 classes (or 10 digits)",
    options=EmnistOptions,
    load=load,
    settings=_SETTINGS,
)
