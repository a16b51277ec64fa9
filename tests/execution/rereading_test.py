"""Data of clients that must not be read twice, or not from a cache."""

import gc
import itertools

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_algos.execution import ClientError, InProcessContext, client_batches

_BATCHES = tff.SequenceType(tff.TensorType(np.int32, (None,)))


def _reduced(step, zero=0.0, element=_BATCHES):
    work = tff.tensorflow.computation(lambda d: d.reduce(zero, step), element)
    clients = tff.FederatedType(element, tff.CLIENTS)
    return tff.federated_computation(lambda x: tff.federated_map(work, x), clients)


_GATHERED = _reduced(
    lambda total, batch: total + tf.reduce_sum(tf.gather([1.0, 2.0], batch))
)
# Vectorized, all clients' states have one shape.
_JOINED = _reduced(
    lambda seen, batch: tf.concat([seen, batch], axis=0), np.zeros([0], np.int32)
)


def _once(*batches, fails=False):
    """Returns a dataset that yields its batches a single time."""

    def generator():
        yield from (np.array(batch, np.int32) for batch in batches)
        if fails:
            raise KeyError("no such file")

    iterator = generator()
    return tf.data.Dataset.from_generator(
        lambda: iterator, output_signature=tf.TensorSpec((None,), tf.int32)
    )


def _run(computation, clients, **options):
    context = InProcessContext(**options)
    with tff.framework.get_context_stack().install(context):
        return computation(clients)


def test_a_failing_client_is_named_though_its_data_are_gone():
    clients = [_once(batch) for batch in ([0, 1], [0, 7], [1, 1], [0, 0])]
    with pytest.raises(ClientError, match=r"^Client 1 of 4: indices\[1\] = 7"):
        _run(_GATHERED, clients)


def test_work_that_fails_only_vectorized_gets_the_data_again():
    batches = ([0, 1], [7], [1, 1], [1, 1, 2])
    clients = [_once(batch, batch) for batch in batches]
    found = _run(_JOINED, clients)
    assert [each.tolist() for each in found] == [2 * batch for batch in batches]


@pytest.mark.parametrize(
    "transform", [lambda d: d.map(tf.identity), lambda d: d.skip(0)]
)
def test_data_that_the_work_transforms_are_read_once_too(transform):
    def step(total, batch):
        return total + tf.reduce_sum(tf.gather([1.0, 2.0], batch))

    work = tff.tensorflow.computation(
        lambda data: transform(data).reduce(0.0, step), _BATCHES
    )
    mapped = tff.federated_computation(
        lambda x: tff.federated_map(work, x), tff.FederatedType(_BATCHES, tff.CLIENTS)
    )
    clients = [_once(batch) for batch in ([0, 1], [0, 7], [1, 1], [0, 0])]
    with pytest.raises(ClientError, match=r"^Client 1 of 4: indices\[1\] = 7"):
        _run(mapped, clients)
    fine = [_once(batch, batch) for batch in ([0, 1], [0], [1, 1], [0, 0])]
    assert _run(mapped, fine) == [6.0, 2.0, 8.0, 4.0]


def _numbers(generator, transform):
    """Five clients' sums of what is taken of the numbers that a generator yields."""
    sequence = tff.SequenceType(np.int64)
    work = tff.tensorflow.computation(
        lambda data: transform(data).reduce(np.int64(0), tf.add), sequence
    )
    mapped = tff.federated_computation(
        lambda x: tff.federated_map(work, x), tff.FederatedType(sequence, tff.CLIENTS)
    )
    spec = tf.TensorSpec([], tf.int64)
    clients = [
        tf.data.Dataset.from_generator(generator, output_signature=spec)
        for _ in range(5)
    ]
    return _run(mapped, clients)


