"""Tests of tasks.models: against TFF's Keras baselines, NumPy and each other."""

import collections

import numpy as np
import pytest

from tasks.models import image, initializers, layers, lstm, metrics, text
from tff_algos.client_works.variable_model import FunctionalVariableModel

from tff_algos import compat  # noqa: F401  # isort: skip

import tensorflow as tf
import tensorflow_federated as tff

TIME, BATCH, INPUTS, UNITS = 7, 3, 4, 5


def _num_weights(model):
    return sum(weight.size for weight in model.initial_weights[0])


def _constants(model):
    return tuple(tf.constant(weight) for weight in model.initial_weights[0])


def _images(seed, num_examples=6, num_classes=10):
    rng = np.random.default_rng(seed)
    x = rng.random((num_examples, 28, 28, 1), np.float32)
    return tf.constant(x), tf.constant(
        rng.integers(0, num_classes, num_examples), tf.int32
    )


def _loss_and_gradients(model, weights, x, y, training=True):
    with tf.GradientTape() as tape:
        tape.watch(weights)
        loss = model.loss(
            model.predict_on_batch((weights, ()), x, training=training), y
        )
    return loss, tape.gradient(loss, weights)


# -- image --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model_id", "only_digits", "expected"),
    [
        ("cnn", True, 1_663_370),
        ("cnn", False, 1_690_046),
        ("cnn_dropout", True, 1_199_882),
        ("cnn_dropout", False, 1_206_590),
        ("2nn", True, 199_210),
        ("2nn", False, 209_662),
    ],
)
def test_image_models_have_the_published_sizes(model_id, only_digits, expected):
    model = image.build_emnist_model(model_id, only_digits, seed=0)
    assert _num_weights(model) == expected
    assert all(type(weight) is np.ndarray for weight in model.initial_weights[0])


def test_initial_weights_are_a_function_of_the_seed():
    first, again, other = (
        image.build_emnist_model("2nn", True, seed).initial_weights[0]
        for seed in (1, 1, 2)
    )
    for a, b, c in zip(first, again, other, strict=True):
        np.testing.assert_array_equal(a, b)
        assert a.ndim == 1 or np.any(a != c)


def test_unknown_image_model_is_refused_by_name():
    with pytest.raises(image.UnknownModelError, match="cnn_dropout.*'resnet'"):
        image.build_emnist_model("resnet", True, seed=0)


