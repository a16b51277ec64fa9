"""What attacks do to algorithms: who is immune to what, and who is moved how far."""

import numpy as np
import pytest

from tests.testing import problems, remembering_identities, remembering_processes
from tests.testing.fair_processes import (
    CLIENTS,
    RATE,
    after,
    assert_close,
    assert_differ,
    attacked,
    cohort,
    cohort_for,
    one_step_each,
    process,
)
from tests.testing.speed import some_fast

START = problems.initial_vector()


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
            "fedsgd",
            "fedshare",
            "mimelite",
            "reptile",
            "fomaml",
            "fedmgda",
            "mgda_prox",
            "fedavg_n",
        ],
        ["fedavg", "fedmgda_plus", "afl", "mimelite"],
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


@pytest.mark.parametrize(
    "name", some_fast(remembering_processes.ALGORITHMS, ["scaffold", "mifa", "fedmlb"])
)
def test_an_attack_that_changes_no_loss_changes_no_bit_of_who_remembers(name):
    data = remembering_processes.cohort(model=remembering_processes.model_of(name))

    def under_attack(**attack):
        lying = dict(zip(data, attacked(data.values(), **attack), strict=True))
        under = remembering_processes.process(name, "attacked")
        return remembering_identities.after(under, lying, lying)

    clean = remembering_processes.process(name)
    weights = remembering_identities.after(clean, data, data)
    np.testing.assert_array_equal(
        under_attack(loss_scale=1.0, loss_bias=0.0, update_scale=1.0), weights
    )
    assert_differ(under_attack(loss_scale=2.0), weights)


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


@pytest.mark.parametrize("name", ["fedmgda_plus", "fedavg_n"])
def test_a_scaled_loss_and_many_local_steps_change_combinations_of_directions(name):
    honest = after(process(name), cohort())
    # It trains to elsewhere. An update that is scaled after training moves nobody.
    loss, update = (
        after(process(name, attacked=True), attacked(cohort(), **attack))
        for attack in ({"loss_scale": 3.0}, {"update_scale": 3.0})
    )
    assert_differ(loss, honest)
    assert_close(update, honest)


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
