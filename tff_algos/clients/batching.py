"""How a client's examples become the batches of one round."""

import hashlib
import itertools
from collections.abc import Iterator
from typing import Annotated, Literal

import attrs
import numpy as np
import tensorflow as tf

from tff_algos import execution
from tff_algos.hyperparameters import hparam, record

# The examples of one client and one split: arrays (x, y) with examples along the first
# axis, preprocessed for the model but not batched.
Examples = tuple[np.ndarray, np.ndarray]

StepBatching = Literal["straddling", "per_pass"]


@record
class BatchSpec:
    """How a client's examples become the batches of one round.

    Exactly one of `num_epochs` and `num_steps` is set. With `num_epochs`, examples are
    shuffled, truncated to `max_elements`, repeated, and batched epoch by epoch (the
    last batch of an epoch may be smaller). With `num_steps`, every client gets exactly
    that many batches (none without examples), according to `step_batching`:

    * "straddling": `repeat().batch(B).take(K)`. All batches are full; they may straddle
      epochs.
    * "per_pass": `batch(B).repeat().take(K)`. A batch has at most min(B, n) examples,
      all distinct. A last batch of one example is dropped unless it is the only one,
      because batch normalization cannot normalize a single example.

    Attributes:
      batch_size: Examples per batch, B >= 1.
      num_epochs: Passes over the examples, >= 1; or None.
      num_steps: Batches, K >= 1; or None.
      max_elements: The most examples of a client in a round, >= 1; None for all.
      shuffle: Whether to shuffle the examples, and anew for every epoch.
      step_batching: How K batches are filled: "straddling" or "per_pass".

    Raises:
      HyperparameterError: If a number is out of range.
      ValueError: If not exactly one of `num_epochs` and `num_steps` is set.
    """

    batch_size: Annotated[int, hparam(low=1)]
    num_epochs: Annotated[int | None, hparam(low=1)] = None
    num_steps: Annotated[int | None, hparam(low=1)] = None
    max_elements: Annotated[int | None, hparam(low=1)] = None
    shuffle: Annotated[bool, hparam()] = True
    step_batching: Annotated[StepBatching, hparam()] = "straddling"

    def __attrs_post_init__(self):
        if (self.num_epochs is None) == (self.num_steps is None):
            raise ValueError(
                "BatchSpec needs exactly one of num_epochs and num_steps, found "
                f"num_epochs={self.num_epochs}, num_steps={self.num_steps}."
            )

    def num_examples(self, available: int) -> int:
        """Returns how many of `available` examples a client uses in a round, n_k."""
        return min(available, self.max_elements or available)

    def num_processed(self, available: int) -> int:
        """Returns the total size of the batches of `available` examples."""
        own = self.num_examples(available)
        if self.num_epochs is not None:
            return self.num_epochs * own
        if not own:
            return 0
        if self.step_batching == "straddling":
            return self.batch_size * self.num_steps
        sizes = np.diff(_pass_splits(own, self.batch_size))
        return int(np.resize(sizes, self.num_steps).sum())

    def full_pass(self) -> "BatchSpec":
        """Returns the spec of one pass over the same examples in the same order."""
        return attrs.evolve(self, num_epochs=1, num_steps=None)


def batch_examples(examples: Examples, spec: BatchSpec, seed: int) -> tf.data.Dataset:
    """Returns the batches `(x [b, ...], y [b, ...])` specified by `spec`.

    Args:
      examples: `(x, y)` with a common first axis of n >= 0 examples; not copied, so
        they must not be modified.
      spec: Batch size, epochs or steps, truncation, shuffling.
      seed: Seed of the order of the examples, which differs between epochs, and of
        the truncation to `max_elements`.

    Raises:
      ValueError: If the arrays have different numbers of examples.
    """
    lengths = sorted({len(array) for array in tf.nest.flatten(examples)})
    if len(lengths) != 1:
        raise ValueError(f"Expected arrays of one length, found lengths {lengths}.")
    order = _epochs(lengths[0], spec, np.random.default_rng(seed))
    if spec.num_steps is not None and spec.step_batching == "straddling":
        rows, splits = _steps(order, spec.batch_size, spec.num_steps)
    elif spec.num_steps is not None:
        rows, splits = _steps_per_pass(order, spec.batch_size, spec.num_steps)
    else:
        rows, splits = _whole_epochs(order, spec.batch_size, spec.num_epochs)
    return execution.ArrayDataset(examples, rows, splits)


def _epochs(
    num_examples: int, spec: BatchSpec, generator: np.random.Generator
) -> Iterator[np.ndarray]:
    """Yields the order of the examples in each epoch, indefinitely."""
    kept = np.arange(num_examples)
    if spec.max_elements is not None:
        order = generator.permutation(kept) if spec.shuffle else kept
        kept = order[: spec.max_elements]
    while True:
        yield generator.permutation(kept) if spec.shuffle else kept


def _steps(
    epochs: Iterator[np.ndarray], batch_size: int, num_steps: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns rows and row splits of full batches that straddle epochs."""
    first = next(epochs)
    if not len(first):
        return first, np.zeros(1, np.int64)
    num_rows = batch_size * num_steps
    later = itertools.islice(epochs, -(-num_rows // len(first)) - 1)
    rows = np.concatenate([first, *later])[:num_rows]
    return rows, np.arange(0, num_rows + 1, batch_size)


def _pass_splits(num_examples: int, batch_size: int) -> np.ndarray:
    """Returns row splits of a pass without a last batch of one example."""
    splits = np.append(np.arange(0, num_examples, batch_size), num_examples)
    lone = len(splits) > 2 and splits[-1] - splits[-2] == 1 < batch_size
    return splits[:-1] if lone else splits


def _steps_per_pass(
    epochs: Iterator[np.ndarray], batch_size: int, num_steps: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns rows and row splits of batches that do not straddle passes."""
    first = next(epochs)
    if not len(first):
        return first, np.zeros(1, np.int64)
    splits = _pass_splits(len(first), batch_size)
    num_passes = -(-num_steps // (len(splits) - 1))
    passes = [first, *itertools.islice(epochs, num_passes - 1)]
    rows = np.concatenate([order[: splits[-1]] for order in passes])
    sizes = np.resize(np.diff(splits), num_steps)
    splits = np.append(0, np.cumsum(sizes))
    return rows[: splits[-1]], splits


def _whole_epochs(
    epochs: Iterator[np.ndarray], batch_size: int, num_epochs: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns rows and row splits of epochs whose last batch may be smaller."""
    rows = np.stack(list(itertools.islice(epochs, num_epochs)))
    size = rows.shape[1]
    starts = size * np.arange(num_epochs)[:, None] + np.arange(0, size, batch_size)
    return rows.ravel(), np.append(starts, rows.size)


def derive_seed(*parts: int | str) -> int:
    """Returns a seed in [0, 2**31) that depends only on the parts."""
    digest = hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=8)
    return int.from_bytes(digest.digest(), "little") % (1 << 31)