def test_an_error_behind_what_the_work_takes_is_none():
    def failing():
        yield from (np.int64(number) for number in range(5))
        raise KeyError("no such file")

    assert _numbers(failing, lambda data: data.take(3)) == [3] * 5
    with pytest.raises(ClientError, match="Client 0 of 5: KeyError"):
        _numbers(failing, lambda data: data.take(6))


def test_nothing_keeps_what_was_read():
    def many():
        yield from (np.int64(number) for number in range(3000))

    _numbers(many, lambda data: data.take(2))
    gc.collect()
    kinds = (type(each) for each in gc.get_objects())
    assert not any(issubclass(kind, client_batches.Beginning) for kind in kinds)


@pytest.mark.parametrize("first", [0, 1500, 5000])
def test_of_data_without_end_only_what_the_work_takes_is_read(first):
    taken = []

    def endless():
        for number in itertools.count():
            taken.append(number)
            yield np.int64(number)

    def three(data):
        return data.filter(lambda x: x >= first).take(3)

    assert _numbers(endless, three) == [3 * first + 3] * 5
    # As much again at most as was needed, of each.
    assert len(taken) <= 5 * max(1030, 2 * (first + 10))


def test_an_error_of_pythons_is_one_line_that_names_the_client():
    clients = [_once([1]), _once([1], fails=True), _once([1]), _once([0])]
    with pytest.raises(ClientError, match=r"^Client 1 of 4: KeyError: [^\n]*$"):
        _run(_GATHERED, clients)


def test_the_reason_is_remembered_and_one_line():
    context = InProcessContext()
    sizes = range(2, 10)
    clients = [tf.data.Dataset.from_tensors(np.ones(n, np.int32)) for n in sizes]
    with tff.framework.get_context_stack().install(context):
        for _ in range(2):
            assert [each.tolist() for each in _JOINED(clients)] == [
                [1] * size for size in sizes
            ]
    (reason,) = [
        line for line in context.describe(_JOINED).splitlines() if "one by" in line
    ]
    assert "empty output shape" in reason


@pytest.mark.parametrize("batch_clients", [None, False])
def test_files_that_change_are_read_anew(batch_clients, tmp_path):
    path = tmp_path / "number"
    total = _reduced(lambda a, b: a + b, np.int64(0), tff.SequenceType(np.int64))
    clients = [
        tf.data.Dataset.from_tensors(str(path)).map(
            lambda name: tf.strings.to_number(tf.io.read_file(name), tf.int64)
        )
        for _ in range(4)
    ]
    context = InProcessContext(batch_clients=batch_clients)
    with tff.framework.get_context_stack().install(context):
        for number in (1, 77):
            path.write_text(str(number))
            assert total(clients) == [number] * 4


def test_a_dataset_of_what_was_read_has_the_same_elements():
    dataset = tf.data.Dataset.from_tensor_slices(
        {"x": np.arange(5), "y": np.arange(5.0)}
    ).batch(2)
    specs = tf.nest.flatten(dataset.element_spec)
    read = client_batches.read(tf.data.experimental.to_variant(dataset), specs)
    again = list(client_batches.as_dataset(read, dataset).as_numpy_iterator())
    for found, expected in zip(again, dataset.as_numpy_iterator(), strict=True):
        np.testing.assert_array_equal(found["x"], expected["x"])
        np.testing.assert_array_equal(found["y"], expected["y"])


@pytest.mark.parametrize("count", [0, 1, 2, 300])
def test_a_dataset_of_many_elements_that_were_read_is_not_too_deep(count):
    # Of different shapes, so that no two make one array.
    dataset = tf.data.Dataset.range(count).map(lambda n: tf.repeat(n, 1 + n % 2))
    specs = tf.nest.flatten(dataset.element_spec)
    read = client_batches.read(tf.data.experimental.to_variant(dataset), specs)
    again = client_batches.as_dataset(read, dataset)
    found = [each.tolist() for each in again.as_numpy_iterator()]
    assert found == [[n] * (1 + n % 2) for n in range(count)]
    assert again.element_spec == dataset.element_spec
