"""From blocks to a classifier: its loss, its accuracy, and its dropout's seed."""

import numpy as np
import pytest
import tensorflow as tf

from tasks.models import classifier, layers
from tff_algos.models.block_model import Block, layer

KERNEL = np.array([[1, 0, 0], [0, 1, 0]], np.float32)
MODEL = classifier.build(
    [layer(layers.dense, KERNEL, np.zeros(3, np.float32))], example_shape=[2]
)
X = tf.constant([[5.0, 0.0], [0.0, 5.0]])


def test_it_takes_examples_of_the_shape_and_integer_labels():
    assert MODEL.input_spec == (
        tf.TensorSpec([None, 2], tf.float32),
        tf.TensorSpec([None], tf.int32),
    )


def test_its_loss_is_the_cross_entropy_of_its_logits():
    logits = MODEL.predict_on_batch(MODEL.initial_weights, X, training=False)
    np.testing.assert_array_equal(logits, [[5, 0, 0], [0, 5, 0]])
    loss = MODEL.loss(output=logits, label=tf.constant([0, 2]))
    sure = np.log(np.exp(5.0) + 2)
    assert float(loss) == pytest.approx(((sure - 5) + sure) / 2, rel=1e-6)


def test_dropout_is_seeded_by_the_last_bias_and_the_batch():
    half = Block(
        apply=lambda weights, _, x, mode: (
            layers.dropout(x, 0.5, mode.dropout_seed, salt=1) + weights[0],
            (),
        ),
        trainable=(np.zeros(2, np.float32),),
        has_dropout=True,
    )
    model = classifier.build([half], example_shape=[2])

    def seed(bias, x):
        return int(model.mode(((tf.constant(bias),), ()), x, True).dropout_seed)

    assert seed([0.0, 0.0], X) == seed([0.0, 0.0], X)
    assert seed([0.0, 1.0], X) != seed([0.0, 0.0], X)
    assert seed([0.0, 0.0], 2 * X) != seed([0.0, 0.0], X)
    assert model.mode(model.initial_weights, X, False).dropout_seed is None
