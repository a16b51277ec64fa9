"""FedMeta: meta updates after rounds of any inner algorithm."""

import numpy as np
import pytest
import tensorflow_federated as tff

import tff_algos
from tests.testing import (
    float32_processes,
    linear_processes,
    local_steps,
    numpy_rounds,
    problems,
)
from tests.testing.float32_processes import built, fed_meta
from tests.testing.linear_processes import META, assert_same_bits, uga
from tests.testing.local_steps import SIZES, assert_exact
from tests.testing.numpy_rounds import mean_delta
from tests.testing.problems import f32

SGD = tff.learning.optimizers.build_sgdm
START = problems.initial_vector()


def test_fedmeta_makes_its_meta_update_after_an_algorithm_of_tffs_own():
    server = problems.clients(sizes=(9,), seed=8)[0]
    model = problems.linear_model(np.float32)
    inner = tff.learning.algorithms.build_weighted_fed_avg(
        lambda: tff.learning.models.model_from_functional(model), SGD(numpy_rounds.RATE)
    )
    process = tff_algos.build_fed_meta(
        inner,
        model,
        (server.x.astype(np.float32), server.y.astype(np.float32)),
        meta_learning_rate=0.3,
        meta_learning_rate_decay=0.5,
    )
    weights, output = problems.run(
        process, numpy_rounds.cohort(np.float32), numpy_rounds.cohort(np.float32)
    )
    expected = START
    for round_num in range(2):
        expected = expected - mean_delta(expected)
        step = f32(0.3) * 0.5**round_num
        expected = expected - step * server.gradient(expected)
    numpy_rounds.assert_close(weights, expected)
    assert "client_work" in output.metrics and "meta" in output.metrics


@pytest.mark.parametrize("inner", ["fedavg", "uga"])
def test_fedmeta_with_meta_rate_zero_is_its_inner_algorithm_to_the_bit(inner):
    build = {
        "fedavg": lambda: tff_algos.build_fed_avg(linear_processes.model(), SGD(0.1)),
        "uga": uga,
    }[inner]
    data = linear_processes.cohort(epochs=1 if inner == "uga" else 2)
    assert_same_bits(
        tff_algos.build_fed_meta(
            build(), linear_processes.model(), META, meta_learning_rate=0.0
        ),
        build(),
        data,
        data,
    )


def test_fedmeta_with_uga_of_one_epoch_is_fedsgd_then_gradient_descent():
    data, rate = linear_processes.cohort(), problems.f32(0.3)
    process = tff_algos.build_fed_meta(
        uga(epochs=1, server=0.5),
        linear_processes.model(),
        META,
        meta_learning_rate=0.3,
    )
    fedsgd = tff_algos.build_fed_sgd(linear_processes.model(), SGD(0.5))
    expected, state = None, fedsgd.initialize()
    for _ in range(2):
        state = fedsgd.next(state, data).state
        after = problems.vector_of(fedsgd, state)
        expected = after - rate * linear_processes.CLIENTS[1].gradient(after)
        weights = tff.learning.models.ModelWeights((expected[:-1], expected[-1]), ())
        state = fedsgd.set_model_weights(state, weights)
    linear_processes.assert_close(
        problems.run(process, data, data)[0], expected, rtol=1e-10, atol=1e-12
    )


def test_fedmeta_with_idle_clients_is_gradient_descent_on_the_servers_data():
    inner = tff_algos.build_fed_avg(linear_processes.model(), SGD(0.0))
    process = tff_algos.build_fed_meta(
        inner, linear_processes.model(), META, meta_learning_rate=0.3
    )
    data = linear_processes.cohort()
    weights, output = problems.run(process, data, data, data)
    expected = problems.initial_vector()
    for _ in range(3):
        gradient = linear_processes.CLIENTS[1].gradient(expected)
        expected = expected - problems.f32(0.3) * gradient
    linear_processes.assert_close(weights, expected, rtol=1e-10, atol=1e-12)
    assert output.metrics["meta"]["gradient_norm"] == pytest.approx(
        np.linalg.norm(gradient), rel=1e-6
    )
    assert output.metrics["meta"]["num_rejected_meta_updates"] == 0


