"""Own data become a task in one call: clients, held-out examples, refusals."""

import collections
import datetime

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import tasks
from tasks.models import by_shape
from tasks.task import TaskError
from tff_algos.hyperparameters import HyperparameterError

X = np.arange(80, dtype=np.float32).reshape(40, 2)
Y = np.arange(40) % 2
IDS = np.array(["a", "b", "c", "d"]).repeat(10)


def _examples(task, split):
    return {c: task.examples(c, split) for c in task.eval_client_ids}


def test_every_example_has_one_client_and_one_split():
    task = tasks.from_arrays(X, Y, IDS, name="people", standardize=False)
    assert task.name == task.dataset_name == "people" and task.data_source == "own"
    assert task.train_client_ids == task.eval_client_ids == ("a", "b", "c", "d")
    found = [
        row
        for split in ("train", "test")
        for x, _ in _examples(task, split).values()
        for row in x[:, 0]
    ]
    assert sorted(found) == X[:, 0].tolist()
    assert [len(y) for _, y in _examples(task, "test").values()] == [2, 2, 2, 2]
    assert len(task.test_examples[1]) == 8
    assert "40 examples of 2 features in 2 classes (0, 1), 4 clients" in task.notice


def test_training_examples_are_standardized_and_test_examples_like_them():
    task = tasks.from_arrays(X, Y, IDS)
    x = np.concatenate([x for x, _ in _examples(task, "train").values()])
    np.testing.assert_allclose(x.mean(axis=0), 0.0, atol=1e-5)
    np.testing.assert_allclose(x.std(axis=0), 1.0, rtol=1e-5)
    tests = np.concatenate([x for x, _ in _examples(task, "test").values()])
    np.testing.assert_array_equal(tests, task.test_examples[0])


def test_clients_can_be_held_out():
    task = tasks.from_arrays(X, Y, IDS, eval_client_fraction=0.5, seed=1)
    trains, evaluates = set(task.train_client_ids), set(task.eval_client_ids)
    assert len(trains) == len(evaluates) == 2 and not trains & evaluates
    assert len(task.test_examples[1]) == 4


def test_evaluated_clients_with_one_example_are_told():
    ids = np.array(["a"] * 39 + ["b"])
    found = set()
    for seed in range(8):
        try:
            tasks.from_arrays(X, Y, ids, eval_client_fraction=0.5, seed=seed)
        except TaskError as error:
            found.add(str(error))
    (message,) = found
    assert message == (
        "own_data: client_test_fraction=0.2 holds out no example of 1 evaluated "
        "client with 1 in all: raise eval_client_fraction or change the seed."
    )


def test_columns_that_are_not_used_may_have_any_shape():
    table = {"age": X[:, 0], "scan": np.ones((40, 2, 2)), "label": Y}
    task = tasks.from_data_frame(table, "label", features="age")
    assert task.encoding["features"] == ["age"]
    with pytest.raises(TaskError, match="column 'scan' has shape"):
        tasks.from_data_frame(table, "label")


def test_a_partition_divides_and_the_seed_decides():
    parts = {
        seed: tasks.from_arrays(X, Y, partition="shards:1:2", seed=seed)
        for seed in (0, 1)
    }
    for task in parts.values():
        assert len(task.train_client_ids) == 2
        for client_id in task.train_client_ids:
            assert len(set(task.train_labels(client_id))) == 1
    first = [task.examples("client_000", "test")[0] for task in parts.values()]
    assert not np.array_equal(*first)


def _functional(label_dtype, by_name=False):
    """Returns a functional model with the metric "loss" alone."""

    @tf.function
    def predict_on_batch(weights, x, training=True):
        return tf.matmul(x, weights[0][0])

    def loss(output, label, sample_weight=None):
        return tf.reduce_mean(output)

    x, y = tf.TensorSpec([None, 2], tf.float32), tf.TensorSpec([None], label_dtype)
    return tff.learning.models.FunctionalModel(
        initial_weights=((np.zeros([2, 2], np.float32),), ()),
        predict_on_batch_fn=predict_on_batch,
        loss_fn=loss,
        metrics_fns=(
            lambda: collections.OrderedDict(loss=tf.constant(0.0)),
            lambda state, labels, batch_output, sample_weight=None: state,
            lambda state: state,
        ),
        input_spec=collections.OrderedDict(x=x, y=y) if by_name else (x, y),
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"labels": np.zeros(40)}, "every label is 0"),
        (
            {"client_test_fraction": 0.01},
            "no example of 4 clients with 40 in all: raise it, or have fewer clients",
        ),
        (
            {"client_ids": np.arange(40)},
            "no example of 40 clients with 40 in all: have fewer clients",
        ),
        ({"eval_client_fraction": 0.9}, "leaves none of 4 clients to train"),
        (
            {"model": by_shape.build("linear", (3,), 2, 0)},
            r"model takes TensorSpec\(shape=\(None, 3\)",
        ),
        ({"model": _functional(tf.int64)}, "int64.*labels are .*int32"),
        ({"model": _functional(tf.int32)}, "no metric accuracy; .*NumExamplesCounter"),
        (
            {"model": _functional(tf.int32, by_name=True)},
            r"takes OrderedDict\(.*, expected a pair \(x, y\) of tensors",
        ),
        ({"labels": [[1], [2, 3]]}, "own_data: labels cannot be an array: setting"),
        ({"client_ids": [[1], [2, 3]]}, "own_data: client ids cannot be an array"),
    ],
)
def test_what_does_not_fit_is_named(arguments, message):
    given = {"labels": Y, **arguments}
    with pytest.raises(TaskError, match=message):
        tasks.from_arrays(X, given.pop("labels"), **{"client_ids": IDS, **given})


