"""The Stack Overflow task: tokens as TFF's, its files, its population, its stand-in."""

import collections
import os
import pathlib

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import tasks
from tasks import client_examples, generated_words, stackoverflow
from tasks.task import DataOptions, TaskError
from tests.testing import federated_file
from tff_algos.clients.batching import BatchSpec
from tff_algos.hyperparameters import HyperparameterError


def _load(folder, data="auto", seed=0, **options):
    return tasks.load_task(
        "stackoverflow",
        stackoverflow.StackoverflowOptions(**options),
        DataOptions(data=data, cache_dir=str(folder), seed=seed),
    )


def _num_weights(task):
    return sum(weight.size for weight in task.model.initial_weights[0])


def _synthetic():
    """Returns TFF's own example of a vocabulary, and sentences of it."""
    words = tff.simulation.datasets.stackoverflow.get_synthetic_word_counts()
    data = tff.simulation.datasets.stackoverflow.get_synthetic()
    sentences = [
        element["tokens"].numpy()
        for client_id in data.client_ids
        for element in data.create_tf_dataset_for_client(client_id)
    ]
    return [word.encode() for word in words], sentences


def _by_tff(sentences):
    """Returns what TFF's baseline makes of sentences, with its own vocabulary."""
    spec = tff.simulation.baselines.ClientSpec(
        num_epochs=1, batch_size=10_000, shuffle_buffer_size=1
    )
    task = tff.simulation.baselines.stackoverflow.create_word_prediction_task(
        spec, spec, use_synthetic_data=True
    )
    dataset = task.datasets.eval_preprocess_fn(
        tf.data.Dataset.from_tensor_slices({"tokens": sentences})
    )
    (batch,) = dataset.as_numpy_iterator()
    return batch


def test_tokens_are_those_of_tff():
    words, sentences = _synthetic()
    vocabulary = stackoverflow.Vocabulary.of(words)
    assert len(sentences) == 8
    long = [b" ".join([b"sql"] * count) for count in (19, 20, 21, 45)]
    sentences += [*long, b"", b" ", b"sql  sql ", b"SQL nonsense <URL> ."]
    ours = stackoverflow.tokenize(sentences, vocabulary)
    for found, expected in zip(ours, _by_tff(sentences), strict=True):
        assert found.dtype == np.int32 and found.shape == (16, 20)
        np.testing.assert_array_equal(found, expected)
    # Padding, words, the four special ids: unknown, begin and end after the words.
    assert set(np.unique(ours[1])) & {0, 61, 62, 63} == {0, 61, 63}
    assert set(ours[0][:, 0]) == {vocabulary.begin} == {62}


def test_the_stand_in_fits_its_model(tmp_path):
    task = _load(tmp_path)
    assert task.dataset_name == "stackoverflow_generated"
    assert "stackoverflow.sqlite" in task.notice and "--data=tff" in task.notice
    assert len(task.train_client_ids) == 100 and len(task.eval_client_ids) == 40
    assert not set(task.train_client_ids) & set(task.eval_client_ids)
    assert _num_weights(task) == 4_050_748
    spec = BatchSpec(batch_size=4, num_epochs=1)
    for client_id in (task.train_client_ids[0], task.eval_client_ids[-1]):
        for split in ("train", "test"):
            dataset = task.client_dataset(client_id, split, spec)
            assert dataset.element_spec == tuple(task.model.input_spec)
            x, y = task.examples(client_id, split)
            assert len(y) > 0 and y.min() >= 0 and y.max() < 10_004
            np.testing.assert_array_equal(x[:, 1:], y[:, :-1])
    with pytest.raises(KeyError):
        task.examples("nobody", "train")


def test_loading_composes_nothing(monkeypatch):
    def refuse(*args):
        raise AssertionError("a client was composed")

    monkeypatch.setattr(generated_words, "sentences", refuse)
    task = _load(None, data="generated", vocab_size=50)
    assert task.notice is None
    with pytest.raises(AssertionError, match="was composed"):
        task.examples("user_0000", "train")


def test_fewer_words_make_a_smaller_model():
    task = _load(None, data="generated", vocab_size=300)
    # 96 numbers of the embedding and 97 of the logits for every word.
    assert _num_weights(task) == 4_050_748 - 9_700 * (96 + 97)
    x, y = task.examples("user_0000", "train")
    assert max(x.max(), y.max()) == 303 and np.mean(y == 301) > 0.1


def test_accuracy_counts_words_only():
    task = _load(None, data="generated", vocab_size=10)
    y = np.array([[*range(14)] + [0] * 6], np.int32)
    logits = tf.one_hot(np.where(y == 7, 1, y), 14) * 9.0
    state = task.model.initialize_metrics_state()
    output = tff.learning.models.BatchOutput(
        predictions=logits, loss=task.model.loss(logits, y), num_examples=1
    )
    state = task.model.update_metrics_state(state, y, output)
    # Ids 1 to 10 are words, of which one is wrong; 11 to 13 count in the loss alone.
    assert float(state["accuracy"][1]) == 10.0 and float(state["accuracy"][0]) == 9.0
    assert float(state["loss"][1]) == 13.0


