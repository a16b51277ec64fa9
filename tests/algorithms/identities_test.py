"""Exact identities between algorithms: each test is named after its claim."""

import numpy as np
import pytest
from tensorflow_federated import learning

import tff_algos
from tests.testing import problems
from tests.testing.speed import some_fast

SGD = learning.optimizers.build_sgdm
UNIFORM = learning.ClientWeighting.UNIFORM
CLIENTS = problems.clients(sizes=(6, 4, 7, 5))
EQUAL_CLIENTS = problems.clients(sizes=(6, 6, 6, 6))


def model(dtype=np.float64):
    return problems.linear_model(dtype)


def cohort(clients=CLIENTS, batch_size=2, epochs=1, dtype=np.float64):
    return [client.batches(batch_size, epochs, dtype) for client in clients]


def assert_same_bits(left, right, *cohorts):
    left_weights, _ = problems.run(left, *cohorts)
    right_weights, _ = problems.run(right, *cohorts)
    assert not np.array_equal(left_weights, problems.initial_vector())
    np.testing.assert_array_equal(left_weights, right_weights)


def assert_close(left, right, rtol=1e-5, atol=1e-6):
    np.testing.assert_allclose(left, right, rtol=rtol, atol=atol)


def test_fedsgd_is_fedavg_with_one_full_batch_step():
    data = cohort(batch_size=None)
    fedavg, _ = problems.run(tff_algos.build_fed_avg(model(), SGD(0.1)), data, data)
    fedsgd, _ = problems.run(tff_algos.build_fed_sgd(model(), SGD(0.1)), data, data)
    assert_close(fedsgd, fedavg)


def test_fedsgd_does_not_depend_on_the_batching():
    process = tff_algos.build_fed_sgd(model(), SGD(0.1))
    whole, _ = problems.run(process, cohort(batch_size=None))
    small, _ = problems.run(process, cohort(batch_size=2))
    assert_close(small, whole)


def test_fedprox_with_strength_zero_is_fedavg_to_the_bit():
    data = cohort(epochs=2)
    assert_same_bits(
        tff_algos.build_fed_prox(model(), SGD(0.1), proximal_strength=0.0),
        tff_algos.build_fed_avg(model(), SGD(0.1)),
        data,
        data,
    )


@pytest.mark.parametrize("strength", [0.01, 10.0])
def test_fedprox_with_one_local_step_is_fedavg(strength):
    data = cohort(batch_size=None)
    prox = tff_algos.build_fed_prox(model(), SGD(0.1), proximal_strength=strength)
    assert_close(
        problems.run(prox, data)[0],
        problems.run(tff_algos.build_fed_avg(model(), SGD(0.1)), data)[0],
    )


def test_fedavgm_with_momentum_zero_is_fedavg_to_the_bit():
    data = cohort(epochs=2)
    assert_same_bits(
        tff_algos.build_fed_avg_m(model(), SGD(0.1), server_momentum=0.0),
        tff_algos.build_fed_avg(model(), SGD(0.1)),
        data,
        data,
    )


def test_fedproxm_with_momentum_zero_is_fedprox_to_the_bit():
    data = cohort(epochs=2)
    assert_same_bits(
        tff_algos.build_fed_prox_m(
            model(), SGD(0.1), proximal_strength=0.5, server_momentum=0.0
        ),
        tff_algos.build_fed_prox(model(), SGD(0.1), proximal_strength=0.5),
        data,
        data,
    )


def test_mimelite_with_momentum_zero_is_fedavg():
    data = cohort(epochs=2)
    mime, _ = problems.run(tff_algos.build_mime_lite(model(), SGD(0.1)), data, data)
    fedavg, _ = problems.run(tff_algos.build_fed_avg(model(), SGD(0.1)), data, data)
    assert_close(mime, fedavg)


def test_mimelite_is_fedavg_in_the_first_round_only():
    data = cohort(epochs=2, dtype=np.float32)
    base = SGD(0.1, momentum=0.9)
    mime = tff_algos.build_mime_lite(model(np.float32), base)
    fedavg = tff_algos.build_fed_avg(model(np.float32), SGD(0.1))
    assert_close(problems.run(mime, data)[0], problems.run(fedavg, data)[0])
    after_two, _ = problems.run(mime, data, data)
    fedavg_after_two, _ = problems.run(fedavg, data, data)
    assert np.max(np.abs(after_two - fedavg_after_two)) > 1e-3


def test_mimelite_with_one_full_batch_step_is_heavy_ball_on_pooled_data():
    data = cohort(batch_size=None, dtype=np.float32)
    process = tff_algos.build_mime_lite(model(np.float32), SGD(0.1, momentum=0.9))
    weights, _ = problems.run(process, data, data, data)
    pooled = problems.Client(
        np.concatenate([c.x for c in CLIENTS]), np.concatenate([c.y for c in CLIENTS])
    )
    expected, momentum = problems.initial_vector(np.float32), 0.0
    for _ in range(3):
        momentum = 0.9 * momentum + pooled.gradient(expected)
        expected = expected - 0.1 * momentum
    assert_close(weights, expected)


