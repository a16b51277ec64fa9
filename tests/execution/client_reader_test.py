"""What vectorized work reads: each reduction its own order, spent data once."""

import collections
import threading

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_algos import execution
from tff_algos.execution import client_reader
from tff_algos.execution.client_batches import ClientBatches
from tff_algos.execution.client_passes import ReadOnce

NUMBERS = tff.SequenceType(np.int64)
ZERO = np.int64(0)


def _mapped(work, data_type=NUMBERS):
    work = tff.tensorflow.computation(work, data_type)
    clients = tff.FederatedType(data_type, tff.CLIENTS)
    return tff.federated_computation(lambda x: tff.federated_map(work, x), clients)


def _run(computation, clients, batch_clients=True, **options):
    context = execution.InProcessContext(batch_clients=batch_clients, **options)
    with tff.framework.get_context_stack().install(context):
        found = computation(clients)
        ran_alone = "one by one" in context.describe(computation)
    assert ran_alone == (not batch_clients)
    return found


def _digits(total, number):
    return 10 * total + number


def _once(*numbers):
    """Returns a dataset that yields its numbers a single time."""
    iterator = iter(numbers)
    return tf.data.Dataset.from_generator(
        lambda: iterator, output_signature=tf.TensorSpec((), tf.int64)
    )


@pytest.mark.parametrize("order", [("train", "test"), ("test", "train")])
def test_spent_data_are_read_whether_the_work_transforms_them_or_not(order):
    reductions = {
        "train": lambda data: data["train"].map(lambda x: x + 1).reduce(ZERO, _digits),
        "test": lambda data: data["test"].reduce(ZERO, _digits),
    }
    both = _mapped(
        lambda data: tuple(reductions[name](data) for name in order),
        tff.to_type(collections.OrderedDict(train=NUMBERS, test=NUMBERS)),
    )
    clients = [
        collections.OrderedDict(train=_once(k, k), test=_once(k, 7)) for k in range(4)
    ]
    expected = {"train": [11 * (k + 1) for k in range(4)]}
    expected["test"] = [10 * k + 7 for k in range(4)]
    found = _run(both, clients)
    assert [list(each) for each in zip(*found, strict=True)] == [
        expected[name] for name in order
    ]


def test_what_python_makes_is_made_once_for_all_reductions():
    made = []

    def dataset(number):
        def generate():
            made.append(number)
            yield number

        return tf.data.Dataset.from_generator(
            generate, output_signature=tf.TensorSpec((), tf.int64)
        )

    twice = _mapped(lambda d: (d.reduce(ZERO, _digits), d.reduce(ZERO, _digits)))
    assert _run(twice, [dataset(k) for k in range(4)]) == [(k, k) for k in range(4)]
    assert sorted(made) == list(range(4))


def _shuffled():
    return [tf.data.Dataset.range(6).shuffle(6, seed=k) for k in range(1, 6)]


def test_every_reduction_sees_an_order_of_its_own_as_one_by_one():
    epochs = _mapped(lambda d: tuple(d.reduce(ZERO, _digits) for _ in range(3)))
    found = _run(epochs, _shuffled())
    assert found == _run(epochs, _shuffled(), batch_clients=False)
    assert any(len(set(orders)) == 3 for orders in found)
    # So do reductions of what is computed from shuffled data.
    firsts = _mapped(lambda d: tuple(d.take(5).reduce(ZERO, _digits) for _ in range(3)))
    found = _run(firsts, _shuffled())
    assert any(len(set(orders)) == 3 for orders in found)


def test_work_that_shuffles_does_so_for_every_reduction():
    def work(dataset):
        shuffled = dataset.shuffle(6)
        return tuple(shuffled.reduce(ZERO, _digits) for _ in range(3))

    orders = _run(_mapped(work), [tf.data.Dataset.range(6)] * 4)
    assert any(len(set(each)) == 3 for each in orders)
    assert {"".join(sorted(f"{n:06d}")) for each in orders for n in each} == {"012345"}


def test_draws_with_a_seed_of_their_own_are_the_same_in_every_run():
    def work(dataset):
        order = tf.random.shuffle(tf.range(8, dtype=tf.int64), seed=1)
        orders = tf.data.Dataset.from_tensor_slices(order)
        return orders.concatenate(dataset).reduce(ZERO, _digits)

    # Two chunks, which threads would read concurrently.
    clients = [tf.data.Dataset.range(1)] * 200
    first, second = (_run(_mapped(work), clients, num_threads=2) for _ in range(2))
    assert first == second and len(set(first)) > 100


@pytest.fixture
def readers(monkeypatch):
    """The names of the threads that read clients, in order."""
    names = []
    read = client_reader.ClientReader.read

    def recorded(self, inputs, position):
        names.append(threading.current_thread().name)
        return read(self, inputs, position)

    monkeypatch.setattr(client_reader.ClientReader, "read", recorded)
    return names


def _are_clients_threads(names):
    return {name.startswith("tff_algos-client") for name in names}


