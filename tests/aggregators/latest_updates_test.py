"""The mean of everybody's latest update: golden trace, NumPy, invalid clients."""

import collections
import functools

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tff_algos.aggregators import LatestUpdatesFactory, latest_updates

FLOAT32 = tff.TensorType(np.float32)
UPDATE = tff.TensorType(np.float64, [2])


@functools.cache
def process_of(num_clients, update_type=UPDATE, **kwargs):
    values = collections.OrderedDict(client_index=np.int32, update=update_type)
    factory = LatestUpdatesFactory(num_clients, **kwargs)
    return factory.create(tff.to_type(values), FLOAT32)


def rounds(process, *cohorts, dtype=np.float64):
    """The outputs of rounds; a cohort is updates by client, or with weights besides."""
    state, outputs = process.initialize(), []
    for cohort in cohorts:
        updates, weights = cohort if isinstance(cohort, tuple) else (cohort, {})
        values = [
            collections.OrderedDict(client_index=k, update=np.asarray(update, dtype))
            for k, update in updates.items()
        ]
        weights = [np.float32(weights.get(k, 1.0)) for k in updates]
        output = process.next(state, values, weights)
        state = output.state
        outputs.append(output)
    return outputs


def results(outputs):
    return np.array([output.result for output in outputs])


def test_a_round_follows_the_trace_computed_by_hand():
    # N = 3, constant deltas 1, 2, 4; w goes to -1/3, -4/3, -11/3, -6.
    deltas = {0: 1.0, 1: 2.0, 2: 4.0}
    cohorts = [{k: deltas[k] for k in s} for s in ([0], [1], [0, 2], [0, 1, 2])]
    process = process_of(3, tff.TensorType(np.float64))
    w = -np.cumsum(results(rounds(process, *cohorts)))
    np.testing.assert_allclose(w, [-1 / 3, -4 / 3, -11 / 3, -6], rtol=1e-12)


def random_cohorts():
    rng = np.random.default_rng(0)
    cohorts = ([3, 1], [1], [], [0, 3], [2, 0, 1], [3])
    return [{k: rng.normal(size=2) for k in cohort} for cohort in cohorts]


@pytest.mark.parametrize("mean_over", ["all", "seen"])
@pytest.mark.parametrize("decay", [1.0, 0.5])
def test_clients_that_are_away_count_with_what_they_sent_last(mean_over, decay):
    cohorts = random_cohorts()
    outputs = rounds(process_of(4, mean_over=mean_over, decay=decay), *cohorts)
    table, seen = np.zeros([4, 2]), set()
    for cohort, output in zip(cohorts, outputs, strict=True):
        for client, update in cohort.items():
            table[client] = update
        seen |= cohort.keys()
        count = 4 if mean_over == "all" else len(seen)
        if cohort:
            np.testing.assert_allclose(
                output.result, np.sum(table, axis=0) / count, rtol=1e-12
            )
        assert output.measurements["num_seen_clients"] == len(seen)
        # As the learning rate: what was sent at an earlier rate shrinks with it.
        table *= decay


def test_updates_that_shrink_for_ever_are_remembered_for_ever():
    num_rounds, decay = 60, 0.1
    cohorts = [{number % 2: decay**number} for number in range(num_rounds)]
    process = process_of(2, FLOAT32, decay=decay)
    found = results(rounds(process, *cohorts, dtype=np.float32))
    # The other client's update of the round before has shrunk like the rate.
    expected = decay ** np.arange(num_rounds)
    np.testing.assert_allclose(found[1:], expected[1:], rtol=1e-4, atol=1e-37)


def test_half_precision_updates_that_shrink_are_remembered_too():
    # The rows, of updates divided by 0.7 to the power of the round, are rescaled in time.
    process = process_of(2, tff.TensorType(np.float16), decay=0.7)
    cohorts = [{number % 2: 1000.0} for number in range(60)]
    found = results(rounds(process, *cohorts, dtype=np.float16))
    np.testing.assert_allclose(found[1:], (1000.0 + 700.0) / 2, rtol=1e-2)


def test_a_wider_table_is_summed_in_its_precision():
    process = process_of(2, FLOAT32, memory_dtype="float64")
    cohort = {0: 2.0**24, 1: 2.0}, {0: 1.0}
    first, second = rounds(process, *cohort, dtype=np.float32)
    assert first.state.rows.dtype == np.float64
    assert (first.result, second.result) == (2.0**23 + 1.0, 1.5)


