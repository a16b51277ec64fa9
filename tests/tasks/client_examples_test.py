import collections
import threading

import numpy as np
import pytest

from tff_algos import compat  # noqa: F401  # isort: skip

import tensorflow_federated as tff

from tasks import client_examples
from tasks.task import TaskError


@pytest.mark.parametrize(
    ("num_clients", "num_train"),
    [(3400, 2500), (3383, 2488), (340, 250), (200, 147), (715, 526), (3, 2), (2, 1)],
)
def test_split_rule(num_clients, num_train):
    ids = [str(i) for i in range(num_clients)]
    train, heldout = client_examples.split_clients(ids)
    assert len(train) == num_train
    assert [*train, *heldout] == ids
    assert heldout


@pytest.mark.parametrize("ids", [[], ["one"]])
def test_split_needs_two_clients(ids):
    with pytest.raises(TaskError, match=f"found {len(ids)} clients"):
        client_examples.split_clients(ids)


def _counted_reader(length=10):
    calls = []

    def read(client_id, split):
        calls.append((client_id, split))
        return np.full([length], int(client_id), np.int64), np.zeros(0)

    return read, calls


def test_cache_forgets_the_client_used_longest_ago():
    read, calls = _counted_reader()
    examples = client_examples.cached(read, max_bytes=200)
    for client_id in ("1", "2", "1", "3", "1", "2"):
        assert examples(client_id, "train")[0][0] == int(client_id)
    assert [client_id for client_id, _ in calls] == ["1", "2", "3", "2"]


def test_cache_tells_splits_apart():
    read, calls = _counted_reader()
    examples = client_examples.cached(read)
    for split in ("train", "test", "train", "test"):
        examples("1", split)
    assert calls == [("1", "train"), ("1", "test")]


def test_cache_serves_a_client_larger_than_itself():
    read, calls = _counted_reader(length=1000)
    examples = client_examples.cached(read, max_bytes=10)
    for _ in range(2):
        assert len(examples("1", "train")[0]) == 1000
    assert len(calls) == 1


def test_cached_arrays_are_read_only():
    read, _ = _counted_reader()
    x, _ = client_examples.cached(read)("1", "train")
    with pytest.raises(ValueError, match="read-only"):
        x[0] = 7


def test_cache_keeps_its_books_with_threads():
    read, _ = _counted_reader()
    examples = client_examples.cached(read, max_bytes=400)

    def use(shift):
        for i in range(300):
            client_id = str((i * shift) % 17)
            assert examples(client_id, "train")[0][0] == int(client_id)

    threads = [threading.Thread(target=use, args=(shift,)) for shift in (1, 3, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _client_data(lengths):
    return tff.simulation.datasets.TestClientData(
        {
            client_id: collections.OrderedDict(
                a=np.arange(length, dtype=np.float32).reshape(-1, 1),
                b=np.arange(length, dtype=np.int32),
            )
            for client_id, length in lengths.items()
        }
    )


class TestTffReader:
    def _read(self):
        return client_examples.tff_reader(
            {
                "train": _client_data({"x": 3, "y": 5, "idle": 0}),
                "test": _client_data({"x": 2}),
            },
            lambda elements: (elements["a"], elements["b"]),
        )

    def test_reads_every_example_in_order(self):
        a, b = self._read()("y", "train")
        np.testing.assert_array_equal(a, np.arange(5, dtype=np.float32)[:, None])
        np.testing.assert_array_equal(b, np.arange(5, dtype=np.int32))
        assert a.dtype == np.float32 and b.dtype == np.int32

    @pytest.mark.parametrize(("client_id", "split"), [("y", "test"), ("idle", "train")])
    def test_a_client_without_examples(self, client_id, split):
        a, b = self._read()(client_id, split)
        assert a.shape == (0, 1) and a.dtype == np.float32
        assert b.shape == (0,) and b.dtype == np.int32

    def test_unknown_client(self):
        with pytest.raises(KeyError, match="nobody"):
            self._read()("nobody", "train")

    def test_traces_once(self):
        traces = []

        class Counted(tff.simulation.datasets.TestClientData):
            @property
            def serializable_dataset_fn(self):
                traces.append(1)
                return super().serializable_dataset_fn

        data = Counted({f"{i}": {"a": np.arange(i + 1)} for i in range(9)})
        read = client_examples.tff_reader(
            {"train": data}, lambda elements: (elements["a"], elements["a"])
        )
        read("0", "train")
        after_first = len(traces)
        for i in range(9):
            assert len(read(f"{i}", "train")[0]) == i + 1
        assert len(traces) == after_first
