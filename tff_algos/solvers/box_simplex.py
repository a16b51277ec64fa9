"""The box-simplex: vectors between bounds whose elements have a given sum.

It is the set of weights of FedMGDA+ (Hu et al., 2020, arXiv 2006.11489) and, with
bounds 0 and 1, the probability simplex of agnostic federated learning (Mohri et al.,
2019, arXiv 1902.00146).

Every function takes and returns float64 [n], with n >= 0 unknown until it runs. The
set must not be empty: `lower <= upper` and `sum(lower) <= total <= sum(upper)`, up to
rounding. An element with `lower == upper` (a client that takes no part has 0 for both)
keeps that value and changes nothing else.
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

    It is `clip(point - shift, lower, upper)` for the one shift that gives the right
    sum. The sum falls piecewise linearly in the shift, so that sorting the 2n shifts
    at which an element meets a bound finds it in O(n log n): the method of Held, Wolfe
    and Crowder (1974) for the simplex, with upper bounds.

    Args:
      point: Float64 [n], clipped to +-1e12, where float64 has 4 decimals left.
      lower: Float64 [n], the smallest allowed values.
      upper: Float64 [n], the largest allowed values.
      total: Float64 [], what the elements of the result add up to.

    Returns:
      Float64 [n] within the bounds exactly, with the sum `total` up to rounding.
    """
    total = tf.convert_to_tensor(total, tf.float64)
    # Among large numbers the shift has a rounding error of up to 1e-4. The second one
    # finds what is left of it among small numbers: by that little, nothing that is
    # farther than 1 from its bounds comes back between them.
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
    """The shift, float64 [], for which the clipped point has the sum `total`."""
    # The breakpoint at 0 changes nothing and makes n = 0 no exception.
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


def minimise_linear(
    costs: tf.Tensor,
    lower: tf.Tensor,
    upper: tf.Tensor,
    total: tf.Tensor | float = 1.0,
) -> tf.Tensor:
    """Returns a vertex of the box-simplex at which `costs'x` is smallest.

    The greedy solution of the continuous knapsack problem: from the lower bounds on,
    the cheapest elements are filled first. Of equal costs the first ones are.

    Args:
      costs: Finite float64 [n].
      lower: Float64 [n], the smallest allowed values.
      upper: Float64 [n], the largest allowed values.
      total: Float64 [], what the elements of the result add up to.

    Returns:
      Float64 [n] within the bounds exactly, with the sum `total` up to rounding.
    """
    order = tf.argsort(costs, stable=True)
    room = tf.gather(upper - lower, order)
    remaining = total - tf.reduce_sum(lower) - tf.cumsum(room, exclusive=True)
    filled = tf.clip_by_value(remaining, 0.0, room)
    filled = tf.gather(filled, tf.argsort(order))
    return tf.minimum(lower + filled, upper)