def test_arguments_that_exclude_each_other_or_are_out_of_range_are_refused():
    with pytest.raises(
        HyperparameterError, match="cannot be used where examples have clie"
    ):
        tasks.from_arrays(X, Y, IDS, partition="iid:2")
    with pytest.raises(
        HyperparameterError, match="^model=<.*one of linear, mlp, cnn, l"
    ):
        tasks.from_arrays(X, Y, IDS, model=lambda: None)
    with pytest.raises(HyperparameterError, match="^model='cnn'.* linear or mlp for"):
        tasks.from_arrays(X, Y, IDS, model="cnn")
    with pytest.raises(HyperparameterError, match="^model='mpl'.*one of linear, mlp"):
        tasks.from_arrays(X, Y, IDS, model="mpl")
    with pytest.raises(
        TypeError, match="^unexpected argument standardise=.*, standardize"
    ):
        tasks.from_arrays(X, Y, IDS, standardise=True)
    with pytest.raises(
        HyperparameterError, match="^frame=.*; from_arrays takes arrays"
    ):
        tasks.from_data_frame(X, "ill")
    with pytest.raises(HyperparameterError, match=r"client_test_fraction=0.*\(0, 1\)"):
        tasks.from_arrays(X, Y, IDS, client_test_fraction=0)


def test_a_table_becomes_a_task():
    frame = {"a": X[:, 0], "b": X[:, 1], "who": IDS, "ill": Y}
    task = tasks.from_data_frame(frame, "ill", "who", standardize=False)
    same = tasks.from_arrays(X, Y, IDS, standardize=False)
    for client_id in same.train_client_ids:
        for found, expected in zip(
            task.examples(client_id, "train"),
            same.examples(client_id, "train"),
            strict=True,
        ):
            np.testing.assert_array_equal(found, expected)


def test_large_numbers_are_scaled_before_they_are_rounded():
    seconds = 1_700_000_000 + np.arange(120)
    task = tasks.from_arrays(seconds[:, np.newaxis], np.arange(120) % 2)
    x = np.concatenate([x for x, _ in _examples(task, "train").values()])
    assert x.dtype == np.float32 and len(np.unique(x)) == len(x)
    np.testing.assert_allclose(x.std(), 1.0, rtol=1e-5)


def test_masked_values_of_columns_are_refused_where_they_are_used():
    masked = np.ma.masked_equal([1.0, -999.0, 2.0, 3.0], -999.0)
    frame = {"dose": masked, "age": np.arange(4.0), "ill": [0, 1, 0, 1]}
    settings = {"label": "ill", "partition": "iid:1"}
    told = "values of column 'dose' have masked values"
    with pytest.raises(TaskError, match=told):
        tasks.from_data_frame(frame, **settings)
    task = tasks.from_data_frame(frame, features=["age"], **settings)
    assert task.encoding["features"] == ["age"]


def test_masked_values_are_refused():
    x = np.ma.masked_array(np.ones((4, 2)), mask=np.eye(4, 2, dtype=bool))
    with pytest.raises(TaskError, match="features have masked values"):
        tasks.from_arrays(x, [0, 1, 0, 1])
    labels = np.ma.masked_array([0, 1, 0, 1], [1, 0, 0, 0])
    with pytest.raises(TaskError, match="labels have masked values"):
        tasks.from_arrays(np.ones((4, 2)), labels)


def _classes(labels):
    x = np.arange(float(len(labels)))[:, np.newaxis]
    return tasks.from_arrays(x, labels, partition="iid:1").encoding["classes"]


def test_words_that_are_numbers_are_in_the_order_of_numbers():
    numbers = [str(number) for number in range(12)]
    assert _classes(numbers * 5) == numbers
    assert _classes(["1", "1.0", "2"] * 3) == ["1", "2"]
    assert _classes(["01", "02", "10"] * 3) == ["01", "02", "10"]
    with pytest.raises(TaskError, match="example 1 .* has the label 0.5, expected cl"):
        _classes(["1", "0.5"])


