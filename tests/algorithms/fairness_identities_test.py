"""Exact identities of FedMGDA's family, q-FedAvg and AFL, named after their claims."""

import functools

import numpy as np
import pytest
from tensorflow_federated import learning

import tff_algos
from tests.testing import problems
from tests.testing.numbered_clients import numbered
from tests.testing.speed import some_fast
from tff_algos import clients

SGD = learning.optimizers.build_sgdm
UNIFORM = learning.ClientWeighting.UNIFORM
NUM_EXAMPLES = learning.ClientWeighting.NUM_EXAMPLES
CLIENTS = problems.clients(sizes=(6, 4, 7, 5))
START = problems.initial_vector()
RATE = problems.f32(0.1)


def fed_meta(model, client_optimizer, server_optimizer):
    inner = tff_algos.build_fed_avg(model, client_optimizer, server_optimizer)
    return tff_algos.build_fed_meta(
        inner, model, (CLIENTS[1].x, CLIENTS[1].y), meta_learning_rate=0.1
    )


def fed_sgd(model, client_optimizer, server_optimizer):
    del client_optimizer
    return tff_algos.build_fed_sgd(model, server_optimizer)


def without_client_optimizer(build, **kwargs):
    """For algorithms that take a rate of their own."""

    def build_as_others(model, client_optimizer, server_optimizer):
        del client_optimizer
        return build(model, server_optimizer, client_learning_rate=0.1, **kwargs)

    return build_as_others


# Of AFL's clients 4, 5 and 6 are those that do not count.
AFL = {"num_clients": 7, "mixture_learning_rate": 0.3, "returned_model": "last"}
BUILDERS = {
    "fedavg": (tff_algos.build_fed_avg, {}),
    "fedprox": (tff_algos.build_fed_prox, {"proximal_strength": 0.5}),
    "fedmeta": (fed_meta, {}),
    "fedsgd": (fed_sgd, {}),
    "mimelite": (tff_algos.build_mime_lite, {}),
    "uga": (
        without_client_optimizer(
            tff_algos.build_unbiased_gradient_aggregation, client_epochs_per_round=2
        ),
        {},
    ),
    "maml": (
        without_client_optimizer(tff_algos.build_maml, client_steps_per_round=2),
        {},
    ),
    "fedmgda": (tff_algos.build_fed_mgda, {}),
    "fedmgda_plus": (tff_algos.build_fed_mgda_plus, {}),
    "mgda_prox": (tff_algos.build_mgda_prox, {"proximal_strength": 0.5}),
    "fedavg_n": (tff_algos.build_fed_avg_n, {}),
    "qfedavg": (tff_algos.build_q_fed_avg, {"q": 2.0, "lipschitz": 10.0}),
    "afl": (tff_algos.build_agnostic_federated_learning, AFL),
}
FAIR = ("fedmgda", "fedmgda_plus", "mgda_prox", "fedavg_n", "qfedavg", "afl")


@functools.cache
def process(name, attacked=False, server_rate=1.0, **changes):
    """An algorithm on linear regression; its clients take steps of rate 0.1."""
    model = problems.linear_model()
    if attacked:
        model = clients.attacked_model(model)
    build, kwargs = BUILDERS[name]
    return build(model, SGD(0.1), SGD(server_rate), **kwargs | changes)


def cohort(clients=CLIENTS, batch_size=2, epochs=2):
    return [client.batches(batch_size, epochs) for client in clients]


def one_step_each(clients=CLIENTS):
    return cohort(clients, batch_size=None, epochs=1)


def broken_and_empty():
    """Batches of a client of NaN, of one without examples and of one of NaN."""
    broken = problems.Client(np.full((3, problems.NUM_FEATURES), np.nan), np.ones(3))
    empty = problems.Client(np.zeros((0, problems.NUM_FEATURES)), np.zeros(0))
    return cohort([broken, empty, broken])


def attacked(datasets, **attack):
    """The batches of clients of which the second attacks."""
    return [
        clients.attacked_batches(dataset, **(attack if number == 1 else {}))
        for number, dataset in enumerate(datasets)
    ]


