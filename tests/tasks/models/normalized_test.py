"""The models with normalization: sizes, against Keras layers, derivatives."""

import attrs
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
import tf_keras

from tasks.models import normalized
from tests.testing import task_models
from tff_algos.hyperparameters import HyperparameterError, record
from tff_algos.models.block_model import EVALUATION, Mode

SMALL = (8, 8, 3)

BUILD = {
    "tiny_nn": lambda seed=1, norm="batch": normalized.build_tiny_nn(
        (4, 4, 1), 10, seed, norm
    ),
    "lenet": lambda seed=1, norm="batch": normalized.build_lenet(10, seed, norm),
    "vgg11": lambda seed=1, norm="batch": normalized.build_vgg11(10, seed, norm),
    "resnet20": lambda seed=1, norm="batch": normalized.build_resnet20(
        10, seed, norm, image_shape=SMALL
    ),
}


def _sizes(weights):
    return sum(weight.size for weight in weights)


@pytest.mark.parametrize(
    ("build", "classes", "expected", "expected_without"),
    [
        (
            lambda classes, norm: normalized.build_tiny_nn(
                (28, 28, 1), classes, 0, norm
            ),
            10,
            178_710,
            178_110,
        ),
        (
            lambda classes, norm: normalized.build_lenet(classes, 0, norm),
            10,
            941_834,
            940_362,
        ),
        (
            lambda classes, norm: normalized.build_vgg11(classes, 0, norm),
            100,
            9_304_548,
            9_299_044,
        ),
        (
            lambda classes, norm: normalized.build_resnet20(classes, 0, norm),
            200,
            282_072,
            280_696,
        ),
    ],
    ids=["tiny_nn", "lenet", "vgg11", "resnet20"],
)
def test_models_have_the_published_sizes(build, classes, expected, expected_without):
    for norm in ("batch", "group"):
        trainable, non_trainable = build(classes, norm).initial_weights
        assert _sizes(trainable) == expected
        moving = expected - expected_without if norm == "batch" else 0
        assert _sizes(non_trainable) == moving
    trainable, non_trainable = build(classes, "none").initial_weights
    assert _sizes(trainable) == expected_without and non_trainable == ()
    everything = tf.nest.flatten(build(classes, "batch").initial_weights)
    assert all(type(weight) is np.ndarray for weight in everything)


def test_resnet20_takes_images_of_64_pixels():
    model = normalized.build_resnet20(200, 0)
    assert model.input_spec[0].shape.as_list() == [None, 64, 64, 3]
    x, _ = task_models.examples(model, seed=0, num_examples=1)
    result = model.apply_blocks(model.initial_weights, x, EVALUATION)
    shapes = [value.shape[1:].as_list() for value in (*result.inputs, result.output)]
    assert shapes == [
        [64, 64, 3],
        [64, 64, 16],
        [64, 64, 16],
        [32, 32, 32],
        [64],
        [200],
    ]


@pytest.mark.parametrize("name", BUILD)
def test_initial_weights_are_a_function_of_the_seed(name):
    first, again, other = (
        tf.nest.flatten(BUILD[name](seed).initial_weights) for seed in (1, 1, 2)
    )
    for a, b, c in zip(first, again, other, strict=True):
        np.testing.assert_array_equal(a, b)
        assert a.ndim == 1 or np.any(a != c)


def test_normalization_starts_as_the_identity_of_standard_inputs():
    (_, _, gamma, beta, *_), (mean, variance, *_) = BUILD["tiny_nn"]().initial_weights
    assert np.all(gamma == 1.0) and np.all(variance == 1.0)
    assert np.all(beta == 0.0) and np.all(mean == 0.0)


@pytest.fixture
def float64_keras():
    """Makes Keras layers of doubles: rounding alone flips many a ReLU."""
    floatx = tf_keras.backend.floatx()
    tf_keras.backend.set_floatx("float64")
    yield
    tf_keras.backend.set_floatx(floatx)


def _batch_norm():
    # The fused op is for single precision.
    return tf_keras.layers.BatchNormalization(momentum=0.9, epsilon=1e-5, fused=False)


def _keras_sequence(name):
    layers = tf_keras.layers

    def convolution(filters, size, padding):
        return [
            layers.Conv2D(filters, size, padding=padding),
            _batch_norm(),
            layers.ReLU(),
        ]

    def hidden(units):
        return [layers.Dense(units), _batch_norm(), layers.ReLU()]

    if name == "tiny_nn":
        sequence = [layers.Flatten(), *hidden(200), *hidden(100)]
    elif name == "lenet":
        sequence = [
            *convolution(32, 5, "valid"),
            layers.MaxPool2D(2),
            *convolution(64, 5, "valid"),
            layers.MaxPool2D(2),
            layers.Flatten(),
            *hidden(512),
            *hidden(128),
        ]
    else:
        sequence = []
        for filters, count in ((64, 1), (128, 1), (256, 2), (512, 2), (512, 2)):
            for _ in range(count):
                sequence += convolution(filters, 3, "same")
            sequence.append(layers.MaxPool2D(2))
        sequence += [layers.Flatten(), layers.Dense(128, activation="relu")]
    return tf_keras.Sequential([*sequence, layers.Dense(10)])


