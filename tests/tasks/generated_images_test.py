import hashlib

import numpy as np
import pytest
from sklearn import decomposition, ensemble, linear_model, pipeline

from tasks import generated_images

CHARACTERS = [generated_images.digits, generated_images.letters]
MAKERS = [*CHARACTERS, generated_images.shapes]


@pytest.mark.parametrize(
    ("make", "num_train", "shape"),
    [
        (generated_images.digits, 6000, (28, 28, 1)),
        (generated_images.letters, 6000, (28, 28, 1)),
        (generated_images.shapes, 5000, (32, 32, 3)),
    ],
)
def test_types_sizes_and_balance(make, num_train, shape):
    arrays = make()
    for x, y, n in (
        (arrays.x_train, arrays.y_train, num_train),
        (arrays.x_test, arrays.y_test, 1000),
    ):
        assert x.dtype == np.uint8 and x.shape == (n, *shape)
        assert y.dtype == np.int32 and y.shape == (n,)
        np.testing.assert_array_equal(np.bincount(y), [n // 10] * 10)
        assert x.min() == 0 and x.max() == 255


@pytest.mark.parametrize("make", MAKERS)
def test_kept_for_the_process_and_read_only(make):
    assert make() is make()
    for name in ("x_train", "y_train", "x_test", "y_test"):
        with pytest.raises(ValueError, match="read-only"):
            getattr(make(), name)[0] = 0


@pytest.mark.parametrize("make", MAKERS)
def test_drawn_again_they_are_the_same(make):
    again = make.__wrapped__()
    for name in ("x_train", "y_train", "x_test", "y_test"):
        np.testing.assert_array_equal(getattr(again, name), getattr(make(), name))


@pytest.mark.parametrize("make", MAKERS)
def test_no_image_is_there_twice(make):
    arrays = make()
    images = [*arrays.x_train, *arrays.x_test]
    assert len({hashlib.sha256(image.tobytes()).digest() for image in images}) == len(
        images
    )


@pytest.mark.parametrize("make", MAKERS)
def test_the_order_says_nothing_of_the_labels(make):
    labels = make().y_train
    for start in range(0, len(labels), 1000):
        assert np.bincount(labels[start : start + 1000], minlength=10).min() > 60


@pytest.mark.parametrize("make", CHARACTERS)
def test_characters_are_ink_on_nothing(make):
    x = make().x_train
    assert np.mean(x == 0) > 0.5
    assert (x.max(axis=(1, 2, 3)) > 127).all()


def _accuracy(classifier, features, arrays):
    classifier.fit(features(arrays.x_train), arrays.y_train)
    return classifier.score(features(arrays.x_test), arrays.y_test)


def _linear():
    return pipeline.make_pipeline(
        decomposition.PCA(80, random_state=0), linear_model.RidgeClassifier()
    )


def _trees():
    return ensemble.ExtraTreesClassifier(60, random_state=0)


def _pixels(x):
    return x.reshape(len(x), -1).astype(np.float32) / 255.0


def _difference_from_background(x):
    """Returns [n, 64]: how far 4 x 4 blocks are from the image's median colour."""
    pixels = x.astype(np.float32)
    median = np.median(pixels.reshape(len(x), -1, 3), axis=1)
    distance = np.linalg.norm(pixels - median[:, np.newaxis, np.newaxis], axis=-1)
    return distance.reshape(len(x), 8, 4, 8, 4).mean((2, 4)).reshape(len(x), -1)


@pytest.mark.parametrize("make", CHARACTERS)
def test_characters_can_be_learnt_but_not_all_by_a_linear_model(make):
    arrays = make()
    linear = _accuracy(_linear(), _pixels, arrays)
    nonlinear = _accuracy(_trees(), _pixels, arrays)
    assert 0.4 < linear < 0.8
    assert nonlinear > linear + 0.1


def test_shapes_can_be_learnt_but_hardly_by_a_linear_model():
    arrays = generated_images.shapes()
    linear = _accuracy(_linear(), _pixels, arrays)
    nonlinear = _accuracy(_trees(), _difference_from_background, arrays)
    assert 0.12 < linear < 0.4
    assert nonlinear > linear + 0.2


def test_colours_alone_do_not_tell_shapes():
    def statistics(x):
        pixels = x.reshape(len(x), -1, 3).astype(np.float32)
        return np.concatenate([pixels.mean(1), pixels.std(1)], axis=1)

    assert _accuracy(_trees(), statistics, generated_images.shapes()) < 0.3