def test_reptile_is_uniform_fedavg_where_epochs_are_steps_to_the_bit():
    # 6 examples, batches of 2: 2 epochs are K = 6 steps on every client.
    epochs = cohort(EQUAL_CLIENTS, batch_size=2, epochs=2)
    steps = [c.batches(2, 5).take(6) for c in EQUAL_CLIENTS]
    reptile = tff_algos.build_reptile(model(), SGD(0.1), SGD(1.0))
    fedavg = tff_algos.build_fed_avg(model(), SGD(0.1), client_weighting=UNIFORM)
    np.testing.assert_array_equal(
        problems.run(reptile, steps)[0], problems.run(fedavg, epochs)[0]
    )


def test_reptile_with_one_full_batch_is_uniform_fedsgd():
    data = cohort(batch_size=None)
    reptile = tff_algos.build_reptile(model(), SGD(0.1), SGD(0.5))
    fedsgd = tff_algos.build_fed_sgd(model(), SGD(0.05), client_weighting=UNIFORM)
    assert_close(
        problems.run(reptile, data, data)[0], problems.run(fedsgd, data, data)[0]
    )


def uga(rate=0.1, epochs=2, server=1.0, **kwargs):
    return tff_algos.build_unbiased_gradient_aggregation(
        model(),
        SGD(server),
        client_learning_rate=rate,
        client_epochs_per_round=epochs,
        **kwargs,
    )


def maml(steps, query="all", build=tff_algos.build_maml):
    return build(
        model(),
        SGD(1.0),
        client_learning_rate=0.1,
        client_steps_per_round=steps,
        query=query,
    )


def test_fedshare_with_nothing_to_share_is_fedavg_to_the_bit():
    examples = {str(k): (c.x, c.y) for k, c in enumerate(CLIENTS)}
    nothing = (np.zeros((0, problems.NUM_FEATURES)), np.zeros(0))
    for mode in ("full", "split"):
        united = tff_algos.with_shared_examples(
            examples.get, tuple(examples), nothing, mode
        )
        shared = [problems.Client(*united(k)).batches(2, 2) for k in examples]
        left, _ = problems.run(
            tff_algos.build_fed_share(model(), SGD(0.1)), shared, shared
        )
        data = cohort(epochs=2)
        right, _ = problems.run(tff_algos.build_fed_avg(model(), SGD(0.1)), data, data)
        np.testing.assert_array_equal(left, right)


def test_fedshare_of_a_clients_own_full_batch_is_fedavg():
    client = CLIENTS[0]
    united = tff_algos.with_shared_examples(
        lambda _: (client.x, client.y), ["0"], (client.x, client.y)
    )
    twice = problems.Client(*united("0"))
    assert len(twice.y) == 2 * len(client.y)
    left, _ = problems.run(
        tff_algos.build_fed_share(model(), SGD(0.1)), [twice.batches()]
    )
    right, _ = problems.run(
        tff_algos.build_fed_avg(model(), SGD(0.1)), [client.batches()]
    )
    assert_close(left, right, rtol=1e-12, atol=1e-14)


def test_uga_with_one_epoch_is_fedsgd():
    data = cohort()
    fedsgd = tff_algos.build_fed_sgd(model(), SGD(0.5))
    assert_close(
        problems.run(uga(epochs=1, server=0.5), data, data)[0],
        problems.run(fedsgd, data, data)[0],
        rtol=1e-10,
        atol=1e-12,
    )


def test_uga_with_idle_clients_tends_to_fedsgd():
    data = cohort()
    fedsgd, _ = problems.run(tff_algos.build_fed_sgd(model(), SGD(1.0)), data)
    idle, _ = problems.run(uga(rate=1e-9, epochs=3), data)
    assert_close(idle, fedsgd, rtol=1e-7, atol=1e-7)


def test_uga_is_maml_with_as_many_steps_and_all_examples_for_query():
    # 6 examples, batches of 2: an epoch is 3 steps on every client.
    data = cohort(EQUAL_CLIENTS)
    assert_close(
        problems.run(maml(6), data, data)[0],
        problems.run(uga(epochs=3, client_weighting=UNIFORM), data, data)[0],
        rtol=1e-10,
        atol=1e-12,
    )


META = (CLIENTS[1].x, CLIENTS[1].y)