class _WidenedShortcut(tf_keras.layers.Layer):
    """Every second pixel, and as many channels of zeros again."""

    def call(self, x):
        kept = tf_keras.layers.AveragePooling2D(1, 2)(x)
        return tf.concat([kept, tf.zeros_like(kept)], axis=-1)


def _keras_resnet20():
    layers = tf_keras.layers

    def convolution(x, filters, strides=1):
        x = layers.ZeroPadding2D(1)(x)
        x = layers.Conv2D(filters, 3, strides, use_bias=False)(x)
        return _batch_norm()(x)

    inputs = layers.Input(SMALL)
    x = layers.ReLU()(convolution(inputs, 16))
    for filters in (16, 32, 64):
        for number in range(3):
            widens = number == 0 and filters > 16
            y = layers.ReLU()(convolution(x, filters, 2 if widens else 1))
            y = convolution(y, filters)
            x = layers.ReLU()(y + (_WidenedShortcut()(x) if widens else x))
    logits = layers.Dense(10)(layers.GlobalAveragePooling2D()(x))
    return tf_keras.Model(inputs, logits)


def _keras_model(name, weights):
    if name == "resnet20":
        model = _keras_resnet20()
    else:
        model = _keras_sequence(name)
        model.build((None, 4, 4, 1) if name == "tiny_nn" else (None, 32, 32, 3))
    for variables, values in zip(
        (model.trainable_variables, model.non_trainable_variables), weights, strict=True
    ):
        for variable, value in zip(variables, values, strict=True):
            variable.assign(value)
    return model


@pytest.mark.parametrize("batch_statistics", [True, False])
@pytest.mark.parametrize("name", BUILD)
def test_without_dropout_it_equals_keras_layers(name, batch_statistics, float64_keras):
    del float64_keras  # What it does is its effect.
    model = BUILD[name]()
    x, y = task_models.examples(model, seed=3, num_examples=8)
    weights, x = tf.nest.map_structure(
        lambda value: tf.cast(value, tf.float64),
        (task_models.moved_weights(model, seed=2), x),
    )
    reference = _keras_model(name, weights)

    def loss(logits):
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits)
        return tf.reduce_mean(losses)

    mode = Mode(dropout_seed=None, batch_statistics=batch_statistics)
    with tf.GradientTape() as tape:
        tape.watch(weights[0])
        result = model.apply_blocks(weights, x, mode)
        total = loss(result.output)
    gradients = tape.gradient(total, weights[0])
    with tf.GradientTape() as tape:
        expected = reference(x, training=batch_statistics)
        total = loss(expected)
    expected_gradients = tape.gradient(total, reference.trainable_variables)

    assert np.std(expected) > 0.1
    np.testing.assert_allclose(result.output, expected, rtol=1e-8)
    for got, want in zip(gradients, expected_gradients, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-10)
    means = zip(
        weights[1][::2],
        result.non_trainable[::2],
        reference.non_trainable_variables[::2],
        strict=True,
    )
    for initial, moved, expected_mean in means:
        # Keras holds its momentum in single precision.
        np.testing.assert_allclose(moved, expected_mean, rtol=1e-5, atol=1e-8)
        assert np.any(moved != initial) == batch_statistics


@pytest.mark.parametrize(
    ("name", "units"), [("lenet", 128), ("vgg11", 128)], ids=["lenet", "vgg11"]
)
def test_half_of_the_last_hidden_units_are_dropped(name, units):
    build = getattr(normalized, f"build_{name}")
    model = build(units, seed=0, norm="none")
    weights = [np.zeros_like(weight) for weight in model.initial_weights[0]]
    weights[-3][:] = 1.0
    weights[-2][:] = np.eye(units)
    x, _ = task_models.examples(model, seed=5, num_examples=50)
    kept = model.predict_on_batch((tuple(weights), ()), x, training=True).numpy()
    assert set(np.unique(kept)) == {0.0, 2.0}
    assert abs(np.mean(kept == 0.0) - 0.5) < 0.02


def test_half_of_lenets_features_are_dropped():
    model = BUILD["lenet"]()
    weights = task_models.moved_weights(model, seed=2)
    x, _ = task_models.examples(model, seed=3, num_examples=50)
    mode = model.mode(weights, x)
    full, dropped = (
        model.apply_blocks(weights, x, one).features.numpy()
        for one in (attrs.evolve(mode, dropout_seed=None), mode)
    )
    kept = dropped[full > 0] / full[full > 0]
    assert set(np.round(kept, 5)) == {0.0, 2.0}
    assert abs((kept == 0).mean() - 0.5) < 0.02


