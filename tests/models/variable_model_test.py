"""A functional model in variables: its numbers, and metrics that add up."""

import collections

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import tff_algos
from tests.testing import remembering_processes
from tests.testing.one_client import CLIENT, MODEL, START
from tff_algos.models.changed_variables import changed_in_training
from tff_algos.models.variable_model import FunctionalVariableModel

ERRORS = (CLIENT.x @ START[:-1] + START[-1] - CLIENT.y) ** 2 / 2


def batch(rows=slice(None)):
    return tf.constant(CLIENT.x[rows]), tf.constant(CLIENT.y[rows])


def test_a_forward_pass_gives_the_functional_models_numbers():
    model = FunctionalVariableModel(MODEL)
    output = model.forward_pass(batch())
    assert output.loss.numpy() == pytest.approx(np.mean(ERRORS), rel=1e-12)
    np.testing.assert_allclose(
        output.predictions, CLIENT.x @ START[:-1] + START[-1], rtol=1e-12
    )
    assert output.num_examples == 5


def test_a_batch_may_be_a_mapping():
    x, y = batch()
    model = FunctionalVariableModel(MODEL)
    output = model.forward_pass({"x": x, "y": y})
    assert output.loss.numpy() == pytest.approx(np.mean(ERRORS), rel=1e-12)


def test_metrics_add_up_over_batches_until_they_are_reset():
    model = FunctionalVariableModel(MODEL)
    for rows in (slice(0, 2), slice(2, 5)):
        model.forward_pass(batch(rows))
    unfinalized = model.report_local_unfinalized_metrics()
    finalize = model.metric_finalizers()["loss"]
    found = finalize(unfinalized["loss"])
    assert float(found) == pytest.approx(np.mean(ERRORS), rel=1e-6)
    model.reset_metrics()
    total, count = model.report_local_unfinalized_metrics()["loss"]
    assert float(total) == float(count) == 0.0


def test_variables_hold_the_initial_weights():
    model = FunctionalVariableModel(MODEL)
    found = np.append(*(variable.numpy() for variable in model.trainable_variables))
    np.testing.assert_array_equal(found, START)
    assert model.non_trainable_variables == ()
    assert model.input_spec == MODEL.input_spec


def test_metrics_start_at_the_models_initial_state():
    def initial():
        return collections.OrderedDict(least=tf.constant(np.inf))

    def update(state, labels, batch_output, sample_weight=None):
        del labels, sample_weight
        loss = tf.cast(batch_output.loss, tf.float32)
        return collections.OrderedDict(least=tf.minimum(state["least"], loss))

    functional = tff.learning.models.FunctionalModel(
        initial_weights=MODEL.initial_weights,
        predict_on_batch_fn=MODEL.predict_on_batch,
        loss_fn=MODEL.loss,
        metrics_fns=(initial, update, lambda state: state),
        input_spec=MODEL.input_spec,
    )
    model = FunctionalVariableModel(functional)
    model.forward_pass(batch())
    found = model.report_local_unfinalized_metrics()["least"]
    assert float(found) == pytest.approx(np.mean(ERRORS), rel=1e-6)


def _last_mean_model():
    """The model with the mean of the last batch's inputs as statistic."""
    return remembering_processes.linear_model_with_statistics()


def test_moving_statistics_move_in_training_alone():
    model = FunctionalVariableModel(_last_mean_model())
    (mean,) = model.non_trainable_variables
    output = model.forward_pass(batch(slice(0, 2)), training=False)
    model.predict_on_batch(batch()[0], training=True)
    np.testing.assert_array_equal(mean, np.zeros(5))
    trained = model.forward_pass(batch(slice(0, 2)), training=True)
    np.testing.assert_allclose(mean, np.mean(CLIENT.x[:2], axis=0), rtol=1e-12)
    np.testing.assert_array_equal(trained.predictions, output.predictions)
    assert changed_in_training(FunctionalVariableModel(_last_mean_model())) == (True,)


def test_a_server_gets_the_statistics_of_clients_that_train_variables():
    functional = _last_mean_model()
    process = tff_algos.build_fed_avg(
        lambda: FunctionalVariableModel(functional),
        tff.learning.optimizers.build_sgdm(0.1),
    )
    output = process.next(process.initialize(), [CLIENT.batches()])
    (found,) = process.get_model_weights(output.state).non_trainable
    np.testing.assert_allclose(found, np.mean(CLIENT.x, axis=0), rtol=1e-12)
