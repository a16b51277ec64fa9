"""The combination of least norm: golden vectors, invariances, invalid clients."""

import functools

import numpy as np
import pytest
import scipy.optimize
import tensorflow_federated as tff

import tff_algos
from tests.testing.float32_processes import functional
from tff_algos.aggregators import MinNormFactory, NormalizedMeanFactory

FLOAT = np.float64
NORMALIZED_MEAN = NormalizedMeanFactory()
FOUR = [(1, 2, 0), (2, -1, 1), (-1, 1, 3), (0, 1, -1)]
# Updates; epsilon; the combination. All by hand; lambda_0 is uniform.
GOLDEN = [
    ([(1, 0), (0, 2)], 1, (0.8, 0.4)),
    ([(1, 0), (0, 2)], 0.1, (0.6, 0.8)),
    ([(1, 0), (-1, 0)], 1, (0, 0)),
    ([(1, 0), (3, 0)], 1, (1, 0)),
    ([(1, 0), (3, 0)], 0.25, (1.5, 0)),
    ([(1, 1), (1, -1), (10, 0)], 1, (1, 0)),
    ([(1, 0, 0), (0, 2, 0), (0, 0, 3)], 1, (36 / 49, 18 / 49, 12 / 49)),
    (FOUR, 1, (8 / 21, 10 / 21, 2 / 21)),
    (FOUR, 0.15, (10 / 17, 7.5 / 17, 7.5 / 17)),
]


@functools.cache
def process_of(factory, size, dtype):
    return factory.create(
        tff.to_type([(dtype, [size - 1]), dtype]), tff.TensorType(np.float32)
    )


@functools.cache
def min_norm(**rule):
    return MinNormFactory(**rule)


def combine(updates, weights=None, factory=None, dtype=FLOAT, **rule):
    """The aggregate of updates, each cut into a scalar and the rest."""
    updates = [np.asarray(update, dtype) for update in updates]
    process = process_of(factory or min_norm(**rule), len(updates[0]), dtype)
    output = process.next(
        process.initialize(),
        [(update[1:], update[0]) for update in updates],
        [np.float32(w) for w in (weights or [1.0] * len(updates))],
    )
    rest, first = output.result
    return np.append(first, rest), output.measurements


def random_updates(count, size=12, seed=0):
    rng = np.random.default_rng(seed)
    common = rng.normal(size=size)
    scales = rng.exponential(size=[count, 1])
    return list(scales * (common + rng.normal(size=[count, size])))


@pytest.mark.parametrize(("updates", "epsilon", "expected"), GOLDEN)
def test_combinations_are_those_computed_by_hand(updates, epsilon, expected):
    found, measurements = combine(updates, epsilon=epsilon)
    np.testing.assert_allclose(found, expected, atol=1e-10)
    largest = max(np.dot(update, update) for update in updates)
    assert measurements["qp_gap"] <= 1e-10 * largest
    assert measurements["qp_fallbacks"] == 0


def test_weights_are_measured():
    _, measurements = combine([(1, 0), (0, 2)], epsilon=0.1)
    assert measurements["lambda_min"] == pytest.approx(0.4)
    assert measurements["lambda_max"] == pytest.approx(0.6)
    # Half of (1, 2).
    assert measurements["base_update_norm"] == pytest.approx(np.sqrt(1.25))
    units = {"normalize": True, "median_norm_lr": True}
    found, measurements = combine([(2, 0), (0, 4)], epsilon=0.0, **units)
    # Half of (1, 1), times the median of the norms.
    assert measurements["base_update_norm"] == pytest.approx(3 * np.sqrt(0.5))
    assert np.linalg.norm(found) == pytest.approx(3 * np.sqrt(0.5))


@pytest.mark.parametrize("normalize", [False, True])
def test_no_client_is_worse_off_at_first_order(normalize):
    updates = random_updates(6)
    found, _ = combine(updates, normalize=normalize)
    units = [u / np.linalg.norm(u) if normalize else u for u in updates]
    assert np.linalg.norm(found) > 0.1
    assert min(np.dot(u, found) for u in units) >= np.dot(found, found) * (1 - 1e-9)