# Group normalization in the small models alone: it is the same layer in all.
WITH_DERIVATIVES = [(name, "batch") for name in BUILD]
WITH_DERIVATIVES += [("tiny_nn", "group"), ("lenet", "group")]


def _step(model, weights, x, y):
    with tf.GradientTape() as tape:
        tape.watch(weights[0])
        result = model.apply_blocks(weights, x, model.mode(weights, x))
        loss = model.loss(result.output, y)
    return loss, tape.gradient(loss, weights[0]), result.non_trainable


@pytest.mark.parametrize(("name", "norm"), WITH_DERIVATIVES)
def test_models_batch_over_clients_with_different_weights(name, norm):
    model = BUILD[name](norm=norm)
    clients = [
        (
            task_models.moved_weights(BUILD[name](seed, norm), seed),
            *task_models.examples(model, seed),
        )
        for seed in (0, 1)
    ]
    batched = tf.vectorized_map(
        lambda client: _step(model, *client),
        tf.nest.map_structure(lambda *values: tf.stack(values), *clients),
        # Convolutions go one by one in any case where filters differ.
        fallback_to_while_loop=name != "tiny_nn",
    )

    def assert_close(got, expected, index):
        scale = max(np.abs(expected).max(), 1e-2)
        np.testing.assert_allclose(got[index] / scale, expected / scale, atol=2e-3)

    for index, client in enumerate(clients):
        tf.nest.map_structure(
            lambda got, expected, index=index: assert_close(got, expected, index),
            batched,
            _step(model, *client),
        )


def _inner(a, b):
    return tf.add_n([tf.reduce_sum(p * q) for p, q in zip(a, b, strict=True)])


@pytest.mark.parametrize(("name", "norm"), WITH_DERIVATIVES)
def test_models_differentiate_twice(name, norm):
    model = BUILD[name](norm=norm)
    weights = task_models.moved_weights(model, seed=2)
    x, y = task_models.examples(model, seed=1)
    rng = np.random.default_rng(2)
    v = [0.1 * rng.standard_normal(w.shape, np.float32) for w in weights[0]]

    def hessian_product(direction):
        with tf.GradientTape() as tape:
            tape.watch(weights[0])
            _, gradients, _ = _step(model, weights, x, y)
            along = _inner(gradients, direction)
        return tape.gradient(along, weights[0])

    # A Hessian is symmetric: u' (H v) = v' (H u), here with u = H v.
    u = hessian_product(v)
    product = _inner(u, u)
    assert product > 0.01
    np.testing.assert_allclose(product, _inner(v, hessian_product(u)), rtol=5e-3)


def test_it_trains_in_tffs_own_algorithms():
    model = BUILD["tiny_nn"]()
    dataset = tf.data.Dataset.from_tensors(task_models.examples(model, seed=1))
    trained = []
    for model_or_fn in (
        model,
        lambda: tff.learning.models.model_from_functional(model),
    ):
        process = tff.learning.algorithms.build_weighted_fed_avg(
            model_or_fn,
            client_optimizer_fn=tff.learning.optimizers.build_sgdm(0.1),
        )
        state = process.next(process.initialize(), [dataset]).state
        trained.append(process.get_model_weights(state))
    (_, gradients, _) = _step(
        model,
        tf.nest.map_structure(tf.constant, model.initial_weights),
        *task_models.examples(model, seed=1),
    )
    for weights in trained:
        for got, initial, gradient in zip(
            weights.trainable, model.initial_weights[0], gradients, strict=True
        ):
            np.testing.assert_allclose(got, initial - 0.1 * gradient, atol=1e-5)
        assert len(weights.non_trainable) == 4


@pytest.mark.parametrize("name", BUILD)
def test_what_cannot_be_built_is_refused(name):
    with pytest.raises(
        ValueError, match="norm out of batch, group, none, found 'layer'"
    ):
        BUILD[name](norm="layer")
    build = getattr(normalized, f"build_{name}")
    sizes = ((4, 4, 1), 0) if name == "tiny_nn" else (0,)
    with pytest.raises(ValueError, match="positive num_classes, found 0"):
        build(*sizes, seed=0)


@record
class _Options:
    model: str = "cnn"
    norm: normalized.NormOption = None

    def __attrs_post_init__(self):
        normalized.check_norm(self.model, self.norm, ("lenet", "vgg11"))


def test_the_option_is_for_models_with_normalization():
    assert _Options().norm is None
    assert _Options(model="lenet").norm is None
    assert _Options(model="vgg11", norm="group").norm == "group"
    with pytest.raises(HyperparameterError, match="norm='layer'.*one of batch, group"):
        _Options(model="lenet", norm="layer")
    with pytest.raises(
        HyperparameterError,
        match="norm='none'.*model='cnn', which has no normal.*have it: lenet, vgg11",
    ):
        _Options(norm="none")
