"""Checks arrays that a user brings, and scales their features."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self

import attrs
import numpy as np

from tasks.task import TaskError
from tff_algos import messages

_MAX_PIXEL = np.float32(255.0)
# How far a mean may be rounded, in deviations.
_MEAN_TOLERANCE = 1e-4
# Features are converted to float64 in parts of this size.
_MOMENT_BYTES = 1 << 24
_IMAGE_CHANNELS = (1, 3, 4)
_MOST_CHANNELS = 16


def checked_features(features: Any, name: str) -> np.ndarray:
    """Returns uint8 images as they are, else float32, or float64 if float32 is inexact.

    Args:
      features: [n, features], [n, height, width] or [n, height, width, channels].
      name: The data, for messages.

    Raises:
      TaskError: If they are not numbers of such a shape, or not finite.
    """
    refuse_masked(features, "features", name)
    try:
        found = np.asarray(features)
    except ValueError as error:
        raise TaskError(
            f"{name}: features are no array: {messages.one_line(error)}"
        ) from error
    if found.dtype.kind not in "biuf":
        what = type(features).__name__ if found.ndim == 0 else found.dtype
        raise TaskError(f"{name}: features are of type {what}, expected real numbers.")
    if found.ndim not in (2, 3, 4) or 0 in found.shape[1:]:
        raise TaskError(
            f"{name}: features have shape {list(found.shape)}, expected [n, features], "
            "[n, height, width] or [n, height, width, channels]."
        )
    if not len(found):
        raise TaskError(f"{name} has no examples.")
    _refuse_channels_first(found.shape, name)
    # Examples are read when they are needed: an array that may be reused is copied.
    *_, owner = views = list(_with_bases(found))
    is_fixed = isinstance(features, list | tuple) or (
        owner.flags.owndata and not any(each.flags.writeable for each in views)
    )
    if found.ndim == 3:
        found = found[..., np.newaxis]
    if found.ndim == 4 and found.dtype == np.uint8:
        return found if is_fixed else np.array(found)
    # Numbers beyond float32 become infinite, which is refused next.
    with np.errstate(over="ignore"):
        rounded = found.astype(np.float32)
    bad = np.argwhere(~np.isfinite(rounded))
    if len(bad):
        where, value = ", ".join(map(str, bad[0])), found[tuple(bad[0])]
        expected = "finite numbers"
        if np.isfinite(value):
            expected = f"numbers within +-{np.finfo(np.float32).max:.1e}"
        raise TaskError(f"{name}: features[{where}] is {value}, expected {expected}.")
    # Timestamps and identifiers may differ only in digits that float32 cannot hold.
    same = np.array_equal(rounded, found)
    return rounded if same else found.astype(np.float64, copy=not is_fixed)


def freeze(array: np.ndarray) -> None:
    """Makes an array read-only, and the arrays that it is a view of."""
    for each in _with_bases(array):
        each.setflags(write=False)


def _with_bases(array: np.ndarray) -> Iterator[np.ndarray]:
    """Yields an array and those that it is a view of, such as a data frame's."""
    base: Any = array
    while isinstance(base, np.ndarray):
        yield base
        base = base.base


def _refuse_channels_first(shape: Sequence[int], name: str) -> None:
    if len(shape) != 4 or shape[1] not in _IMAGE_CHANNELS:
        return
    *_, height, width = shape
    # Few numbers in the last axis may be channels, such as those of a row of sensors.
    if min(height, width) > _MOST_CHANNELS or height == width > max(_IMAGE_CHANNELS):
        raise TaskError(
            f"{name}: features have shape {list(shape)}, expected channels last: "
            "features.transpose(0, 2, 3, 1)."
        )


def refuse_masked(values: Any, what: str, name: str) -> None:
    """Raises `TaskError` for a masked array some of whose values are masked."""
    if np.ma.is_masked(values):
        raise TaskError(f"{name}: {what} have masked values, expected all to be there.")


