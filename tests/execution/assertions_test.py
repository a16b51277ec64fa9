"""Assertions in clients' work hold for every client, also of many at a time."""

import functools

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.testing.plane_processes import assert_close, client_pass_of, process
from tff_algos import execution
from tff_algos.execution import client_passes, vectorization

ASSERTIONS = {
    "of floats": lambda x: tf.debugging.assert_less(x, 10.0),
    "of a condition": lambda x: tf.debugging.Assert(x < 10.0, ["too large"]),
    "of int32": lambda x: tf.debugging.assert_less(tf.cast(x, tf.int32), 10),
    "of finite numbers": lambda x: tf.debugging.assert_all_finite(
        tf.where(x < 10.0, x, np.inf), "too large"
    ),
}
over_assertions = pytest.mark.parametrize("check", ASSERTIONS.values(), ids=ASSERTIONS)


def sums_of(work):
    """The sum over the clients of what `work` computes from each one's dataset."""
    data = tff.SequenceType(np.float32)
    compute = tff.tensorflow.computation(work, data)

    @tff.federated_computation(tff.FederatedType(data, tff.CLIENTS))
    def sums(datasets):
        return tff.federated_sum(tff.federated_map(compute, datasets))

    return sums


def in_steps(check):
    def work(dataset):
        def step(total, x):
            check(x)
            return total + x

        return dataset.reduce(0.0, step)

    return sums_of(work)


def after_the_steps(check):
    def work(dataset):
        total = dataset.reduce(0.0, lambda total, x: total + x)
        with tf.control_dependencies([check(total)]):
            return tf.identity(total)

    return sums_of(work)


def of_a_value_nobody_needs(check):
    def work(dataset):
        with tf.control_dependencies([check(dataset.reduce(0.0, tf.maximum))]):
            return dataset.reduce(0.0, lambda total, x: total + x)

    return sums_of(work)


over_places = pytest.mark.parametrize(
    "sums", [in_steps, after_the_steps, of_a_value_nobody_needs]
)


@over_assertions
@over_places
def test_clients_with_assertions_run_many_at_a_time(sums, check, no_streaming):
    no_streaming()
    with execution.in_process_context():
        total = sums(check)([[1.0, 2.0], [3.0], [4.0, 0.5], [0.25]])
    assert total == 10.75


@over_assertions
@over_places
def test_the_client_whose_assertion_fails_is_named(sums, check):
    checked = sums(check)
    with execution.in_process_context():
        for failing in range(4):
            data = [[1.0, 2.0], [3.0], [4.0, 0.5], [0.25]]
            data[failing] = [1.0, 11.0]
            with pytest.raises(
                client_passes.ClientError, match=f"Client {failing} of 4: "
            ):
                checked(data)


def in_a_loop(x):
    def body(count):
        tf.debugging.assert_less(x, 10.0)
        return count + 1

    tf.while_loop(lambda count: count < 2, body, [0])


def in_a_branch(x):
    def half():
        tf.debugging.assert_less(x, 10.0)
        return x / 2.0

    return tf.cond(x > 1.0, half, lambda: x)


@pytest.mark.parametrize("check", [in_a_loop, in_a_branch])
def test_assertions_in_loops_and_branches_make_clients_run_one_by_one(check):
    sums = in_steps(check)
    with execution.in_process_context() as context:
        assert sums([[1.0], [2.0], [3.0], [4.0]]) == 10.0
        assert "one by one: an assertion in a loop or a branch" in context.describe(
            sums
        )
        with pytest.raises(client_passes.ClientError, match="Client 1 of 4: "):
            sums([[1.0], [12.0], [3.0], [4.0]])


def next_characters(seed):
    rng = np.random.default_rng(seed)
    text = rng.integers(0, 7, [6, 5])
    return tf.data.Dataset.from_tensor_slices((text, (text + 1) % 7)).batch(3)


def keras_sequence_model():
    keras = tf.keras
    inputs = keras.layers.Input([None], dtype=tf.int64)
    hidden = keras.layers.Embedding(7, 4, embeddings_initializer=_ramp)(inputs)
    logits = keras.layers.Dense(7, kernel_initializer=_ramp)(hidden)
    return tff.learning.models.from_keras_model(
        keras.Model(inputs, logits),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        next_characters(0).element_spec,
    )


def _ramp(shape, dtype=None):
    return tf.reshape(tf.linspace(-1.0, 1.0, tf.reduce_prod(shape)), shape)


def test_keras_sequence_models_run_many_clients_at_a_time(no_streaming):
    """Keras' cross-entropy asserts that labels and logits have the same shape."""
    learning = tff.learning.algorithms.build_weighted_fed_avg(
        keras_sequence_model, tff.learning.optimizers.build_sgdm(0.5)
    )
    cohort = [next_characters(seed) for seed in range(4)]
    run = functools.partial(learning.next, learning.initialize(), cohort)
    with execution.in_process_context(batch_clients=False):
        expected = run()
    no_streaming()
    with execution.in_process_context():
        found = run()
    assert_close(found.state.global_model_weights, expected.state.global_model_weights)
    assert_close(found.metrics, expected.metrics)


def test_vectorized_work_without_assertions_has_no_control_edges():
    work = vectorization.vectorize(client_pass_of(process("linear", "sgd")).fragment)
    edges = [
        name
        for leaf in (work.finish, work.reductions[0].step)
        for node in leaf.graph_def.node
        for name in node.input
        if name.startswith("^")
    ]
    assert edges == []
