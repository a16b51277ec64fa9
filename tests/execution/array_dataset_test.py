"""Tests of tff_algos.execution.ArrayDataset: a dataset like any."""

import collections
import functools
import itertools

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_algos import execution

X = np.arange(12, dtype=np.float32).reshape(6, 2)
Y = np.arange(6, dtype=np.int64)

# Rows and row splits: orders, parts, repetitions, empty batches, nothing.
CASES = {
    "in order": (range(6), [0, 4, 6]),
    "a part": ([5, 1], [0, 1, 2]),
    "repeated": ([0, 1, 2, 3, 4, 5, 0, 3, 3], [0, 7, 9]),
    "an empty batch": ([2, 3], [0, 0, 2]),
    "many sizes": ([0, 1, 2, 3, 4, 5, 0, 3, 3], [0, 1, 4, 5, 7, 9]),
    "no batch": ([], [0]),
}
STRUCTURES = {
    "tuple": (X, Y),
    "names": collections.OrderedDict(x=X, y=Y),
    "one array": X,
}


def _expected(arrays, rows, row_splits):
    rows = np.asarray(rows, int)
    return [
        tf.nest.map_structure(lambda array, r=rows[start:end]: array[r], arrays)
        for start, end in itertools.pairwise(row_splits)
    ]


def _assert_same(found, expected):
    found, expected = list(found), list(expected)
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        tf.nest.assert_same_structure(one, other)
        for a, b in zip(tf.nest.flatten(one), tf.nest.flatten(other), strict=True):
            assert a.dtype == b.dtype
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize("case", CASES)
def test_elements_are_the_rows_between_the_splits(case, structure):
    arrays, (rows, row_splits) = STRUCTURES[structure], CASES[case]
    dataset = execution.ArrayDataset(arrays, rows, row_splits)
    expected = _expected(arrays, rows, row_splits)
    _assert_same(dataset.as_numpy_iterator(), expected)
    _assert_same(dataset.elements(), [tuple(tf.nest.flatten(e)) for e in expected])
    # Again, and as another dataset's input.
    _assert_same(dataset.take(1).as_numpy_iterator(), expected[:1])


def test_batches_may_have_any_size():
    dataset = execution.ArrayDataset(STRUCTURES["names"], range(6), [0, 6])
    assert dataset.element_spec == collections.OrderedDict(
        x=tf.TensorSpec([None, 2], tf.float32), y=tf.TensorSpec([None], tf.int64)
    )


@pytest.mark.parametrize(
    "element", [np.int32(3), (X, np.float64(2)), collections.OrderedDict(a=Y)]
)
def test_one_element_has_the_shapes_that_it_has(element):
    dataset = execution.ElementDataset(element)
    assert dataset.element_spec == tf.nest.map_structure(
        lambda part: tf.TensorSpec(part.shape, part.dtype), element
    )
    _assert_same(dataset.as_numpy_iterator(), [element])
    _assert_same(dataset.elements(), [tuple(tf.nest.flatten(element))])


def test_it_may_be_made_in_one_graph_and_read_in_another():
    dataset = execution.ArrayDataset(X, range(6), [0, 4, 6])

    @tf.function
    def first():
        return dataset.take(1).get_single_element()

    np.testing.assert_array_equal(first(), X[:4])

    @tf.function
    def total(dataset):
        return dataset.reduce(0.0, lambda total, x: total + tf.reduce_sum(x))

    assert total(dataset) == X.sum()


@pytest.mark.parametrize(
    "context", [execution.native_context, execution.in_process_context]
)
def test_both_runtimes_take_it(context):
    data_type = tff.SequenceType((np.int64, [None]))

    @tff.tensorflow.computation(data_type)
    def sum_of_batch_maxima(dataset):
        return dataset.reduce(
            np.int64(0), lambda total, y: total + tf.reduce_max(y) * (total + 1)
        )

    @tff.federated_computation(tff.FederatedType(data_type, tff.CLIENTS))
    def run(datasets):
        return tff.federated_sum(tff.federated_map(sum_of_batch_maxima, datasets))

    datasets = [
        execution.ArrayDataset(Y, range(6), [0, 2, 6]),
        execution.ArrayDataset(Y, [3, 0], [0, 1, 2]),
    ]
    with context():
        # (0 + 1*1) + 5*2, and (0 + 3*1) + 0.
        assert run(datasets) == 11 + 3


def _first(count):
    _CALLS.append(count)
    return execution.ArrayDataset((X[:count], Y[:count]), range(count), [0, count])


_CALLS: list[int] = []


def test_a_recipe_is_made_once_where_it_is_read():
    spec = execution.ArrayDataset((X, Y), range(2), [0, 2]).element_spec
    _CALLS.clear()
    dataset = execution.RecipeDataset(spec, _first, 4)
    assert dataset.element_spec == spec and not _CALLS
    for _ in range(2):
        _assert_same(dataset.as_numpy_iterator(), [(X[:4], Y[:4])])
        _assert_same(dataset.elements(), [(X[:4], Y[:4])])
    assert _CALLS == [4]


def _generated(*batches):
    spec = (tf.TensorSpec([None, 2], tf.float32), tf.TensorSpec([None], tf.string))
    return tf.data.Dataset.from_generator(lambda: iter(batches), output_signature=spec)


@pytest.mark.parametrize("sizes", [(4, 2, 4), ()])
def test_a_recipe_may_make_any_dataset(sizes):
    batches = [(X[:size], np.array([b"a\0"] * size, object)) for size in sizes]
    made = _generated(*batches)
    dataset = execution.RecipeDataset(made.element_spec, _generated, *batches)
    _assert_same(dataset.elements(), batches)
    _assert_same(dataset.as_numpy_iterator(), batches)


def _of_any_shape():
    return tf.data.Dataset.from_generator(lambda: iter([]), tf.float32)


def test_a_recipe_of_nothing_has_the_shapes_that_it_declares():
    spec = tf.TensorSpec([None, 2], tf.float32)
    dataset = execution.RecipeDataset(spec, _of_any_shape)
    assert list(dataset) == [] and dataset.element_spec == spec


def test_a_recipe_may_be_made_in_a_graph():
    made = _generated((X, np.array([b"a"] * 6)))
    dataset = execution.RecipeDataset(
        made.element_spec, _generated, (X, np.array([b"a"] * 6))
    )

    @tf.function
    def total():
        return dataset.reduce(0.0, lambda sum_, batch: sum_ + tf.reduce_sum(batch[0]))

    assert total() == X.sum()


def test_a_recipe_must_give_a_dataset():
    dataset = execution.RecipeDataset(tf.TensorSpec([2]), functools.partial(list, "ab"))
    with pytest.raises(TypeError, match="Expected a tf.data.Dataset of .*, found list"):
        dataset.elements()


def test_a_recipe_must_give_the_elements_that_it_declares():
    spec = tf.TensorSpec([None, 2], tf.float32)
    with pytest.raises(TypeError, match="Expected elements .* of _first, found"):
        execution.RecipeDataset(spec, _first, 4).elements()
