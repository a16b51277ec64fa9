"""Sums weighed by powers of losses: golden numbers, scales, invalid clients."""

import functools

import numpy as np
import pytest
import tensorflow_federated as tff

from tff_algos.aggregators import QFairFactory

VALUE = tff.TensorType(np.float64, [2])
LOSS = tff.TensorType(np.float32)


@functools.cache
def process_of(q, lipschitz):
    return QFairFactory(q, lipschitz).create(VALUE, LOSS)


def rounds(q, lipschitz, *cohorts):
    """The results of rounds, each given as deltas and losses."""
    process = process_of(q, lipschitz)
    state, outputs = process.initialize(), []
    for deltas, losses in cohorts:
        values = [np.asarray(delta, np.float64) for delta in deltas]
        output = process.next(state, values, [np.float32(loss) for loss in losses])
        state = output.state
        outputs.append(output)
    return outputs


def formula(deltas, losses, q, lipschitz):
    deltas, losses = np.asarray(deltas, float), np.asarray(losses, float)
    gradients = lipschitz * deltas
    squares = np.sum(gradients**2, axis=1)
    top = np.sum(losses[:, None] ** q * gradients, axis=0)
    return top / np.sum(q * losses ** (q - 1) * squares + lipschitz * losses**q)


@pytest.mark.parametrize(
    ("q", "lipschitz", "weight"), [(1, 1, 0.2), (2, 0.5, 0.375), (0, 3, 0.0)]
)
def test_numbers_are_those_computed_by_hand(q, lipschitz, weight):
    # Scalars: w = 0, local models 1 and -1, losses 2 and 1; the step is -update.
    deltas, losses = [(-1, 0), (1, 0)], (2, 1)
    (output,) = rounds(q, lipschitz, (deltas, losses))
    np.testing.assert_allclose(output.result, [-weight, 0], atol=1e-12)


@pytest.mark.parametrize("q", [0.0, 0.5, 1.0, 5.0])
def test_every_round_is_the_papers_fraction(q):
    rng = np.random.default_rng(1)
    cohorts = [
        (rng.normal(size=[4, 2]), rng.uniform(0.5, 3, 4).astype(np.float32))
        for _ in range(3)
    ]
    outputs = rounds(q, 2.0, *cohorts)
    for (deltas, losses), output in zip(cohorts, outputs, strict=True):
        np.testing.assert_allclose(
            output.result, formula(deltas, losses, q, 2.0), rtol=1e-9
        )
        assert output.measurements["mean_loss"] == pytest.approx(
            np.mean(losses), rel=1e-6
        )


@pytest.mark.parametrize("lipschitz", [0.1, 7.0])
def test_q_zero_is_the_uniform_mean_whatever_the_losses(lipschitz):
    deltas = [(1, 2), (3, -4), (5, 9)]
    (output,) = rounds(0.0, lipschitz, (deltas, (0.1, 50.0, 3e7)))
    np.testing.assert_allclose(output.result, np.mean(deltas, axis=0), rtol=1e-12)


def test_one_client_takes_a_shorter_step_than_its_own():
    (output,) = rounds(2.0, 0.5, ([(3.0, 4.0)], [0.7]))
    gradient = 0.5 * np.array([3.0, 4.0])
    loss = np.float64(np.float32(0.7))
    expected = gradient * loss / (2 * np.dot(gradient, gradient) + 0.5 * loss)
    np.testing.assert_allclose(output.result, expected, rtol=1e-9)


def test_losses_whose_powers_overflow_are_divided_by_the_last_mean():
    deltas, losses = [(1, 0), (0, 1)], (2e4, 1e4)
    first, second = rounds(10.0, 1.0, (deltas, losses), (deltas, losses))
    expected = formula(deltas, losses, 10.0, 1.0)
    np.testing.assert_allclose(second.result, expected, rtol=1e-9)
    # Nothing told the scale before the first round, but float64 still holds it.
    np.testing.assert_allclose(first.result, expected, rtol=1e-9)


def test_losses_near_zero_and_clients_without_one_are_no_division_by_zero():
    deltas = [(1.0, 0.0), (0.0, 1.0), (np.nan, 1.0), (7.0, 7.0)]
    losses = (1.0, 1e-10, 5.0, 0.0)
    (output,) = rounds(0.5, 1.0, (deltas, losses))
    np.testing.assert_allclose(
        output.result, formula(deltas[:2], losses[:2], 0.5, 1.0), rtol=1e-5
    )
    assert output.measurements["num_non_finite_clients"] == 1


def test_with_nobody_left_there_is_no_number_and_the_scale_stays():
    good = ([(1, 0)], [4.0])
    none = ([(np.inf, 0)], [4.0])
    _, empty, again = rounds(1.0, 1.0, good, none, good)
    assert np.all(np.isnan(empty.result))
    assert np.isnan(empty.measurements["mean_loss"]) and empty.state == 4.0
    np.testing.assert_allclose(again.result, formula(*good, 1.0, 1.0), rtol=1e-12)


def test_the_denominator_may_exceed_half_precision():
    process = QFairFactory(1.0, 100.0).create(tff.TensorType(np.float16, [2]), LOSS)
    deltas = [np.array([1, 0], np.float16)] * 10
    output = process.next(process.initialize(), deltas, [np.float32(1.0)] * 10)
    expected = formula(deltas, [1.0] * 10, 1.0, 100.0)
    np.testing.assert_allclose(output.result, expected, rtol=1e-3)
    assert output.result[0] > 0


def test_the_numerators_may_exceed_half_precision():
    half = tff.TensorType(np.float16, [1])
    process = QFairFactory(2.0, 1000.0).create(half, LOSS)
    deltas, losses = [(np.float16(7.0),)] * 10, [np.float32(100.0)] * 10
    output = process.next(
        process.initialize(), [np.array(d, np.float16) for d in deltas], losses
    )
    expected = formula(deltas, losses, 2.0, 1000.0)
    np.testing.assert_allclose(output.result, expected, rtol=1e-3)
    assert output.result.dtype == np.float16


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((-1.0, 1.0), "q=-1.0 .*: expected a number >= 0"),
        ((1.0, 0.0), "lipschitz=0.0 .*: expected a number > 0"),
        ((np.inf, 1.0), "q=inf .*: expected a number >= 0"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        QFairFactory(*arguments)


def test_clients_with_a_negative_loss_are_left_out_and_counted():
    good = ([(1.0, 2.0), (3.0, -1.0)], [2.0, 0.5])
    (output,) = rounds(1.0, 2.0, ([*good[0], (9.0, 9.0)], [*good[1], -1.0]))
    np.testing.assert_allclose(output.result, formula(*good, 1.0, 2.0), rtol=1e-12)
    assert output.measurements["num_negative_losses"] == 1
    assert output.measurements["num_non_finite_clients"] == 0