@pytest.mark.parametrize("seed", range(5))
def test_it_is_the_least_squares_of_scipy(seed):
    rows = np.array(random_updates(5, 8, seed))
    # With a heavy row that asks for weights that sum to one.
    heavy = 1e4
    matrix = np.vstack([rows.T, np.full([1, 5], heavy)])
    weights, _ = scipy.optimize.nnls(matrix, np.append(np.zeros(8), heavy))
    found, _ = combine(rows)
    np.testing.assert_allclose(found, weights / weights.sum() @ rows, atol=1e-6)


@pytest.mark.parametrize("weights", [[1, 1, 1, 1], [3, 1, 2, 4]])
def test_epsilon_zero_is_the_weighted_mean(weights):
    updates = random_updates(4)
    found, _ = combine(updates, weights, epsilon=0.0)
    np.testing.assert_allclose(
        found, np.average(updates, axis=0, weights=weights), rtol=1e-12
    )


def test_epsilon_zero_with_directions_is_their_weighted_mean():
    updates, weights = random_updates(4), [3, 1, 2, 4]
    units = [u / np.linalg.norm(u) for u in updates]
    expected = np.average(units, axis=0, weights=weights)
    found, _ = combine(updates, weights, epsilon=0.0, normalize=True)
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    found, _ = combine(updates, weights, NORMALIZED_MEAN)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_two_directions_of_equal_weight_are_averaged_whatever_epsilon():
    updates = random_updates(2)
    mean = np.mean([u / np.linalg.norm(u) for u in updates], axis=0)
    for epsilon in (0.0, 0.2, 1.0):
        found, _ = combine(updates, epsilon=epsilon, normalize=True)
        np.testing.assert_allclose(found, mean, rtol=1e-9)


@pytest.mark.parametrize("scale", [1e-6, 0.1, 1e6])
def test_directions_do_not_depend_on_how_long_an_update_is(scale):
    updates = random_updates(5)
    updates.sort(key=np.linalg.norm)
    scaled = [updates[0] * scale, *updates[1:]]
    for factory in (min_norm(normalize=True), NORMALIZED_MEAN):
        before, _ = combine(updates, factory=factory)
        after, _ = combine(scaled, factory=factory)
        np.testing.assert_allclose(after, before, rtol=1e-6, atol=1e-9)
    before, _ = combine(updates)
    after, _ = combine(scaled)
    assert np.max(np.abs(after - before)) > 1e-3


@pytest.mark.parametrize("count", [1, 4, 5])
@pytest.mark.parametrize("num_blocks", [1, 3])
def test_directions_may_be_as_long_as_the_median_update(count, num_blocks):
    updates = random_updates(count)
    directions, _ = combine(updates, normalize=True)
    found, _ = combine(
        updates, normalize=True, median_norm_lr=True, num_blocks=num_blocks
    )
    median = np.median(np.linalg.norm(updates, axis=1))
    np.testing.assert_allclose(found, median * directions, rtol=1e-9, atol=1e-12)


def test_the_median_norm_is_of_those_who_take_part():
    three, four, nothing = (3, 0), (0, 4), (0, 0)
    updates = [three, nothing, four, (100, 100), (np.nan, 1)]
    found, _ = combine(updates, [1, 1, 1, 0, 1], normalize=True, median_norm_lr=True)
    np.testing.assert_allclose(found, [1.75, 1.75], rtol=1e-12)
    for nobody in ([nothing, nothing], [1, 1]), ([three, four], [0, 0]):
        expected, _ = combine(*nobody, normalize=True)
        found, _ = combine(*nobody, normalize=True, median_norm_lr=True)
        np.testing.assert_array_equal(found, expected)


def test_the_order_of_the_clients_does_not_matter():
    updates, weights = random_updates(5), [1.0, 2.0, 3.0, 4.0, 5.0]
    order = [3, 0, 4, 1, 2]
    before, _ = combine(updates, weights, epsilon=0.1)
    after, _ = combine(
        [updates[k] for k in order], [weights[k] for k in order], epsilon=0.1
    )
    np.testing.assert_allclose(after, before, rtol=1e-9, atol=1e-12)


def test_the_wider_the_box_the_shorter_the_combination():
    updates = random_updates(6)
    norms = [
        np.linalg.norm(combine(updates, epsilon=epsilon)[0])
        for epsilon in (0.0, 0.05, 0.1, 0.5, 1.0)
    ]
    assert norms[-1] < 0.9 * norms[0]
    assert all(np.diff(norms) <= 1e-9)


