"""Batches of a client's examples: epochs, steps, limits, and orders by the seed."""

import numpy as np
import pytest
import tensorflow as tf

from tff_algos.clients.batching import BatchSpec, batch_examples, derive_seed


def _examples(count):
    y = np.arange(count, dtype=np.int32)
    return y[:, None].astype(np.float32) / 2, y


def _batches(spec, count=10, seed=0):
    dataset = batch_examples(_examples(count), spec, seed)
    batches = []
    for x, y in dataset.as_numpy_iterator():
        np.testing.assert_array_equal(x[:, 0] * 2, y)
        batches.append(y.tolist())
    return batches


def _flat(batches):
    return [value for batch in batches for value in batch]


def test_epochs_keep_partial_batches():
    batches = _batches(BatchSpec(batch_size=4, num_epochs=2))
    assert [len(batch) for batch in batches] == [4, 4, 2, 4, 4, 2]
    flat = _flat(batches)
    assert sorted(flat[:10]) == sorted(flat[10:]) == list(range(10))


def test_epochs_differ_in_order():
    flat = _flat(_batches(BatchSpec(batch_size=4, num_epochs=2)))
    assert flat[:10] != flat[10:]
    assert flat[:10] != list(range(10))


def test_steps_straddle_epochs():
    batches = _batches(BatchSpec(batch_size=4, num_steps=5))
    assert [len(batch) for batch in batches] == [4] * 5
    flat = _flat(batches)
    assert sorted(flat[:10]) == sorted(flat[10:]) == list(range(10))


def test_a_client_with_fewer_examples_than_a_batch_repeats_them():
    batches = _batches(BatchSpec(batch_size=4, num_steps=2), count=3)
    assert [len(batch) for batch in batches] == [4, 4]


def test_max_elements_keeps_the_same_examples_in_every_epoch():
    spec = BatchSpec(batch_size=3, num_epochs=3, max_elements=6)
    batches = _batches(spec, count=50)
    assert [len(batch) for batch in batches] == [3] * 6
    epochs = np.array(_flat(batches)).reshape(3, 6)
    assert len({frozenset(epoch) for epoch in epochs.tolist()}) == 1
    assert len({tuple(epoch) for epoch in epochs.tolist()}) > 1
    other = _flat(_batches(spec, count=50, seed=1))
    assert set(other) != set(epochs.ravel().tolist())


def test_max_elements_without_shuffling_keeps_the_first():
    spec = BatchSpec(batch_size=4, num_epochs=1, max_elements=6, shuffle=False)
    assert _batches(spec) == [[0, 1, 2, 3], [4, 5]]


def test_max_elements_may_be_more_than_a_client_has():
    spec = BatchSpec(batch_size=4, num_epochs=1, max_elements=60)
    assert sorted(_flat(_batches(spec))) == list(range(10))


def test_without_shuffling_examples_keep_their_order():
    spec = BatchSpec(batch_size=4, num_epochs=2, shuffle=False)
    assert _flat(_batches(spec)) == list(range(10)) * 2


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("length", [{"num_epochs": 2}, {"num_steps": 3}])
def test_an_empty_client_has_no_batches_and_the_right_types(length, shuffle):
    spec = BatchSpec(batch_size=4, shuffle=shuffle, max_elements=5, **length)
    dataset = batch_examples(_examples(0), spec, seed=0)
    assert not list(dataset)
    assert dataset.element_spec == (
        tf.TensorSpec([None, 1], tf.float32),
        tf.TensorSpec([None], tf.int32),
    )


@pytest.mark.parametrize("count", [0, 1, 3, 4, 9])
@pytest.mark.parametrize("length", [{"num_epochs": 2}, {"num_steps": 3}])
def test_the_types_do_not_depend_on_the_client(count, length):
    spec = BatchSpec(batch_size=4, **length)
    dataset = batch_examples(_examples(count), spec, seed=0)
    assert dataset.element_spec[1] == tf.TensorSpec([None], tf.int32)


@pytest.mark.parametrize("count", [0, 5, 10])
@pytest.mark.parametrize(
    "length",
    [
        {"num_epochs": 2},
        {"num_steps": 7},
        {"num_steps": 7, "step_batching": "per_pass"},
    ],
)
@pytest.mark.parametrize("max_elements", [None, 7])
def test_the_number_processed_is_that_of_the_batches(count, length, max_elements):
    spec = BatchSpec(batch_size=4, max_elements=max_elements, **length)
    batches = _flat(_batches(spec, count))
    assert spec.num_processed(count) == len(batches)
    lone = count == 5 and "step_batching" in length
    assert spec.num_examples(count) == len(set(batches)) or lone


