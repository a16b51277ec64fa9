"""Rounds of each algorithm against plain NumPy in float64."""

import numpy as np
import pytest
import tensorflow as tf
from tensorflow_federated import learning

import tff_algos
from tests.testing import problems
from tests.testing.problems import f32

SGD = learning.optimizers.build_sgdm
RATE, BATCH, EPOCHS = 0.1, 2, 2
CLIENTS = problems.clients(sizes=(6, 3, 7))
START = problems.initial_vector()


def cohort(dtype=np.float64, clients=CLIENTS, epochs=EPOCHS):
    return [client.batches(BATCH, epochs, dtype) for client in clients]


def mean_delta(start, rate=RATE, uniform=False, correction=lambda start: None):
    """The mean of (start - locally trained), as a round of FedAvg takes it."""
    deltas, weights = [], []
    for client in CLIENTS:
        kwargs = {}
        if (term := correction(start)) is not None:
            kwargs["correction"] = term
        y, examples = client.local_sgd(start, f32(rate), BATCH, EPOCHS, **kwargs)
        deltas.append(start - y)
        weights.append(1 if uniform else examples)
    return problems.mean(deltas, weights)


def assert_exact(weights, expected):
    np.testing.assert_allclose(weights, expected, rtol=1e-9, atol=1e-10)


def assert_close(weights, expected):
    np.testing.assert_allclose(weights, expected, rtol=1e-5, atol=1e-6)


def test_fedsgd():
    process = tff_algos.build_fed_sgd(problems.linear_model(), SGD(RATE))
    weights, output = problems.run(process, cohort(epochs=1))
    gradients = [client.gradient(START) for client in CLIENTS]
    mean = problems.mean(gradients, [6, 3, 7])
    assert_exact(weights, START - f32(RATE) * mean)
    norm = output.metrics["finalizer"]["update_norm"]
    assert norm == pytest.approx(np.linalg.norm(mean), rel=1e-6)


@pytest.mark.parametrize("uniform", [False, True])
def test_fedavg(uniform):
    weighting = "UNIFORM" if uniform else "NUM_EXAMPLES"
    process = tff_algos.build_fed_avg(
        problems.linear_model(),
        SGD(RATE),
        SGD(0.5),
        client_weighting=learning.ClientWeighting[weighting],
    )
    weights, _ = problems.run(process, cohort(), cohort())
    expected = START
    for _ in range(2):
        expected = expected - 0.5 * mean_delta(expected, uniform=uniform)
    assert_exact(weights, expected)


def test_fedavg_reports_the_mean_loss_of_training():
    process = tff_algos.build_fed_avg(problems.linear_model(), SGD(RATE))
    _, output = problems.run(process, cohort(epochs=1))
    losses, counts = [], []
    for client in CLIENTS:
        y = START
        for start in range(0, len(client.y), BATCH):
            rows = slice(start, start + BATCH)
            residual = client.x[rows] @ y[:-1] + y[-1] - client.y[rows]
            losses.append(np.mean(residual**2) / 2)
            counts.append(len(residual))
            y = y - f32(RATE) * client.gradient(y, rows)
    loss = output.metrics["client_work"]["train"]["loss"]
    assert loss == pytest.approx(problems.mean(losses, counts), rel=1e-5)


def test_client_learning_rate_decays_by_the_round():
    process = tff_algos.build_fed_avg(
        problems.linear_model(), SGD(RATE), client_learning_rate_decay=0.5
    )
    weights, _ = problems.run(process, cohort(), cohort(), cohort())
    expected = START
    for round_num in range(3):
        expected = expected - mean_delta(expected, RATE * 0.5**round_num)
    assert_exact(weights, expected)


def test_fedavgm():
    process = tff_algos.build_fed_avg_m(
        problems.linear_model(np.float32),
        SGD(RATE),
        server_learning_rate=0.8,
        server_momentum=0.6,
    )
    data = cohort(np.float32)
    weights, _ = problems.run(process, data, data, data)
    expected, velocity = START, 0.0
    for _ in range(3):
        velocity = 0.6 * velocity + mean_delta(expected)
        expected = expected - 0.8 * velocity
    assert_close(weights, expected)


def test_fedprox():
    process = tff_algos.build_fed_prox(
        problems.linear_model(), SGD(RATE), proximal_strength=0.7
    )
    weights, _ = problems.run(process, cohort())
    delta = mean_delta(START, correction=lambda w: lambda y: 0.7 * (y - w))
    assert_exact(weights, START - delta)


def test_fedproxm():
    process = tff_algos.build_fed_prox_m(
        problems.linear_model(np.float32),
        SGD(RATE),
        proximal_strength=0.7,
        server_momentum=0.5,
    )
    data = cohort(np.float32)
    weights, _ = problems.run(process, data, data)
    expected, velocity = START, 0.0
    for _ in range(2):
        step = mean_delta(expected, correction=lambda w: lambda y: 0.7 * (y - w))
        velocity = 0.5 * velocity + step
        expected = expected - velocity
    assert_close(weights, expected)