@pytest.mark.parametrize("num_blocks", [2, 5])
def test_blocks_of_columns_give_what_all_columns_give(num_blocks):
    updates, weights = random_updates(5), [1.0, 2.0, 0.0, 4.0, 5.0]
    # Equal updates share their weight.
    updates[4] = updates[1]
    for rule in ({"epsilon": 0.1}, {"normalize": True}):
        expected, expected_measurements = combine(updates, weights, **rule)
        found, measurements = combine(updates, weights, num_blocks=num_blocks, **rule)
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)
        assert list(measurements) == list(expected_measurements)
        assert measurements["lambda_max"] == pytest.approx(
            expected_measurements["lambda_max"], rel=1e-4
        )


def test_no_weight_exceeds_the_cap():
    updates = [(1.0, 0.0), (0.0, 5.0), (0.0, 6.0), (5.0, 5.0)]
    _, free = combine(updates)
    assert free["lambda_max"] > 0.9
    _, capped = combine(updates, cap=0.4)
    assert capped["lambda_max"] == pytest.approx(0.4)
    found, equal = combine(updates, cap=0.1)
    assert equal["lambda_min"] == equal["lambda_max"] == pytest.approx(0.25)
    np.testing.assert_allclose(found, np.mean(updates, axis=0))
    # lambda_0 = (0.7, 0.1, 0.1, 0.1) exceeds it, and goes to the nearest that does not.
    found, _ = combine(updates, [7, 1, 1, 1], cap=0.4, epsilon=0.0)
    np.testing.assert_allclose(
        found, np.average(updates, axis=0, weights=[0.4, 0.2, 0.2, 0.2]), rtol=1e-9
    )


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("rule", [{}, {"normalize": True}, {"num_blocks": 3}])
def test_clients_without_weight_or_with_nan_are_as_good_as_absent(rule, dtype):
    rule = {"epsilon": 0.2, "dtype": dtype, **rule}
    first, *others = random_updates(4)
    expected, _ = combine([first, *others[:2]], [1, 2, 3], **rule)
    one_nan, one_infinite = (
        np.where(np.arange(12) == 5, broken, 1.0) for broken in (np.nan, -np.inf)
    )
    found, measurements = combine(
        [first, one_nan, *others, first, one_infinite],
        [1, 9, 2, 3, 0, np.inf, 1],
        **rule,
    )
    rtol = 1e-9 if dtype == np.float64 else 1e-5
    np.testing.assert_allclose(found, expected, rtol=rtol)
    assert measurements["num_non_finite_clients"] == 3
    assert measurements["qp_fallbacks"] == 0


def test_updates_of_zero_are_left_out_or_stop_the_round():
    updates = [*random_updates(3), np.zeros(12)]
    for normalize in (False, True):
        without, _ = combine(updates[:3], normalize=normalize)
        found, measurements = combine(updates, normalize=normalize)
        np.testing.assert_allclose(found, without, rtol=1e-9)
        assert measurements["num_zero_updates"] == 1
        found, measurements = combine(
            updates, normalize=normalize, zero_update_policy="keep"
        )
        np.testing.assert_allclose(found, np.zeros(12), atol=1e-12)
        assert measurements["num_zero_updates"] == 1
        # An update that is zero to rounding beside the others.
        tiny = [*updates[:3], np.full(12, 1e-14)]
        found, measurements = combine(tiny, normalize=normalize)
        np.testing.assert_allclose(found, without, rtol=1e-9)
        assert measurements["num_zero_updates"] == 1


def test_updates_of_zero_alone_change_nothing_and_nobody_at_all_is_rejected():
    found, _ = combine([np.zeros(3)] * 2, normalize=True)
    np.testing.assert_array_equal(found, np.zeros(3))
    found, measurements = combine([(1.0, 2.0), (3.0, np.inf)], [0, 1])
    assert np.all(np.isnan(found))
    assert measurements["num_non_finite_clients"] == 1


@pytest.mark.parametrize("num_blocks", [1, 3])
@pytest.mark.parametrize("normalize", [False, True])
def test_an_update_too_long_for_its_norm_is_excluded(normalize, num_blocks):
    rule = {"normalize": normalize, "num_blocks": num_blocks}
    updates = random_updates(3)
    expected, _ = combine(updates, **rule)
    found, measurements = combine([*updates, np.full(12, 1e200)], **rule)
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    assert measurements["num_non_finite_clients"] == 1
    assert measurements["num_zero_updates"] == 0
    assert np.isfinite(measurements["base_update_norm"])


