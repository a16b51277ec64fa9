"""Tests of the variables that training changes."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import tff_algos
from tff_algos.models import changed_variables

SGD = tff.learning.optimizers.build_sgdm


def model_fn():
    """Frozen weights, one of them infinite, and moving statistics, some of them frozen."""
    inputs = tf.keras.Input((4,))
    hidden = tf.keras.layers.Dense(
        3, trainable=False, bias_initializer=tf.keras.initializers.Constant(np.inf)
    )(inputs)
    hidden = tf.keras.layers.Lambda(lambda x: tf.where(tf.math.is_inf(x), 0.5, x))(
        hidden
    )
    hidden = tf.keras.layers.Concatenate()([inputs, hidden])
    hidden = tf.keras.layers.BatchNormalization()(hidden)
    hidden = tf.keras.layers.Dropout(0.1, seed=1)(hidden)
    hidden = tf.keras.layers.BatchNormalization(trainable=False)(hidden)
    model = tf.keras.Model(inputs, tf.keras.layers.Dense(2)(hidden))
    return tff.learning.models.from_keras_model(
        model,
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        input_spec=(tf.TensorSpec([None, 4]), tf.TensorSpec([None], tf.int32)),
    )


def clients():
    rng = np.random.default_rng(0)
    for _ in range(3):
        x = rng.normal(size=(5, 4)).astype(np.float32)
        yield (
            tf.data.Dataset.from_tensor_slices((x, np.arange(5) % 2))
            .map(lambda x, y: (x, tf.cast(y, tf.int32)))
            .batch(2)
        )


def test_only_moving_statistics_are_changed():
    with tf.Graph().as_default():
        model = model_fn()
        names = [variable.name for variable in model.non_trainable_variables]
        changed = changed_variables.changed_in_training(model)
    assert len(changed) == 8
    assert [n for n, is_changed in zip(names, changed, strict=True) if is_changed] == [
        "batch_normalization/moving_mean:0",
        "batch_normalization/moving_variance:0",
    ]


def test_a_model_without_non_trainable_variables_has_none():
    with tf.Graph().as_default():
        model = tff.learning.models.from_keras_model(
            tf.keras.Sequential([tf.keras.layers.Dense(1, input_shape=(4,))]),
            loss=tf.keras.losses.MeanSquaredError(),
            input_spec=(tf.TensorSpec([None, 4]), tf.TensorSpec([None, 1])),
        )
        assert changed_variables.changed_in_training(model) == ()


@pytest.mark.parametrize("build", [tff_algos.build_fed_avg, tff_algos.build_fed_prox])
def test_frozen_weights_stay_and_infinite_ones_exclude_nobody(build):
    process = build(model_fn, SGD(0.1))
    state = process.initialize()
    before = process.get_model_weights(state)
    data = list(clients())
    for _ in range(3):
        output = process.next(state, data)
        state = output.state
    after = process.get_model_weights(state)
    assert output.metrics["client_work"]["num_non_finite_clients"] == 0
    same = [
        np.array_equal(old, new)
        for old, new in zip(before.non_trainable, after.non_trainable, strict=True)
    ]
    assert same == [True, True, False, False, True, True, True, True]
    assert not np.array_equal(before.trainable[0], after.trainable[0])