def _example(tokens, date="2017-05-01 08:00:00 UTC"):
    return {
        "creation_date": date.encode(),
        "score": 3,
        "tags": b"sql",
        "title": b"a title",
        "tokens": tokens,
        "type": b"answer",
    }


# Ten sentences of a held-out user, the later written the higher the number.
HELD_OUT = {number: f"{2010 + number}-01-01 00:00:00 UTC" for number in range(10)}


def _write_file(folder, **changes):
    order = np.random.default_rng(0).permutation(10)
    splits = {
        "train": {
            "u1": [_example(b"a b"), _example(b"c")],
            "u2": [_example(b"b b b")],
            "u3": [_example(b"d")],
        },
        "heldout": {
            "h1": [_example(b"c " * n + b"a", HELD_OUT[n]) for n in order.tolist()],
            "h2": [_example(b"a")],
        },
        "test": {"u2": [_example(b"a a")], "later": [_example(b"b")]},
    }
    federated_file.write(folder / "stackoverflow.sqlite", {**splits, **changes})


def _write_counts(folder, text=b"a 9\nb 7\nc 2\nd 1\n"):
    folder.mkdir(exist_ok=True)
    (folder / "stackoverflow.word_count").write_bytes(text)


def _sentence(*ids):
    return [*ids, *[0] * (20 - len(ids))]


class TestRealData:
    """Words a, b, c are 1, 2, 3; others 4; sentences begin with 5 and end with 6."""

    @pytest.mark.parametrize(
        ("data", "where"),
        [("auto", "datasets"), pytest.param("tff", "", marks=pytest.mark.slow)],
    )
    def test_training_clients(self, data, where, tmp_path):
        _write_file(tmp_path)
        _write_counts(tmp_path / where)
        task = _load(tmp_path, data, vocab_size=3)
        assert task.data_source == "tff" and task.notice is None
        assert task.train_client_ids == ("u1", "u2", "u3")
        x, y = task.examples("u1", "train")
        np.testing.assert_array_equal(x, [_sentence(5, 1, 2, 6), _sentence(5, 3, 6)])
        np.testing.assert_array_equal(y, [_sentence(1, 2, 6), _sentence(3, 6)])
        assert task.examples("u3", "train")[1].tolist() == [_sentence(4, 6)]
        # What they wrote later is what they are tested on, if they did.
        assert task.examples("u2", "test")[1].tolist() == [_sentence(1, 1, 6)]
        assert task.examples("u1", "test")[1].shape == (0, 20)

    def test_held_out_clients_are_tested_on_the_last_fifth(self, tmp_path):
        _write_file(tmp_path)
        _write_counts(tmp_path)
        task = _load(tmp_path, vocab_size=3)
        assert task.eval_client_ids == ("h1", "h2")
        lengths = {
            split: (task.examples("h1", split)[1] == 3).sum(axis=1).tolist()
            for split in ("train", "test")
        }
        assert lengths == {"train": [0, 1, 2, 3, 4, 5, 6, 7], "test": [8, 9]}
        assert len(task.examples("h2", "train")[1]) == 0
        assert len(task.examples("h2", "test")[1]) == 1

    def test_without_word_counts_auto_takes_the_stand_in(self, tmp_path):
        _write_file(tmp_path)
        task = _load(tmp_path, vocab_size=3)
        assert task.data_source == "generated"
        assert "stackoverflow.word_count" in task.notice and "\n" not in task.notice

    def test_word_counts_are_downloaded_by_tff(self, tmp_path, monkeypatch):
        def load_word_counts(cache_dir):
            _write_counts(pathlib.Path(cache_dir) / "datasets")

        _write_file(tmp_path)
        datasets = tff.simulation.datasets.stackoverflow
        monkeypatch.setattr(datasets, "load_word_counts", load_word_counts)
        task = _load(tmp_path, "tff", vocab_size=4)
        assert task.examples("u3", "train")[1].tolist() == [_sentence(4, 7)]

    def test_word_counts_that_land_elsewhere_are_no_reason_for_the_stand_in(
        self, tmp_path, monkeypatch
    ):
        _write_file(tmp_path)
        datasets = tff.simulation.datasets.stackoverflow
        # Keras downloads elsewhere if it cannot write to the folder.
        monkeypatch.setattr(datasets, "load_word_counts", lambda cache_dir: None)
        with pytest.raises(TaskError, match="--data=tff cannot write .*word_count"):
            _load(tmp_path, "tff", vocab_size=4)

    def test_a_failed_download_is_one_line(self, tmp_path, monkeypatch):
        def load_word_counts(cache_dir):
            raise OSError("URL fetch\nfailure")

        datasets = tff.simulation.datasets.stackoverflow
        monkeypatch.setattr(datasets, "load_word_counts", load_word_counts)
        with pytest.raises(
            TaskError,
            match=r"download stackoverflow.word_count .*\(URL fetch failure\)",
        ):
            _load(tmp_path, "tff")
        assert os.listdir(tmp_path) == []

    @pytest.mark.parametrize("split", ["train", "heldout", "test"])
    def test_a_file_without_a_split(self, split, tmp_path):
        _write_file(tmp_path, **{split: {}})
        _write_counts(tmp_path)
        with pytest.raises(TaskError, match="stackoverflow.sqlite lacks clients"):
            _load(tmp_path, vocab_size=3)

    @pytest.mark.parametrize(
        ("text", "problem"),
        [
            (b"a 9\nb 7\n", "--vocab_size=3: .*word_count has 2 words"),
            (b"a 9\na 9\nb 1\n", "--vocab_size=3: .*word_count has 2 words"),
            (b"a 9\nb\nc 2\n", r"word_count has a line .*count: b'b\\n'"),
            (b"a 9\nb many\nc 2\n", "a line that is not a word with its count"),
        ],
    )
    def test_word_counts_that_will_not_do(self, text, problem, tmp_path):
        _write_file(tmp_path)
        _write_counts(tmp_path, text)
        with pytest.raises(TaskError, match=problem):
            _load(tmp_path, vocab_size=3)

    def test_word_counts_that_cannot_be_read(self, tmp_path):
        with pytest.raises(TaskError, match="cannot be read .Is a directory"):
            stackoverflow.read_words(str(tmp_path), 3)


