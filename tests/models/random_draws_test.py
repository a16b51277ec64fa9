"""Models whose loss is no function of weights and batch are told apart."""

import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.testing import problems
from tff_algos.models import random_draws

LINEAR = problems.linear_model()


def _model(noise, in_loss=False):
    @tf.function
    def predict(weights, x, training):
        output = LINEAR.predict_on_batch(weights, x, training)
        return output + noise(output) if training and not in_loss else output

    def loss(output, label, sample_weight=None):
        del sample_weight
        value = LINEAR.loss(output=output, label=label)
        return value + noise(value) if in_loss else value

    return tff.learning.models.FunctionalModel(
        initial_weights=LINEAR.initial_weights,
        predict_on_batch_fn=predict,
        loss_fn=loss,
        metrics_fns=problems.LOSS_METRICS,
        input_spec=LINEAR.input_spec,
    )


def _drawn(value):
    return tf.random.normal(tf.shape(value), dtype=value.dtype)


def _seeded(value):
    return tf.random.stateless_normal(tf.shape(value), (1, 2), dtype=value.dtype)


@pytest.mark.parametrize("in_loss", [False, True])
def test_draws_are_named_with_what_would_be_wrong(in_loss):
    with pytest.raises(
        ValueError, match="with RandomStandardNormal, so pigs fly. Use random ops whose"
    ):
        random_draws.require_none(_model(_drawn, in_loss), "pigs fly")


def test_draws_with_a_seed_and_no_draws_are_fine():
    random_draws.require_none(_model(_seeded), "pigs fly")
    random_draws.require_none(_model(lambda value: 0.0), "pigs fly")
