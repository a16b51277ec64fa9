import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import tasks
from tasks import emnist, generated_glyphs, generated_text, shakespeare
from tasks.task import DataOptions, TaskError
from tff_algos.clients.batching import BatchSpec
from tff_algos.experiments.help_texts import described
from tff_algos.hyperparameters import REQUIRED, HyperparameterError

SPEC = BatchSpec(batch_size=4, num_epochs=1)


def test_unknown_name_names_the_nearest_and_all():
    with pytest.raises(TaskError, match=r"--task=emist is .*mean emnist\?.*shakesp"):
        tasks.load_task("emist")


def test_options_of_another_task():
    with pytest.raises(TaskError, match="takes EmnistOptions, found Shakespeare"):
        tasks.load_task("emnist", shakespeare.ShakespeareOptions())


@pytest.mark.parametrize("name", tasks.TASKS)
def test_entries_have_what_flags_are_made_of(name):
    entry = tasks.TASKS[name]
    assert entry.name == name
    assert entry.summary and "\n" not in entry.summary
    entry.options()
    for field in described(entry.options).values():
        assert field.help and "\n" not in field.help, field.name
        assert field.default is not REQUIRED


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: emnist.EmnistOptions(model="vgg"),
            "model='vgg' is not valid: expected one of cnn",
        ),
        (
            lambda: shakespeare.ShakespeareOptions(model="rnn"),
            "model='rnn'.*one of lstm, gru",
        ),
        (lambda: DataOptions(data="real"), "data='real'.*one of auto, tff"),
    ],
)
def test_bad_options_name_the_flag(make, message):
    with pytest.raises(HyperparameterError, match=message):
        make()


def _check(task, num_classes):
    """Checks a task against its own model."""
    assert task.train_client_ids and task.eval_client_ids
    assert not set(task.train_client_ids) & set(task.eval_client_ids)
    spec = tuple(task.model.input_spec)
    for client_id in (task.train_client_ids[0], task.eval_client_ids[-1]):
        for split in ("train", "test"):
            dataset = task.client_dataset(client_id, split, SPEC)
            assert dataset.element_spec == spec
            _, y = task.examples(client_id, split)
            assert len(y) > 0 and y.min() >= 0 and y.max() < num_classes
            assert task.examples(client_id, split)[1] is y
    with pytest.raises(KeyError):
        task.examples("nobody", "train")
    x, _ = next(iter(task.client_dataset(task.train_client_ids[0], "train", SPEC)))
    logits = task.model.predict_on_batch(task.model.initial_weights, x, training=False)
    assert logits.shape[-1] == num_classes


@pytest.mark.parametrize("only_digits", [False, True])
def test_generated_emnist(only_digits, tmp_path):
    task = tasks.load_task(
        "emnist",
        emnist.EmnistOptions(only_digits=only_digits, model="cnn_dropout"),
        DataOptions(cache_dir=str(tmp_path)),
    )
    assert task.data_source == "generated"
    assert "--data=tff" in task.notice
    assert len(task.train_client_ids) == 250 and len(task.eval_client_ids) == 90
    assert tasks.get("emnist").settings["client_learning_rate"] == 0.02
    _check(task, num_classes=10 if only_digits else 62)


def test_generated_shakespeare(tmp_path):
    task = tasks.load_task(
        "shakespeare", data_options=DataOptions(cache_dir=str(tmp_path))
    )
    assert task.data_source == "generated"
    assert len(task.train_client_ids) == 147 and len(task.eval_client_ids) == 53
    settings = tasks.get("shakespeare").settings
    assert settings == {"client_learning_rate": 1.0, "client_batch_size": 4}
    _check(task, num_classes=90)


@pytest.mark.parametrize(
    ("name", "make_options", "model", "num_weights"),
    [
        ("emnist", emnist.EmnistOptions, "cnn_dense_dropout", 1_690_046),
        pytest.param(
            "shakespeare",
            shakespeare.ShakespeareOptions,
            "gru",
            4_053_594,
            marks=pytest.mark.slow,
        ),
    ],
)
def test_drawn_clients_and_their_models(name, make_options, model, num_weights):
    options = make_options(model=model, num_clients=100, eval_overlap=0.75)
    task, other = (
        tasks.load_task(name, options, DataOptions(data="generated", seed=seed))
        for seed in (0, 1)
    )
    train, evaluate = set(task.train_client_ids), set(task.eval_client_ids)
    assert len(train) == len(evaluate) == 100 and len(train & evaluate) == 75
    assert train != set(other.train_client_ids)
    assert sum(weight.size for weight in task.model.initial_weights[0]) == num_weights


