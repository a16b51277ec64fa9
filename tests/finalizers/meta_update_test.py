"""The server's own steps after a round, against plain NumPy in float64."""

import numpy as np
import pytest
import tensorflow as tf
from tensorflow_federated import learning

from tests.testing import problems
from tff_algos import finalizers
from tff_algos.clients import attacks
from tff_algos.hyperparameters import HyperparameterError

SGD = learning.optimizers.build_sgdm
SERVER = problems.clients(sizes=(7,))[0]
EXAMPLES = (SERVER.x, SERVER.y)
START = problems.initial_vector()


def rounds(update, count, model=None):
    """Weights after each of some rounds that start from each other's weights."""
    model = model or problems.linear_model()
    state = update.initialize()
    weights = learning.models.ModelWeights(*model.initial_weights)
    found = []
    for _ in range(count):
        output = update.next(state, weights)
        state, weights = output.state, output.weights
        flat = [np.ravel(np.asarray(w, np.float64)) for w in weights.trainable]
        found.append(np.concatenate(flat))
    return found, output


def descend(steps):
    """Gradient descent: (learning rate, rows) for each step."""
    y = START
    for rate, rows in steps:
        y = y - rate * SERVER.gradient(y, rows)
    return y


def assert_exact(found, expected):
    np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    "arguments",
    [{"meta_steps": 0}, {"meta_batch_size": 0}, {"meta_learning_rate_decay": 1.5}],
)
def test_numbers_out_of_range_are_named(arguments):
    ((name, value),) = arguments.items()
    with pytest.raises(HyperparameterError, match=f"{name}={value} is not valid"):
        finalizers.build_meta_update(
            problems.linear_model(), EXAMPLES, SGD(0.3), **arguments
        )


def test_a_schedules_rate_does_not_decay_as_well():
    scheduled = learning.optimizers.schedule_learning_rate(SGD(0.1), lambda _: 0.1)
    with pytest.raises(HyperparameterError, match="^meta_learning_rate_decay=0.9 cann"):
        finalizers.build_meta_update(
            problems.linear_model(), EXAMPLES, scheduled, meta_learning_rate_decay=0.9
        )


def test_the_servers_examples_are_honest_beside_attacked_clients():
    model = attacks.attacked_model(problems.linear_model())
    update = finalizers.build_meta_update(model, EXAMPLES, SGD(0.3))
    found, _ = rounds(update, 1, model)
    assert_exact(found[0], descend([(problems.f32(0.3), slice(None))]))


def test_a_step_takes_the_gradient_of_all_examples():
    update = finalizers.build_meta_update(problems.linear_model(), EXAMPLES, SGD(0.3))
    found, output = rounds(update, 1)
    rate, everything = problems.f32(0.3), slice(None)
    assert_exact(found[0], descend([(rate, everything)]))
    assert output.measurements["gradient_norm"] == pytest.approx(
        np.linalg.norm(SERVER.gradient(START)), rel=1e-6
    )


def test_more_examples_than_fit_into_a_chunk_still_count_alike():
    big = problems.clients(sizes=(257,))[0]
    update = finalizers.build_meta_update(
        problems.linear_model(), (big.x, big.y), SGD(0.3)
    )
    found, _ = rounds(update, 1)
    assert_exact(found[0], START - problems.f32(0.3) * big.gradient(START))


def test_several_steps_and_a_decay_by_the_round():
    update = finalizers.build_meta_update(
        problems.linear_model(),
        EXAMPLES,
        SGD(0.3),
        meta_steps=2,
        meta_learning_rate_decay=0.5,
    )
    found, _ = rounds(update, 3)
    rates = [problems.f32(0.3) * 0.5**t for t in range(3) for _ in range(2)]
    assert_exact(found[2], descend([(rate, slice(None)) for rate in rates]))


def test_small_batches_go_round_through_the_examples():
    update = finalizers.build_meta_update(
        problems.linear_model(), EXAMPLES, SGD(0.3), meta_steps=2, meta_batch_size=3
    )
    found, _ = rounds(update, 3)
    batches = [slice(0, 3), slice(3, 6), slice(6, 7)]
    rate = problems.f32(0.3)
    assert_exact(found[2], descend([(rate, rows) for rows in batches * 2]))


