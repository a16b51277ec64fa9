"""A run leaves a model: its weights, and one that predicts without this package."""

import subprocess
import sys

import attrs
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
import tf_keras

import tasks
from tasks.models import image, text
from tests.testing import tiny_task
from tff_algos import experiments
from tff_algos.experiments import model_files
from tff_algos.experiments.errors import ResumeError
from tff_algos.hyperparameters import HyperparameterError

TASK = tiny_task.make()
SETTINGS = {
    "clients_per_round": 3,
    "eval_clients": 2,
    "personalization_epochs": 0,
    "rounds_per_eval": 0,
}


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    return experiments.run(
        "fedavg",
        TASK,
        output_dir=tmp_path_factory.mktemp("run"),
        total_rounds=5,
        rounds_per_checkpoint=2,
        **SETTINGS,
    )


@pytest.fixture
def x():
    return TASK.examples("3", "test")[0]


def _expected(weights, x):
    return TASK.model.predict_on_batch(
        (weights.trainable, weights.non_trainable), x, False
    )


def test_the_final_model_predicts_what_the_run_did(result, x):
    model = experiments.load_model(result.spec.output_dir)
    assert model.round_num is None
    assert model.config["hyperparameters"]["algo"] == "fedavg"
    for ours, theirs in zip(
        model.weights.trainable, result.weights.trainable, strict=True
    ):
        np.testing.assert_array_equal(ours, theirs)
    np.testing.assert_allclose(
        model.predict(x), _expected(result.weights, x), rtol=1e-6
    )


def test_the_keras_model_predicts_and_trains_also_when_saved(result, x, tmp_path):
    keras = experiments.load_model(result.spec.output_dir).keras_model()
    np.testing.assert_allclose(keras(x), _expected(result.weights, x), rtol=1e-6)
    assert [tuple(v.shape) for v in keras.trainable_weights] == [(2, 3), (3,)]
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(keras(x, training=True) ** 2)
    gradients = tape.gradient(loss, keras.trainable_weights)
    np.testing.assert_allclose(
        gradients[1], 2 * np.sum(_expected(result.weights, x), axis=0), rtol=1e-5
    )
    keras.save(tmp_path / "keras")
    saved = tf_keras.models.load_model(tmp_path / "keras")
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(saved(x, training=True) ** 2)
    for one, other in zip(
        tape.gradient(loss, saved.trainable_weights), gradients, strict=True
    ):
        np.testing.assert_allclose(one, other, rtol=1e-6)


def test_the_keras_model_is_built(result):
    keras = experiments.load_model(result.spec.output_dir).keras_model()
    lines = []
    keras.summary(print_fn=lines.append)
    assert any("Total params: 9 " in line for line in lines)
    assert keras.output_shape == (None, 3)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (
            np.ones((4, 5)),
            r"x has shape \[4, 5\] and .*, expected \[n, 2\] and float32\.$",
        ),
        (
            np.ones(2),
            r"expected \[n, 2\] .*; a batch of one example is x\[np\.newaxis\]",
        ),
        (np.ones((4, 2), np.uint8), r"type uint8, expected \[n, 2\] and float32"),
    ],
)
def test_other_inputs_are_refused_in_one_line(x, message, result):
    model = experiments.load_model(result.spec.output_dir)
    with pytest.raises(model_files.InputError, match=message) as caught:
        model.predict(x)
    assert "\n" not in str(caught.value)


def test_inputs_in_float64_are_rounded(result, x):
    model = experiments.load_model(result.spec.output_dir)
    np.testing.assert_array_equal(
        model.predict(x.astype(np.float64).tolist()), model.predict(x)
    )