@pytest.mark.parametrize("model_id", ["cnn", "cnn_dropout", "2nn"])
def test_image_models_equal_tffs_keras_models(model_id):
    spec = tff.simulation.baselines.ClientSpec(num_epochs=1, batch_size=2)
    task = tff.simulation.baselines.emnist.create_character_recognition_task(
        spec,
        model_id=model_id,
        only_digits=True,
        debug_seed=1,
        use_synthetic_data=True,
    )
    reference = task.model_fn()
    model = image.build_emnist_model(model_id, True, seed=3)
    weights = _constants(model)
    tf.nest.map_structure(
        lambda variable, value: variable.assign(value),
        tuple(reference.trainable_variables),
        weights,
    )
    x, y = _images(seed=4)

    with tf.GradientTape() as tape:
        probabilities = reference.predict_on_batch(x, training=False)
        expected_loss = tf.reduce_mean(
            -tf.math.log(tf.gather(probabilities, y, batch_dims=1))
        )
    expected_gradients = tape.gradient(expected_loss, reference.trainable_variables)
    logits = model.predict_on_batch((weights, ()), x, training=False)
    loss, gradients = _loss_and_gradients(model, weights, x, y, training=False)

    np.testing.assert_allclose(tf.nn.softmax(logits), probabilities, rtol=1e-4)
    np.testing.assert_allclose(loss, expected_loss, rtol=1e-5)
    for gradient, expected in zip(gradients, expected_gradients, strict=True):
        np.testing.assert_allclose(gradient, expected, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("model_id", ["cnn", "cnn_dropout", "2nn"])
def test_image_models_batch_over_clients_with_different_weights(model_id):
    model = image.build_emnist_model(model_id, True, seed=0)
    clients = [
        (
            tuple(
                tf.constant(weight)
                for weight in image.build_emnist_model(
                    model_id, True, seed
                ).initial_weights[0]
            ),
            *_images(seed, num_examples=2),
        )
        for seed in (0, 1)
    ]
    stacked = tf.nest.map_structure(lambda *values: tf.stack(values), *clients)
    batched = tf.vectorized_map(
        lambda client: _loss_and_gradients(model, *client), stacked
    )
    for index, client in enumerate(clients):
        tf.nest.map_structure(
            lambda got, expected, index=index: np.testing.assert_allclose(
                got[index], expected, rtol=1e-3, atol=1e-5
            ),
            batched,
            _loss_and_gradients(model, *client),
        )


@pytest.mark.parametrize("model_id", ["cnn", "cnn_dropout", "2nn"])
def test_image_models_differentiate_twice(model_id):
    model = image.build_emnist_model(model_id, True, seed=0)
    weights = _constants(model)
    x, y = _images(seed=1, num_examples=2)
    rng = np.random.default_rng(2)
    u, v = ([rng.standard_normal(w.shape, np.float32) for w in weights] for _ in "uv")

    def inner(a, b):
        return tf.add_n([tf.reduce_sum(p * q) for p, q in zip(a, b, strict=True)])

    def hessian_product(direction):
        with tf.GradientTape() as tape:
            tape.watch(weights)
            _, gradients = _loss_and_gradients(model, weights, x, y)
            along = inner(gradients, direction)
        return tape.gradient(along, weights)

    product = inner(u, hessian_product(v))
    assert abs(product) > 0.1
    np.testing.assert_allclose(product, inner(v, hessian_product(u)), rtol=1e-3)


# -- dropout ------------------------------------------------------------------


def test_dropout_keeps_the_mean_and_drops_the_rate():
    x = tf.ones([200, 500])
    kept = layers.dropout(x, 0.25, tf.constant(7, tf.uint32), salt=1).numpy()
    assert set(np.unique(kept)) == {np.float32(0), np.float32(1 / 0.75)}
    assert abs(kept.mean() - 1) < 0.01
    assert np.abs((kept == 0).mean(axis=0) - 0.25).max() < 0.15
    assert np.abs(np.corrcoef(kept[:20])[np.triu_indices(20, 1)]).max() < 0.2


def test_dropout_masks_of_other_seeds_and_layers_are_independent():
    x = tf.ones([100_000])
    masks = [
        layers.dropout(x, 0.5, tf.constant(seed, tf.uint32), salt).numpy() > 0
        for seed, salt in ((1, 1), (2, 1), (1, 2), (1 << 31, 1))
    ]
    for i in range(4):
        for j in range(i):
            assert abs((masks[i] == masks[j]).mean() - 0.5) < 0.01


def test_dropout_is_a_function_of_weights_and_batch():
    model = image.build_emnist_model("cnn_dropout", True, seed=0)
    weights = _constants(model)
    x, _ = _images(seed=1)
    moved = (*weights[:-1], weights[-1] + 1e-3)

    def logits(weights, x, training=True):
        return model.predict_on_batch((weights, ()), x, training=training).numpy()

    np.testing.assert_array_equal(logits(weights, x), logits(weights, x))
    assert np.abs(logits(weights, x) - logits(moved, x)).max() > 0.01
    reversed_batch = logits(weights, x[::-1])[::-1]
    assert np.abs(logits(weights, x) - reversed_batch).max() > 0.01
    assert np.abs(logits(weights, x) - logits(weights, x, training=False)).max() > 0.01


def test_fingerprint_ignores_rounding_of_weights_but_no_bit_of_the_batch():
    bias = tf.constant([0.1, -0.2, 0.3])
    batch = tf.constant([[1, 2], [3, 4]])
    base = layers.fingerprint(bias, batch)
    assert layers.fingerprint(bias * (1 + 1e-7), batch) == base
    assert layers.fingerprint(bias * (1 + 1e-3), batch) != base
    assert layers.fingerprint(bias, batch + [[0, 0], [0, 1]]) != base
    assert layers.fingerprint(bias, batch[::-1]) != base


# -- text ---------------------------------------------------------------------


def _lstm_arguments(dtype, seed=0):
    rng = np.random.default_rng(seed)
    shapes = ((TIME, BATCH, INPUTS), (INPUTS, 4 * UNITS), (UNITS, 4 * UNITS))
    arguments = [tf.constant(rng.normal(size=shape), dtype) for shape in shapes]
    return [*arguments, tf.constant(rng.normal(size=4 * UNITS), dtype)]


def _weighted_sum(outputs):
    return tf.reduce_sum(outputs * tf.cos(tf.cast(tf.range(UNITS), outputs.dtype)))


def _lstm_derivatives(gradient, dtype=tf.float64):
    arguments = _lstm_arguments(dtype)
    with tf.GradientTape() as outer:
        outer.watch(arguments)
        with tf.GradientTape() as inner:
            inner.watch(arguments)
            outputs = lstm.lstm(*arguments, gradient=gradient)
            total = _weighted_sum(outputs**2)
        first = inner.gradient(total, arguments)
        along = tf.add_n([tf.reduce_sum(tf.sin(value)) for value in first])
    return outputs, first, outer.gradient(along, arguments)


@pytest.mark.parametrize("wrap", [lambda f: f, tf.function])
def test_fused_lstm_equals_autodiff_to_the_second_derivative(wrap):
    fused = wrap(lambda: _lstm_derivatives("fused"))()
    autodiff = wrap(lambda: _lstm_derivatives("autodiff"))()
    tf.nest.map_structure(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-9),
        fused,
        autodiff,
    )


