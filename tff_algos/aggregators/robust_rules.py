"""Aggregates of rows that a few of the rows cannot move far.

Each rule maps the rows of the clients that take part, as a list of tensors [n, ...], and
their weights, float64 [n], to the aggregate and each client's share in it, float64 [n].
"""

from collections.abc import Callable, Sequence

import tensorflow as tf

from tff_algos.aggregators.min_norm_rule import (
    combine_rows,
    gram_matrix,
    quick_gram_matrix,
)

Rows = Sequence[tf.Tensor]
Rule = Callable[[Rows, tf.Tensor], tuple[list[tf.Tensor], tf.Tensor]]

# Distances below this share of the median one are raised to it, so that the geometric
# median can lie on a row.
_SMOOTHING = 1e-10
# Rows farther than this many median distances are taken to be that far.
_FAR = 1e6
_TOLERANCE, _MAX_ITERATIONS = 1e-12, 1000


def trimmed_mean(share: float) -> Rule:
    """Returns the mean of each coordinate without its smallest and largest values.

    Yin, Chen, Ramchandran, Bartlett: "Byzantine-Robust Distributed Learning: Towards
    Optimal Statistical Rates", 2018, arXiv 1803.01498. Weights are ignored.

    Args:
      share: The share of values left out at each end, rounded down to whole values.
    """

    def first_and_last(count: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        # 0.29 * 100 is a rounding error below 29.
        product = share * tf.cast(count, tf.float64) * (1 + 1e-12)
        left_out = tf.cast(tf.floor(product), tf.int32)
        return left_out, count - left_out

    return _between(first_and_last)


def median() -> Rule:
    """Returns the median of each coordinate (Yin et al., 2018); weights are ignored."""
    return _between(lambda count: ((count - 1) // 2, count // 2 + 1))


def _between(first_and_last: Callable[[tf.Tensor], tuple[tf.Tensor, tf.Tensor]]):
    """Returns the rule that averages a range of each coordinate's sorted values."""

    def rule(rows, weights):
        count = tf.size(weights)
        first, last = first_and_last(count)
        results, shares = [], []
        for each in rows:
            flat = tf.reshape(each, [count, each.shape[1:].num_elements()])
            order = tf.argsort(flat, axis=0, stable=True)[first:last]
            columns = tf.broadcast_to(tf.range(tf.shape(flat)[1]), tf.shape(order))
            kept = tf.gather_nd(flat, tf.stack([order, columns], axis=-1))
            mean = tf.reduce_mean(tf.cast(kept, tf.float64), axis=0)
            results.append(tf.reshape(tf.cast(mean, each.dtype), each.shape[1:]))
            ones = tf.ones([tf.size(order)], tf.float64)
            places = tf.reshape(order, [-1])
            shares.append(tf.math.unsorted_segment_sum(ones, places, count))
        share = tf.add_n(shares)
        return results, share / tf.reduce_sum(share)

    return rule


def geometric_median() -> Rule:
    """Returns the point of least weighted distance to the rows.

    Pillutla, Kakade, Harchaoui: "Robust Aggregation for Federated Learning", 2019, arXiv
    1912.13445, by Weiszfeld's algorithm on the rows' inner products.
    """

    def rule(rows, weights):
        gram, center = _centered_gram(rows, weights)
        weights = weights / tf.reduce_sum(weights)
        lengths = tf.sqrt(tf.linalg.diag_part(gram))
        middle = _half_way(lengths, weights)
        # A row pulls equally hard from any distance, but digits are lost over a long one.
        scales = tf.minimum(_FAR * middle / tf.maximum(lengths, 1e-300), 1.0)
        gram *= scales[:, tf.newaxis] * scales[tf.newaxis]
        squares = tf.linalg.diag_part(gram)
        least = _SMOOTHING * middle + 1e-300

        def distances(shares):
            products = tf.linalg.matvec(gram, shares)
            own = tf.tensordot(shares, products, 1)
            return tf.sqrt(tf.maximum(own - 2.0 * products + squares, 0.0))

        def body(step, shares, _):
            new = weights / tf.maximum(distances(shares), least)
            new /= tf.reduce_sum(new)
            return step + 1, new, tf.reduce_max(tf.abs(new - shares))

        _, shares, _ = tf.while_loop(
            lambda step, _, change: (step < _MAX_ITERATIONS) & (change > _TOLERANCE),
            body,
            (tf.constant(0), weights, tf.constant(1.0, tf.float64)),
        )
        # Toward a row, the algorithm converges slowly if at all.
        own = tf.linalg.matvec(tf.sqrt(_squared_distances(gram)), weights)
        at_row = tf.one_hot(tf.argmin(own), tf.size(own), dtype=tf.float64)
        distance = tf.tensordot(weights, distances(shares), 1)
        shares = scales * tf.where(tf.reduce_min(own) < distance, at_row, shares)
        at_center = tf.one_hot(center, tf.size(shares), dtype=tf.float64)
        shares += (1.0 - tf.reduce_sum(shares)) * at_center
        return [combine_rows(shares, each) for each in rows], shares

    return rule


def krum(num_malicious: int, num_chosen: int) -> Rule:
    """Returns the mean of the rows that lie nearest to others; weights are ignored.

    Blanchard, El Mhamdi, Guerraoui, Stainer: "Machine Learning with Adversaries:
    Byzantine Tolerant Gradient Descent", 2017 (Krum; Multi-Krum for several rows). A
    row's score is the sum of the squared distances to its n - num_malicious - 2 nearest
    others, at least one; the rows of the smallest scores are chosen.
    """

    def rule(rows, weights):
        gram, _ = _centered_gram(rows, tf.ones_like(weights))
        count = tf.size(weights)
        # Its own distance, zero, comes first.
        ascending = tf.sort(_squared_distances(gram), axis=1)
        nearest = tf.maximum(count - num_malicious - 2, 1)
        scores = tf.reduce_sum(ascending[:, 1 : nearest + 1], axis=1)
        chosen = tf.argsort(scores, stable=True)[:num_chosen]
        ones = tf.ones([tf.size(chosen)], tf.float64)
        shares = tf.math.unsorted_segment_sum(ones, chosen, count)
        shares /= tf.reduce_sum(shares)
        return [combine_rows(shares, each) for each in rows], shares

    return rule


def _squared_distances(gram: tf.Tensor) -> tf.Tensor:
    """Returns the squared distance of every row from every row, `[n, n]`."""
    squares = tf.linalg.diag_part(gram)
    return tf.maximum(squares[:, tf.newaxis] - 2.0 * gram + squares[tf.newaxis], 0.0)


def _half_way(distances: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    """Returns the distance within which half of the weight lies, `[..., n]` to `[...]`."""
    order = tf.argsort(distances, axis=-1)
    within = tf.cumsum(tf.gather(weights, order), axis=-1)
    is_less = within <= tf.reduce_sum(weights) / 2
    last = tf.shape(distances)[-1] - 1
    place = tf.minimum(tf.math.count_nonzero(is_less, -1, dtype=tf.int32), last)
    ascending = tf.sort(distances, axis=-1)
    return tf.gather(ascending, place, axis=-1, batch_dims=place.shape.rank)


def _centered_gram(rows: Rows, weights: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the inner products of the rows less a central one, and its index.

    What rows have in common would cost distances their digits. The central row is the
    nearest to half of the weight, because a single large row would carry off the mean.
    """
    rough = _squared_distances(tf.add_n([quick_gram_matrix(each) for each in rows]))
    center = tf.argmin(_half_way(rough, weights))
    grams = [gram_matrix(each - tf.gather(each, center)) for each in rows]
    return tf.add_n(grams), center