class TestPopulation:
    TRAIN = tuple(f"t{number:03}" for number in range(200))
    HELD_OUT = tuple(f"h{number:03}" for number in range(60))

    def _choose(self, seed=0, **options):
        population = client_examples.Population(**options)
        return stackoverflow.choose_clients(population, self.TRAIN, self.HELD_OUT, seed)

    def test_unset_all_take_part(self):
        assert self._choose() == (self.TRAIN, self.HELD_OUT)

    @pytest.mark.parametrize(
        ("overlap", "shared"), [(None, 50), (1, 50), (0.5, 25), (0, 0)]
    )
    def test_so_many_train_and_so_many_evaluate(self, overlap, shared):
        train, evaluate = self._choose(num_clients=50, eval_overlap=overlap)
        assert len(set(train)) == len(set(evaluate)) == 50
        assert set(train) <= set(self.TRAIN) and list(train) == sorted(train)
        assert len(set(train) & set(evaluate)) == shared
        assert set(evaluate) - set(train) <= set(self.HELD_OUT)

    def test_the_seed_alone_decides_who_trains(self):
        train = self._choose(num_clients=50, eval_overlap=0.5)[0]
        assert train == self._choose(num_clients=50, eval_overlap=0)[0]
        assert train != self._choose(seed=1, num_clients=50)[0]

    def test_everyone_is_drawn_equally_often(self):
        draws = collections.Counter()
        for seed in range(200):
            train, evaluate = self._choose(seed, num_clients=20, eval_overlap=0.7)
            draws.update((client_id, "train") for client_id in train)
            draws.update((client_id, "evaluate") for client_id in evaluate)
        assert len(draws) == 2 * 200 + 60
        # Binomial: means 20 and 14 of those who train, 20 of others.
        assert min(draws.values()) >= 2 and max(draws.values()) < 42

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"num_clients": 201}, "--num_clients=201: there are 200 clients that tra"),
            (
                {"num_clients": 100, "eval_overlap": 0.25},
                "--num_clients=100 with --eval_overlap=0.25 takes 75 .*: there are 60",
            ),
        ],
    )
    def test_more_than_there_are(self, options, message):
        with pytest.raises(TaskError, match=message):
            self._choose(**options)


def test_settings_are_the_papers_and_bad_options_are_named():
    assert tasks.get("stackoverflow").settings["client_batch_size"] == 16
    assert stackoverflow.StackoverflowOptions().vocab_size == 10_000
    with pytest.raises(HyperparameterError, match="vocab_size=0 .*an integer >= 1"):
        stackoverflow.StackoverflowOptions(vocab_size=0)
    with pytest.raises(HyperparameterError, match="model='gru'.*one of lstm"):
        stackoverflow.StackoverflowOptions(model="gru")
    with pytest.raises(TaskError, match="--eval_overlap=0.5 needs --num_clients"):
        stackoverflow.StackoverflowOptions(eval_overlap=0.5)
    with pytest.raises(TaskError, match="--vocab_size=20000: .*data have 12003 w"):
        _load(None, data="generated", vocab_size=20_000)