def test_fingerprints_tell_data_and_their_treatment_apart():
    def fingerprint(x=X, y=Y, **treatment):
        return tasks.from_arrays(x, y, IDS, **treatment).fingerprint

    assert fingerprint() == fingerprint()
    changed = X.copy()
    changed[3, 0] += 1
    others = [fingerprint(changed), fingerprint(standardize=False), fingerprint(seed=1)]
    assert len({fingerprint(), *others}) == 4
    # Runs with several seeds of the same data can be told from those of other data.
    data = [each.partition("-")[0] for each in (fingerprint(), *others)]
    assert data[0] == data[3] and len(set(data)) == 3
    # Clients that the data name do not depend on the seed.
    moved = tasks.from_arrays(X, Y, IDS[::-1]).fingerprint
    assert moved.partition("-")[0] != data[0]


def test_fingerprints_tell_functional_models_of_other_sizes_apart():
    def fingerprint(name, seed=0):
        model = by_shape.build(name, X.shape[1:], 2, seed)
        return tasks.from_arrays(X, Y % 2, IDS, model=model).fingerprint

    assert fingerprint("mlp") != fingerprint("linear")
    # A model that is built again has other initial weights, and resumes.
    assert fingerprint("mlp") == fingerprint("mlp", seed=1)


class _Frame(dict):
    """A table whose columns need not differ, as a data frame's."""

    def __iter__(self):
        return iter(["a", "a", "label"])


def test_tables_that_mean_nothing_are_refused():
    with pytest.raises(TaskError, match="has two columns 'a'"):
        tasks.from_data_frame(_Frame(a=np.ones((4, 2)), label=[0, 1, 0, 1]), "label")
    table = {"age": np.arange(4.0), "label": [0, 1, 0, 1]}
    with pytest.raises(HyperparameterError, match="features=0 .* a column's name or a"):
        tasks.from_data_frame(table, "label", features=0)
    with pytest.raises(HyperparameterError, match="label='2' .* a column of own_data"):
        tasks.from_data_frame(table, 2)
    days = np.arange(4).astype("M8[D]")
    with pytest.raises(
        TaskError, match=r"'when' is of type datetime64\[D\], expected n"
    ):
        tasks.from_data_frame({"when": days, "label": [0, 1, 0, 1]}, "label")
    # As pandas gives a column of times with a time zone.
    noon = datetime.datetime(2026, 11, 29, 12, tzinfo=datetime.UTC)
    zoned = np.array([None, noon, noon, noon], dtype=object)
    with pytest.raises(
        TaskError, match="'when' is of type datetime, expected numbers: replace it"
    ):
        tasks.from_data_frame({"when": zoned, "label": [0, 1, 0, 1]}, "label")
    with pytest.raises(
        TaskError, match=r"column 'p' has shape \[3\], expected \[4\], a value for each"
    ):
        tasks.from_data_frame({"p": np.ones(3), "label": [0, 1, 0, 1]}, "label")
    with pytest.raises(TaskError, match=r"column 'p' has shape \[4, 5\], expected"):
        tasks.from_data_frame({"p": np.ones((4, 5)), "label": [0, 1, 0, 1]}, "label")
    ids = [1, 2, 2, "1"]
    with pytest.raises(TaskError, match="client ids 1 and '1' have the same text"):
        tasks.from_data_frame({**table, "who": ids}, "label", "who")


@pytest.mark.parametrize("categories", ["job", ["job"]])
def test_one_column_may_be_named_without_a_list(categories):
    table = {"job": ["a", "b"] * 4, "age": np.arange(8.0), "label": [0, 1] * 4}
    task = tasks.from_data_frame(
        table, "label", features="job", categories=categories, partition="iid:1"
    )
    x, _ = task.examples("client_000", "train")
    assert x.shape[1] == 2
    assert task.encoding["features"] == ["job=a", "job=b"]


def test_bytes_are_words_and_a_column_is_there_once():
    x = np.arange(6.0)[:, np.newaxis]
    words = np.array([b"a", b"b", b"a", b"b", b"a", b"b"], object)
    task = tasks.from_arrays(x, words, partition="iid:1")
    assert task.encoding["classes"] == ["a", "b"]
    table = {"age": np.arange(4.0), "label": [0, 1, 0, 1]}
    with pytest.raises(HyperparameterError, match="features='age' .* each column once"):
        tasks.from_data_frame(table, "label", features=["age", "age"])


def test_a_column_of_lists_of_different_lengths_is_named():
    with pytest.raises(TaskError, match="own_data: column 'a' cannot be an array: se"):
        tasks.from_data_frame({"a": [[1], [2, 3]], "y": [0, 1]}, "y")
