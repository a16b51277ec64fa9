"""How a client's examples become the batches of one round."""

import hashlib
import itertools
from collections.abc import Iterator

import attrs
import numpy as np

from tff_algos import compat  # noqa: F401  # isort: skip

import tensorflow as tf

from tff_algos import execution

# The examples of one client and one split: (x, y), arrays whose first axis is
# the example, preprocessed as the model expects them but not batched.
Examples = tuple[np.ndarray, np.ndarray]


@attrs.frozen(kw_only=True)
class BatchSpec:
    """How a client's examples become the batches of one round.

    Exactly one of `num_epochs` and `num_steps` is set. Epochs shuffle, truncate
    to `max_elements`, repeat and then batch each epoch by itself (the last batch
    of an epoch may be smaller). Steps repeat before batching, so batches
    straddle epochs and every client takes exactly `num_steps` of them, all full
    (a client without examples takes none).
    """

    batch_size: int = attrs.field(validator=attrs.validators.ge(1))
    num_epochs: int | None = attrs.field(
        default=None, validator=attrs.validators.optional(attrs.validators.ge(1))
    )
    num_steps: int | None = attrs.field(
        default=None, validator=attrs.validators.optional(attrs.validators.ge(1))
    )
    max_elements: int | None = attrs.field(
        default=None, validator=attrs.validators.optional(attrs.validators.ge(1))
    )
    shuffle: bool = True

    def __attrs_post_init__(self):
        if (self.num_epochs is None) == (self.num_steps is None):
            raise ValueError(
                "BatchSpec needs exactly one of num_epochs and num_steps, found "
                f"num_epochs={self.num_epochs}, num_steps={self.num_steps}."
            )

    def num_examples(self, available: int) -> int:
        """Returns how many examples the batches of `available` ones have."""
        if self.num_steps is not None:
            return self.batch_size * self.num_steps if available else 0
        return self.num_epochs * min(available, self.max_elements or available)


def batch_examples(examples: Examples, spec: BatchSpec, seed: int) -> tf.data.Dataset:
    """Returns the batches `(x [b, ...], y [b, ...])` that `spec` asks for.

    Args:
      examples: `(x, y)` with a common first axis of n examples, n may be 0; they must
        not change afterwards.
      spec: Batch size, epochs or steps, truncation, shuffling.
      seed: Decides the order of the examples (and which are kept where
        `max_elements` truncates); every epoch has an order of its own.
    """
    order = _epochs(len(examples[0]), spec, np.random.default_rng(seed))
    if spec.num_steps is not None:
        rows, splits = _steps(order, spec.batch_size, spec.num_steps)
    else:
        rows, splits = _whole_epochs(order, spec.batch_size, spec.num_epochs)
    return execution.ArrayDataset(examples, rows, splits)


def _epochs(
    num_examples: int, spec: BatchSpec, generator: np.random.Generator
) -> Iterator[np.ndarray]:
    """Yields the order of the examples in one epoch after the other, for ever."""
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


def _whole_epochs(
    epochs: Iterator[np.ndarray], batch_size: int, num_epochs: int
) -> tuple[np.ndarray, np.ndarray]:
    """Returns rows and row splits of epochs whose last batch may be smaller."""
    rows = np.stack(list(itertools.islice(epochs, num_epochs)))
    size = rows.shape[1]
    starts = size * np.arange(num_epochs)[:, None] + np.arange(0, size, batch_size)
    return rows.ravel(), np.append(starts, rows.size)


def derive_seed(*parts: int | str) -> int:
    """Returns a seed in [0, 2**31) that depends on every part and nothing else."""
    digest = hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=8)
    return int.from_bytes(digest.digest(), "little") % (1 << 31)