@pytest.mark.parametrize(
    "count, sizes",
    [
        (1, [1] * 5),
        (3, [3] * 5),
        (4, [4] * 5),
        (5, [4] * 5),
        (7, [4, 3, 4, 3, 4]),
        (9, [4] * 5),
        (30, [4] * 5),
    ],
)
def test_steps_per_pass_batch_each_pass_and_leave_out_a_last_one_of_one(count, sizes):
    spec = BatchSpec(batch_size=4, num_steps=5, step_batching="per_pass")
    batches = _batches(spec, count)
    assert [len(batch) for batch in batches] == sizes
    assert all(len(set(batch)) == len(batch) for batch in batches)


def test_steps_per_pass_shuffle_every_pass():
    spec = BatchSpec(batch_size=5, num_steps=4, step_batching="per_pass")
    first, second, third, fourth = _batches(spec, 10)
    assert sorted(first + second) == sorted(third + fourth) == list(range(10))
    assert first + second != third + fourth


def test_steps_per_pass_of_single_examples_leave_none_out():
    spec = BatchSpec(batch_size=1, num_steps=3, step_batching="per_pass", shuffle=False)
    assert _batches(spec, 2) == [[0], [1], [0]]


@pytest.mark.parametrize("step_batching", ["straddling", "per_pass"])
def test_a_full_pass_has_the_examples_of_the_steps_in_the_order_of_their_first_pass(
    step_batching,
):
    spec = BatchSpec(
        batch_size=4, num_steps=6, max_elements=8, step_batching=step_batching
    )
    steps, full = _batches(spec, 20), _batches(spec.full_pass(), 20)
    assert full == steps[:2]


@pytest.mark.parametrize("length", [{"num_epochs": 2}, {"num_steps": 7}])
@pytest.mark.parametrize("max_elements", [None, 7])
def test_a_fresh_data_set_repeats_the_order(length, max_elements):
    spec = BatchSpec(batch_size=4, max_elements=max_elements, **length)
    assert _batches(spec, seed=3) == _batches(spec, seed=3)
    assert _batches(spec, seed=3) != _batches(spec, seed=4)


_BOTH_OR_NONE = "exactly one of num_epochs and num_steps, found num_epochs="


@pytest.mark.parametrize(
    ("message", "arguments"),
    [
        (_BOTH_OR_NONE, {"batch_size": 4}),
        (_BOTH_OR_NONE, {"batch_size": 4, "num_epochs": 1, "num_steps": 1}),
        ("batch_size=0 .* >= 1", {"batch_size": 0, "num_epochs": 1}),
        ("num_epochs=0 .* >= 1", {"batch_size": 4, "num_epochs": 0}),
        ("num_steps=0 .* >= 1", {"batch_size": 4, "num_steps": 0}),
        (
            "max_elements=0 .* >= 1",
            {"batch_size": 4, "num_epochs": 1, "max_elements": 0},
        ),
        (
            "step_batching='per_epoch' .*straddling, per_pass",
            {"batch_size": 4, "num_steps": 1, "step_batching": "per_epoch"},
        ),
    ],
)
def test_bad_specs_are_named(message, arguments):
    with pytest.raises(ValueError, match=message):
        BatchSpec(**arguments)


@pytest.mark.parametrize(
    "examples",
    [
        (np.zeros([3, 2]), np.zeros(4)),
        ({"a": np.zeros([3, 2]), "b": np.zeros(2)}, np.zeros(3)),
    ],
)
def test_arrays_of_several_lengths_are_refused(examples):
    with pytest.raises(ValueError, match=r"one length, found lengths \[[23], [34]\]"):
        batch_examples(examples, BatchSpec(batch_size=2, num_epochs=1), 0)


def test_features_in_several_arrays_are_all_used():
    x = {"a": np.arange(5.0), "b": np.arange(5.0) + 10}
    spec = BatchSpec(batch_size=2, num_epochs=1, shuffle=False)
    batches = list(batch_examples((x, np.arange(5)), spec, 0))
    assert [len(y) for _, y in batches] == [2, 2, 1]
    np.testing.assert_array_equal(batches[2][0]["b"], [14.0])


def test_derived_seeds_depend_on_every_part():
    seeds = {
        derive_seed(*parts)
        for parts in [(0,), (1,), (0, "a"), (0, "b"), ("a", 0), (0, "a", 0), (1, "a")]
    }
    assert len(seeds) == 7
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert derive_seed(0, "a") == derive_seed(0, "a")