def test_lstm_equals_keras():
    x, *weights = _lstm_arguments(tf.float32)
    layer = tf.keras.layers.LSTM(UNITS, return_sequences=True, time_major=True)
    layer.build(x.shape)
    layer.set_weights([weight.numpy() for weight in weights])
    with tf.GradientTape() as tape:
        expected = layer(x)
        total = _weighted_sum(expected)
    expected_gradients = tape.gradient(total, layer.trainable_variables)
    with tf.GradientTape() as tape:
        tape.watch(weights)
        outputs = lstm.lstm(x, *weights)
        total = _weighted_sum(outputs)
    np.testing.assert_allclose(outputs, expected, rtol=1e-4, atol=1e-6)
    for got, want in zip(
        tape.gradient(total, weights), expected_gradients, strict=True
    ):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)


def test_lstm_refuses_an_unknown_gradient():
    with pytest.raises(ValueError, match="found 'magic'"):
        lstm.lstm(*_lstm_arguments(tf.float32), gradient="magic")


def _characters(seed, num_examples=2, length=80):
    rng = np.random.default_rng(seed)
    tokens = rng.integers(1, 90, (num_examples, length + 1)).astype(np.int32)
    tokens[0, length // 2 :] = text.PADDING_ID
    return tf.constant(tokens[:, :-1]), tf.constant(tokens[:, 1:])


def test_text_model_equals_tffs_keras_model_where_the_target_is_no_padding():
    spec = tff.simulation.baselines.ClientSpec(num_epochs=1, batch_size=2)
    task = tff.simulation.baselines.shakespeare.create_character_prediction_task(
        spec, use_synthetic_data=True
    )
    reference = task.model_fn()
    model = text.build_lstm_model(seed=1)
    assert _num_weights(model) == 820_522
    weights = _constants(model)
    tf.nest.map_structure(
        lambda variable, value: variable.assign(value),
        tuple(reference.trainable_variables),
        weights,
    )
    x, y = _characters(seed=2)
    mask = tf.cast(y != text.PADDING_ID, tf.float32)

    def mean_loss(logits):
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits)
        return tf.reduce_sum(losses * mask) / tf.reduce_sum(mask)

    with tf.GradientTape() as tape:
        expected = reference.predict_on_batch(x)
        expected_loss = mean_loss(expected)
    expected_gradients = tape.gradient(expected_loss, reference.trainable_variables)
    logits = model.predict_on_batch((weights, ()), x, training=True)
    loss, gradients = _loss_and_gradients(model, weights, x, y)
    np.testing.assert_allclose(
        logits * mask[..., tf.newaxis],
        expected * mask[..., tf.newaxis],
        rtol=1e-4,
        atol=1e-5,
    )
    np.testing.assert_allclose(loss, expected_loss, rtol=1e-5)
    for got, want in zip(gradients, expected_gradients, strict=True):
        np.testing.assert_allclose(
            got, tf.convert_to_tensor(want), rtol=1e-3, atol=1e-6
        )