@pytest.mark.parametrize("inner", ["fedavg", "uga"])
def test_fedmeta_with_meta_rate_zero_is_its_inner_algorithm_to_the_bit(inner):
    build = {
        "fedavg": lambda: tff_algos.build_fed_avg(model(), SGD(0.1)),
        "uga": uga,
    }[inner]
    data = cohort(epochs=1 if inner == "uga" else 2)
    assert_same_bits(
        tff_algos.build_fed_meta(build(), model(), META, meta_learning_rate=0.0),
        build(),
        data,
        data,
    )


def test_fedmeta_with_uga_of_one_epoch_is_fedsgd_then_gradient_descent():
    data, rate = cohort(), problems.f32(0.3)
    process = tff_algos.build_fed_meta(
        uga(epochs=1, server=0.5), model(), META, meta_learning_rate=0.3
    )
    fedsgd = tff_algos.build_fed_sgd(model(), SGD(0.5))
    expected, state = None, fedsgd.initialize()
    for _ in range(2):
        state = fedsgd.next(state, data).state
        after = problems.vector_of(fedsgd, state)
        expected = after - rate * CLIENTS[1].gradient(after)
        weights = learning.models.ModelWeights((expected[:-1], expected[-1]), ())
        state = fedsgd.set_model_weights(state, weights)
    assert_close(problems.run(process, data, data)[0], expected, rtol=1e-10, atol=1e-12)


def test_fedmeta_with_idle_clients_is_gradient_descent_on_the_servers_data():
    inner = tff_algos.build_fed_avg(model(), SGD(0.0))
    process = tff_algos.build_fed_meta(inner, model(), META, meta_learning_rate=0.3)
    data = cohort()
    weights, output = problems.run(process, data, data, data)
    expected = problems.initial_vector()
    for _ in range(3):
        gradient = CLIENTS[1].gradient(expected)
        expected = expected - problems.f32(0.3) * gradient
    assert_close(weights, expected, rtol=1e-10, atol=1e-12)
    assert output.metrics["meta"]["gradient_norm"] == pytest.approx(
        np.linalg.norm(gradient), rel=1e-6
    )
    assert output.metrics["meta"]["num_rejected_meta_updates"] == 0


def test_fedmeta_on_the_clients_own_data_is_two_steps_of_gradient_descent():
    client = CLIENTS[1]
    inner = tff_algos.build_fed_avg(model(), SGD(0.1))
    process = tff_algos.build_fed_meta(inner, model(), META, meta_learning_rate=0.3)
    weights, _ = problems.run(process, [client.batches()])
    first = problems.initial_vector()
    second = first - problems.f32(0.1) * client.gradient(first)
    expected = second - problems.f32(0.3) * client.gradient(second)
    assert_close(weights, expected, rtol=1e-10, atol=1e-12)


def test_without_local_steps_fomaml_and_maml_are_uniform_fedsgd():
    data = cohort()
    fedsgd = tff_algos.build_fed_sgd(model(), SGD(1.0), client_weighting=UNIFORM)
    expected, _ = problems.run(fedsgd, data, data)
    for build in (tff_algos.build_fomaml, tff_algos.build_maml):
        weights, _ = problems.run(maml(0, build=build), data, data)
        assert_close(weights, expected, rtol=1e-10, atol=1e-12)


def test_fedavgs_delta_is_the_sum_of_fomaml_gradients():
    steps = 4
    data = [c.batches(2).repeat().take(steps) for c in EQUAL_CLIENTS]
    start = problems.initial_vector()
    fedavg = tff_algos.build_fed_avg(model(), SGD(0.1), client_weighting=UNIFORM)
    delta = start - problems.run(fedavg, data)[0]
    gradients = []
    for j in range(steps):
        process = maml(j, "next_batch", tff_algos.build_fomaml)
        gradients.append(start - problems.run(process, data)[0])
    # FOMAML(0) on the first batch is FedSGD on it.
    assert_close(delta, problems.f32(0.1) * sum(gradients), rtol=1e-10, atol=1e-12)


def test_maml_is_fomaml_up_to_the_local_rate():
    data = cohort()
    gaps = []
    for rate in (0.002, 0.001):
        both = [
            problems.run(
                build(
                    model(),
                    SGD(1.0),
                    client_learning_rate=rate,
                    client_steps_per_round=3,
                    query="all",
                ),
                data,
            )[0]
            for build in (tff_algos.build_maml, tff_algos.build_fomaml)
        ]
        gaps.append(np.linalg.norm(both[0] - both[1]))
    assert gaps[0] > 1e-4
    assert gaps[0] / gaps[1] == pytest.approx(2, abs=0.1)


def test_one_client_alone_sets_the_server_model():
    client = CLIENTS[0]
    weights, _ = problems.run(
        tff_algos.build_fed_avg(model(), SGD(0.1)), [client.batches(2, 3)]
    )
    expected, _ = client.local_sgd(
        problems.initial_vector(), problems.f32(0.1), batch_size=2, epochs=3
    )
    assert_close(weights, expected, rtol=1e-7, atol=1e-8)