@pytest.mark.parametrize("mean_over", ["all", "seen"])
def test_who_waits_for_all_has_a_mean_of_zero_until_then(mean_over):
    cohorts = [{0: (1, 2)}, {2: (4, 4)}, {1: (4, 0)}, {0: (7, 5)}]
    process = process_of(3, mean_over=mean_over, wait_for_all=True, decay=0.5)
    expected = [(0, 0), (0, 0), (25 / 12, 5 / 6), (10 / 3, 2)]
    np.testing.assert_allclose(results(rounds(process, *cohorts)), expected)


def test_if_all_take_part_it_is_the_mean():
    updates = {k: np.array([k, k**2 + 1.0]) for k in (2, 0, 3, 1)}
    first, second = rounds(process_of(4), updates, updates)
    mean = np.mean(list(updates.values()), axis=0)
    np.testing.assert_allclose([first.result, second.result], [mean, mean])


def test_of_one_client_it_is_its_update():
    first, second = rounds(process_of(1), {0: (1, 2)}, {0: (3, 4)})
    np.testing.assert_array_equal([first.result, second.result], [(1, 2), (3, 4)])


def test_weights_only_tell_who_counts():
    updates = {0: (1, 2), 1: (3, 4), 2: (100, 100)}
    weighted = (updates, {0: 5.0, 1: 0.1, 2: 0.0})
    outputs = rounds(process_of(4), weighted, {0: (1, 2)})
    np.testing.assert_allclose(results(outputs), [(1, 1.5)] * 2)
    assert outputs[0].measurements["num_seen_clients"] == 2


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_of_who_is_invalid_what_was_sent_before_stays(bad):
    outputs = rounds(
        process_of(4), {0: (4, 8), 1: (0, 4)}, {0: (bad, 0), 2: (8, 0), 3: (0, bad)}
    )
    np.testing.assert_allclose(results(outputs), [(1, 3), (3, 3)])
    measured = outputs[1].measurements
    assert measured["num_non_finite_clients"] == 2
    assert measured["num_seen_clients"] == 3


@pytest.mark.parametrize("mean_over", ["all", "seen"])
def test_with_nobody_left_the_result_is_nan_and_nothing_is_forgotten(mean_over):
    outputs = rounds(
        process_of(4, mean_over=mean_over),
        {0: (4, 8)},
        {},
        {0: (np.nan, 0)},
        ({1: (1, 1)}, {1: 0.0}),
        {0: (4, 8)},
    )
    found = results(outputs)
    assert np.all(np.isnan(found[1:4]))
    np.testing.assert_array_equal(found[4], found[0])
    for rows in (outputs[0].state.rows, outputs[3].state.rows):
        np.testing.assert_array_equal(rows, [(4, 8), (0, 0), (0, 0), (0, 0)])


def test_nobody_in_the_first_round_is_no_division_by_zero():
    outputs = rounds(process_of(4, mean_over="seen"), {}, {2: (1, 2)})
    assert np.all(np.isnan(outputs[0].result))
    np.testing.assert_allclose(outputs[1].result, (1, 2))


def test_the_order_of_the_clients_does_not_matter():
    cohorts = random_cohorts()
    permuted = [dict(reversed(cohort.items())) for cohort in cohorts]
    np.testing.assert_allclose(
        results(rounds(process_of(4), *permuted)),
        results(rounds(process_of(4), *cohorts)),
        rtol=1e-12,
    )


def test_half_precision_rows_round_what_is_remembered():
    process = process_of(4, tff.TensorType(np.float32, [2]), memory_dtype="bfloat16")
    cohorts = random_cohorts()
    found = rounds(process, *cohorts, dtype=np.float32)
    exact = rounds(process_of(4), *cohorts)
    assert str(found[-1].state.rows.dtype) == "bfloat16"
    assert found[-1].result.dtype == np.float32
    # Their mean is taken in the updates' precision.
    np.testing.assert_allclose(
        found[-1].result, np.mean(found[-1].state.rows.astype("f"), axis=0), rtol=1e-6
    )
    gap = np.abs(found[-1].result - exact[-1].result)
    assert 0 < np.max(gap) < 0.02 * np.max(np.abs(exact[-1].result))


