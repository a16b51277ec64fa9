"""Steps by XLA: which shapes are compiled, what is not, and the same results."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tasks.models import image, text
from tests.testing import equivalence
from tests.testing.leaves import leaf_of
from tff_algos import build_fed_avg
from tff_algos.execution import compiled_steps

CPU = "/device:CPU:0"
VECTOR = tf.TensorSpec([None], tf.float32)


def double():
    return compiled_steps.CompiledStep(lambda x: [2 * x], [VECTOR], CPU, obstacle="")


def call(step, size, times):
    for _ in range(times):
        (result,) = step(tf.range(float(size)))
        np.testing.assert_array_equal(result, 2.0 * np.arange(size))
    return step.num_compiled


def test_only_shapes_that_recur_are_compiled_and_each_more_rarely():
    step = double()
    assert call(step, 3, times=16) == 0
    assert call(step, 3, times=1) == 1
    # The next one takes four times as many steps.
    assert call(step, 5, times=64) == 1
    assert call(step, 5, times=1) == 2
    assert call(step, 3, times=1) == 2


def test_what_xla_cannot_compile_runs_without_it():
    specs = [tf.TensorSpec([3], tf.float32)]
    step = compiled_steps.CompiledStep(
        lambda x: [tf.strings.length(tf.strings.as_string(x))], specs, CPU, obstacle=""
    )
    for _ in range(20):
        np.testing.assert_array_equal(step(tf.constant([1.0, 2.0, 30.0]))[0], [8, 8, 9])
    assert "unsupported operations" in step.obstacle and step.num_compiled == 1
    assert "\n" not in step.obstacle


def test_a_step_that_must_not_be_compiled_never_is():
    step = compiled_steps.CompiledStep(lambda x: [2 * x], [VECTOR], CPU, "a reason")
    assert call(step, 3, times=20) == 0


def _assert_positive(x):
    with tf.control_dependencies([tf.debugging.Assert(x[0] > 0, [x])]):
        return [tf.identity(x)]


def _assert_two_long(x):
    with tf.control_dependencies(
        [tf.debugging.Assert(tf.shape(x)[0] == 2, ["length"])]
    ):
        return [tf.identity(x)]


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda x: [2 * x], ""),
        (lambda x: [tf.debugging.check_numerics(x, "")], "an assertion"),
        (lambda x: [x * tf.random.stateless_uniform([2], [1, 2])], "random numbers"),
        (_assert_two_long, ""),
    ],
)
def test_assertions_about_values_and_seeded_numbers_are_obstacles(function, expected):
    leaf = leaf_of(function, VECTOR)
    found = compiled_steps.obstacle(leaf.graph_def)
    assert expected in found and bool(found) == bool(expected)


def test_an_assertion_about_values_is_an_obstacle():
    leaf = leaf_of(_assert_positive, tf.TensorSpec([2], tf.float32))
    assert "an assertion" in compiled_steps.obstacle(leaf.graph_def)


def _characters(rng):
    c = rng.integers(1, 10, (6, 5)).astype(np.int32)
    return tf.data.Dataset.from_tensor_slices((c[:, :-1], c[:, 1:])).batch(2)


def _images(rng):
    x = rng.normal(size=(6, 28, 28, 1)).astype(np.float32)
    y = rng.integers(0, 10, 6).astype(np.int32)
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("build_model", "dataset"),
    [
        (lambda: text.build_lstm_model(vocab_size=10, sequence_length=4), _characters),
        (lambda: image.build_emnist_model("2nn", only_digits=True, seed=0), _images),
    ],
)
def test_rounds_by_xla_are_the_same(build_model, dataset):
    model, rng = build_model(), np.random.default_rng(0)
    data = [dataset(rng) for _ in range(4)]
    process = build_fed_avg(model, tff.learning.optimizers.build_sgdm(0.1))

    def trained(**kwargs):
        context = equivalence.in_process(**kwargs)
        state = equivalence.call(context, process.initialize)
        for _ in range(7):
            state = equivalence.call(context, process.next, state, data).state
        weights = process.get_model_weights(state).trainable
        return weights, context.describe(process.next)

    by_xla, description = trained(jit_compile=True)
    assert "steps by XLA for 1 shape" in description
    without, description = trained()
    assert "XLA" not in description
    for a, b, initial in zip(by_xla, without, model.initial_weights[0], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
        assert np.abs(a - initial).max() > 1e-4
