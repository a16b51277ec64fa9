"""The catalog of tasks: names, options, what loading does and does not."""

import numpy as np
import pytest

import tasks
from tasks import emnist, generated_glyphs, generated_text, shakespeare
from tasks.task import DataOptions, TaskError
from tff_algos.experiments.help_texts import described
from tff_algos.hyperparameters import REQUIRED, HyperparameterError


def test_unknown_name_names_the_nearest_and_all():
    with pytest.raises(TaskError, match=r"--task=emist is .*mean emnist\?.*shakesp"):
        tasks.load_task("emist")


def test_options_of_another_task_are_refused():
    with pytest.raises(TaskError, match="takes EmnistOptions, found Shakespeare"):
        tasks.load_task("emnist", shakespeare.ShakespeareOptions())


def test_settings_are_fields_of_the_task_and_of_the_data():
    asked = emnist.EmnistOptions(model="2nn")
    task = tasks.load_task("emnist", asked, only_digits=True, data="generated", seed=3)
    same = tasks.load_task(
        "emnist",
        emnist.EmnistOptions(model="2nn", only_digits=True),
        DataOptions(data="generated", seed=3),
    )
    assert task.dataset_name == same.dataset_name == "emnist_generated"
    ours, theirs = task.model.initial_weights[0], same.model.initial_weights[0]
    for one, other in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(one, other)
    assert ours[-1].shape == (10,)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"models": "cnn"},
            "models='cnn' cannot be used with --task=emnist, which .*mod",
        ),
        ({"model": "cnm"}, "model='cnm' is not valid: expected"),
        ({"data": "real"}, "data='real' is not valid: expected"),
    ],
)
def test_wrong_settings_are_refused_by_name(settings, message):
    with pytest.raises(HyperparameterError, match=message):
        tasks.load_task("emnist", **settings)


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
def test_drawn_clients_overlap_as_asked(name, make_options, model, num_weights):
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
