"""Arrays that a user brings: what is taken, what is refused, how it is scaled."""

import numpy as np
import pytest

from tasks import own_arrays
from tasks.task import TaskError


def test_features_become_float32_and_images_keep_their_bytes():
    assert own_arrays.checked_features([[1, 2], [3, 4]], "d").dtype == np.float32
    images = own_arrays.checked_features(np.zeros((2, 3, 4), np.uint8), "d")
    assert images.shape == (2, 3, 4, 1) and images.dtype == np.uint8


@pytest.mark.parametrize(
    "given",
    [
        np.ones((2, 3, 4, 1), np.uint8),
        np.ones((2, 3), np.float32),
        np.full((2, 3), 1 + 1e-12),
    ],
)
def test_the_caller_may_reuse_the_array(given):
    taken = own_arrays.checked_features(given, "d")
    before = taken.copy()
    given[:] = 7
    np.testing.assert_array_equal(taken, before)


@pytest.mark.parametrize(
    "view",
    [
        np.ndarray.view,
        lambda whole: np.lib.stride_tricks.sliding_window_view(whole, 3, 1)[:, 0],
    ],
)
def test_a_view_that_is_read_only_is_copied(view):
    whole = np.full((2, 3), 1 + 1e-12)
    given = view(whole)
    given.setflags(write=False)
    taken = own_arrays.checked_features(given, "d")
    whole[:] = 7
    np.testing.assert_array_equal(taken, np.full((2, 3), 1 + 1e-12))


@pytest.mark.parametrize("dtype", [np.uint8, np.float64])
def test_an_array_that_nobody_can_write_is_not_copied(dtype):
    given = np.full(24, 1 + 1e-12 if dtype is np.float64 else 1, dtype)
    given = given.reshape((2, 3, 4, 1))
    own_arrays.freeze(given)
    assert np.shares_memory(own_arrays.checked_features(given, "d"), given)


@pytest.mark.parametrize(
    ("features", "message"),
    [
        (np.array([["a"]]), "d: features are of type <U1, expected real numbers"),
        (None, "d: features are of type NoneType, expected real numbers"),
        ([[1, 2], [3]], "d: features are no array: .*inhomogeneous shape"),
        (np.array([[1j]]), "d: features are of type complex128, expected real numbers"),
        (
            np.zeros((2, 3, 28, 28), np.uint8),
            (
                r"d: features have shape \[2, 3, 28, 28\], expected channels last: "
                r"features\.transpose\(0, 2, 3, 1\)\.$"
            ),
        ),
        (np.zeros(3), r"features have shape \[3\], expected \[n, features\]"),
        (np.zeros((0, 3)), "d has no examples"),
        ([[1.0, 2.0], [3.0, np.nan]], r"features\[1, 1\] is nan, expected finite"),
        ([[np.inf]], r"features\[0, 0\] is inf, expected finite numbers"),
        ([[-1e300]], r"\[0, 0\] is -1e\+300, expected numbers within \+-3\.4e\+38"),
    ],
)
def test_other_features_are_refused(features, message):
    with pytest.raises(TaskError, match=message):
        own_arrays.checked_features(features, "d")


@pytest.mark.parametrize("shape", [(2, 28, 28, 3), (2, 3, 4, 5), (2, 4, 28, 4)])
def test_images_with_channels_last_are_taken(shape):
    assert own_arrays.checked_features(np.zeros(shape), "d").shape == shape


@pytest.mark.parametrize(
    ("labels", "indices", "classes"),
    [
        ([10, 2, 10], [1, 0, 1], ("2", "10")),
        ([3.0, -1.0, 3.0], [1, 0, 1], ("-1", "3")),
        (["no", "yes", "no"], [0, 1, 0], ("no", "yes")),
        (["1_1", "11", "1_1"], [1, 0, 1], ("11", "1_1")),
        (["20", "2e1", "30"], [0, 1, 2], ("20", "2e1", "30")),
        (["20", "2E1", "20"], [0, 1, 0], ("20", "2E1")),
        ([b"b", b"a", b"b"], [1, 0, 1], ("a", "b")),
        (np.array(["b", "a", "b"], np.dtypes.StringDType()), [1, 0, 1], ("a", "b")),
        ([[True], [False], [True]], [1, 0, 1], ("False", "True")),
    ],
)
def test_labels_become_indices_of_classes(labels, indices, classes):
    found, names = own_arrays.as_classes(labels, 3, "d")
    np.testing.assert_array_equal(found, np.array(indices, np.int32))
    assert names == classes and found.dtype == np.int32


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([1, 2], r"labels have shape \[2\], expected one for each of 3 examples\.$"),
        (
            np.eye(3),
            r"of 3 examples; turn one-hot labels into labels\.argmax\(axis=1\)",
        ),
        (
            [[1, 1], [0, 1], [0, 0]],
            (
                r"labels have shape \[3, 2\], expected one class per example; several "
                r"labels per example are not supported\.$"
            ),
        ),
        ([["a", "b"]] * 3, "several labels per example are not supported"),
        ([1, 1, 1], "every label is 1; a classifier needs two classes"),
        (
            [1.0, 2.5, 1.0],
            r"d: example 1 \(counting from 0\) has the label 2.5, expected",
        ),
        ([1.0, 1e19, 2e19], r"example 1 \(counting from 0\) has the label 1e\+19"),
        ([1.0, np.nan, 1.0], r"example 1 \(counting from 0\) has no label"),
        (["a", "", "b"], r"example 1 \(counting from 0\) has no label"),
        (["a", np.nan, "b"], r"example 1 \(counting from 0\) has no label"),
        ([1, "1", "b"], "labels 1 and '1' have the same text, expected labels of one"),
        (np.array(["a", None, "b"], object), r"example 1 \(.*\) has no label"),
    ],
)
def test_other_labels_are_refused(labels, message):
    with pytest.raises(TaskError, match=message):
        own_arrays.as_classes(labels, 3, "d")