def cohort_for(name, datasets, numbers=None):
    return numbered(datasets, numbers) if name == "afl" else datasets


def after(process, *cohorts):
    weights, _ = problems.run(process, *cohorts)
    return weights


def assert_close(found, expected, rtol=1e-9, atol=1e-10):
    np.testing.assert_allclose(found, expected, rtol=rtol, atol=atol)


def assert_differ(left, right):
    assert np.max(np.abs(left - right)) > 1e-3


def test_fedmgda_without_a_box_is_fedavg_of_the_same_weights():
    data = cohort()
    fed_mgda = process("fedmgda", epsilon=0.0, client_weighting=NUM_EXAMPLES)
    fedavg = after(process("fedavg"), data, data)
    assert_close(after(fed_mgda, data, data), fedavg)
    assert_differ(after(process("fedmgda"), data, data), fedavg)


@pytest.mark.parametrize("who_normalizes", [{}, {"normalize_at": "clients"}])
def test_fedmgda_plus_without_a_box_is_fedavg_n(who_normalizes):
    data = cohort()
    plus = after(process("fedmgda_plus", epsilon=0.0), data, data)
    fedavg_n = process("fedavg_n", **who_normalizes)
    assert_close(plus, after(fedavg_n, data, data))
    assert_differ(plus, after(process("fedmgda_plus"), data, data))


@pytest.mark.parametrize("box", [{}, {"epsilon": 0.1}])
def test_fedmgda_plus_of_two_clients_is_fedavg_n_whatever_the_box(box):
    data = cohort(CLIENTS[:2])
    plus = process("fedmgda_plus", **box)
    assert_close(after(plus, data, data), after(process("fedavg_n"), data, data))


def test_mgda_prox_of_strength_zero_is_fedmgda_plus_to_the_bit():
    data = cohort()
    plus = after(process("fedmgda_plus"), data, data)
    prox = process("mgda_prox", proximal_strength=0.0)
    np.testing.assert_array_equal(after(prox, data, data), plus)
    assert_differ(after(process("mgda_prox"), data, data), plus)


def test_mgda_prox_with_one_local_step_is_fedmgda_plus():
    data = one_step_each()
    assert_close(
        after(process("mgda_prox"), data, data),
        after(process("fedmgda_plus"), data, data),
    )


@pytest.mark.parametrize("lipschitz", [0.1, 7.0])
def test_q_fedavg_with_q_zero_is_uniform_fedavg_whatever_lipschitz(lipschitz):
    data = cohort()
    fair = process("qfedavg", q=0.0, lipschitz=lipschitz)
    uniform = process("fedavg", client_weighting=UNIFORM)
    assert_close(after(fair, data, data), after(uniform, data, data))
    assert_differ(after(process("qfedavg"), data), after(uniform, data))


def test_afl_with_mixture_rate_zero_is_uniform_fedavg():
    data = cohort()
    still = process("afl", mixture_learning_rate=0.0)
    uniform = after(process("fedavg", client_weighting=UNIFORM), data, data)
    assert_close(after(still, numbered(data), numbered(data)), uniform)
    assert_differ(after(process("afl"), numbered(data), numbered(data)), uniform)


def test_afl_with_equal_losses_keeps_its_mixture():
    alike = numbered(one_step_each([CLIENTS[0]] * 4))
    _, output = problems.run(process("afl"), alike, alike)
    np.testing.assert_allclose(output.state.client_work.mixture, [1 / 7] * 7)


@pytest.mark.parametrize(
    ("name", "changes"),
    [("fedmgda", {}), ("qfedavg", {"q": 0.0, "lipschitz": 7.0}), ("afl", {})],
)
def test_one_client_alone_sets_the_server_model(name, changes):
    alone = cohort_for(name, cohort(CLIENTS[:1]))
    expected, _ = CLIENTS[0].local_sgd(START, RATE, batch_size=2, epochs=2)
    assert_close(after(process(name, **changes), alone), expected)


