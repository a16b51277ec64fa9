"""Another process reads a task's clients itself, and refuses to have other data."""

import os
import pickle
import subprocess
import sys

import attrs
import numpy as np
import pytest
import tensorflow as tf

import tasks
from tasks import origin
from tasks.task import DataOptions
from tests.testing import tiny_task
from tff_algos import execution
from tff_algos.clients.batching import BatchSpec, batch_examples

_BATCHES = BatchSpec(batch_size=7, num_epochs=2, max_elements=30)
_DATA = DataOptions(data="generated", cache_dir="cache", seed=3)


@pytest.fixture(scope="module")
def found():
    entry = tasks.get("emnist")
    options = entry.options(only_digits=True, model="2nn")
    task = entry.load(options, _DATA)
    return task, origin.of(task, entry.load, options, _DATA)


def _elements(dataset):
    return [tf.nest.flatten(each) for each in dataset.as_numpy_iterator()]


def _assert_same(one, other):
    one, other = _elements(one), _elements(other)
    assert len(one) == len(other) > 0
    for a, b in zip(one, other, strict=True):
        for x, y in zip(a, b, strict=True):
            np.testing.assert_array_equal(x, y)


def test_batches_are_those_of_the_examples(found):
    task, known = found
    client_id = task.train_client_ids[2]
    expected = batch_examples(task.examples(client_id, "train"), _BATCHES, 5)
    with_origin = attrs.evolve(task, origin=known)
    dataset = with_origin.batches(client_id, "train", _BATCHES, 5)
    assert isinstance(dataset, execution.RecipeDataset)
    assert dataset.element_spec == expected.element_spec
    _assert_same(dataset, expected)
    _assert_same(task.batches(client_id, "train", _BATCHES, 5), expected)


def test_an_origin_is_small_and_never_downloads(found):
    task, known = found
    sent = pickle.dumps(known)
    assert len(sent) < 700 and pickle.loads(sent) == known
    assert known.data_options.cache_dir == os.path.abspath("cache")
    real = attrs.evolve(task, data_source="tff")
    options = DataOptions(data="tff")
    assert origin.of(real, lambda *_: real, None, options).data_options.data == "auto"
    own = attrs.evolve(task, data_source="own")
    assert origin.of(own, lambda *_: own, None, options) is None


def test_another_process_reads_the_same_examples(found, tmp_path):
    task, known = found
    client_id = task.train_client_ids[1]
    path = tmp_path / "sent"
    path.write_bytes(pickle.dumps((known, client_id, "test", _BATCHES, 4)))
    script = (
        "import pathlib, pickle, sys, numpy as np; from tasks import origin; "
        "sent = pickle.loads(pathlib.Path(sys.argv[1]).read_bytes()); "
        "dataset = origin.batches(*sent); "
        "np.savez(sys.argv[1] + '.npz', *dataset.arrays, dataset.rows)"
    )
    subprocess.run([sys.executable, "-c", script, str(path)], check=True, timeout=120)
    expected = batch_examples(task.examples(client_id, "test"), _BATCHES, 4)
    with np.load(f"{path}.npz") as arrays:
        for name, value in zip(arrays, (*expected.arrays, expected.rows), strict=True):
            np.testing.assert_array_equal(arrays[name], value)


def test_a_task_that_says_nothing_of_its_data_is_told_by_what_it_holds():
    task = tiny_task.make()
    x, y = task.examples(task.train_client_ids[0], "train")
    other = attrs.evolve(task, examples=lambda client_id, split: (x + 1, y))
    fewer = attrs.evolve(task, train_client_ids=task.train_client_ids[:1])
    told = [origin.fingerprint(each) for each in (task, other, fewer)]
    assert origin.fingerprint(tiny_task.make()) == told[0]
    assert len(set(told)) == 3
    known = attrs.evolve(task, fingerprint="own-7")
    marked = origin.fingerprint(known)
    assert marked.startswith("own:") and marked.endswith("-7")
    # Without a "-", all of it tells data apart.
    whole = origin.fingerprint(attrs.evolve(task, fingerprint="own"))
    assert whole.startswith("own:") and whole.endswith("-")
    # A task that has been run may be run again.
    assert origin.fingerprint(attrs.evolve(known, fingerprint=marked)) == marked


@pytest.mark.parametrize(
    ("client", "split"), [(0, "train"), (0, "test"), (-1, "train"), ("eval", "test")]
)
def test_other_examples_of_a_few_clients_are_noticed(client, split):
    task = tiny_task.make()
    ids = task.eval_client_ids[:1] if client == "eval" else task.train_client_ids
    changed = ids[0 if client == "eval" else client]

    def examples(client_id, asked):
        x, y = task.examples(client_id, asked)
        return (x + 1 if (client_id, asked) == (changed, split) else x), y

    other = attrs.evolve(task, examples=examples)
    assert origin.identity(other) != origin.identity(task)


def test_other_data_are_refused_in_one_line():
    first = tiny_task.make()
    x, y = first.examples(first.train_client_ids[0], "train")

    def other_examples(client_id, split):
        return (x + 1, y)

    known = origin.of(first, lambda *_: first, None, DataOptions())
    changed = attrs.evolve(first, examples=other_examples)
    elsewhere = attrs.evolve(known, load=lambda *_: changed)
    with pytest.raises(
        origin.OtherDataError, match=f"the run uses {known.identity}.*--cache_dir"
    ) as error:
        origin.batches(elsewhere, first.train_client_ids[0], "train", _BATCHES, 0)
    assert "\n" not in str(error.value)