def _scalar_model(initial):
    """F(w) = mean of (w - target)^2 * curvature / 2 over examples."""

    @tf.function
    def predict(weights, x, training):
        del training
        return x * weights[0][0]

    def loss(output, label, sample_weight=None):
        del sample_weight
        return tf.reduce_mean(tf.square(output - label)) / 2

    return learning.models.FunctionalModel(
        initial_weights=((np.array(initial),), ()),
        predict_on_batch_fn=predict,
        loss_fn=loss,
        input_spec=(
            tf.TensorSpec([None], np.float64),
            tf.TensorSpec([None], np.float64),
        ),
    )


def _scalar_client(x, y, steps):
    dataset = tf.data.Dataset.from_tensors((np.array([x]), np.array([y])))
    return dataset.repeat(steps)


def test_fedprox_on_a_quadratic_has_the_closed_form():
    # F = a w^2 / 2: x = sqrt(a), y = 0.
    a, strength, rate, steps, start = 2.0, 0.5, 0.1, 7, 1.5
    process = tff_algos.build_fed_prox(
        _scalar_model(start), SGD(rate), proximal_strength=strength
    )
    weights, _ = problems.run(process, [_scalar_client(np.sqrt(a), 0.0, steps)])
    shrink = (1 - f32(rate) * (a + strength)) ** steps
    expected = start * (1 - a / (a + strength) * (1 - shrink))
    assert weights[0] == pytest.approx(expected, rel=1e-9)


def test_mimelite_golden_trace():
    # The paper's damped form with beta = 0.9, eta = 0.1 on F_1 = (w - 1)^2 / 2,
    # F_2 = (w - 3)^2 / 2, J = 2 is TFF's form with eta = 0.1 * (1 - 0.9).
    model = _scalar_model_f32(0.0)
    process = tff_algos.build_mime_lite(model, SGD(0.01, momentum=0.9))
    data = [_scalar_client_f32(1.0, target, 2) for target in (1.0, 3.0)]
    first, _ = problems.run(process, data)
    second, _ = problems.run(process, data, data)
    assert first[0] == pytest.approx(0.0398, rel=1e-5)
    assert second[0] == pytest.approx(0.11462798, rel=1e-5)


def _scalar_model_f32(initial):
    base = _scalar_model(initial)
    spec = tf.TensorSpec([None], np.float32)
    return learning.models.FunctionalModel(
        initial_weights=((np.array(initial, np.float32),), ()),
        predict_on_batch_fn=base._predict_on_batch_fn,
        loss_fn=base.loss,
        input_spec=(spec, spec),
    )


def _scalar_client_f32(x, y, steps):
    pair = (np.array([x], np.float32), np.array([y], np.float32))
    return tf.data.Dataset.from_tensors(pair).repeat(steps)


def test_mimelite():
    process = tff_algos.build_mime_lite(
        problems.linear_model(np.float32), SGD(RATE, momentum=0.9)
    )
    data = cohort(np.float32)
    weights, _ = problems.run(process, data, data, data)
    expected, momentum = START, np.zeros_like(START)
    for _ in range(3):
        frozen = 0.9 * momentum
        delta = mean_delta(expected, correction=lambda w, m=frozen: lambda y: m)
        full = problems.mean([c.gradient(expected) for c in CLIENTS], [6, 3, 7])
        momentum = frozen + full
        expected = expected - delta
    assert_close(weights, expected)


def _adam(weights, gradients, rate=0.001):
    """Adam's weights after a step with each of the gradients in turn."""
    first = second = 0.0
    for step, gradient_fn in enumerate(gradients, start=1):
        gradient = gradient_fn(weights)
        first = 0.9 * first + 0.1 * gradient
        second = 0.999 * second + 0.001 * gradient**2
        scale = np.sqrt(1 - 0.999**step) / (1 - 0.9**step)
        weights = weights - rate * scale * first / (np.sqrt(second) + 1e-7)
    return weights


def test_reptile_with_adam():
    process = tff_algos.build_reptile(problems.linear_model(np.float32), SGD(RATE))
    data = cohort(np.float32)
    weights, _ = problems.run(process, data, data)
    assert_close(weights, _adam(START, [lambda w: mean_delta(w, uniform=True)] * 2))


def test_centralized_with_adam():
    adam = learning.optimizers.build_adam(0.05)
    process = tff_algos.build_centralized(problems.linear_model(np.float32), adam)
    client = CLIENTS[2]
    data = [client.batches(BATCH, 1, np.float32)]
    weights, output = problems.run(process, data, data)
    rows = [slice(start, start + BATCH) for start in range(0, 7, BATCH)]
    gradients = [lambda w, r=r: client.gradient(w, r) for r in rows]
    assert_close(weights, _adam(START, gradients * 2, rate=0.05))
    assert output.metrics["client_work"]["num_empty_clients"] == 0