@pytest.mark.parametrize(
    ("name", "server_rate"), [("fedavg_n", 1.0), ("fedmgda_plus", 0.5)]
)
def test_one_client_alone_sets_the_direction_of_a_step_as_long_as_the_rate(
    name, server_rate
):
    alone = cohort(CLIENTS[:1])
    trained, _ = CLIENTS[0].local_sgd(START, RATE, batch_size=2, epochs=2)
    direction = (trained - START) / np.linalg.norm(trained - START)
    weights = after(process(name, server_rate=server_rate), alone)
    assert_close(weights - START, server_rate * direction)


@pytest.mark.parametrize("name", FAIR)
def test_the_order_of_clients_does_not_matter(name):
    data, order = cohort(), [2, 0, 3, 1]
    in_order = cohort_for(name, data)
    permuted = cohort_for(name, [data[k] for k in order], order)
    # Aggregation weights are float32; AFL's are fractions, so their sum rounds.
    np.testing.assert_allclose(
        after(process(name), permuted, permuted),
        after(process(name), in_order, in_order),
        rtol=1e-6 if name == "afl" else 1e-9,
        atol=1e-10,
    )


@pytest.mark.parametrize("name", FAIR)
def test_invalid_clients_are_as_good_as_absent(name):
    data, invalid = cohort(), broken_and_empty()
    valid = cohort_for(name, data)
    mixed = [invalid[0], data[0], invalid[1], *data[1:], invalid[2]]
    mixed = cohort_for(name, mixed, [4, 0, 5, 1, 2, 3, 6])
    weights, output = problems.run(process(name), mixed, mixed)
    assert_close(weights, after(process(name), valid, valid))
    measured = output.metrics["client_work"]
    assert measured["num_non_finite_clients"] == 2
    assert measured["num_empty_clients"] == 1
    assert np.isfinite(measured["train"]["loss"])


@pytest.mark.parametrize("name", FAIR)
def test_a_round_without_valid_clients_changes_nothing(name):
    fair, data = process(name), cohort_for(name, cohort())
    before = fair.next(fair.initialize(), data).state
    output = fair.next(before, cohort_for(name, broken_and_empty(), [4, 5, 6]))
    assert output.metrics["finalizer"]["num_rejected_rounds"] == 1
    np.testing.assert_array_equal(
        problems.vector_of(fair, output.state), problems.vector_of(fair, before)
    )
    # The next round goes on as if that one had not been.
    np.testing.assert_array_equal(
        problems.vector_of(fair, fair.next(output.state, data).state),
        problems.vector_of(fair, fair.next(before, data).state),
    )


@pytest.mark.parametrize(
    "name",
    some_fast(
        [
            "fedavg",
            "uga",
            "fedmgda_plus",
            "afl",
            "fedprox",
            "fedmeta",
            "maml",
            "qfedavg",
        ],
        ["fedavg", "fedmgda_plus", "afl"],
    ),
)
def test_an_attack_that_changes_no_loss_changes_no_bit(name):
    data = cohort(epochs=1)
    clean = cohort_for(name, data)
    weights = after(process(name), clean, clean)
    idle = cohort_for(name, attacked(data, loss_scale=1.0, loss_bias=0.0))
    np.testing.assert_array_equal(
        after(process(name, attacked=True), idle, idle), weights
    )
    scaled = cohort_for(name, attacked(data, loss_scale=2.0))
    assert_differ(after(process(name, attacked=True), scaled, scaled), weights)


@pytest.mark.parametrize("name", ["fedavg", "fedavg_n", "fedmgda", "fedmgda_plus"])
@pytest.mark.parametrize("bias", [1000.0, -5.0])
def test_who_looks_at_no_loss_is_the_same_to_the_bit_under_any_bias(name, bias):
    honest, lying = attacked(cohort()), attacked(cohort(), loss_bias=bias)
    under_attack = process(name, attacked=True)
    np.testing.assert_array_equal(
        after(under_attack, lying, lying), after(under_attack, honest, honest)
    )


