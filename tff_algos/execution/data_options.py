"""The options with which the runtime reads datasets."""

import tensorflow as tf


def plain() -> tf.data.Options:
    """Returns options without dataset optimizations and autotuning.

    TensorFlow would look for transformations to fuse before every first element, which
    takes longer than reading most clients' examples. And it would start a thread that
    tunes the dataset after 10, 30, 70, 150, 310, ... ms. An iterator in a graph is freed
    only when that thread wakes, so a client whose work takes 320 ms would take 630.
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    options.experimental_optimization.apply_default_optimizations = False
    return options


def serialized() -> bytes:
    """Returns `plain` as the attribute of an OptionsDataset."""
    return plain()._to_proto().SerializeToString()
