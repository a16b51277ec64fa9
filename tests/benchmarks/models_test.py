"""The workloads' models: Keras' layers and the functions are the same model."""

import numpy as np
import pytest

from benchmarks.comparison import engines
from benchmarks.engines import keras_models, tf_models, workloads

MODELS = {w.model: w for w in engines.WORKLOADS.values()}


@pytest.mark.parametrize("model", MODELS)
def test_keras_models_and_functions_give_the_same_logits(model):
    small = workloads.Workload("small", model, 1, 2, 2)
    rng = np.random.default_rng(1)
    # Biases of zero would hide their order.
    weights = [
        rng.normal(scale=0.1, size=shape).astype(np.float32)
        for shape in MODELS[model].weight_shapes
    ]
    keras_model = keras_models.build(small)
    keras_model.set_weights(weights)
    x = workloads.generate(small, seed=0).x[0]
    expected = keras_model(x).numpy()
    assert np.std(expected) > 0.01
    logits = tf_models.logits_fn(small)(weights, x).numpy()
    np.testing.assert_allclose(logits, expected, atol=1e-4 * np.max(np.abs(expected)))