def test_text_model_batches_over_clients_and_differentiates_twice():
    model = text.build_lstm_model(vocab_size=11, sequence_length=4, seed=1)
    plain = text.build_lstm_model(11, 4, seed=1, gradient="autodiff")
    rng = np.random.default_rng(0)

    def client(seed):
        tokens = rng.integers(0, 11, (2, 5)).astype(np.int32)
        weights = _constants(text.build_lstm_model(11, 4, seed=seed))
        return weights, tf.constant(tokens[:, :-1]), tf.constant(tokens[:, 1:])

    clients = [client(0), client(1)]
    stacked = tf.nest.map_structure(lambda *values: tf.stack(values), *clients)
    batched = tf.vectorized_map(
        lambda client: _loss_and_gradients(model, *client), stacked
    )
    for index, one in enumerate(clients):
        tf.nest.map_structure(
            lambda got, expected, index=index: np.testing.assert_allclose(
                got[index], expected, rtol=1e-3, atol=1e-5
            ),
            batched,
            _loss_and_gradients(model, *one),
        )

    def hessian_product(model):
        weights, x, y = clients[0]
        with tf.GradientTape() as tape:
            tape.watch(weights)
            _, gradients = _loss_and_gradients(model, weights, x, y)
            along = tf.add_n([tf.reduce_sum(gradient) for gradient in gradients])
        return tape.gradient(along, weights)

    tf.nest.map_structure(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4),
        hessian_product(model),
        hessian_product(plain),
    )


def test_orthogonal_and_he_normal():
    rng = np.random.default_rng(0)
    matrix = initializers.orthogonal(rng, 8, 32)
    np.testing.assert_allclose(matrix @ matrix.T, np.eye(8), atol=1e-6)
    values = initializers.he_normal(rng, 200, 1000)
    assert abs(values.std() - 0.1) < 1e-3
    assert np.abs(values).max() < 2.0 * 0.1 / 0.879


# -- metrics ------------------------------------------------------------------


def _updated(classification, batches):
    initialize, update, finalize = classification.metrics_fns()
    state = initialize()
    for logits, labels, weight in batches:
        loss = classification.loss(logits, labels, weight)
        output = tff.learning.models.BatchOutput(
            loss=loss, predictions=logits, num_examples=tf.shape(labels)[0]
        )
        state = update(state, labels, output, weight)
    return finalize(state)


def _log_softmax(logits):
    return logits - np.log(np.exp(logits).sum(-1, keepdims=True))


def test_token_metrics_equal_numpy():
    rng = np.random.default_rng(0)
    logits = [rng.normal(size=(n, 5, 7)).astype(np.float32) for n in (3, 2)]
    labels = [rng.integers(0, 7, (n, 5)).astype(np.int32) for n in (3, 2)]
    got = _updated(
        metrics.Classification(padding_id=0),
        [(tf.constant(a), tf.constant(b), None) for a, b in zip(logits, labels)],
    )
    logits, labels = np.concatenate(logits), np.concatenate(labels)
    keep = labels != 0
    losses = -np.take_along_axis(_log_softmax(logits), labels[..., None], -1)[..., 0]
    assert list(got) == ["loss", "accuracy", "num_examples", "num_batches"]
    np.testing.assert_allclose(got["loss"], losses[keep].mean(), rtol=1e-5)
    np.testing.assert_allclose(
        got["accuracy"], (logits.argmax(-1) == labels)[keep].mean(), rtol=1e-6
    )
    assert (got["num_examples"], got["num_batches"]) == (5, 2)
    assert got["num_examples"].dtype == got["num_batches"].dtype == tf.int64