@pytest.mark.parametrize("module", [generated_glyphs, generated_text])
def test_loading_generates_nothing(module, monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("a client was generated")

    name = "examples" if module is generated_glyphs else "snippets"
    monkeypatch.setattr(module, name, refuse)
    task_name = "emnist" if module is generated_glyphs else "shakespeare"
    task = tasks.load_task(task_name, data_options=DataOptions(data="generated"))
    assert task.notice is None
    with pytest.raises(AssertionError, match="was generated"):
        task.examples(task.train_client_ids[0], "train")


def test_the_seed_decides_the_weights_only():
    one, other = (
        tasks.load_task(
            "emnist",
            emnist.EmnistOptions(model="2nn", only_digits=True),
            DataOptions(data="generated", seed=seed),
        )
        for seed in (0, 1)
    )
    weights = [task.model.initial_weights[0][0] for task in (one, other)]
    assert np.any(np.asarray(weights[0]) != np.asarray(weights[1]))
    np.testing.assert_array_equal(
        one.examples("writer_0003", "train")[0],
        other.examples("writer_0003", "train")[0],
    )


def test_real_emnist(real_cache):
    task = tasks.load_task(
        "emnist",
        emnist.EmnistOptions(only_digits=True),
        DataOptions(cache_dir=real_cache),
    )
    assert task.data_source == "tff" and task.notice is None
    _check(task, num_classes=10)
    train, test = tff.simulation.datasets.emnist.load_data(
        only_digits=True, cache_dir=real_cache
    )
    assert [*task.train_client_ids, *task.eval_client_ids] == train.client_ids
    assert len(task.train_client_ids) == round(len(train.client_ids) * 2500 / 3400)
    client_id = task.eval_client_ids[0]
    for split, data in (("train", train), ("test", test)):
        elements = list(data.create_tf_dataset_for_client(client_id))
        x, y = task.examples(client_id, split)
        np.testing.assert_array_equal(
            x[..., 0], np.stack([element["pixels"] for element in elements])
        )
        np.testing.assert_array_equal(y, [element["label"] for element in elements])
    generated_x, generated_y = generated_glyphs.examples(0, "train")
    assert (x.dtype, x.shape[1:]) == (generated_x.dtype, generated_x.shape[1:])
    assert y.dtype == generated_y.dtype


def test_real_emnist_without_letters(real_cache):
    with pytest.raises(TaskError, match=r"--only_digits=false: .*holds no letters"):
        tasks.load_task("emnist", data_options=DataOptions(cache_dir=real_cache))


def _by_tff(snippets, batch_size=10_000):
    """Returns what TFF's own baseline makes of a client's snippets."""
    client_spec = tff.simulation.baselines.ClientSpec(
        num_epochs=1, batch_size=batch_size, shuffle_buffer_size=1
    )
    task = tff.simulation.baselines.shakespeare.create_character_prediction_task(
        client_spec, client_spec, use_synthetic_data=True
    )
    dataset = task.datasets.eval_preprocess_fn(
        tf.data.Dataset.from_tensor_slices({"snippets": snippets})
    )
    (batch,) = dataset.as_numpy_iterator()
    return batch


def test_real_shakespeare(real_cache):
    task = tasks.load_task(
        "shakespeare", data_options=DataOptions(cache_dir=real_cache)
    )
    assert task.data_source == "tff"
    _check(task, num_classes=90)
    train, _ = tff.simulation.datasets.shakespeare.load_data(cache_dir=real_cache)
    assert [*task.train_client_ids, *task.eval_client_ids] == train.client_ids
    snippets = [
        element["snippets"].numpy()
        for client_id in train.client_ids[:3]
        for element in train.create_tf_dataset_for_client(client_id)
    ]
    ours = [task.examples(client_id, "train") for client_id in train.client_ids[:3]]
    for axis, expected in enumerate(_by_tff(snippets)):
        np.testing.assert_array_equal(
            np.concatenate([example[axis] for example in ours]), expected
        )


def test_tokens_equal_tffs():
    everything = bytes(range(256))
    snippets = [b"", b"a", b"Hark!\r\n", b"x" * 78, b"x" * 79, b"y" * 80, everything]
    snippets += generated_text.snippets(0, "train")
    for ours, theirs in zip(shakespeare.tokenize(snippets), _by_tff(snippets)):
        assert ours.dtype == np.int32 and ours.shape[1:] == (80,)
        np.testing.assert_array_equal(ours, theirs)


def test_tokens_of_no_snippets():
    for ids in shakespeare.tokenize([]):
        assert ids.shape == (0, 80) and ids.dtype == np.int32


def test_vocabulary():
    assert len(set(shakespeare.CHARACTERS)) == len(shakespeare.CHARACTERS) == 86
    assert shakespeare.VOCABULARY_SIZE == 90
    assert tf.int32 == shakespeare.tokenize([b"a"])[0].dtype
