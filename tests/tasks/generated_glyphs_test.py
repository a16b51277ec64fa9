"""The stand-in for EMNIST: writers with classes and styles of their own."""

import numpy as np
import pytest

from tasks import generated_glyphs, glyph_rasters


def _pooled(writers, split, only_digits):
    drawn = [
        generated_glyphs.examples(writer, split, only_digits=only_digits)
        for writer in writers
    ]
    return (
        np.concatenate([x for x, _ in drawn]).reshape(-1, 784),
        np.concatenate([y for _, y in drawn]),
    )


def _nearest_centroid_accuracy(train, test, num_classes):
    """Accuracy on `test` of the nearest class mean of `train`."""
    x, y = train
    x = x.reshape(len(x), -1)
    centroids = np.stack(
        [
            x[y == label].mean(0) if (y == label).any() else np.full(x.shape[1], 9.0)
            for label in range(num_classes)
        ]
    )
    x, y = test
    x = x.reshape(len(x), -1)
    distances = (centroids**2).sum(1) - 2 * x @ centroids.T
    return np.mean(distances.argmin(1) == y)


@pytest.mark.parametrize("only_digits", [False, True])
@pytest.mark.parametrize("split", ["train", "test"])
def test_examples_have_their_types_and_ranges(only_digits, split):
    x, y = generated_glyphs.examples(3, split, only_digits=only_digits)
    assert x.dtype == np.float32 and x.shape[1:] == (28, 28, 1)
    assert y.dtype == np.int32 and y.shape == (len(x),)
    assert x.min() >= 0.0 and x.max() == 1.0
    assert 0 <= y.min() and y.max() < (10 if only_digits else 62)
    # The paper is white, and every image has ink on it.
    assert np.mean(x == 1.0) > 0.5
    assert (x.min(axis=(1, 2, 3)) < 0.5).all()


def test_examples_are_a_function_of_seed_writer_and_split_alone():
    first = generated_glyphs.examples(5, "train", seed=1)
    generated_glyphs.examples(6, "train", seed=1)
    generated_glyphs.writer_style.cache_clear()
    again = generated_glyphs.examples(5, "train", seed=1)
    for one, other in zip(first, again, strict=True):
        np.testing.assert_array_equal(one, other)
    others = [
        generated_glyphs.examples(5, "test", seed=1),
        generated_glyphs.examples(6, "train", seed=1),
        generated_glyphs.examples(5, "train", seed=2),
    ]
    for x, _ in others:
        assert x.shape != first[0].shape or np.any(x != first[0])


def test_writers_have_different_numbers_of_examples():
    activity = np.array(
        [generated_glyphs.writer_style(writer).activity for writer in range(340)]
    )
    assert 0.9 < activity.mean() < 1.1 and activity.std() > 0.3
    for writer in range(8):
        num_train = len(generated_glyphs.examples(writer, "train")[1])
        num_test = len(generated_glyphs.examples(writer, "test")[1])
        assert 20 <= num_train + num_test <= 400
        assert num_test == max(1, round((num_train + num_test) / 10))


def test_writers_differ_in_classes_and_style():
    mixes = np.stack(
        [
            np.bincount(generated_glyphs.examples(writer, "train")[1], minlength=62)
            for writer in range(10)
        ]
    ).astype(float)
    mixes /= mixes.sum(axis=1, keepdims=True)
    distances = np.abs(mixes[:, None] - mixes[None]).sum(-1) / 2
    assert distances[np.triu_indices(10, 1)].min() > 0.2
    styles = [generated_glyphs.writer_style(writer) for writer in range(40)]
    assert len({style.slant for style in styles}) == 40
    assert len({int(np.bincount(style.fonts).argmax()) for style in styles}) > 6


def test_every_class_is_drawn_in_every_font():
    for font in range(glyph_rasters.NUM_FONTS):
        for label in range(len(generated_glyphs.CLASSES)):
            glyph = glyph_rasters.glyph(font, label)
            assert glyph.shape == (64, 64)
            # Some of it is inside of the outline, most is outside.
            assert 40 < np.sum(glyph > -0.5) < 2000


def test_labels_follow_tff():
    assert generated_glyphs.CLASSES.index("B") == 11
    assert generated_glyphs.CLASSES.index("b") == 37
    assert len(generated_glyphs.CLASSES) == 62


def test_classes_can_be_learned_across_writers_and_better_from_a_writers_own():
    pooled = _pooled(range(40), "train", only_digits=True)
    heldout = range(300, 320)
    common = np.mean(
        [
            _nearest_centroid_accuracy(
                pooled,
                generated_glyphs.examples(writer, "test", only_digits=True),
                num_classes=10,
            )
            for writer in heldout
        ]
    )
    own = np.mean(
        [
            _nearest_centroid_accuracy(
                generated_glyphs.examples(writer, "train", only_digits=True),
                generated_glyphs.examples(writer, "test", only_digits=True),
                num_classes=10,
            )
            for writer in heldout
        ]
    )
    assert 0.35 < common < 0.9
    assert own > common + 0.05


def test_ids_are_distinct_and_in_order():
    ids = generated_glyphs.client_ids()
    assert len(ids) == len(set(ids)) == 340
    assert list(ids) == sorted(ids)
