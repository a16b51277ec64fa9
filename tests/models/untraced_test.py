"""A copy of a model computes the same, and what is traced of it ends with it."""

import gc
import weakref

import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tests.testing import learning_models
from tff_algos.models.untraced import untraced


def _num_traces(model):
    functions = (model.predict_on_batch, model.finalize_metrics)
    return [function.experimental_get_tracing_count() for function in functions]


def test_a_copy_computes_the_same():
    model = learning_models.functional_model()
    x = tf.random.stateless_normal([4, *model.input_spec[0].shape[1:]], seed=[0, 1])
    expected = model.predict_on_batch(model.initial_weights, x, training=False)
    copied = untraced(model)
    actual = copied.predict_on_batch(copied.initial_weights, x, training=False)
    np.testing.assert_array_equal(actual, expected)


def test_processes_of_a_copy_leave_no_graphs_in_the_model():
    model = learning_models.functional_model()
    before = _num_traces(model)
    copied = untraced(model)
    tff.learning.algorithms.build_weighted_fed_avg(
        copied, client_optimizer_fn=tff.learning.optimizers.build_sgdm(0.1)
    )
    assert _num_traces(model) == before
    assert all(after > num for after, num in zip(_num_traces(copied), before))


def test_a_copy_is_freed_though_the_model_lives():
    model = learning_models.functional_model()
    copied = untraced(model)
    copied.initialize_metrics_state()
    ends = weakref.ref(copied)
    del copied
    gc.collect()
    assert ends() is None


def test_options_of_functions_are_kept():
    @tf.function(jit_compile=True, reduce_retracing=True)
    def predict(weights, x, training):
        return x @ weights[0][0]

    model = tff.learning.models.FunctionalModel(
        initial_weights=((np.ones([2, 1], np.float32),), ()),
        predict_on_batch_fn=predict,
        loss_fn=lambda output, label, sample_weight=None: tf.reduce_mean(output),
        input_spec=(tf.TensorSpec([None, 2]), tf.TensorSpec([None, 1])),
    )
    function = untraced(model)._predict_on_batch_fn
    assert function is not predict
    assert function._jit_compile and function._reduce_retracing