def as_classes(
    labels: Any, num_examples: int, name: str
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Returns every label's index among the classes, int32 [n], and the classes.

    Classes are in order: of numbers by size, of words by the alphabet.

    Raises:
      TaskError: If there are not as many labels as examples, if one is missing or no
        class, or if there is one class alone.
    """
    refuse_masked(labels, "labels", name)
    found = as_array(labels, f"{name}: labels")
    if found.ndim == 2 and found.shape[1] == 1:
        found = found[:, 0]
    if found.shape != (num_examples,):
        raise TaskError(
            f"{name}: labels have shape {list(found.shape)}, expected "
            f"{_expected_labels(found, num_examples)}."
        )
    found = whole_numbers_or_words(found, name)
    classes, indices = np.unique(found, return_inverse=True)
    if len(classes) < 2:
        raise TaskError(
            f"{name}: every label is {messages.shortened(str(classes[0]))}; a "
            "classifier needs two classes or more."
        )
    return indices.astype(np.int32), tuple(map(str, classes))


def _expected_labels(found: np.ndarray, num_examples: int) -> str:
    """Says what labels of another shape should be."""
    expected = f"one for each of {num_examples} examples"
    if found.ndim != 2 or len(found) != num_examples:
        return expected
    if found.dtype.kind in "biuf" and (np.count_nonzero(found, axis=1) == 1).all():
        return f"{expected}; turn one-hot labels into labels.argmax(axis=1)"
    return "one class per example; several labels per example are not supported"


def _example(index: int) -> str:
    return f"example {index} (counting from 0)"


def whole_numbers_or_words(
    labels: np.ndarray, name: str, place: Callable[[int], str] = _example
) -> np.ndarray:
    """Returns labels as text or integers.

    Args:
      labels: The labels.
      name: The data, for messages.
      place: What messages call the n-th example.

    Raises:
      TaskError: If a label is missing, or neither a word nor a whole number.
    """
    missing = np.flatnonzero(is_missing(labels))
    if len(missing):
        raise TaskError(f"{name}: {place(missing[0])} has no label.")
    if labels.dtype.kind in "SO":
        labels = _distinct_words(labels, "labels", name)
    if labels.dtype.kind == "U":
        labels = as_numbers(labels)
    if labels.dtype.kind in "UOb" or labels.dtype.kind in "iu":
        return labels
    if labels.dtype.kind == "f":
        # Larger numbers are not exact.
        is_whole = (labels == np.round(labels)) & (np.abs(labels) <= 2.0**53)
        bad = np.flatnonzero(~is_whole)
        if len(bad):
            raise TaskError(
                f"{name}: {place(bad[0])} has the label {labels[bad[0]]:g}, expected "
                "classes: words or whole numbers."
            )
        return labels.astype(np.int64)
    raise TaskError(
        f"{name}: labels are of type {labels.dtype}, expected words or whole numbers."
    )


def as_numbers(labels: np.ndarray) -> np.ndarray:
    """Returns labels as numbers if all of them are numbers, otherwise unchanged.

    Numbers with leading zeros, underscores or exponents, or too large to be exact in
    float64, are words.
    """
    try:
        numbers = labels.astype(np.float64)
    except ValueError:
        return labels
    # Python reads 1_1 and 11 as the same number, and 1e1 and 10.
    written = np.char.lower(labels)
    joined = (np.char.find(written, "_") >= 0) | (np.char.find(written, "e") >= 0)
    padded = np.char.startswith(np.char.lstrip(labels, "+-"), "0") & (
        np.char.str_len(np.char.partition(np.char.lstrip(labels, "+-"), ".")[:, 0]) > 1
    )
    too_long = ~np.isfinite(numbers) | (np.abs(numbers) > 2.0**53)
    are_words = padded.any() or joined.any() or too_long.any()
    return labels if are_words else numbers


def as_words(values: np.ndarray) -> np.ndarray:
    """Returns Python objects or bytes as text; None, NaN, NA and NaT become empty."""

    def is_missing(value: Any) -> bool:
        # By name, because pandas may not be installed.
        if value is None or type(value).__name__ in ("NAType", "NaTType"):
            return True
        return isinstance(value, float) and math.isnan(value)

    def word(value: Any) -> str:
        if isinstance(value, bytes):
            return value.decode("utf-8", "replace")
        return "" if is_missing(value) else str(value)

    return np.array(list(map(word, values)), dtype=np.str_)


def is_missing(values: np.ndarray) -> np.ndarray:
    """Returns which values are empty, None, NaN, NA or NaT."""
    if values.dtype.kind == "O":
        values = as_words(values)
    if values.dtype.kind in "fmM":
        return np.isnan(values)
    if values.dtype.kind in "US":
        return values == values.dtype.type()
    return np.zeros(values.shape, bool)


def as_array(values: Any, what: str) -> np.ndarray:
    """Returns values as an array, of objects if they are text and something else.

    NumPy alone makes text of them: 1 and "1" would be the same.

    Args:
      values: The values.
      what: What they are, for messages.

    Raises:
      TaskError: If they are lists of different lengths.
    """
    try:
        found = np.asarray(values)
    except ValueError as error:
        raise TaskError(
            f"{what} cannot be an array: {messages.one_line(error)}"
        ) from error
    # Strings of any length (kind T) may have a value for those that are missing.
    is_list_of_text = found.dtype.kind == "U" and not isinstance(values, np.ndarray)
    if is_list_of_text or found.dtype.kind == "T":
        found = np.asarray(values, dtype=object)
    return found


def by_client(
    client_ids: Any, num_examples: int, name: str
) -> tuple[tuple[str, ...], Sequence[np.ndarray]]:
    """Returns the clients in order, and the indices of each one's examples.

    Raises:
      TaskError: If there are not as many ids as examples, one is missing, or two
        clients have the same text.
    """
    refuse_masked(client_ids, "client ids", name)
    found = as_array(client_ids, f"{name}: client ids")
    if found.shape != (num_examples,):
        raise TaskError(
            f"{name}: client ids have shape {list(found.shape)}, expected one for each "
            f"of {num_examples} examples."
        )
    missing = np.flatnonzero(is_missing(found))
    if len(missing):
        raise TaskError(f"{name}: {_example(missing[0])} has no client.")
    if found.dtype.kind in "SO":
        found = _distinct_words(found, "client ids", name)
    clients, indices = np.unique(found, return_inverse=True)
    order = np.argsort(indices, kind="stable")
    ends = np.cumsum(np.bincount(indices))[:-1]
    return tuple(map(str, clients)), np.split(order.astype(np.int64), ends)


def _distinct_words(values: np.ndarray, what: str, name: str) -> np.ndarray:
    """Returns Python objects or bytes as text.

    Raises:
      TaskError: If two that differ have the same text.
    """
    words = as_words(values)
    first: dict[str, Any] = {}
    for each, word in zip(values.tolist(), words, strict=True):
        if first.setdefault(word, each) != each:
            raise TaskError(
                f"{name}: {what} {messages.shown(first[word])} and "
                f"{messages.shown(each)} have the same text, expected {what} of one "
                "type, and bytes in UTF-8."
            )
    return words


def _moments(
    features: np.ndarray, axes: tuple[int, ...]
) -> tuple[np.ndarray, np.ndarray]:
    """Returns mean and deviation, float64, without a float64 copy of all features."""
    parts = np.array_split(features, -(-features.nbytes // _MOMENT_BYTES) or 1)
    count = features.size // max(1, features.shape[-1])
    mean = sum(part.sum(axis=axes, dtype=np.float64) for part in parts) / count
    squares = sum(np.square(part - mean).sum(axis=axes) for part in parts)
    return mean, np.sqrt(squares / count)


@attrs.frozen(kw_only=True, eq=False)
class Scaling:
    """Maps stored features to a model's input, float32.

    Attributes:
      mean: What is subtracted, of each feature or channel.
      deviation: What divides the difference.
    """

    mean: np.ndarray
    deviation: np.ndarray

    @classmethod
    def of(cls, features: np.ndarray, *, standardize: bool) -> Self:
        """Returns the scaling that training features need.

        Args:
          features: Training examples, as `checked_features` returns them.
          standardize: Whether the result has mean 0 and deviation 1 (0 where a feature
            is constant); otherwise uint8 images are scaled to [0, 1] alone.
        """
        if not standardize:
            scale = _MAX_PIXEL if features.dtype == np.uint8 else np.float32(1.0)
            return cls(mean=np.float32(0.0), deviation=scale)
        axes = tuple(range(features.ndim - 1)) if features.ndim == 4 else (0,)
        mean, deviation = _moments(features, axes)
        # Of a constant such as 0.1, the mean is rounded and the deviation above 0.
        lowest = features.min(axis=axes)
        # Squares of differences below 1e-162 are 0.
        is_constant = (lowest == features.max(axis=axes)) | (deviation == 0)
        mean[is_constant], deviation[is_constant] = lowest[is_constant], 1.0
        rounded = mean.astype(np.float32)
        # Of float32 that are large, the rounded mean may be deviations away.
        is_close = np.abs(rounded - mean) <= _MEAN_TOLERANCE * deviation
        if features.dtype != np.float64 and is_close.all():
            mean, deviation = rounded, deviation.astype(np.float32)
        return cls(mean=mean, deviation=deviation)

    def __call__(self, features: np.ndarray) -> np.ndarray:
        """Returns scaled features, of the same shape."""
        if features.dtype != np.float64:
            features = features.astype(np.float32)
        return ((features - self.mean) / self.deviation).astype(np.float32)