def test_threads_read_ahead_and_give_what_one_thread_gives(readers):
    digits = _mapped(lambda d: d.reduce(ZERO, _digits))
    found = _run(digits, _shuffled(), num_threads=2)
    # The first client's size determines how many run at once.
    assert len(readers) == 5
    assert _are_clients_threads(readers[1:]) == {True}
    readers.clear()
    assert found == _run(digits, _shuffled(), num_threads=1)
    assert _are_clients_threads(readers) == {False}


def test_data_of_which_one_reading_changes_another_are_read_in_turns(readers):
    digits = _mapped(lambda d: d.reduce(ZERO, _digits))

    def parts(number):
        shuffled = tf.data.Dataset.range(number + 4).shuffle(100, seed=1)
        return [shuffled.skip(k).take(3) for k in range(number)]

    first, second = (_run(digits, parts(8), num_threads=2) for _ in range(2))
    assert first == second and len(set(first)) == 8
    # Two chunks, which threads would run concurrently.
    readers.clear()
    first, second = (_run(digits, parts(80), num_threads=2) for _ in range(2))
    assert first == second and len(set(first)) > 8
    alone = (_run(digits, parts(80), False, num_threads=2) for _ in range(2))
    assert set(map(tuple, alone)) == {tuple(first)}
    assert _are_clients_threads(readers) == {False}
    drawn = iter(range(8))

    def draw():
        yield next(drawn)

    signature = tf.TensorSpec((), tf.int64)
    generated = [tf.data.Dataset.from_generator(draw, output_signature=signature)] * 8
    assert _run(digits, generated, num_threads=2) == list(range(8))
    assert _are_clients_threads(readers) == {False}


def test_parts_of_an_order_that_stays_are_read_at_once(readers):
    digits = _mapped(lambda d: d.reduce(ZERO, _digits))
    fixed = tf.data.Dataset.range(8).shuffle(8, seed=1, reshuffle_each_iteration=False)
    found = _run(digits, [fixed.shard(4, k) for k in range(4)], num_threads=2)
    assert sorted("".join(f"{n:02d}" for n in found)) == list("01234567")
    assert _are_clients_threads(readers[1:]) == {True}


def test_data_whose_functions_capture_a_generator_are_read_in_turns(readers):
    digits = _mapped(lambda d: d.reduce(ZERO, _digits))

    def drawn():
        generator = tf.random.Generator.from_seed(1)
        data = tf.data.Dataset.range(3).map(
            lambda x: x + generator.uniform([], maxval=7, dtype=tf.int64)
        )
        return _run(digits, [data.take(3) for _ in range(8)], num_threads=2)

    assert drawn() == drawn()
    assert _are_clients_threads(readers) == {False}


def test_data_in_memory_are_read_by_the_caller(readers):
    digits = _mapped(lambda d: d.reduce(ZERO, _digits))
    context = execution.in_process_context(batch_clients=True, num_threads=2)
    numbers = [tf.data.Dataset.range(k).map(lambda x: x + 1) for k in range(5)]
    with context:
        for _ in range(2):
            readers.clear()
            assert digits(numbers) == [0, 1, 12, 123, 1234]
    # Cached in the first call.
    assert _are_clients_threads(readers) == {False}


@pytest.mark.parametrize("batch_clients", [True, False])
def test_a_client_whose_data_cannot_be_read_is_named(batch_clients):
    def make(number):
        if number == 2:
            raise FileNotFoundError("no file of client 2")
        return execution.ArrayDataset(np.arange(3), np.arange(3), np.arange(4))

    spec = tf.TensorSpec([None], tf.int64)
    clients = [execution.RecipeDataset(spec, make, number) for number in range(4)]
    total = _mapped(
        lambda d: d.reduce(ZERO, lambda s, x: s + tf.reduce_sum(x)),
        tff.SequenceType(tff.TensorType(np.int64, [None])),
    )
    context = execution.in_process_context(batch_clients=batch_clients)
    with (
        context,
        pytest.raises(
            execution.ClientError,
            match=r"^Client 2 of 4: its data cannot be read \(no file of client 2\)$",
        ),
    ):
        total(clients)


def _batches(size):
    array = np.zeros(size, np.int8)
    return ClientBatches(((array,),), (((size,),),), size)


def test_what_may_be_spent_is_kept_while_there_is_memory_for_all():
    kept = ReadOnce(max_bytes=10)
    kept.put("port", 0, _batches(6))
    kept.put("port", 1, _batches(4))
    assert [(port, position) for port, position, _ in kept] == [
        ("port", 0),
        ("port", 1),
    ]
    assert kept.is_complete
    kept.put("port", 2, _batches(1))
    assert not kept.is_complete and not list(kept)


def test_spent_data_that_were_too_large_to_keep_are_not_read_again():
    # Vectorized, all clients' states have one shape.
    joined = _mapped(
        lambda d: d.reduce(
            np.zeros([0], np.int64), lambda seen, x: tf.concat([seen, [x]], axis=0)
        )
    )
    clients = [_once(*range(size)) for size in range(1, 6)]
    context = execution.in_process_context(max_kept_bytes=8)
    with context, pytest.raises(RuntimeError, match="too large to keep .*batch_cl"):
        joined(clients)