def test_centralized_on_one_client_is_a_round_of_fedavg():
    data = [CLIENTS[0].batches(2)]
    centralized = tff_algos.build_centralized(model(), SGD(0.1))
    assert_close(
        problems.run(centralized, data)[0],
        problems.run(tff_algos.build_fed_avg(model(), SGD(0.1)), data)[0],
        rtol=1e-7,
        atol=1e-8,
    )


def test_centralized_keeps_its_optimizer_from_round_to_round():
    adam = learning.optimizers.build_adam(0.1)
    process = tff_algos.build_centralized(model(np.float32), adam)
    client = CLIENTS[0]
    one_by_one = [client.batches(2, dtype=np.float32).skip(i).take(1) for i in range(3)]
    split, _ = problems.run(process, *[[batch] for batch in one_by_one])
    whole, _ = problems.run(process, [client.batches(2, dtype=np.float32)])
    assert_close(split, whole)


PROCESSES = {
    "fedsgd": lambda m: tff_algos.build_fed_sgd(m, SGD(0.1)),
    "fedavg": lambda m: tff_algos.build_fed_avg(m, SGD(0.1)),
    "fedavgm": lambda m: tff_algos.build_fed_avg_m(m, SGD(0.1)),
    "fedprox": lambda m: tff_algos.build_fed_prox(m, SGD(0.1), proximal_strength=0.5),
    "fedproxm": lambda m: tff_algos.build_fed_prox_m(
        m, SGD(0.1), proximal_strength=0.5
    ),
    "mimelite": lambda m: tff_algos.build_mime_lite(m, SGD(0.1, momentum=0.9)),
    "reptile": lambda m: tff_algos.build_reptile(m, SGD(0.1)),
    "uga": lambda m: tff_algos.build_unbiased_gradient_aggregation(
        m, SGD(0.5), client_learning_rate=0.1
    ),
    "maml": lambda m: tff_algos.build_maml(
        m, SGD(0.5), client_learning_rate=0.1, client_steps_per_round=2
    ),
    "fomaml": lambda m: tff_algos.build_fomaml(
        m, SGD(0.5), client_learning_rate=0.1, client_steps_per_round=2
    ),
    "fedshare": lambda m: tff_algos.build_fed_share(m, SGD(0.1)),
    "fedmeta": lambda m: tff_algos.build_fed_meta(
        tff_algos.build_fed_avg(m, SGD(0.1)),
        m,
        tuple(array.astype(np.float32) for array in META),
        meta_learning_rate=0.1,
    ),
}


FAST = ("fedavg", "fedproxm", "mimelite", "uga", "maml", "fedmeta")


@pytest.mark.parametrize("name", some_fast(PROCESSES, FAST))
def test_the_order_of_clients_and_invalid_clients_do_not_matter(name):
    process = PROCESSES[name](model(np.float32))
    data = cohort(epochs=2, dtype=np.float32)
    weights, _ = problems.run(process, data, data)

    permuted = [data[2], data[0], data[3], data[1]]
    assert_close(problems.run(process, permuted, data)[0], weights)

    broken = problems.Client(np.full((3, problems.NUM_FEATURES), np.nan), np.ones(3))
    empty = problems.Client(np.zeros((0, problems.NUM_FEATURES)), np.zeros(0))
    invalid = cohort([broken, empty, broken], dtype=np.float32)
    with_invalid = [invalid[0], data[0], invalid[1], *data[1:], invalid[2]]
    same, output = problems.run(process, data, with_invalid)
    np.testing.assert_array_equal(same, weights)
    assert output.metrics["client_work"]["num_non_finite_clients"] == 2
    assert output.metrics["client_work"]["num_empty_clients"] == 1
    assert np.isfinite(output.metrics["client_work"]["train"]["loss"])


@pytest.mark.parametrize(
    "name", some_fast([n for n in PROCESSES if n != "fedmeta"], FAST[:-1])
)
def test_a_round_without_valid_clients_changes_nothing(name):
    process = PROCESSES[name](model(np.float32))
    data = cohort(epochs=2, dtype=np.float32)
    before = process.next(process.initialize(), data).state
    empty = problems.Client(np.zeros((0, problems.NUM_FEATURES)), np.zeros(0))
    output = process.next(before, cohort([empty, empty], dtype=np.float32))
    assert output.metrics["finalizer"]["num_rejected_rounds"] == 1
    np.testing.assert_array_equal(
        problems.vector_of(process, output.state), problems.vector_of(process, before)
    )
    # The next round goes on as if that one had not been.
    np.testing.assert_array_equal(
        problems.vector_of(process, process.next(output.state, data).state),
        problems.vector_of(process, process.next(before, data).state),
    )