@pytest.mark.parametrize("meta_batch_size", [None, 3])
def test_a_step_on_the_sum_is_one_of_as_many_times_the_rate(meta_batch_size):
    update = finalizers.build_meta_update(
        problems.linear_model(),
        EXAMPLES,
        SGD(0.03),
        meta_batch_size=meta_batch_size,
        meta_reduction="sum",
    )
    found, _ = rounds(update, 3)
    batches = [slice(0, 7)] * 3
    if meta_batch_size is not None:
        batches = [slice(0, 3), slice(3, 6), slice(6, 7)]
    rate = problems.f32(0.03)
    sizes = [rows.stop - rows.start for rows in batches]
    steps = [(rate * size, rows) for size, rows in zip(sizes, batches, strict=True)]
    assert_exact(found[2], descend(steps))


def test_the_optimizers_state_goes_on_from_round_to_round():
    model = problems.linear_model(np.float32)
    examples = tuple(array.astype(np.float32) for array in EXAMPLES)
    update = finalizers.build_meta_update(
        model, examples, SGD(0.1, momentum=0.9), meta_learning_rate_decay=0.5
    )
    found, _ = rounds(update, 3, model)
    y, velocity = START, 0.0
    for round_num in range(3):
        velocity = 0.9 * velocity + SERVER.gradient(y)
        y = y - 0.1 * 0.5**round_num * velocity
    np.testing.assert_allclose(found[2], y, rtol=1e-5, atol=1e-6)


def test_a_step_to_infinity_is_rejected_and_counted():
    broken = (np.full_like(SERVER.x, np.inf), SERVER.y)
    update = finalizers.build_meta_update(problems.linear_model(), broken, SGD(0.3))
    found, output = rounds(update, 2)
    np.testing.assert_array_equal(found[1], START)
    assert output.measurements["num_rejected_meta_updates"] == 1
    assert output.state.round_num == 2


@pytest.mark.parametrize(
    ("examples", "message"),
    [
        ((np.zeros((0, 5)), np.zeros(0)), r"length >= 1, found shapes \[\(0, 5\)"),
        ((np.zeros((3, 5)), np.zeros(2)), r"length >= 1, found shapes \[\(3, 5\)"),
        (
            (np.zeros((3, 4)), np.zeros(3)),
            r"model's batches, <.*>, found float64\[3, 4\]",
        ),
        (np.zeros((3, 5)), r"model's batches, <.*>, found float64\[3, 5\]\."),
        ((np.full((3, 5), "a"), np.zeros(3)), r"found <U1\[3, 5\], float64\[3\]"),
        (
            (np.zeros((3, 5), np.uint8), np.zeros(3)),
            r"found uint8\[3, 5\], float64\[3\]",
        ),
        (
            (np.broadcast_to(0.0, (1 << 24, 5)), np.broadcast_to(0.0, 1 << 24)),
            "536870912 bytes at most, found",
        ),
    ],
)
def test_bad_examples_are_named(examples, message):
    with pytest.raises(ValueError, match=message):
        finalizers.build_meta_update(problems.linear_model(), examples, SGD(0.3))


def test_an_infinite_optimizer_state_is_rejected():
    """The square of a finite gradient may be infinite in float32."""
    huge = (np.full_like(SERVER.x, 1e19), SERVER.y)
    update = finalizers.build_meta_update(
        problems.linear_model(np.float32), huge, learning.optimizers.build_adam(0.1)
    )
    found, output = rounds(update, 2, problems.linear_model(np.float32))
    np.testing.assert_array_equal(found[1], START.astype(np.float32))
    assert output.measurements["num_rejected_meta_updates"] == 1
    state = output.state.optimizer
    assert all(np.all(np.isfinite(leaf)) for leaf in tf.nest.flatten(state))


def test_numbers_are_converted_to_the_models_types():
    model = problems.linear_model(np.float32)
    as_they_are = tuple(each.astype(np.float32) for each in EXAMPLES)
    found = [
        rounds(finalizers.build_meta_update(model, each, SGD(0.3)), 1, model)[0][0]
        for each in (EXAMPLES, as_they_are)
    ]
    np.testing.assert_array_equal(*found)
