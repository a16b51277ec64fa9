"""One view of all kinds of models: the same losses and gradients, and refusals."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import tff_algos
from tests.testing import block_problems
from tests.testing.one_client import CLIENT, MODEL, START, vector, weights_at
from tests.testing.three_classes import model_of
from tff_algos.models import local_model
from tff_algos.models.variable_model import FunctionalVariableModel

KINDS = {"functional": MODEL, "variable": lambda: FunctionalVariableModel(MODEL)}
BATCH = (tf.constant(CLIENT.x), tf.constant(CLIENT.y))
LOSS = np.mean((CLIENT.x @ START[:-1] + START[-1] - CLIENT.y) ** 2) / 2


@pytest.mark.parametrize("kind", KINDS)
def test_a_batchs_loss_and_gradient_are_numpys(kind):
    view = local_model.create(KINDS[kind])
    found = view.loss_gradients(weights_at(), view.initial_metrics(), BATCH)
    assert found.loss.numpy() == pytest.approx(LOSS, rel=1e-12)
    np.testing.assert_allclose(
        vector(found.gradients), CLIENT.gradient(START), rtol=1e-12
    )
    assert found.num_examples == 5


@pytest.mark.parametrize("kind", KINDS)
def test_metrics_are_counted_only_where_they_are_kept(kind):
    for keep, count in ((True, 5.0), (False, 0.0)):
        view = local_model.create(KINDS[kind])
        found = view.evaluate(weights_at(), view.initial_metrics(), BATCH)
        assert found.loss.numpy() == pytest.approx(LOSS, rel=1e-12)
        reported = view.unfinalized_metrics(found.metrics, tf.constant(keep))
        total, number = (float(value) for value in reported["loss"])
        assert (total, number) == pytest.approx((count * LOSS, count), rel=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_metrics_are_without_the_batches_of_the_context(kind):
    view = local_model.create(KINDS[kind])
    first = view.loss_gradients(weights_at(), view.initial_metrics(), BATCH)
    with view.uncounted():
        view.loss_gradients(weights_at(), first.metrics, BATCH)
        view.evaluate(weights_at(), first.metrics, BATCH)
    _, number = view.unfinalized_metrics(first.metrics, tf.constant(True))["loss"]
    assert number == 5.0


def test_an_objective_is_differentiated_and_the_mean_loss_returned():
    view = local_model.create(MODEL)
    found = view.loss_gradients(
        weights_at(),
        view.initial_metrics(),
        BATCH,
        objective=lambda forward: 3.0 * forward.loss,
    )
    assert found.loss.numpy() == pytest.approx(LOSS, rel=1e-12)
    np.testing.assert_allclose(
        vector(found.gradients), 3 * CLIENT.gradient(START), rtol=1e-12
    )


@pytest.mark.parametrize("kind", ["functional", "variable"])
def test_gradients_of_gathered_rows_are_tensors(kind):
    def predict(weights, x, training):
        del training
        return tf.gather(weights[0], tf.cast(x[:, 0], tf.int32))

    model = model_of([np.eye(4, 3)], predict, [1])
    view = local_model.create(
        model if kind == "functional" else lambda: FunctionalVariableModel(model)
    )
    start = local_model.Weights((tf.eye(4, 3, dtype=tf.float64),), ())
    batch = tf.constant([[2.0], [0.0], [2.0]], tf.float64), tf.constant([1, 0, 0])
    (found,) = view.loss_gradients(start, view.initial_metrics(), batch).gradients
    rows = np.exp(np.eye(4, 3)) / np.sum(np.exp(np.eye(4, 3)), axis=1, keepdims=True)
    expected = np.zeros([4, 3])
    expected[0] = (rows[0] - [1, 0, 0]) / 3
    expected[2] = (2 * rows[2] - [1, 1, 0]) / 3
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_types_are_those_of_the_weights_and_the_batches(kind):
    specs = local_model.trainable_specs(KINDS[kind])
    assert [(spec.shape.as_list(), spec.dtype) for spec in specs] == [
        ([5], tf.float64),
        ([], tf.float64),
    ]
    assert str(local_model.data_type(KINDS[kind])) == "<float64[?,5],float64[?]>*"


def test_what_is_no_model_is_named():
    with pytest.raises(TypeError, match="FunctionalModel.*found <class 'str'>"):
        local_model.is_functional("a model")


def test_a_model_of_too_few_blocks_is_refused():
    model = block_problems.block_model()
    assert local_model.require_blocks(model, minimum=3) is model
    with pytest.raises(TypeError, match="at least 4 blocks, found one of 3"):
        local_model.require_blocks(model, minimum=4)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (None, "Expected model_fn to be .*, found <class 'NoneType'>"),
        (tf.keras.Sequential([]), "Tip: a function that calls .*from_keras_model"),
    ],
)
def test_what_is_no_model_says_of_which_argument(model, message):
    with pytest.raises(TypeError, match=message):
        local_model.is_functional(model)


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (None, "return a .*VariableModel, found <class 'NoneType'>.$"),
        (
            tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(2,))]),
            "found .*Sequential'>. Tip: a function that calls .*from_keras_model",
        ),
    ],
)
def test_functions_return_variable_models(returned, message):
    sgd = tff.learning.optimizers.build_sgdm(0.1)
    with pytest.raises(TypeError, match=message):
        tff_algos.build_fed_avg(lambda: returned, sgd)
