"""The box-simplex: vectors within bounds whose elements have a given sum.

It is the set of weights in FedMGDA+ (Hu et al., 2022, arXiv 2006.11489) and, with
bounds 0 and 1, the probability simplex in agnostic federated learning (Mohri et al.,
2019, arXiv 1902.00146).

Every function takes and returns float64 [n], with n >= 0 possibly unknown until run
time. The set must not be empty: `lower <= upper` and `sum(lower) <= total <=
sum(upper)`, up to rounding. An element with `lower == upper` (0 for an excluded client)
has that value and does not affect the others.
"""

import tensorflow as tf

_LARGEST = 1e12


def project(
    point: tf.Tensor,
    lower: tf.Tensor,
    upper: tf.Tensor,
    total: tf.Tensor | float = 1.0,
) -> tf.Tensor:
    """Returns the point of the box-simplex that is closest to `point`.

    It is `clip(point - shift, lower, upper)` for the shift that gives the right sum.
    The sum is a decreasing, piecewise linear function of the shift, so the shift is
    found in O(n log n) by sorting the 2n shifts at which an element reaches a bound:
    the method of Held, Wolfe and Crowder (1974) for the simplex, with upper bounds.

    Args:
      point: float64 [n], clipped to +-1e12, where float64 has 4 decimals left.
      lower: float64 [n], the smallest allowed values.
      upper: float64 [n], the largest allowed values.
      total: float64 [], the sum of the result's elements.

    Returns:
      float64 [n], within the bounds exactly, with the sum `total` up to rounding.
    """
    total = tf.convert_to_tensor(total, tf.float64)
    # For large elements the first shift has a rounding error of up to 1e-4. The second
    # pass corrects it on clipped elements: those more than 1 outside their bounds stay
    # outside, because the correction is much smaller.
    shifted = tf.clip_by_value(point, -_LARGEST, _LARGEST)
    for _ in range(2):
        shifted -= _shift(shifted, lower, upper, total)
        shifted = tf.clip_by_value(shifted, lower - 1, upper + 1)
    result = tf.clip_by_value(shifted, lower, upper)
    inside = (lower < shifted) & (shifted < upper)
    count = tf.reduce_sum(tf.cast(inside, tf.float64))
    rest = tf.math.divide_no_nan(total - tf.reduce_sum(result), count)
    return tf.where(inside, tf.clip_by_value(shifted + rest, lower, upper), result)


def _shift(
    point: tf.Tensor, lower: tf.Tensor, upper: tf.Tensor, total: tf.Tensor
) -> tf.Tensor:
    """Returns the shift, float64 [], at which the clipped point has the sum `total`."""
    # The breakpoint at 0 has no effect; with it, n = 0 needs no special case.
    breakpoints = tf.concat([point - upper, point - lower, [0.0]], axis=0)
    order = tf.argsort(breakpoints)
    breakpoints = tf.gather(breakpoints, order)
    leaves_upper, meets_lower = tf.ones_like(point), -tf.ones_like(point)
    changes = tf.concat([leaves_upper, meets_lower, [0.0]], axis=0)
    num_inside = tf.cumsum(tf.gather(changes, order))
    falls = num_inside[:-1] * (breakpoints[1:] - breakpoints[:-1])
    sums = tf.reduce_sum(upper) - tf.concat([[0.0], tf.cumsum(falls)], axis=0)
    last = tf.maximum(tf.math.count_nonzero(sums >= total) - 1, 0)
    excess = sums[last] - total
    return breakpoints[last] + tf.math.divide_no_nan(excess, num_inside[last])


def minimize_linear(
    costs: tf.Tensor,
    lower: tf.Tensor,
    upper: tf.Tensor,
    total: tf.Tensor | float = 1.0,
) -> tf.Tensor:
    """Returns a vertex of the box-simplex at which `costs'x` is smallest.

    The greedy solution of the continuous knapsack problem: starting from the lower
    bounds, the cheapest elements are filled first (ties: the first elements).

    Args:
      costs: float64 [n], finite.
      lower: float64 [n], the smallest allowed values.
      upper: float64 [n], the largest allowed values.
      total: float64 [], the sum of the result's elements.

    Returns:
      float64 [n], within the bounds exactly, with the sum `total` up to rounding.
    """
    order = tf.argsort(costs, stable=True)
    room = tf.gather(upper - lower, order)
    remaining = total - tf.reduce_sum(lower) - tf.cumsum(room, exclusive=True)
    filled = tf.clip_by_value(remaining, 0.0, room)
    filled = tf.gather(filled, tf.argsort(order))
    return tf.minimum(lower + filled, upper)
