"""A small file of federated EMNIST, three writers of digits."""

import tasks
from tasks import emnist
from tasks.task import DataOptions
from tests.testing import federated_file

CLIENTS = ("a", "b", "c")


def image(label=3, pixel=0.5):
    return {"pixels": [pixel] * 784, "label": label}


def write(folder, **records):
    """Writes a file of three writers of digits; `records` are added to theirs."""
    path = folder / emnist.FILE_NAME
    writers = {name: [image(), *records.get(name, ())] for name in CLIENTS}
    splits = ("digits_only_train", "digits_only_test")
    federated_file.write(path, dict.fromkeys(splits, writers))
    return path


def load(folder):
    return tasks.load_task(
        "emnist",
        emnist.EmnistOptions(only_digits=True, model="2nn"),
        DataOptions(cache_dir=str(folder)),
    )
