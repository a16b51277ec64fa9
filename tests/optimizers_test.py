"""TFF's optimizers on float64 weights, alone and in the algorithms."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import tff_algos
from tests.testing import problems
from tests.testing.problems import f32
from tff_algos import execution
from tff_algos.optimizers import in_weights_dtype, of_some_weights

SGD = tff.learning.optimizers.build_sgdm
RATE, MOMENTUM = 0.1, 0.7
CLIENTS = problems.clients(sizes=(6, 3))
START = problems.initial_vector()


@pytest.fixture(autouse=True)
def in_process():
    with execution.in_process_context():
        yield


def decayed(optimizer):
    schedule = tff.learning.optimizers.schedule_learning_rate
    return schedule(optimizer, lambda step: 0.1 * 0.5 ** tf.cast(step, tf.float32))


OPTIMIZERS = {
    "sgd": lambda: SGD(0.1),
    "momentum": lambda: SGD(0.1, momentum=0.9),
    "scheduled_momentum": lambda: decayed(SGD(0.1, momentum=0.9)),
    "adam": lambda: tff.learning.optimizers.build_adam(0.1),
    "adagrad": lambda: tff.learning.optimizers.build_adagrad(0.1),
    "yogi": lambda: tff.learning.optimizers.build_yogi(0.1),
    "adamw": lambda: tff.learning.optimizers.build_adamw(0.1),
    "rmsprop": lambda: tff.learning.optimizers.build_rmsprop(0.1),
}


def steps(optimizer, dtype):
    """Weights after three steps, as a TFF computation takes them."""

    @tff.tensorflow.computation
    @tf.function
    def train():
        weights = (tf.constant([1.0, -2.0], dtype), tf.constant(0.5, dtype))
        specs = tuple(tf.TensorSpec(w.shape, w.dtype) for w in weights)
        state = optimizer.initialize(specs)
        state = tf.nest.map_structure(tf.convert_to_tensor, state)
        for k in range(1, 4):
            gradients = tuple(k * w for w in weights)
            state, weights = optimizer.next(state, weights, gradients)
        return weights

    return np.concatenate([np.ravel(w) for w in train()])


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_float64_steps_are_the_float32_ones_but_for_rounding(name):
    optimizer = OPTIMIZERS[name]()
    found = steps(in_weights_dtype(optimizer), tf.float64)
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, steps(optimizer, tf.float32), rtol=1e-5)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_float32_steps_are_the_optimizers_own_to_the_bit(name):
    optimizer = OPTIMIZERS[name]()
    np.testing.assert_array_equal(
        steps(in_weights_dtype(optimizer), tf.float32), steps(optimizer, tf.float32)
    )


def mixed_step(optimizer):
    weights = (tf.constant([1.0, -2.0]), tf.constant(0.5, tf.float64))
    specs = tuple(tf.TensorSpec(w.shape, w.dtype) for w in weights)
    return optimizer.next(optimizer.initialize(specs), weights, weights)


def test_momentum_takes_weights_of_one_dtype_and_says_so():
    expected = "found float32 and float64: use an optimizer without it"
    with pytest.raises(TypeError, match=expected):
        mixed_step(in_weights_dtype(SGD(0.1, momentum=0.9)))


def test_without_momentum_every_weight_keeps_its_dtype():
    _, (first, second) = mixed_step(in_weights_dtype(SGD(0.1)))
    assert (first.dtype, second.dtype) == (tf.float32, tf.float64)
    np.testing.assert_allclose(first, [0.9, -1.8], rtol=1e-6)
    assert float(second) == pytest.approx(0.45)


def test_float64_momentum_in_closed_form():
    found = steps(in_weights_dtype(SGD(0.1, momentum=0.9)), tf.float64)
    weights, velocity = np.array([1.0, -2.0, 0.5]), 0.0
    for k in range(1, 4):
        velocity = f32(0.9) * velocity + k * weights
        weights = weights - f32(0.1) * velocity
    np.testing.assert_allclose(found, weights, rtol=1e-14)


def mean_delta(start, momentum=0.0, mu=0.0):
    """The mean of start - y after an epoch of steps with momentum."""
    deltas = []
    for client in CLIENTS:
        y, velocity = start, 0.0
        for first in range(0, len(client.y), 2):
            gradient = client.gradient(y, slice(first, first + 2)) + mu * (y - start)
            velocity = f32(momentum) * velocity + gradient
            y = y - f32(RATE) * velocity
        deltas.append(start - y)
    return problems.mean(deltas, [6, 3])


def test_client_momentum_on_a_float64_model():
    process = tff_algos.build_fed_avg(
        problems.linear_model(), SGD(RATE, momentum=MOMENTUM)
    )
    found, _ = problems.run(process, [c.batches(2) for c in CLIENTS])
    expected = START - mean_delta(START, momentum=MOMENTUM)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize("mu", [0.0, 0.5])
def test_server_momentum_on_a_float64_model(mu):
    arguments = {"server_learning_rate": 0.8, "server_momentum": MOMENTUM}
    process = (
        tff_algos.build_fed_prox_m(
            problems.linear_model(), SGD(RATE), proximal_strength=mu, **arguments
        )
        if mu
        else tff_algos.build_fed_avg_m(problems.linear_model(), SGD(RATE), **arguments)
    )
    found, _ = problems.run(process, *[[c.batches(2) for c in CLIENTS]] * 3)
    w, velocity = START, 0.0
    for _ in range(3):
        velocity = f32(MOMENTUM) * velocity + mean_delta(w, mu=mu)
        w = w - f32(0.8) * velocity
    np.testing.assert_allclose(found, w, rtol=1e-12)


def test_mimelite_on_a_float64_model():
    """One full-batch step and all clients: heavy-ball descent on the pooled loss."""
    process = tff_algos.build_mime_lite(
        problems.linear_model(), SGD(RATE, momentum=MOMENTUM)
    )
    found, _ = problems.run(process, *[[c.batches() for c in CLIENTS]] * 3)
    w, velocity = START, 0.0
    for _ in range(3):
        gradient = problems.mean([c.gradient(w) for c in CLIENTS], [6, 3])
        velocity = f32(MOMENTUM) * velocity + gradient
        w = w - f32(RATE) * velocity
    np.testing.assert_allclose(found, w, rtol=1e-12)


@pytest.mark.parametrize("dtype", [tf.float32, tf.float64])
def test_weights_that_are_not_trained_stay_whatever_the_optimizer_adds(dtype):
    adamw = tff.learning.optimizers.build_adamw(0.1, weight_decay=0.5)
    everything, first, last = (
        steps(in_weights_dtype(of_some_weights(adamw, trained)), dtype)
        for trained in ((True, True), (True, False), (False, True))
    )
    nothing = steps(of_some_weights(adamw, (False, False)), dtype)
    np.testing.assert_array_equal(nothing, [1.0, -2.0, 0.5])
    np.testing.assert_array_equal(first, [*everything[:2], 0.5])
    np.testing.assert_array_equal(last, [1.0, -2.0, everything[2]])


def test_hyperparameters_are_those_of_the_optimizer_of_all_weights():
    optimizer = of_some_weights(SGD(0.1), (True, False))
    specs = [tf.TensorSpec([2]), tf.TensorSpec([])]
    state = optimizer.initialize(specs)
    changed = optimizer.set_hparams(state, {"learning_rate": 0.2})
    assert optimizer.get_hparams(changed)["learning_rate"] == 0.2
