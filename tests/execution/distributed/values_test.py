"""What travels arrives with the same values, or says why it does not."""

import pickle

import numpy as np
import pytest
import tensorflow as tf

from tff_algos import execution
from tff_algos.execution.distributed import values


def twos(count):
    """What a `RecipeDataset` makes in another process."""
    return execution.ArrayDataset(
        np.full([count, 2], 2.0, np.float32), np.arange(count), np.array([0, count])
    )


def failing():
    raise OSError("no such file")


_PAIRS = tf.TensorSpec([None, 2], tf.float32)
_X = np.arange(14, dtype=np.float32).reshape(7, 2)
_Y = np.arange(7, dtype=np.int32)


def _slices():
    return tf.data.Dataset.from_tensor_slices((_X, _Y))


def _table():
    pairs = tf.lookup.KeyValueTensorInitializer(["a", "b"], [1, 2])
    return tf.lookup.StaticHashTable(pairs, -1)


def _arrived(value):
    return values.unpack(pickle.loads(pickle.dumps(values.pack(value))))


def _elements(dataset_or_variant, spec):
    if not isinstance(dataset_or_variant, tf.data.Dataset):
        dataset_or_variant = tf.data.experimental.from_variant(dataset_or_variant, spec)
    return [tf.nest.flatten(each) for each in dataset_or_variant.as_numpy_iterator()]


@pytest.mark.parametrize(
    "value",
    [
        3,
        np.float64(0.1),
        True,
        "text",
        ["a", "bc"],
        np.zeros([0, 3], np.int16),
        np.ones([700, 700]),
        tf.constant([1.5, 2.5], tf.bfloat16),
        tf.zeros([0], tf.string),
        1 + 2j,
    ],
)
def test_tensors_arrive_with_dtype_and_shape(value):
    sent = tf.constant(value)
    found = _arrived(sent)
    assert found.dtype == sent.dtype and found.shape == sent.shape
    np.testing.assert_array_equal(found.numpy(), sent.numpy())


@pytest.mark.parametrize(
    "make",
    [
        lambda: _slices().batch(3),
        lambda: _slices().batch(3, drop_remainder=True),
        lambda: _slices().batch(3).repeat(2),
        lambda: _slices().take(0).batch(3),
        lambda: tf.data.Dataset.from_tensors((_X, _Y)),
        lambda: tf.data.Dataset.from_tensors(_X).repeat(3),
        lambda: _slices().map(lambda x, y: (x + 1, y)).batch(2),
        lambda: _slices().shuffle(7, seed=3, reshuffle_each_iteration=False),
        lambda: tf.data.Dataset.from_tensor_slices(["a", "b"]).batch(1),
        lambda: tf.data.Dataset.from_tensor_slices(["a", "c"]).map(_table().lookup),
        lambda: execution.ArrayDataset(
            (_X, _Y), np.array([6, 0, 6, 2, 2]), np.array([0, 2, 2, 5])
        ),
        lambda: execution.ElementDataset(np.int64(5)),
        lambda: execution.RecipeDataset(_PAIRS, twos, 3),
    ],
)
def test_datasets_arrive_with_their_elements(make):
    sent = make()
    found, expected = _elements(_arrived(sent), sent.element_spec), _elements(sent, ())
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        for a, b in zip(one, other, strict=True):
            np.testing.assert_array_equal(a, b)


def test_rows_that_a_client_does_not_use_stay():
    everyone = np.zeros([10_000, 50], np.float32)
    one = execution.ArrayDataset(everyone, np.array([5, 5, 7]), np.array([0, 3]))
    packed = values.pack(one)
    assert values.num_bytes(packed) == 2 * 50 * 4 + 3 * 8 + 2 * 8


@pytest.mark.parametrize(
    ("value", "expected"),
    [(tf.zeros([3]), 12), (tf.constant(["ab", "c"]), 3), (tf.constant("abc"), 3)],
)
def test_bytes_are_counted(value, expected):
    assert values.num_bytes([values.pack(value), [values.pack(value)]]) == 2 * expected


def test_what_exists_in_one_process_alone_says_how_to_make_it_travel():
    spec = tf.TensorSpec([], tf.int64)
    local = tf.data.Dataset.from_generator(lambda: iter([1, 2]), output_signature=spec)
    with pytest.raises(
        execution.CannotTravelError, match=r"Python functions.*ArrayDataset"
    ):
        values.pack(local)
    with pytest.raises(execution.CannotTravelError, match="resource"):
        values.pack(tf.Variable(1.0).handle)


def test_a_recipe_travels_without_its_elements():
    packed = values.pack(execution.RecipeDataset(_PAIRS, twos, 10_000))
    assert values.num_bytes(packed) < 500


def test_a_recipe_that_cannot_be_imported_says_how_to_make_it_travel(monkeypatch):
    with pytest.raises(execution.CannotTravelError, match="top level of a module"):
        values.pack(execution.RecipeDataset(_PAIRS, lambda: twos(3)))
    monkeypatch.setattr(twos, "__module__", "__main__")
    with pytest.raises(execution.CannotTravelError, match="main module.*top level"):
        values.pack(execution.RecipeDataset(_PAIRS, twos, 3))


def test_a_recipe_that_fails_names_the_machine_and_the_reason():
    with pytest.raises(values.NotReadableError, match=r"worker on .* \(no such file\)"):
        _arrived(execution.RecipeDataset(_PAIRS, failing))


def test_a_read_only_array_is_used_in_place_and_others_are_copied():
    # Aligned as Ray's store aligns: TensorFlow copies what its kernels cannot read.
    memory = np.zeros((1 << 20) + 64, np.uint8)
    array = memory[-memory.ctypes.data % 64 :][: 1 << 20].view(np.float32)
    array[:] = np.arange(1 << 18)
    copied = values.unpack_in_place(array)
    array.flags.writeable = False
    shared = values.unpack_in_place(array)
    assert np.shares_memory(memoryview(shared), array)
    assert not np.shares_memory(memoryview(copied), array)
    for tensor in (copied, shared):
        assert tensor.dtype == tf.float32
        np.testing.assert_array_equal(tensor, array)