@pytest.mark.parametrize("most", [1, 6, 7, 100])
def test_a_table_is_summed_in_parts(most, monkeypatch):
    monkeypatch.setattr(latest_updates, "_MOST_CAST", most)
    rows = np.arange(15.0).reshape(5, 3)
    found = tf.function(latest_updates._sum)(tf.constant(rows, tf.bfloat16), tf.float32)
    assert found.dtype == tf.float32
    np.testing.assert_array_equal(found, rows.sum(axis=0))


def test_structures_of_tensors_of_their_own_types():
    update_type = (tff.TensorType(np.float64, [2, 2]), tff.TensorType(np.float32))
    value_type = collections.OrderedDict(client_index=np.int32, update=update_type)
    process = LatestUpdatesFactory(2).create(tff.to_type(value_type), FLOAT32)
    value = collections.OrderedDict(
        client_index=1, update=(np.full([2, 2], 1e-12), np.float32(6))
    )
    output = process.next(process.initialize(), [value], [np.float32(1)])
    matrix, scalar = output.result
    np.testing.assert_allclose(matrix, np.full([2, 2], 5e-13), rtol=1e-12)
    assert scalar == 3 and scalar.dtype == np.float32
    assert output.state.rows[0].shape == (2, 2, 2)
    assert output.state.seen.tolist() == [False, True]


@pytest.mark.parametrize("number", [-1, 4])
def test_a_number_that_no_client_has_is_refused(number):
    with pytest.raises(Exception, match=rf"\[{number}\]|\[0, 4\)"):
        rounds(process_of(4), {number: (1, 2)})


@pytest.mark.parametrize(
    ("num_clients", "kwargs", "message"),
    [
        (0, {}, "num_clients=0 .*: expected an integer >= 1"),
        (2.0, {}, "num_clients=2.0 .*: expected an integer >= 1"),
        (2, {"decay": 0.0}, r"decay=0.0 .*: expected a number in \(0, 1\]"),
        (2, {"decay": np.nan}, r"decay=nan .*: expected a number in \(0, 1\]"),
        (2, {"mean_over": "some"}, "mean_over='some' .*: expected one of all, seen"),
        (
            2,
            {"memory_dtype": "int8"},
            "memory_dtype='int8' .*: expected one of bfloat16",
        ),
    ],
)
def test_bad_arguments_are_named(num_clients, kwargs, message):
    with pytest.raises(ValueError, match=message):
        LatestUpdatesFactory(num_clients, **kwargs)


@pytest.mark.parametrize(
    ("value_type", "message"),
    [
        (FLOAT32, "value_type <client_index=int32, update=...>, found float32"),
        (
            collections.OrderedDict(client_index=np.int64, update=np.float32),
            "value_type <client_index=int32, update=...>, found <client_index=int64",
        ),
        (
            collections.OrderedDict(update=np.float32, client_index=np.int32),
            "value_type <client_index=int32, update=...>",
        ),
        (
            collections.OrderedDict(client_index=np.int32, update=np.int32),
            "floating point tensors, found int32",
        ),
        (
            collections.OrderedDict(
                client_index=np.int32, update=tff.TensorType(np.float32, [None])
            ),
            "tensors of known shape, found",
        ),
    ],
)
def test_types_of_anything_else_are_named(value_type, message):
    with pytest.raises(TypeError, match=message):
        LatestUpdatesFactory(2).create(tff.to_type(value_type), FLOAT32)


def test_a_client_that_is_twice_in_a_round_is_refused():
    process = process_of(4)
    values = [
        collections.OrderedDict(
            client_index=np.int32(1), update=np.full([2], number, np.float64)
        )
        for number in (1, 2)
    ]
    with pytest.raises(Exception, match=r"each client once in a round.*\[1 1\]"):
        process.next(process.initialize(), values, [np.float32(1)] * 2)


def test_a_tensor_without_elements_is_no_obstacle():
    update = tff.to_type(
        collections.OrderedDict(
            w=tff.TensorType(np.float32, [2]), e=tff.TensorType(np.float32, [0, 3])
        )
    )
    process = process_of(2, update)
    value = collections.OrderedDict(
        client_index=np.int32(1),
        update=collections.OrderedDict(
            w=np.array([2, 4], np.float32), e=np.zeros([0, 3], np.float32)
        ),
    )
    output = process.next(process.initialize(), [value], [np.float32(1)])
    np.testing.assert_array_equal(output.result["w"], [1, 2])
    assert output.result["e"].shape == (0, 3)