def test_personalized_fedavg_carries_the_weights_and_nothing_else():
    processes = tff_algos.build_personalized_fed_avg(
        problems.linear_model(np.float32), SGD(RATE)
    )
    data = cohort(np.float32)
    pretrained = processes.pretrain.initialize()
    for _ in range(2):
        pretrained = processes.pretrain.next(pretrained, data).state
    finetuned = processes.finetune.set_model_weights(
        processes.finetune.initialize(),
        processes.pretrain.get_model_weights(pretrained),
    )
    finetuned = processes.finetune.next(finetuned, data).state

    expected, velocity = START, 0.0
    for _ in range(2):
        velocity = 0.9 * velocity + mean_delta(expected)
        expected = expected - velocity
    expected = _adam(expected, [lambda w: mean_delta(w, uniform=True)])
    assert_close(problems.vector_of(processes.finetune, finetuned), expected)


def hessian(client, rows=slice(None)):
    """Of linear regression's mean loss on some rows."""
    features = np.column_stack([client.x, np.ones(len(client.y))])[rows]
    return features.T @ features / len(features)


def through_training(client, start, rate, num_steps, query):
    """The gradient of the query's loss after SGD, back to `start`."""
    batches = [slice(i, i + BATCH) for i in range(0, len(client.y), BATCH)]
    support = [batches[j % len(batches)] for j in range(num_steps)]
    if query == "next_batch":
        query = batches[num_steps % len(batches)]
    y = start
    for rows in support:
        y = y - rate * client.gradient(y, rows)
    gradient = client.gradient(y, query)
    for rows in reversed(support):
        gradient = gradient - rate * hessian(client, rows) @ gradient
    return gradient


def test_uga():
    process = tff_algos.build_unbiased_gradient_aggregation(
        problems.linear_model(),
        SGD(0.5),
        client_learning_rate=RATE,
        client_epochs_per_round=3,
        client_learning_rate_decay=0.5,
    )
    data = cohort(epochs=1)
    weights, output = problems.run(process, data, data)
    expected = START
    for round_num in range(2):
        rate = f32(RATE) * 0.5**round_num
        gradients = [
            through_training(c, expected, rate, 2 * -(-len(c.y) // BATCH), slice(None))
            for c in CLIENTS
        ]
        expected = expected - 0.5 * problems.mean(gradients, [6, 3, 7])
    assert_exact(weights, expected)
    largest = max(np.linalg.norm(gradient) for gradient in gradients)
    found = output.metrics["client_work"]["max_gradient_norm"]
    assert found == pytest.approx(largest, rel=1e-6)


@pytest.mark.parametrize("query", ["next_batch", "all"])
def test_maml(query):
    process = tff_algos.build_maml(
        problems.linear_model(),
        SGD(0.5),
        client_learning_rate=RATE,
        client_steps_per_round=4,
        query=query,
    )
    weights, _ = problems.run(process, cohort(epochs=1))
    rows = query if query == "next_batch" else slice(None)
    gradients = [through_training(c, START, f32(RATE), 4, rows) for c in CLIENTS]
    assert_exact(weights, START - 0.5 * problems.mean(gradients, [1, 1, 1]))


def test_fomaml():
    process = tff_algos.build_fomaml(
        problems.linear_model(),
        SGD(0.5),
        client_learning_rate=RATE,
        client_steps_per_round=3,
        query="all",
    )
    # Three batches of the first and the third client, both of the second's and one
    # of them again.
    gradients = []
    for client, steps in zip(CLIENTS, ([0, 2, 4], [0, 2, 0], [0, 2, 4]), strict=True):
        y = START
        for start in steps:
            y = y - f32(RATE) * client.gradient(y, slice(start, start + BATCH))
        gradients.append(client.gradient(y))
    weights, _ = problems.run(process, cohort(epochs=1))
    assert_exact(weights, START - 0.5 * problems.mean(gradients, [1, 1, 1]))


def test_fedmeta_after_an_algorithm_of_tffs_own():
    server = problems.clients(sizes=(9,), seed=8)[0]
    model = problems.linear_model(np.float32)
    inner = learning.algorithms.build_weighted_fed_avg(
        lambda: learning.models.model_from_functional(model), SGD(RATE)
    )
    process = tff_algos.build_fed_meta(
        inner,
        model,
        (server.x.astype(np.float32), server.y.astype(np.float32)),
        meta_learning_rate=0.3,
        meta_learning_rate_decay=0.5,
    )
    weights, output = problems.run(process, cohort(np.float32), cohort(np.float32))
    expected = START
    for round_num in range(2):
        expected = expected - mean_delta(expected)
        step = f32(0.3) * 0.5**round_num
        expected = expected - step * server.gradient(expected)
    assert_close(weights, expected)
    assert "client_work" in output.metrics and "meta" in output.metrics