def test_metrics_over_nothing_are_zero():
    padding = (tf.zeros([2, 3, 4]), tf.zeros([2, 3], tf.int32), None)
    for batches in ([], [padding]):
        got = _updated(metrics.Classification(padding_id=0), batches)
        assert got["loss"] == got["accuracy"] == 0
        assert got["num_examples"] == 2 * len(batches)


def test_examples_of_weight_zero_leave_no_trace():
    logits = tf.random.stateless_normal([4, 3], seed=(1, 2))
    labels = tf.constant([0, 1, 2, 0])
    alone = _updated(metrics.Classification(), [(logits[:2], labels[:2], None)])
    masked = _updated(
        metrics.Classification(),
        [
            (logits, labels, tf.constant([1.0, 1.0, 0.0, 0.0])),
            (logits, labels, tf.zeros([4])),
        ],
    )
    for name, value in alone.items():
        np.testing.assert_allclose(masked[name], value, rtol=1e-6, err_msg=name)


# -- in TFF -------------------------------------------------------------------


@pytest.fixture
def native_context():
    """TFF's own runtime, ended with the test."""
    from tff_algos.execution import native

    with native.native_context():
        yield


def _clients(task):
    datasets = []
    for seed, num_examples in ((0, 5), (1, 3)):
        if task == "image":
            examples = _images(seed, num_examples)
        else:
            examples = _characters(seed, num_examples, length=6)
        datasets.append(tf.data.Dataset.from_tensor_slices(examples).batch(2))
    return datasets


def _expected_metrics(model, datasets):
    """The metrics of the initial weights, by a plain loop."""
    state = model.initialize_metrics_state()
    weights = (_constants(model), ())
    for x, y in (batch for dataset in datasets for batch in dataset):
        logits = model.predict_on_batch(weights, x, training=False)
        output = tff.learning.models.BatchOutput(
            loss=model.loss(logits, y), predictions=logits, num_examples=len(x)
        )
        state = model.update_metrics_state(state, labels=y, batch_output=output)
    return model.finalize_metrics(state)


@pytest.mark.parametrize("task", ["image", "text"])
def test_metrics_and_training_in_tffs_own_algorithms(task, native_context):
    if task == "image":
        model = image.build_emnist_model("cnn_dropout", True, seed=0)
    else:
        model = text.build_lstm_model(sequence_length=6, seed=0)
    datasets = _clients(task)
    expected = _expected_metrics(model, datasets)
    model_fns = collections.OrderedDict(
        functional=model,
        variable=lambda: FunctionalVariableModel(model),
        tff=lambda: tff.learning.models.model_from_functional(model),
    )
    sgd = tff.learning.optimizers.build_sgdm(0.1)
    trained = {}
    for name, model_fn in model_fns.items():
        evaluation = tff.learning.algorithms.build_fed_eval(model_fn)
        state = evaluation.initialize()
        measured = evaluation.next(state, datasets).metrics
        measured = measured["client_work"]["eval"]["current_round_metrics"]
        if name == "tff":
            if task == "image":
                np.testing.assert_allclose(
                    measured["loss"], expected["loss"], rtol=1e-5
                )
        else:
            assert set(measured) == set(expected)
            for metric, value in expected.items():
                np.testing.assert_allclose(measured[metric], value, rtol=1e-5)

        process = tff.learning.algorithms.build_weighted_fed_avg(
            model_fn, client_optimizer_fn=sgd
        )
        output = process.next(process.initialize(), datasets)
        train_metrics = output.metrics["client_work"]["train"]
        if name != "tff":
            assert train_metrics["num_examples"] == 8
            assert train_metrics["num_batches"] == 5
        trained[name] = process.get_model_weights(output.state).trainable
    for other in ("variable", "tff"):
        tf.nest.map_structure(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6),
            tuple(trained["functional"]),
            tuple(trained[other]),
        )