@pytest.mark.parametrize("num_blocks", [1, 2])
def test_without_clients_the_result_is_no_number(num_blocks):
    process = process_of(min_norm(num_blocks=num_blocks), 4, FLOAT)
    output = process.next(process.initialize(), [], [])
    assert all(np.all(np.isnan(tensor)) for tensor in output.result)
    measured = output.measurements
    assert (measured["lambda_min"], measured["lambda_max"]) == (1.0, 0.0)


@pytest.mark.parametrize("num_blocks", [1, 2])
def test_a_value_of_unknown_shape_is_refused(num_blocks):
    value = tff.TensorType(np.float32, [None])
    with pytest.raises(TypeError, match="tensors of known shape, found"):
        min_norm(num_blocks=num_blocks).create(value, tff.TensorType(np.float32))


def test_a_round_without_clients_is_rejected():
    sgd = tff.learning.optimizers.build_sgdm(0.1)
    process = tff_algos.build_fed_mgda(functional(), sgd)
    output = process.next(process.initialize(), [])
    assert output.metrics["finalizer"]["num_rejected_rounds"] == 1


def test_single_precision_is_solved_in_double():
    updates = random_updates(8, 400)
    expected, _ = combine(updates)
    found, measurements = combine(updates, dtype=np.float32)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
    assert measurements["qp_fallbacks"] == 0


@pytest.mark.parametrize("scale", [1.0, 1e11, 1e-11, 1e25, 1e-25])
def test_single_precision_finds_what_double_finds_at_every_scale(scale):
    rng = np.random.default_rng(0)
    common = rng.normal(size=3000)
    for spread in (1.0, 1e-4):
        updates = common + spread * rng.normal(size=[20, 3000])
        updates[0] *= scale
        # Equal updates, and one of zero.
        updates[1] = updates[2]
        updates[3] = 0.0
        updates = updates.astype(np.float32)
        expected, in_double = combine(updates, normalize=True)
        found, in_single = combine(updates, normalize=True, dtype=np.float32)
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)
        assert np.linalg.norm(found) <= (1 + 1e-6) * np.linalg.norm(expected)
        assert in_single["qp_fallbacks"] == 0
        assert in_single["num_zero_updates"] == in_double["num_zero_updates"]


def test_it_is_wrapped_by_tffs_factories_and_wraps_them():
    inner = tff.aggregators.clipping_factory(1.0, MinNormFactory())
    outer = tff.aggregators.zeroing_factory(100.0, inner)
    found, _ = combine([(3, 4), (0, 2), (0, 1e9)], factory=outer)
    # Clipped to (.6, .8) and (0, 1), whose least combination is (.6, .8) x .5 ...;
    # the third is zeroed, and then left out.
    gram = np.array([[1.0, 0.8], [0.8, 1.0]])
    assert gram[0, 0] == gram[1, 1]
    np.testing.assert_allclose(found, [0.3, 0.9], rtol=1e-6)
    mean = NormalizedMeanFactory(
        tff.aggregators.clipping_factory(0.5, tff.aggregators.MeanFactory())
    )
    found, measurements = combine([(3, 4), (0, 2), (0, 0)], factory=mean)
    np.testing.assert_allclose(found, [0.15, 0.45], rtol=1e-6)
    assert measurements["num_zero_updates"] == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"epsilon": -0.1}, "epsilon=-0.1 .*: expected a number >= 0"),
        ({"epsilon": np.nan}, "epsilon=nan .*: expected a number >= 0"),
        ({"num_blocks": 0}, "num_blocks=0 .*: expected an integer >= 1"),
        ({"cap": 0.0}, r"cap=0.0 .*: expected a number in \(0, 1\]"),
        (
            {"zero_update_policy": "drop"},
            "zero_update_policy='drop' .*: expected one of exclude, keep",
        ),
        (
            {"median_norm_lr": True},
            "median_norm_lr=True cannot be used without normalize",
        ),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        MinNormFactory(**arguments)


def test_types_that_have_no_norm_are_named():
    for factory in (MinNormFactory(), NormalizedMeanFactory()):
        with pytest.raises(TypeError, match="floating point tensors, found int32"):
            factory.create(tff.TensorType(np.int32), tff.TensorType(np.float32))
    with pytest.raises(TypeError, match="WeightedAggregationFactory"):
        NormalizedMeanFactory(tff.aggregators.SumFactory())
