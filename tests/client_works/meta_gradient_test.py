"""Meta-gradients of clients: closed forms, their support and query, and guards."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
from tensorflow_federated import learning

import tff_algos
from tests.testing import problems
from tests.testing.three_classes import model_of
from tff_algos import client_works, execution

CLIENT = problems.clients(sizes=(11,))[0]
START = problems.initial_vector()
OTHERS = np.r_[2:4, 6:8, 10:11]


def _parabola(a=2.0):
    """F(w) = a w^2 / 2, whatever the batch."""
    return learning.models.FunctionalModel(
        initial_weights=((np.float64(1.0),), ()),
        predict_on_batch_fn=tf.function(
            lambda weights, x, training: weights[0][0] * tf.ones_like(x)
        ),
        loss_fn=lambda output, label, sample_weight=None: (
            a * tf.reduce_mean(output**2) / 2
        ),
        metrics_fns=problems.LOSS_METRICS,
        input_spec=(
            tf.TensorSpec([None], np.float64),
            tf.TensorSpec([None], np.float64),
        ),
    )


def _report(model, episode, *datasets, round_num=0, rate=0.1, **kwargs):
    """What clients report: the updates, their weights, and the measurements."""
    work = client_works.build_meta_gradient_client_work(model, rate, episode, **kwargs)
    weights = learning.models.ModelWeights(*model.initial_weights)

    @tff.federated_computation(
        tff.FederatedType(work.next.type_signature.parameter[1].member, tff.SERVER),
        work.next.type_signature.parameter[2],
    )
    def run(weights, data):
        state = tff.federated_value(round_num, tff.SERVER)
        output = work.next(state, tff.federated_broadcast(weights), data)
        return output.result, output.measurements, output.state

    return run(weights, list(datasets))


def _numbers(count, batch_size):
    zeros = np.zeros(count)
    return tf.data.Dataset.from_tensor_slices((zeros, zeros)).batch(batch_size)


@pytest.mark.parametrize("steps", [0, 1, 3, 10])
@pytest.mark.parametrize("max_trajectory_bytes", [0, 1 << 30])
def test_on_a_parabola_the_gradient_is_a_power(steps, max_trajectory_bytes):
    rate = problems.f32(0.1)
    results, _, state = _report(
        _parabola(),
        client_works.steps_then_query(steps),
        _numbers(4, 2),
        max_trajectory_bytes=max_trajectory_bytes,
    )
    assert results[0].update[0] == pytest.approx(
        2 * (1 - 2 * rate) ** (2 * steps), rel=1e-12
    )
    if steps == 3:
        assert results[0].update[0] == pytest.approx(0.524288, rel=1e-6)
    assert state == 1


def test_on_a_parabola_the_first_order_gradient_is_the_last_one():
    results, _, _ = _report(
        _parabola(), client_works.steps_then_query(3), _numbers(4, 2), first_order=True
    )
    assert results[0].update[0] == pytest.approx(1.024, rel=1e-6)


def test_the_rate_decays_by_the_round():
    results, _, _ = _report(
        _parabola(),
        client_works.steps_then_query(3),
        _numbers(4, 2),
        round_num=2,
        client_learning_rate_decay=0.5,
    )
    expected = 2 * (1 - 2 * 0.1 * 0.25) ** 6
    assert results[0].update[0] == pytest.approx(expected, rel=1e-6)


BATCHES = [
    slice(0, 2),
    slice(2, 4),
    slice(4, 6),
    slice(6, 8),
    slice(8, 10),
    slice(10, 11),
]


def _hessian(rows):
    features = np.column_stack([CLIENT.x, np.ones(len(CLIENT.y))])[rows]
    return features.T @ features / len(features)


def _expected(support, query, first_order=False):
    """The gradient of linear regression in plain NumPy."""
    rate, y = problems.f32(0.1), START
    for rows in support:
        y = y - rate * CLIENT.gradient(y, rows)
    gradient = CLIENT.gradient(y, query)
    for rows in () if first_order else reversed(support):
        gradient = gradient - rate * _hessian(rows) @ gradient
    return gradient


CASES = {
    "the next batch": (
        client_works.steps_then_query(3),
        BATCHES[:3],
        BATCHES[3],
        2,
    ),
    "the next batch, after batches came again": (
        client_works.steps_then_query(7),
        [*BATCHES, BATCHES[0]],
        BATCHES[1],
        2,
    ),
    "all": (client_works.steps_then_query(2, "all"), BATCHES[:2], slice(None), 11),
    "held out": (
        client_works.steps_then_query(4, "held_out"),
        [*BATCHES[0::2], BATCHES[0]],
        OTHERS,
        5,
    ),
    "all, after epochs": (
        client_works.epochs_then_all(3),
        BATCHES * 2,
        slice(None),
        11,
    ),
    "all, without steps": (client_works.epochs_then_all(1), [], slice(None), 11),
}


@pytest.mark.parametrize("first_order", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_support_and_query_are_the_batches_that_the_episode_says(case, first_order):
    episode, support, query, num_examples = CASES[case]
    results, _, _ = _report(
        problems.linear_model(), episode, CLIENT.batches(2), first_order=first_order
    )
    expected = _expected(support, query, first_order)
    np.testing.assert_allclose(
        np.append(*results[0].update), expected, rtol=1e-10, atol=1e-12
    )
    assert results[0].update_weight == num_examples


def test_epochs_may_differ_in_order():
    first, second, third = (np.random.default_rng(n).permutation(11) for n in range(3))
    rows = np.concatenate([first, second, third])
    # ArrayDataset's batches are given by their rows; an epoch's last has one example.
    starts = 11 * np.arange(3)[:, None] + np.arange(0, 11, 2)
    dataset = execution.ArrayDataset(
        (CLIENT.x, CLIENT.y), rows, np.append(starts, len(rows))
    )
    episode = client_works.epochs_then_all(3, epochs_in_data=True)
    results, _, _ = _report(problems.linear_model(), episode, dataset)
    support = [
        order[start : start + 2]
        for order in (first, second)
        for start in range(0, 11, 2)
    ]
    np.testing.assert_allclose(
        np.append(*results[0].update),
        _expected(support, slice(None)),
        rtol=1e-10,
        atol=1e-12,
    )
    assert results[0].update_weight == 11


def test_the_sum_over_the_query_is_the_mean_times_its_examples():
    episode = client_works.epochs_then_all(2)
    model = problems.linear_model()
    mean, _, _ = _report(model, episode, CLIENT.batches(2))
    total, _, _ = _report(model, episode, CLIENT.batches(2), eval_reduction="sum")
    np.testing.assert_allclose(
        np.append(*total[0].update), 11 * np.append(*mean[0].update), rtol=1e-12
    )


def test_clipping_scales_the_gradient_and_reports_its_norm():
    episode, model = client_works.epochs_then_all(2), problems.linear_model()
    free, _, _ = _report(model, episode, CLIENT.batches(2))
    norm = np.linalg.norm(np.append(*free[0].update))
    clipped, measurements, _ = _report(
        model, episode, CLIENT.batches(2), gradient_clip_norm=norm / 4
    )
    np.testing.assert_allclose(
        np.append(*clipped[0].update), np.append(*free[0].update) / 4, rtol=1e-6
    )
    assert measurements["max_gradient_norm"] == pytest.approx(norm, rel=1e-6)


def test_an_exploding_client_is_reported_and_left_out():
    # |1 - eta * a| = 1e30 - 1 at every step.
    results, measurements, _ = _report(
        _parabola(1e30), client_works.steps_then_query(20), _numbers(4, 2), rate=1.0
    )
    assert results[0].update[0] == 0.0 and results[0].update_weight == 0.0
    assert measurements["num_non_finite_clients"] == 1
    assert np.isnan(measurements["max_gradient_norm"])


@pytest.mark.parametrize(
    ("episode", "size"),
    [
        (client_works.epochs_then_all(2), 0),
        (client_works.steps_then_query(2), 0),
        # A single batch leaves none for the query.
        (client_works.steps_then_query(2, "held_out"), 2),
    ],
)
def test_a_client_without_examples_or_query_is_left_out(episode, size):
    results, measurements, _ = _report(_parabola(), episode, _numbers(size, 2))
    assert results[0].update_weight == 0.0
    assert measurements["num_empty_clients"] == 1


def test_a_variable_model_is_refused_unless_first_order():
    with pytest.raises(TypeError, match="FunctionalModel.*functional_model_from_keras"):
        client_works.build_meta_gradient_client_work(
            lambda: None, 0.1, client_works.epochs_then_all(2)
        )


def test_a_model_that_draws_anew_at_every_look_is_refused():
    def predict(w, x, training):
        del training
        return tf.nn.dropout(x @ w[0], 0.5)

    model = model_of([np.ones((4, 3))], predict, [4])
    with pytest.raises(ValueError, match="draws at random with RandomUniform"):
        client_works.build_meta_gradient_client_work(
            model, 0.1, client_works.epochs_then_all(2)
        )


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda: client_works.epochs_then_all(0),
            "num_epochs=0 .*: expected an integer >= 1",
        ),
        (
            lambda: client_works.steps_then_query(-1),
            "num_steps=-1 .*: expected an integer >= 0",
        ),
        (
            lambda: client_works.steps_then_query(1, "some"),
            "query='some' .*: expected one of .*held_out",
        ),
        (
            lambda: client_works.build_meta_gradient_client_work(
                _parabola(),
                0.1,
                client_works.epochs_then_all(2),
                eval_reduction="max",
            ),
            "eval_reduction='max' .*: expected one of mean, sum",
        ),
    ],
)
def test_bad_arguments_are_named(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def _functional_from_keras(dropout):
    layers = [tf.keras.layers.InputLayer((4,))]
    layers += [tf.keras.layers.Dropout(0.5)] * dropout
    model = tf.keras.Sequential(
        [*layers, tf.keras.layers.Dense(1, kernel_initializer="ones")]
    )
    return tff.learning.models.functional_model_from_keras(
        model,
        loss_fn=tf.keras.losses.MeanSquaredError(),
        input_spec=(tf.TensorSpec([None, 4]), tf.TensorSpec([None, 1])),
    )


def test_a_functional_model_from_keras_is_differentiated_through_its_training():
    rng = np.random.default_rng(0)
    data = tf.data.Dataset.from_tensor_slices(
        (rng.normal(size=(6, 4)).astype("f"), rng.normal(size=(6, 1)).astype("f"))
    ).batch(2)
    process = tff_algos.build_unbiased_gradient_aggregation(
        _functional_from_keras(dropout=False),
        tff.learning.optimizers.build_sgdm(1.0),
        client_learning_rate=0.1,
        client_epochs_per_round=2,
    )
    output = process.next(process.initialize(), [data])
    assert output.metrics["client_work"]["num_non_finite_clients"] == 0
    # The mean loss's gradient after one epoch, by finite differences.
    x = np.concatenate([b[0] for b in data.as_numpy_iterator()]).astype(np.float64)
    y = np.concatenate([b[1] for b in data.as_numpy_iterator()]).astype(np.float64)

    def after_an_epoch(vector):
        w, c = vector[:4, None].copy(), vector[4]
        for start in (0, 2, 4):
            rows = slice(start, start + 2)
            residual = x[rows] @ w + c - y[rows]
            w = w - 0.1 * x[rows].T @ residual
            c = c - 0.1 * np.sum(residual)
        return np.mean((x @ w + c - y) ** 2)

    start = np.array([1.0, 1, 1, 1, 0])
    step = 1e-5 * np.eye(5)
    expected = [
        (after_an_epoch(start + e) - after_an_epoch(start - e)) / 2e-5 for e in step
    ]
    moved = process.get_model_weights(output.state).trainable
    found = start - np.append(np.ravel(moved[0]), moved[1])
    np.testing.assert_allclose(found, expected, rtol=1e-4)


def test_dropout_of_keras_is_named():
    with pytest.raises(ValueError, match="draws at random with"):
        tff_algos.build_unbiased_gradient_aggregation(
            _functional_from_keras(dropout=True),
            tff.learning.optimizers.build_sgdm(1.0),
            client_learning_rate=0.1,
        )
