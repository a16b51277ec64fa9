"""Layers: dropout and its masks, fingerprints, and shapes."""

import numpy as np
import tensorflow as tf

from tasks.models import layers


def test_dropout_keeps_the_mean_and_drops_the_rate():
    x = tf.ones([200, 500])
    kept = layers.dropout(x, 0.25, tf.constant(7, tf.uint32), salt=1).numpy()
    assert set(np.unique(kept)) == {np.float32(0), np.float32(1 / 0.75)}
    assert abs(kept.mean() - 1) < 0.01
    assert np.abs((kept == 0).mean(axis=0) - 0.25).max() < 0.15
    assert np.abs(np.corrcoef(kept[:20])[np.triu_indices(20, 1)]).max() < 0.2


def test_dropout_masks_of_other_seeds_and_layers_are_independent():
    x = tf.ones([100_000])
    masks = [
        layers.dropout(x, 0.5, tf.constant(seed, tf.uint32), salt).numpy() > 0
        for seed, salt in ((1, 1), (2, 1), (1, 2), (1 << 31, 1))
    ]
    for i in range(4):
        for j in range(i):
            assert abs((masks[i] == masks[j]).mean() - 0.5) < 0.01


def test_fingerprint_ignores_rounding_of_weights_but_no_bit_of_the_batch():
    bias = tf.constant([0.1, -0.2, 0.3])
    batch = tf.constant([[1, 2], [3, 4]])
    base = layers.fingerprint(bias, batch)
    assert layers.fingerprint(bias * (1 + 1e-7), batch) == base
    assert layers.fingerprint(bias * (1 + 1e-3), batch) != base
    assert layers.fingerprint(bias, batch + [[0, 0], [0, 1]]) != base
    assert layers.fingerprint(bias, batch[::-1]) != base