def test_examples_are_grouped_by_client():
    clients, parts = own_arrays.by_client(["b", "a", "b", "c"], 4, "d")
    assert clients == ("a", "b", "c")
    assert [part.tolist() for part in parts] == [[1], [0, 2], [3]]


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (["a"], r"client ids have shape \[1\], expected one for each of 2"),
        (["a", ""], r"example 1 \(counting from 0\) has no client"),
        ([1.0, np.nan], r"example 1 \(counting from 0\) has no client"),
        ([1, "1"], "client ids 1 and '1' have the same text, expected client ids of"),
        (np.array(["a", b"a"], object), "client ids 'a' and b'a' have the same text"),
        (np.array([b"\xff", b"\xfe"]), r"client ids b'.xff' and b'.xfe' have the same"),
    ],
)
def test_other_client_ids_are_refused(ids, message):
    with pytest.raises(TaskError, match=message):
        own_arrays.by_client(ids, 2, "d")


def test_features_get_mean_0_and_deviation_1_and_constants_become_0():
    x = np.array([[1.0, 5.0], [3.0, 5.0]], np.float32)
    scaling = own_arrays.Scaling.of(x, standardize=True)
    np.testing.assert_allclose(scaling(x), [[-1.0, 0.0], [1.0, 0.0]])


@pytest.mark.parametrize("dtype", [np.uint8, np.int64, np.float32, np.float64])
@pytest.mark.parametrize("axes", [(0,), (0, 1, 2)])
def test_mean_and_deviation_are_numpys_in_parts(axes, dtype, monkeypatch):
    monkeypatch.setattr(own_arrays, "_MOMENT_BYTES", 100)
    shape = (13, 3) if axes == (0,) else (13, 4, 4, 3)
    features = np.random.default_rng(0).integers(0, 256, shape).astype(dtype)
    mean, deviation = own_arrays._moments(features, axes)
    np.testing.assert_allclose(mean, features.mean(axes, np.float64), rtol=1e-12)
    np.testing.assert_allclose(deviation, features.std(axes, np.float64), rtol=1e-12)


@pytest.mark.parametrize("count", [48, 100, 1000])
def test_constants_whose_mean_is_rounded_become_0(count):
    features = own_arrays.checked_features(np.full((count, 1), 0.1), "d")
    scaling = own_arrays.Scaling.of(features, standardize=True)
    np.testing.assert_array_equal(scaling(features), np.zeros((count, 1)))
    # Another value, in a client that does not train, stays of its size.
    np.testing.assert_allclose(scaling(np.array([[0.3]])), [[0.2]], rtol=1e-6)


def test_deviations_whose_squares_are_0_do_not_divide():
    features = own_arrays.checked_features(np.array([[0.0], [1e-200]] * 9), "d")
    scaled = own_arrays.Scaling.of(features, standardize=True)(features)
    np.testing.assert_array_equal(scaled, np.zeros((18, 1)))


def test_large_numbers_get_the_mean_0():
    steps = np.random.default_rng(0).integers(0, 4, size=(60, 3))
    x = (1.7e9 + 128 * steps).astype(np.float32)
    scaled = own_arrays.Scaling.of(x, standardize=True)(x)
    np.testing.assert_allclose(scaled.mean(axis=0), 0.0, atol=1e-5)
    np.testing.assert_allclose(scaled.std(axis=0), 1.0, rtol=1e-5)


def test_bytes_become_fractions_where_nothing_is_standardized():
    x = np.full((1, 2, 2, 1), 255, np.uint8)
    scaling = own_arrays.Scaling.of(x, standardize=False)
    np.testing.assert_array_equal(scaling(x), np.ones((1, 2, 2, 1), np.float32))
