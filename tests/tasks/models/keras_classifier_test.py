"""A Keras model becomes a classifier of the same outputs, loss and metrics."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
import tf_keras

import tasks
from tasks.models import keras_classifier
from tff_algos import execution, experiments
from tff_algos.experiments.errors import RunError
from tff_algos.models import graph_prediction

layers = tf_keras.layers
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(60, 6)).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.int32)
IDS = np.repeat(["a", "b", "c"], 20)


def _sequential(*last):
    return tf_keras.Sequential(
        [layers.Dense(5, "relu", input_shape=(6,)), layers.Dropout(0.1), *last]
    )


class _Scaled(layers.Layer):
    """A layer that does not say how to make it again."""

    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def call(self, inputs):
        return inputs * self.factor


@tf_keras.saving.register_keras_serializable("tests")
class _Penalized(layers.Layer):
    """A layer that adds to the loss."""

    def call(self, inputs):
        self.add_loss(tf.reduce_sum(inputs**2))
        return inputs


def _with_a_layer_twice():
    dense = layers.Dense(2)
    first = layers.Dense(2, input_shape=(6,))
    return tf_keras.Sequential([first, dense, layers.Activation("tanh"), dense])


def _stateful():
    inputs = tf_keras.Input(batch_shape=(4, 6))
    hidden = layers.GRU(2, stateful=True)(layers.Reshape((6, 1))(inputs))
    return tf_keras.Model(inputs, layers.Dense(2)(hidden))


def _of_two_inputs():
    inputs = [tf_keras.Input((6,)), tf_keras.Input((6,))]
    return tf_keras.Model(inputs, layers.Dense(2)(layers.Add()(inputs)))


def _subclassed():
    class Own(tf_keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = layers.Dense(2)

        def call(self, inputs):
            return self.dense(inputs)

    model = Own()
    model(X)
    return model


def test_its_loss_and_metrics_are_keras_and_the_model_stays_as_it_is():
    keras = _sequential(layers.Dense(2))
    expected = keras(X).numpy()
    model = keras_classifier.build(keras, (6,), 2)
    np.testing.assert_array_equal(keras(X), expected)
    for own, theirs in zip(model.initial_weights[0], keras.get_weights(), strict=True):
        np.testing.assert_array_equal(own, theirs)
    keras.compile(
        loss=tf_keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    loss, accuracy = keras.evaluate(X, Y, verbose=0)
    np.testing.assert_allclose(model.loss(expected, Y), loss, rtol=1e-5)
    output = tff.learning.models.BatchOutput(
        loss=tf.constant(loss), predictions=expected, num_examples=60
    )
    state = model.update_metrics_state(model.initialize_metrics_state(), Y, output)
    found = model.finalize_metrics(state)
    assert float(found["accuracy"]) == pytest.approx(accuracy)
    assert int(found["num_examples"]) == 60


@pytest.mark.parametrize(
    "algorithm",
    [
        "fedavg",
        pytest.param("scaffold", marks=pytest.mark.extended),
        pytest.param("ditto", marks=pytest.mark.extended),
        pytest.param("moon", marks=pytest.mark.extended),
    ],
)
def test_a_run_with_it_gives_a_model_to_load(algorithm, tmp_path):
    keras = _sequential(layers.Dense(2))
    task = tasks.from_arrays(X, Y, IDS, model=keras)
    result = experiments.run(
        algorithm,
        task,
        output_dir=tmp_path,
        total_rounds=3,
        clients_per_round=3,
        client_learning_rate=0.5,
        personalization_epochs=0,
    )
    assert result.metrics["train/loss"][2] < result.metrics["train/loss"][0]
    assert keras(X).shape == (60, 2)  # It can be used as before.
    loaded = experiments.load_model(tmp_path)
    x = X[:4]
    expected = _sequential(layers.Dense(2))
    expected.set_weights(tf.nest.flatten(result.weights.trainable))
    np.testing.assert_allclose(loaded.predict(x), expected(x), rtol=1e-4, atol=1e-5)
    for model in (loaded.keras_model(), result.keras_model()):
        np.testing.assert_allclose(model(x), expected(x), rtol=1e-4, atol=1e-5)


def test_a_chain_has_a_block_for_each_layer_with_weights():
    keras = _sequential(layers.Dense(4, "tanh"), layers.Dense(2))
    model = keras_classifier.build(keras, (6,), 2)
    assert model.num_blocks == 3
    assert not hasattr(keras_classifier.build(_residual(), (6,), 2), "num_blocks")
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        mode = model.mode(model.initial_weights, X, training=False)
        forward = model.apply_blocks(model.initial_weights, tf.constant(X), mode)
        features, logits = session.run((forward.features, forward.output))
    expected = tf_keras.Model(keras.inputs, [keras.layers[-2].output, keras.output])
    for found, theirs in zip((features, logits), expected(X), strict=True):
        np.testing.assert_allclose(found, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.extended
def test_clients_keep_the_last_layer_of_a_chain(tmp_path):
    keras = _sequential(layers.Dense(4, "tanh"), layers.Dense(2))
    result = experiments.run(
        "fedper",
        tasks.from_arrays(X, Y, IDS, model=keras),
        output_dir=tmp_path,
        total_rounds=2,
        clients_per_round=3,
        client_learning_rate=0.5,
        personalization_epochs=0,
    )
    changed = [
        bool(np.abs(after - before).max() > 1e-3)
        for after, before in zip(
            result.weights.trainable, keras.get_weights(), strict=True
        )
    ]
    assert changed == [True, True, True, True, False, False]
    with pytest.raises(RunError, match="Keras models that are chains of layers"):
        experiments.run(
            "fedper", tasks.from_arrays(X, Y, IDS, model=_residual()), total_rounds=1
        )


def _residual():
    inputs = tf_keras.Input((6,))
    hidden = layers.Add()([inputs, layers.Dense(6, "relu")(inputs)])
    return tf_keras.Model(inputs, layers.Dense(2)(hidden))


def _frozen(*which):
    keras = tf_keras.Sequential(
        [
            layers.Dense(5, "relu", input_shape=(6,)),
            tf_keras.Sequential([layers.Dense(4, "tanh", input_shape=(5,))]),
            layers.Dense(2),
        ]
    )
    for index in which:
        keras.layers[index].trainable = False
    return keras


@pytest.mark.parametrize("which", [(0,), (1,), (0, 1), (2,)])
def test_frozen_layers_keep_their_weights_and_the_others_train(which, tmp_path):
    keras = _frozen(*which)
    task = tasks.from_arrays(X, Y, IDS, model=keras, standardize=False)
    result = experiments.run(
        "fedavg",
        task,
        output_dir=tmp_path,
        total_rounds=1,
        clients_per_round=3,
        client_learning_rate=0.5,
        personalization_epochs=0,
        rounds_per_eval=0,
    )
    for own, start in zip(
        result.weights.non_trainable, keras.non_trainable_weights, strict=True
    ):
        np.testing.assert_array_equal(own, start)
    expected = _frozen(*which)
    for variable, value in [
        *zip(expected.trainable_weights, result.weights.trainable, strict=True),
        *zip(expected.non_trainable_weights, result.weights.non_trainable, strict=True),
    ]:
        variable.assign(value)
    trained = result.keras_model()
    np.testing.assert_allclose(trained(X), expected(X), rtol=1e-4, atol=1e-5)
    assert np.abs(trained(X) - keras(X)).max() > 0.01


def test_a_frozen_base_may_have_batch_normalization():
    normalization = layers.BatchNormalization()
    base = tf_keras.Sequential([layers.Dense(5, input_shape=(6,)), normalization])
    normalization.set_weights([RANDOM.uniform(1, 2, 5) for _ in range(4)])
    base.trainable = False
    keras = tf_keras.Sequential([base, layers.Dense(2)])
    expected = keras(X).numpy()
    model = keras_classifier.build(keras, (6,), 2)
    predict = graph_prediction.anywhere(model)
    for training in (False, True):
        found = predict(model.initial_weights, X, training)
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    assert [w.shape for w in model.initial_weights[0]] == [(5, 2), (2,)]
    for own, theirs in zip(
        model.initial_weights[1], keras.non_trainable_weights, strict=True
    ):
        np.testing.assert_array_equal(own, theirs)


def test_a_run_goes_on_with_the_same_layers_made_again_but_not_with_others():
    def fingerprint(keras):
        return tasks.from_arrays(X, Y, IDS, model=keras).fingerprint

    first, again = _frozen(0), _frozen(0)
    assert again.layers[0].name != first.layers[0].name  # Keras numbers them.
    assert fingerprint(again) == fingerprint(first) != fingerprint(_frozen(1))


def test_a_model_of_float64_weights_trains(tmp_path):
    keras = tf_keras.Sequential(
        [layers.Dense(2, input_shape=(6,), dtype="float64", kernel_initializer="zeros")]
    )
    model = keras_classifier.build(keras, (6,), 2)
    assert {w.dtype for w in model.initial_weights[0]} == {np.dtype("float64")}
    task = tasks.from_arrays(X, Y, IDS, model=keras, standardize=False)
    settings = {
        "total_rounds": 2, "clients_per_round": 3, "client_learning_rate": 0.5,
        "personalization_epochs": 0, "rounds_per_eval": 0, "output_dir": tmp_path,
    }  # fmt: skip
    result = experiments.run("fedavg", task, **settings)
    assert result.weights.trainable[0].dtype == np.float64
    assert result.metrics["train/loss"][1] < result.metrics["train/loss"][0]


@pytest.mark.parametrize(
    ("keras", "message"),
    [
        (_sequential(layers.Dense(3)), r"returns \[n, 3\], expected \[n, 2\]"),
        (_sequential(layers.Dense(2, "softmax")), "probabilities, expected logits"),
        (
            _sequential(layers.Dense(2), layers.Softmax()),
            "probabilities, expected logits",
        ),
        (_sequential(layers.Dense(2, tf.nn.softmax)), "probabilities, expected logits"),
        (
            _sequential(tf_keras.Sequential([layers.Dense(2, "softmax")])),
            "probabilities, expected logits",
        ),
        (_sequential(layers.Dense(2, "sigmoid")), "a sigmoid, expected logits"),
        (
            _with_a_layer_twice(),
            "made again, give other outputs; .* the same layer twice",
        ),
        (
            _sequential(layers.Dense(2), layers.ActivityRegularization(l2=1.0)),
            "adds losses of its own, expected none",
        ),
        (_sequential(layers.Dense(2), _Penalized()), "adds losses of its own"),
        (
            _sequential(layers.SpectralNormalization(layers.Dense(2))),
            "cannot be made again with weights that are no variables",
        ),
        (
            _sequential(layers.BatchNormalization(), layers.Dense(2)),
            "batch_normalization is a batch normalization, expected",
        ),
        (
            _sequential(
                tf_keras.Sequential([layers.BatchNormalization(input_shape=(5,))]),
                layers.Dense(2),
            ),
            "is a batch normalization, expected",
        ),
        (
            _sequential(layers.Dense(4, dtype="mixed_bfloat16"), layers.Dense(2)),
            "dense.* computes in bfloat16 with weights of float32, expected a single",
        ),
        (
            _sequential(layers.Dense(2, kernel_regularizer="l2")),
            "has a kernel_regularizer, expected none: rounds train on the classification",
        ),
        (
            _sequential(layers.Dense(2, bias_constraint="non_neg")),
            "has a bias_constraint, expected none",
        ),
        (
            _sequential(layers.Dense(2), _Scaled(2.0)),
            "with arguments .* must override `get_config`",
        ),
        (
            _sequential(layers.Dense(2, activation=tf.sin)),
            "the layer dense.* cannot be made again .*: register its functions",
        ),
        (
            _sequential(layers.Dense(2, dtype="bfloat16")),
            "dense.* has weights of bfloat16, expected one of float16, float32, float64",
        ),
        (_stateful(), "the layer gru.* is stateful, expected layers that remember"),
        (_frozen(0, 1, 2), "no weights that are trainable"),
        (_of_two_inputs(), r"takes several tensors, expected \[n, 6\]"),
        (_subclassed(), "not made of layers, expected a sequential or functional one"),
        (tf_keras.Sequential([layers.Dense(2)]), "no weights yet: call it on a batch"),
        (
            tf_keras.Sequential([layers.Dense(2, input_shape=(7,))]),
            r"takes \[n, 7\], expected \[n, 6\]",
        ),
    ],
)
def test_models_that_do_not_fit_are_refused_in_one_line(keras, message):
    with pytest.raises(tasks.TaskError, match=f"own_data: model=.*{message}") as found:
        tasks.from_arrays(X, Y, IDS, model=keras)
    assert "\n" not in str(found.value)


@tf_keras.saving.register_keras_serializable("tests")
class _Shifted(layers.Layer):
    """A layer that makes a tensor when it is built."""

    def build(self, shape):
        self.shift = tf.range(float(shape[-1]))

    def call(self, inputs):
        return inputs + self.shift


@pytest.mark.parametrize(
    "layer", [lambda: layers.Normalization(mean=1.0, variance=4.0), _Shifted]
)
def test_layers_may_make_tensors_when_they_are_built(layer):
    keras = tf_keras.Sequential(
        [layers.InputLayer((6,)), layer(), layers.Dense(5, "relu"), layers.Dense(2)]
    )
    model = keras_classifier.build(keras, (6,), 2)
    predict = graph_prediction.anywhere(model)
    found = predict(model.initial_weights, tf.constant(X), False)
    np.testing.assert_allclose(found, keras(X), rtol=1e-5, atol=1e-6)


def test_a_model_made_again_is_the_same_whatever_its_layers_are_called():
    def shape(shape):
        return shape

    def model():
        first = layers.Lambda(tf.nn.relu, output_shape=shape, input_shape=(6,))
        return tf_keras.Sequential([first, layers.Dense(2)])

    one, other = model(), model()
    assert one.layers[0].name != other.layers[0].name
    assert keras_classifier.architecture(one) == keras_classifier.architecture(other)


def test_an_axis_of_channels_that_was_added_is_told():
    keras = tf_keras.Sequential([layers.Flatten(input_shape=(4, 4)), layers.Dense(2)])
    told = r"takes \[n, 4, 4\], expected \[n, 4, 4, 1\]; features .* one channel"
    with pytest.raises(keras_classifier.KerasModelError, match=told):
        keras_classifier.build(keras, (4, 4, 1), 2)


@pytest.mark.parametrize(
    "context", [execution.in_process_context, execution.native_context]
)
def test_layers_may_assert_and_draw(context):
    """In a graph, Keras calls new layers on placeholders that cannot be fed."""
    encoding = layers.CategoryEncoding(9, output_mode="count", input_shape=(6,))
    keras = tf_keras.Sequential([encoding, layers.Dropout(0.5), layers.Dense(2)])
    model = keras_classifier.build(keras, (6,), 2)
    sgd = tff.learning.optimizers.build_sgdm(0.1)
    process = tff.learning.algorithms.build_fed_sgd(model, sgd)
    batch = RANDOM.integers(0, 9, (20, 6)).astype(np.float32), Y[:20]
    clients = [tf.data.Dataset.from_tensors(batch)]
    with context():
        output = process.next(process.initialize(), clients)
        after = process.get_model_weights(output.state).trainable
    assert output.metrics["client_work"]["train"]["num_examples"] == 20
    assert np.abs(after[0] - model.initial_weights[0][0]).max() > 1e-3


def test_layers_may_be_shared_random_in_evaluation_and_frozen_with_a_penalty():
    inputs = tf_keras.Input((6,))
    shared = layers.Dense(6, "relu")
    frozen = layers.Dense(6, kernel_regularizer="l2", trainable=False)
    dropped = layers.Dropout(0.5)(frozen(shared(shared(inputs))), training=True)
    keras = tf_keras.Model(inputs, layers.Dense(2)(dropped))
    model = keras_classifier.build(keras, (6,), 2)
    assert len(model.initial_weights[0]) == 4 and len(model.initial_weights[1]) == 2


def _with_dropout(dtype="float32"):
    return tf_keras.Sequential(
        [
            layers.Dense(40, "relu", input_shape=(6,), dtype=dtype),
            layers.Dropout(0.25, dtype=dtype),
            layers.Reshape((8, 5), dtype=dtype),
            layers.Flatten(dtype=dtype),
            layers.Dropout(0.5, dtype=dtype),
            layers.Dense(2, dtype=dtype),
        ]
    )


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_dropout_is_a_function_of_weights_and_batch(dtype):
    keras = _with_dropout(dtype)
    model = keras_classifier.build(keras, (6,), 2)
    predict, weights = graph_prediction.anywhere(model), model.initial_weights
    first = predict(weights, X, True)
    np.testing.assert_array_equal(predict(weights, X, True), first)
    other = [weights[0][0], weights[0][1] + 1, *weights[0][2:]]
    seeds = [
        int(model.mode(*arguments).dropout_seed)
        for arguments in ((weights, X), ((other, ()), X), (weights, X + 1))
    ]
    assert len(set(seeds)) == 3
    plain = predict(weights, X, False)
    np.testing.assert_allclose(plain, keras(X), rtol=1e-2, atol=1e-2)
    assert np.abs(plain - first).max() > 0.01


def test_dropout_leaves_out_and_scales_as_many_as_keras():
    keras = tf_keras.Sequential(
        [
            layers.Dense(
                500, use_bias=False, kernel_initializer="ones", input_shape=(6,)
            ),
            layers.Dropout(0.25),
            layers.Dense(500, use_bias=False, kernel_initializer="identity"),
        ]
    )
    model = keras_classifier.build(keras, (6,), 500)
    ones = np.full((60, 6), 1 / 6, np.float32)
    predict = graph_prediction.anywhere(model)
    values = predict(model.initial_weights, ones, True).numpy()
    assert np.all(np.isclose(values, 0) | np.isclose(values, 4 / 3))
    # Of 30,000 elements, so the deviation of the share is 0.0025.
    assert np.mean(np.isclose(values, 0)) == pytest.approx(0.25, abs=0.0125)


def _trained(algorithm, model, folder):
    task = tasks.from_arrays(X, Y, IDS, model=model)
    result = experiments.run(
        algorithm,
        task,
        output_dir=folder,
        total_rounds=2,
        clients_per_round=3,
        personalization_epochs=0,
    )
    return tf.nest.flatten(result.weights.trainable)


@pytest.mark.parametrize("algorithm", ["gradma_w", "uga", "moon", "fedmlb"])
def test_algorithms_that_look_at_a_batch_twice_train_keras_dropout(algorithm, tmp_path):
    model = _with_dropout()
    first, again = (_trained(algorithm, model, tmp_path / name) for name in "ab")
    for one, other, start in zip(first, again, model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)
        assert np.all(np.isfinite(one)) and np.any(one != start)


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_moon_trains_chains_of_other_dtypes(dtype, tmp_path):
    model = _with_dropout(dtype)
    trained = _trained("moon", model, tmp_path)
    for weight, start in zip(trained, model.get_weights(), strict=True):
        assert weight.dtype == dtype
        assert np.all(np.isfinite(weight)) and np.any(weight != start)
