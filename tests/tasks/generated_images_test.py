"""Stand-ins for image data: types and balance, and what tells their classes apart."""

import hashlib

import attrs
import numpy as np
import pytest
from sklearn import decomposition, ensemble, linear_model, pipeline

from tasks import generated_images

CHARACTERS = [generated_images.digits, generated_images.letters]
TINTED = [generated_images.tinted_shapes, generated_images.large_tinted_shapes]
MAKERS = [*CHARACTERS, generated_images.shapes, *TINTED]


@pytest.mark.parametrize(
    ("make", "num_train", "shape", "num_classes"),
    [
        (generated_images.digits, 6000, (28, 28, 1), 10),
        (generated_images.letters, 6000, (28, 28, 1), 10),
        (generated_images.shapes, 5000, (32, 32, 3), 10),
        (generated_images.tinted_shapes, 5000, (32, 32, 3), 100),
        (generated_images.large_tinted_shapes, 4000, (64, 64, 3), 200),
    ],
)
def test_images_have_their_types_sizes_and_balance(make, num_train, shape, num_classes):
    arrays = make()
    for x, y, n in (
        (arrays.x_train, arrays.y_train, num_train),
        (arrays.x_test, arrays.y_test, 1000),
    ):
        assert x.dtype == np.uint8 and x.shape == (n, *shape)
        assert y.dtype == np.int32 and y.shape == (n,)
        expected = [n // num_classes] * num_classes
        np.testing.assert_array_equal(np.bincount(y), expected)
        assert x.min() == 0 and x.max() == 255


@pytest.mark.parametrize("make", MAKERS)
def test_arrays_are_kept_for_the_process_and_read_only(make):
    assert make() is make()
    for name in ("x_train", "y_train", "x_test", "y_test"):
        with pytest.raises(ValueError, match="read-only"):
            getattr(make(), name)[0] = 0


@pytest.mark.parametrize("make", MAKERS)
def test_images_drawn_again_are_the_same(make):
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
    tenths = labels * 10 // (labels.max() + 1)
    for start in range(0, len(labels), 1000):
        assert np.bincount(tenths[start : start + 1000], minlength=10).min() > 60


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
    """Returns [n, 64]: how far 4 x 4 blocks are from the image's median color.

    Of larger images every so many-th pixel is taken.
    """
    step = x.shape[1] // generated_images.SHAPE_IMAGE_SIZE
    pixels = x[:, ::step, ::step].astype(np.float32)
    median = np.median(pixels.reshape(len(x), -1, 3), axis=1)
    distance = np.linalg.norm(pixels - median[:, np.newaxis, np.newaxis], axis=-1)
    return distance.reshape(len(x), 8, 4, 8, 4).mean((2, 4)).reshape(len(x), -1)


@pytest.mark.parametrize("make", CHARACTERS)
def test_characters_can_be_learned_but_not_all_by_a_linear_model(make):
    arrays = make()
    linear = _accuracy(_linear(), _pixels, arrays)
    nonlinear = _accuracy(_trees(), _pixels, arrays)
    assert 0.4 < linear < 0.9
    assert nonlinear > linear + 0.1


def test_shapes_can_be_learned_but_hardly_by_a_linear_model():
    arrays = generated_images.shapes()
    linear = _accuracy(_linear(), _pixels, arrays)
    nonlinear = _accuracy(_trees(), _difference_from_background, arrays)
    assert 0.12 < linear < 0.4
    assert nonlinear > linear + 0.2


def test_colors_alone_do_not_tell_shapes():
    def statistics(x):
        pixels = x.reshape(len(x), -1, 3).astype(np.float32)
        return np.concatenate([pixels.mean(1), pixels.std(1)], axis=1)

    assert _accuracy(_trees(), statistics, generated_images.shapes()) < 0.3


def _block_means(x):
    """Returns [n, 192]: mean colors of 8 x 8 blocks of the image."""
    n, size, _, channels = x.shape
    blocks = x.reshape(n, 8, size // 8, 8, size // 8, channels)
    return blocks.mean((2, 4), dtype=np.float32).reshape(n, -1) / 255.0


@pytest.mark.parametrize(("make", "num_tints"), [*zip(TINTED, (10, 20), strict=True)])
def test_outlines_and_tints_can_be_learned(make, num_tints):
    def accuracy(classifier, features, label_of):
        labels = {
            name: label_of(getattr(make(), name)) for name in ("y_train", "y_test")
        }
        arrays = attrs.evolve(make(), **labels)
        return _accuracy(classifier, features, arrays)

    linear = linear_model.RidgeClassifier()
    assert accuracy(linear, _block_means, lambda y: y % num_tints) > 4 / num_tints
    assert 8 < 10 * num_tints * accuracy(linear, _block_means, lambda y: y) < 60
    outlines = accuracy(_trees(), _difference_from_background, lambda y: y // num_tints)
    assert outlines > 0.3


@pytest.mark.parametrize("lighter", [0, 1])
@pytest.mark.parametrize(("turns", "channel"), [(0.0, 0), (1 / 3, 1), (2 / 3, 2)])
def test_a_tint_is_lighter_or_darker_and_has_its_hue(lighter, turns, channel):
    n = 50
    background, shape = generated_images._tints(
        np.full(n, lighter), np.full(n, turns), np.random.default_rng(0)
    )
    assert (shape.argmax(axis=-1) == channel).all()
    difference = shape.mean(axis=-1) - background.mean(axis=-1)
    assert ((difference > 0.1) if lighter else (difference < -0.1)).all()
