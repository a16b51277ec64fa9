"""The composed gradient of batch normalization is the fused one, for any channels."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff
from tensorflow.python.ops.parallel_for import pfor

from tests.testing.leaves import leaf_of
from tff_algos import execution

RAW_OPS = {
    "FusedBatchNormGrad": tf.raw_ops.FusedBatchNormGrad,
    "FusedBatchNormGradV2": tf.raw_ops.FusedBatchNormGradV2,
    "FusedBatchNormGradV3": tf.raw_ops.FusedBatchNormGradV3,
}
CHANNELS_FIRST, CHANNELS_LAST = "NCHW", "NHWC"


def images(data_format, seed, channels=3):
    shape = {"N": 4, "H": 5, "W": 2, "C": channels}
    rng = np.random.default_rng(seed)
    return tf.constant(rng.normal(1, 2, [shape[d] for d in data_format]), tf.float32)


def gradient_of(op, data_format, is_training):
    """Returns a function to the gradients for the images, the scale and the offset."""

    def gradients(y_gradient, x, scale, mean, variance):
        is_third = op.endswith("V3")
        reserved = {"reserve_space_3": tf.zeros([0])} if is_third else {}
        found = RAW_OPS[op](
            y_backprop=y_gradient,
            x=x,
            scale=scale,
            reserve_space_1=mean,
            reserve_space_2=variance,
            epsilon=0.01,
            data_format=data_format,
            is_training=is_training,
            **reserved,
        )
        return list(found[:3])

    return gradients


def arguments(data_format):
    x = images(data_format, 1)
    axes = [axis for axis in range(4) if data_format[axis] != "C"]
    mean, variance = tf.nn.moments(x, axes)
    scale = tf.constant([0.5, 2.0, -1.0])
    return [images(data_format, 2), x, scale, mean, variance]


over_ops = pytest.mark.parametrize("op", RAW_OPS)
over_formats = pytest.mark.parametrize("data_format", [CHANNELS_FIRST, CHANNELS_LAST])


@over_ops
@over_formats
@pytest.mark.parametrize("is_training", [True, False])
def test_the_composed_gradient_is_the_fused_one(op, data_format, is_training):
    gradients = gradient_of(op, data_format, is_training)
    values = arguments(data_format)
    leaf = leaf_of(gradients, *map(tf.TensorSpec.from_tensor, values))
    composed = leaf.for_many_clients
    assert op not in {node.op for node in composed.graph_def.node}
    found = tf.function(composed)(values)
    for each, expected in zip(found, gradients(*values), strict=True):
        np.testing.assert_allclose(each, expected, rtol=1e-4, atol=1e-4)


def test_gradients_in_loops_are_composed_as_well():
    gradients = gradient_of("FusedBatchNormGradV3", CHANNELS_FIRST, True)

    def twice(y_gradient, x, scale, mean, variance):
        def body(count, y_gradient, of_scale, of_offset):
            found = gradients(y_gradient, x, scale, mean, variance)
            return [count + 1, found[0], of_scale + found[1], of_offset + found[2]]

        start = [0, y_gradient, tf.zeros([3]), tf.zeros([3])]
        return tf.while_loop(lambda count, *_: count < 2, body, start)[1:]

    values = arguments(CHANNELS_FIRST)
    leaf = leaf_of(twice, *map(tf.TensorSpec.from_tensor, values))
    found = tf.function(leaf.for_many_clients)(values)
    for each, expected in zip(found, twice(*values), strict=True):
        np.testing.assert_allclose(each, expected, rtol=1e-3, atol=1e-3)


@over_formats
def test_on_cpus_the_fused_gradient_is_kept_where_channels_are_a_layers(data_format):
    gradients = gradient_of("FusedBatchNormGradV3", data_format, True)
    specs = map(tf.TensorSpec.from_tensor, arguments(data_format))
    ops = {
        node.op for node in leaf_of(gradients, *specs).with_loops_on_cpu.graph_def.node
    }
    assert ("FusedBatchNormGradV3" in ops) == (data_format == CHANNELS_LAST)


def client(seed):
    """A client with batches of a size of its own."""
    rng = np.random.default_rng(seed)
    features = rng.normal(size=[60 + seed, 5]).astype(np.float32)
    labels = (features[:, 0] > 0).astype(np.int64)
    return tf.data.Dataset.from_tensor_slices((features, labels)).batch(3 + 7 * seed)


def model_with_layer_normalization():
    layers = tf.keras.layers
    zeros_but_one = tf.constant_initializer(np.eye(5, 8))
    return tff.learning.models.from_keras_model(
        tf.keras.Sequential(
            [
                layers.Input([5]),
                layers.Dense(8, kernel_initializer=zeros_but_one),
                layers.LayerNormalization(),
                layers.Dense(2, kernel_initializer="zeros"),
            ]
        ),
        tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        client(0).element_spec,
    )


@pytest.mark.parametrize("batch_clients", [True, False])
def test_layer_normalization_trains_on_batches_of_different_sizes(batch_clients):
    """TensorFlow's fused gradient makes the process fail here, in several threads."""
    learning = tff.learning.algorithms.build_weighted_fed_avg(
        model_with_layer_normalization, tff.learning.optimizers.build_sgdm(0.1)
    )
    cohort = [client(seed) for seed in range(8)]
    weights = []
    for num_threads in (1, 4):
        with execution.in_process_context(
            num_threads=num_threads, batch_clients=batch_clients
        ):
            state = learning.initialize()
            for _ in range(5):
                state = learning.next(state, cohort).state
            weights.append(learning.get_model_weights(state).trainable)
    for one, four in zip(*weights, strict=True):
        np.testing.assert_array_equal(one, four)
    assert np.abs(weights[0][-2]).max() > 0.1
    # TensorFlow's converter keeps graphs there.
    assert not pfor._channel_flatten_input_cache
