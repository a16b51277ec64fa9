"""Populations of clients, and their examples: splits, draws, caches, TFF's files."""

import collections
import threading

import numpy as np
import pytest
import tensorflow_federated as tff

from tasks import client_examples
from tasks.task import TaskError
from tff_algos.hyperparameters import HyperparameterError


@pytest.mark.parametrize(
    ("num_clients", "num_train"),
    [(3400, 2500), (3383, 2488), (340, 250), (200, 147), (715, 526), (3, 2), (2, 1)],
)
def test_the_first_clients_train_and_the_others_are_held_out(num_clients, num_train):
    ids = [str(i) for i in range(num_clients)]
    train, heldout = client_examples.split_clients(ids)
    assert len(train) == num_train
    assert [*train, *heldout] == ids
    assert heldout


def test_another_share_may_train():
    ids = [str(i) for i in range(715)]
    train, heldout = client_examples.split_clients(ids, (500, 715))
    assert (len(train), len(heldout)) == (500, 215)
    population = client_examples.Population()
    assert population.choose_clients(ids, 0, (500, 715)) == (train, heldout)


@pytest.mark.parametrize("ids", [[], ["one"]])
def test_split_needs_two_clients(ids):
    with pytest.raises(TaskError, match=f"found {len(ids)} clients"):
        client_examples.split_clients(ids)


class TestPopulation:
    IDS = tuple(f"client_{i:03}" for i in range(340))

    def _choose(self, seed=0, **options):
        population = client_examples.Population(**options)
        return population.choose_clients(self.IDS, seed)

    def test_unset_all_clients_take_part(self):
        assert self._choose() == client_examples.split_clients(self.IDS)

    @pytest.mark.parametrize(
        ("overlap", "shared"), [(None, 100), (1, 100), (0.5, 50), (0.254, 25), (0, 0)]
    )
    def test_so_many_train_and_so_many_evaluate(self, overlap, shared):
        train, evaluate = self._choose(num_clients=100, eval_overlap=overlap)
        assert len(set(train) & set(evaluate)) == shared
        for chosen in (train, evaluate):
            assert len(set(chosen)) == 100 and set(chosen) <= set(self.IDS)
            assert list(chosen) == sorted(chosen)

    def test_by_default_those_who_train_evaluate(self):
        train, evaluate = self._choose(num_clients=7)
        assert train == evaluate

    def test_the_seed_alone_decides_who_trains(self):
        train, evaluate = self._choose(num_clients=100, eval_overlap=0.5)
        assert (train, evaluate) == self._choose(num_clients=100, eval_overlap=0.5)
        assert train == self._choose(num_clients=100, eval_overlap=0)[0]
        others = self._choose(seed=1, num_clients=100, eval_overlap=0.5)
        assert train != others[0] and evaluate != others[1]

    def test_every_client_is_drawn_equally_often(self):
        draws = collections.Counter()
        for seed in range(300):
            train, evaluate = self._choose(seed, num_clients=34, eval_overlap=0.5)
            draws.update((client_id, "train") for client_id in train)
            draws.update((client_id, "evaluate") for client_id in evaluate)
        # Binomial, 300 draws of probability 0.1: mean 30, deviation 5.2.
        assert len(draws) == 2 * len(self.IDS)
        assert min(draws.values()) > 8 and max(draws.values()) < 55

    @pytest.mark.parametrize("num_clients", [1, 340])
    def test_from_one_to_as_many_as_there_are(self, num_clients):
        train, evaluate = self._choose(num_clients=num_clients)
        assert train == evaluate and len(train) == num_clients

    def test_without_overlap_half_of_them_may_train(self):
        train, evaluate = self._choose(num_clients=170, eval_overlap=0)
        assert sorted([*train, *evaluate]) == list(self.IDS)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            (
                {"num_clients": 341},
                "--num_clients=341 takes 341 clients: there are 340",
            ),
            (
                {"num_clients": 200, "eval_overlap": 0.25},
                "--num_clients=200 with --eval_overlap=0.25 takes 350 .*are 340",
            ),
        ],
    )
    def test_more_than_there_are(self, options, message):
        with pytest.raises(TaskError, match=message):
            self._choose(**options)

    @pytest.mark.parametrize("overlap", [0.5, 1])
    def test_overlap_alone(self, overlap):
        message = f"--eval_overlap={float(overlap)} needs --num_clients"
        with pytest.raises(TaskError, match=message):
            client_examples.Population(eval_overlap=overlap)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"num_clients": 0}, "num_clients=0 .*an integer >= 1"),
            (
                {"num_clients": 9, "eval_overlap": 1.5},
                r"eval_overlap=1.5 .*a number in \[0, 1\]",
            ),
        ],
    )
    def test_values_out_of_range(self, options, message):
        with pytest.raises(HyperparameterError, match=message):
            client_examples.Population(**options)


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
            "file",
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
            {"train": data}, lambda elements: (elements["a"], elements["a"]), "file"
        )
        read("0", "train")
        after_first = len(traces)
        for i in range(9):
            assert len(read(f"{i}", "train")[0]) == i + 1
        assert len(traces) == after_first

    def test_many_tasks_are_read_without_a_warning_about_traces(self, caplog):
        with caplog.at_level("WARNING", logger="tensorflow"):
            for _ in range(7):
                a, _ = self._read()("y", "train")
                assert len(a) == 5
        assert not caplog.records