@pytest.mark.parametrize("name", ["qfedavg", "afl"])
def test_who_looks_at_losses_turns_to_the_client_that_reports_larger_ones(name):
    trained, _ = CLIENTS[1].local_sgd(START, RATE, batch_size=2, epochs=2)

    def cosine(**attack):
        """Of the angle between a step and the attacker's own."""
        data = cohort_for(name, attacked(cohort(), **attack))
        state = process(name, attacked=True).initialize()
        if name == "afl":
            # AFL hears losses in one round and heeds them in the next.
            heard = process(name, attacked=True).next(state, data).state.client_work
            state = state._replace(client_work=heard)
        state = process(name, attacked=True).next(state, data).state
        step = problems.vector_of(process(name, attacked=True), state) - START
        own = trained - START
        return step @ own / np.linalg.norm(step) / np.linalg.norm(own)

    assert cosine(loss_bias=10.0) > cosine() + 0.1


@pytest.mark.parametrize("scale", [0.1, 10.0, 1e6])
@pytest.mark.parametrize("name", ["fedmgda_plus", "fedavg_n"])
def test_a_scaled_loss_and_one_local_step_change_no_combination_of_directions(
    name, scale
):
    honest, scaled = one_step_each(), attacked(one_step_each(), loss_scale=scale)
    assert_close(
        after(process(name, attacked=True), scaled), after(process(name), honest)
    )


def test_a_scaled_loss_moves_fedavg_by_the_share_of_what_it_adds_to_the_update():
    honest, scaled = one_step_each(), attacked(one_step_each(), loss_scale=10.0)
    delta = RATE * CLIENTS[1].gradient(START)
    share = 4 / (6 + 4 + 7 + 5)
    assert_close(
        after(process("fedavg", attacked=True), scaled),
        after(process("fedavg"), honest) - share * (10 - 1) * delta,
    )


def test_a_scaled_loss_moves_fedmgda():
    honest, scaled = one_step_each(), attacked(one_step_each(), loss_scale=10.0)
    assert_differ(
        after(process("fedmgda", attacked=True), scaled),
        after(process("fedmgda"), honest),
    )


@pytest.mark.parametrize(
    "name", ["fedavg", "fedprox", "fedsgd", "uga", "maml", "mimelite"]
)
def test_a_scaled_update_adds_the_attackers_share_of_it(name):
    data = cohort(epochs=1)
    scaled = attacked(data, update_scale=10.0)
    honest, alone = (after(process(name), each) for each in (data, data[1:2]))
    # MAML's clients count alike.
    share = 1 / 4 if name == "maml" else 4 / (6 + 4 + 7 + 5)
    assert_close(
        after(process(name, attacked=True), scaled),
        honest + share * (10 - 1) * (alone - START),
    )


@pytest.mark.parametrize("scale", [0.1, 10.0, 1e6])
@pytest.mark.parametrize("name", ["fedmgda_plus", "mgda_prox", "fedavg_n"])
def test_a_scaled_update_changes_no_combination_of_directions(name, scale):
    scaled = attacked(cohort(), update_scale=scale)
    assert_close(
        after(process(name, attacked=True), scaled), after(process(name), cohort())
    )


@pytest.mark.parametrize("name", ["fedmgda", "qfedavg", "afl"])
def test_a_scaled_update_moves_who_does_not_normalize(name):
    honest, scaled = (
        cohort_for(name, attacked(cohort(), update_scale=scale)) for scale in (1, 10)
    )
    under_attack = process(name, attacked=True)
    assert_differ(after(under_attack, scaled), after(under_attack, honest))


@pytest.mark.parametrize("attack", [{"loss_scale": 1e38}, {"update_scale": np.inf}])
@pytest.mark.parametrize("name", ["fedmgda_plus", "qfedavg", "afl"])
def test_an_attacker_that_diverges_is_as_good_as_absent(name, attack):
    honest = cohort(epochs=6)
    diverging = cohort_for(name, attacked(honest, **attack))
    weights, output = problems.run(process(name, attacked=True), diverging)
    assert output.metrics["client_work"]["num_non_finite_clients"] == 1
    others = cohort_for(name, [honest[k] for k in (0, 2, 3)], [0, 2, 3])
    assert_close(weights, after(process(name), others))
