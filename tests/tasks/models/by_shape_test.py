"""Models for examples of any shape: their sizes, and shapes that they refuse."""

import numpy as np
import pytest

from tasks.models import by_shape, image
from tff_algos.hyperparameters import HyperparameterError


def _num_weights(model):
    return sum(weight.size for weight in model.initial_weights[0])


@pytest.mark.parametrize(
    ("model_id", "shape", "classes", "expected"),
    [
        ("linear", (5,), 3, 5 * 3 + 3),
        ("linear", (4, 4, 1), 2, 16 * 2 + 2),
        ("mlp", (5,), 3, 5 * 200 + 200 + 200 * 200 + 200 + 200 * 3 + 3),
        ("lenet", (28, 28, 1), 10, 44_426),
        ("cnn", (28, 28, 1), 10, 1_663_370),
    ],
)
def test_layers_have_the_sizes_that_the_shape_needs(model_id, shape, classes, expected):
    model = by_shape.build(model_id, shape, classes, seed=0)
    assert _num_weights(model) == expected
    x = np.ones((2, *shape), np.float32)
    logits = model.predict_on_batch(model.initial_weights, x, training=False)
    assert logits.shape == (2, classes)


def test_cnn_and_mlp_are_the_baselines_where_they_have_their_shape():
    for own, theirs in (("cnn", "cnn"), ("mlp", "2nn")):
        model = by_shape.build(own, image.IMAGE_SHAPE, 10, seed=3)
        baseline = image.build_emnist_model(theirs, only_digits=True, seed=3)
        for weight, other in zip(
            model.initial_weights[0], baseline.initial_weights[0], strict=True
        ):
            np.testing.assert_array_equal(weight, other)


@pytest.mark.parametrize(
    ("model_id", "shape", "message"),
    [
        (
            "cnn",
            (5,),
            r"'cnn' .*expected linear or mlp for examples of shape \[5\], si",
        ),
        ("lenet", (12, 20, 1), "expected cnn, .* 12 x 20, since .* 13 x 13 or more"),
    ],
)
def test_other_shapes_are_refused(model_id, shape, message):
    with pytest.raises(HyperparameterError, match=message):
        by_shape.build(model_id, shape, 2, seed=0)


def test_unknown_models_are_refused():
    with pytest.raises(HyperparameterError, match="'vgg' .*linear, mlp, cnn, lenet"):
        by_shape.build("vgg", (5,), 2, seed=0)