def test_colleagues_may_read_what_the_umask_lets_them(result, tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    modes = {each.is_dir(): each.stat().st_mode for each in tmp_path.iterdir()}
    folder = result.spec.output_dir
    found = [folder / "model/weights.npz", *(folder / "model").rglob("saved_model*")]
    assert len(found) == 3
    for path in [*found, folder / "summary.json"]:
        assert path.stat().st_mode == modes[path.is_dir()], path


def test_a_checkpoints_model_is_that_of_its_round(result, tmp_path, x):
    folder = result.spec.output_dir
    shorter = experiments.run(
        "fedavg", TASK, output_dir=tmp_path, total_rounds=4, **SETTINGS
    )
    model = experiments.load_model(folder, round_num=4)
    np.testing.assert_allclose(
        model.predict(x), _expected(shorter.weights, x), rtol=1e-6
    )
    assert model.round_num == 4
    # Rounds whose checkpoints are gone have no weights either.
    names = sorted(path.name for path in (folder / "model").iterdir())
    assert names == ["round_4.npz", "round_5.npz", "saved_model", "weights.npz"]
    with pytest.raises(
        model_files.ModelFileError,
        match=r"no model after round 2; rounds with a checkpoint: 4, 5\.",
    ):
        experiments.load_model(folder, round_num=2)
    with pytest.raises(model_files.ModelFileError, match="after round '4'; rounds"):
        experiments.load_model(folder, round_num="4")


def test_a_stopped_run_has_the_model_of_its_last_checkpoint(result, tmp_path, x):
    weights, classes = result.weights, {"classes": ["no", "yes"]}
    for number in (3, 6):
        model_files.write_round(
            tmp_path, number, TASK.model, weights, kept=[3, 6], encoding=classes
        )
    (tmp_path / "config.json").write_text("{}")
    model = experiments.load_model(tmp_path)
    assert model.round_num == 6 and model.encoding == classes
    np.testing.assert_allclose(model.predict(x), _expected(weights, x), rtol=1e-6)


def test_a_model_of_several_outputs_is_saved_and_serves_each(tmp_path, x):
    model = TASK.model

    def predict(weights, x, training):
        output = model.predict_on_batch(weights, x, training)
        return {"logits": output, "doubled": 2 * output}

    several = tff.learning.models.FunctionalModel(
        initial_weights=model.initial_weights,
        predict_on_batch_fn=tf.function(predict),
        loss_fn=model.loss,
        metrics_fns=(
            model.initialize_metrics_state,
            model.update_metrics_state,
            model.finalize_metrics,
        ),
        input_spec=model.input_spec,
    )
    weights = tff.learning.models.ModelWeights(*model.initial_weights)
    model_files.write_final(tmp_path, several, weights)
    saved = tf.saved_model.load(tmp_path / "model" / "saved_model")
    served = saved.signatures["serving_default"](x=tf.constant(x))
    expected = _expected(weights, x)
    np.testing.assert_allclose(served["outputs_0"], 2 * expected, rtol=1e-6)
    np.testing.assert_allclose(served["outputs_1"], expected, rtol=1e-6)


def test_the_saved_model_serves_without_this_package(result, x, tmp_path):
    np.save(tmp_path / "x.npy", x)
    program = (
        "import sys, numpy as np, tensorflow as tf\n"
        "model = tf.saved_model.load(sys.argv[1])\n"
        "serve = model.signatures['serving_default']\n"
        "np.save(sys.argv[3], serve(x=np.load(sys.argv[2]))['outputs'])\n"
        "assert not any(name.startswith('tff_algos') for name in sys.modules)\n"
    )
    paths = [result.spec.output_dir / "model/saved_model", tmp_path / "x.npy"]
    subprocess.run(
        [sys.executable, "-c", program, *map(str, paths), str(tmp_path / "y.npy")],
        check=True,
        capture_output=True,
    )
    np.testing.assert_allclose(
        np.load(tmp_path / "y.npy"), _expected(result.weights, x), rtol=1e-6
    )


@pytest.mark.parametrize(
    ("model", "x"),
    [
        (image.build_emnist_model("cnn_dropout", True, 0), np.ones((2, 28, 28, 1))),
        (text.build_lstm_model(seed=0), np.ones((2, 80))),
    ],
    ids=["cnn_dropout", "lstm"],
)
def test_models_of_tasks_are_files_too(model, x, tmp_path):
    weights = tff.learning.models.ModelWeights(*model.initial_weights)
    model_files.write_final(tmp_path, model, weights)
    (tmp_path / "config.json").write_text("{}")
    x = x.astype(model.input_spec[0].dtype.as_numpy_dtype)
    expected = model.predict_on_batch(model.initial_weights, x, False)
    found = experiments.load_model(tmp_path).predict(x)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_a_loaded_model_whose_layers_define_gradients_trains_and_is_saved(tmp_path):
    model = text.build_lstm_model(seed=0)
    weights = tff.learning.models.ModelWeights(*model.initial_weights)
    model_files.write_final(tmp_path, model, weights)
    (tmp_path / "config.json").write_text("{}")
    x = np.ones((2, 80), np.int32)
    keras = experiments.load_model(tmp_path).keras_model()
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(keras(x, training=True) ** 2)
    assert all(
        np.any(gradient) for gradient in tape.gradient(loss, keras.trainable_weights)
    )
    keras.save(tmp_path / "keras")
    saved = tf_keras.models.load_model(tmp_path / "keras")
    np.testing.assert_array_equal(saved(x), keras(x))


def test_a_folder_without_a_model_is_named(tmp_path):
    with pytest.raises(
        model_files.ModelFileError, match=f"{tmp_path} holds no model: "
    ):
        experiments.load_model(tmp_path)
    with pytest.raises(
        model_files.ModelFileError, match="/none: there is no such folder"
    ):
        experiments.load_model(tmp_path / "none")


def test_a_damaged_file_is_named(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model" / "weights.npz").write_bytes(b"PK\x03\x04no")
    with pytest.raises(model_files.ModelFileError, match=r"weights.npz cannot be read"):
        experiments.load_model(tmp_path)
    (tmp_path / "model" / "weights.npz").write_bytes(b"x")
    with pytest.raises(
        model_files.ModelFileError, match=r"npz .*: it is no NumPy arch"
    ):
        experiments.load_model(tmp_path)
    (tmp_path / "config.json").unlink()
    with pytest.raises(
        model_files.ModelFileError, match=r"config.json cannot be read: No such file"
    ):
        experiments.load_model(tmp_path)


def test_a_model_starts_only_from_the_weights_of_its_own_kind(result, tmp_path):
    folder = result.spec.output_dir
    trained = model_files.load_model(folder)
    weights = model_files.initial_weights(trained, TASK.model)
    np.testing.assert_array_equal(weights.trainable[0], result.weights.trainable[0])
    with pytest.raises(
        model_files.ModelFileError, match=r"another model: 2 arrays of 9 numbers, not"
    ):
        model_files.initial_weights(trained, image.build_emnist_model("2nn", True, 0))
    encoded = attrs.evolve(trained, encoding={"classes": ["cat", "dog"]})
    same = {"classes": ["cat", "dog"], "features": ["age"]}
    assert model_files.initial_weights(encoded, TASK.model, same) is not None
    with pytest.raises(
        model_files.ModelFileError, match="classes: cat where these data have ant"
    ):
        model_files.initial_weights(encoded, TASK.model, {"classes": ["ant", "cat"]})
    with pytest.raises(
        HyperparameterError, match=r"initial_model=.*holds no model.*[^.]\.$"
    ):
        experiments.run("fedavg", TASK, total_rounds=1, initial_model=str(tmp_path))


def test_the_model_of_own_data_says_what_its_inputs_and_outputs_are(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(50, 10, size=(60, 2))
    labels = np.where(x[:, 0] > 50, "tall", "short")
    task = tasks.from_arrays(x, labels, partition="iid:3", model="linear")
    settings = {"total_rounds": 2, "clients_per_round": 2}
    experiments.run("fedavg", task, output_dir=tmp_path, **settings)
    model = experiments.load_model(tmp_path)
    scaled = (x - model.encoding["mean"]) / model.encoding["deviation"]
    found = np.argmax(model.predict(scaled.astype(np.float32)), axis=1)
    assert model.encoding["classes"] == ["short", "tall"]
    assert np.mean(np.array(model.encoding["classes"])[found] == labels) > 0.7
    changed = tasks.from_arrays(-x, labels, partition="iid:3", model="linear")
    with pytest.raises(ResumeError, match="on other data"):
        experiments.run("fedavg", changed, output_dir=tmp_path, **settings)