def test_fedmeta_on_the_clients_own_data_is_two_steps_of_gradient_descent():
    client = linear_processes.CLIENTS[1]
    inner = tff_algos.build_fed_avg(linear_processes.model(), SGD(0.1))
    process = tff_algos.build_fed_meta(
        inner, linear_processes.model(), META, meta_learning_rate=0.3
    )
    weights, _ = problems.run(process, [client.batches()])
    first = problems.initial_vector()
    second = first - problems.f32(0.1) * client.gradient(first)
    expected = second - problems.f32(0.3) * client.gradient(second)
    linear_processes.assert_close(weights, expected, rtol=1e-10, atol=1e-12)


def test_fedmeta_adds_the_meta_update_to_the_inner_types():
    process = fed_meta(meta_learning_rate=0.1)
    inner = built("fedavg")
    assert process.next.type_signature.parameter[1].is_equivalent_to(
        inner.next.type_signature.parameter[1]
    )
    state = process.initialize.type_signature.result.member
    assert state.inner.is_equivalent_to(inner.initialize.type_signature.result.member)
    metrics = process.next.type_signature.result.metrics.member
    assert metrics.meta.gradient_norm.dtype == np.float32
    assert metrics.meta.num_rejected_meta_updates.dtype == np.int32
    assert metrics.client_work.num_empty_clients.dtype == np.int32


def test_fedmetas_weights_can_be_set_and_got():
    process = fed_meta(meta_learning_rate=0.1)
    w = np.arange(5, dtype=np.float32)
    weights = tff.learning.models.ModelWeights((w, np.float32(7)), ())
    state = process.set_model_weights(process.initialize(), weights)
    np.testing.assert_array_equal(problems.vector_of(process, state), [*range(5), 7])


@pytest.mark.parametrize("name", ["fedprox", "mimelite", "fomaml", "uga"])
def test_fedmeta_composes_with_every_inner_algorithm(name):
    inner = built(name)
    plain, _ = problems.run(inner, float32_processes.cohort(1))
    moved, _ = problems.run(
        fed_meta(inner, meta_learning_rate=0.5), float32_processes.cohort(1)
    )
    client = problems.Client(np.ones((4, 5)), np.ones(4))
    np.testing.assert_allclose(
        moved, plain - 0.5 * client.gradient(plain), rtol=1e-5, atol=1e-6
    )


def test_fedmetas_inner_must_be_a_process():
    with pytest.raises(TypeError, match="inner to be a .*LearningProcess"):
        fed_meta(inner=3, meta_learning_rate=0.1)


@pytest.mark.parametrize("feed_back", [True, False])
def test_fedmeta_broadcasts_the_meta_updated_model_or_keeps_it_beside(feed_back):
    meta = problems.clients(sizes=(7,), seed=5)[0]
    meta_rate = 0.25
    process = tff_algos.build_fed_meta(
        tff_algos.build_fed_avg(problems.linear_model(), SGD(local_steps.RATE)),
        problems.linear_model(),
        (meta.x, meta.y),
        meta_learning_rate=meta_rate,
        feed_back=feed_back,
    )
    state, inner = process.initialize(), START
    np.testing.assert_array_equal(problems.vector_of(process, state), START)
    for _ in range(3):
        state = process.next(state, [c.batches() for c in local_steps.CLIENTS]).state
        ends = [
            inner - f32(local_steps.RATE) * client.gradient(inner)
            for client in local_steps.CLIENTS
        ]
        inner = np.average(ends, axis=0, weights=SIZES)
        updated = inner - meta_rate * meta.gradient(inner)
        assert_exact(problems.vector_of(process, state), updated)
        if feed_back:
            inner = updated


def test_fedmeta_beside_starts_again_from_weights_that_are_set():
    meta = local_steps.CLIENTS[0]
    process = tff_algos.build_fed_meta(
        tff_algos.build_fed_avg(problems.linear_model(), SGD(local_steps.RATE)),
        problems.linear_model(),
        (meta.x, meta.y),
        meta_learning_rate=0.0,
        feed_back=False,
    )
    set_to = tff.learning.models.ModelWeights((np.ones(5), np.float64(2.0)), ())
    state = process.set_model_weights(process.initialize(), set_to)
    np.testing.assert_array_equal(problems.vector_of(process, state), [1] * 5 + [2])
    state = process.next(state, [local_steps.CLIENTS[1].batches()]).state
    start = np.array([1.0] * 5 + [2])
    assert_exact(
        problems.vector_of(process, state),
        start - f32(local_steps.RATE) * local_steps.CLIENTS[1].gradient(start),
    )
