"""How a client's examples become the batches of one round."""

import hashlib

import attrs
import numpy as np

from tff_algos import compat  # noqa: F401  # isort: skip

import tensorflow as tf

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


def batch_examples(examples: Examples, spec: BatchSpec, seed: int) -> tf.data.Dataset:
    """Returns the batches `(x [b, ...], y [b, ...])` that `spec` asks for.

    Args:
      examples: `(x, y)` with a common first axis of n examples, n may be 0.
      spec: Batch size, epochs or steps, truncation, shuffling.
      seed: Decides the order of the examples (and which are kept where
        `max_elements` truncates); every epoch has an order of its own. So does
        `tf.random.set_seed`'s global seed, where a program sets one.
    """
    num_examples = len(examples[0])
    dataset = tf.data.Dataset.from_tensor_slices(examples)
    if spec.shuffle and num_examples > 1:
        if spec.max_elements is not None and spec.max_elements < num_examples:
            dataset = dataset.shuffle(
                num_examples, seed=seed, reshuffle_each_iteration=False
            ).take(spec.max_elements)
        dataset = dataset.shuffle(num_examples, seed=seed)
    elif spec.max_elements is not None:
        dataset = dataset.take(spec.max_elements)
    if spec.num_steps is not None:
        return dataset.repeat().batch(spec.batch_size).take(spec.num_steps)
    return dataset.batch(spec.batch_size).repeat(spec.num_epochs)


def derive_seed(*parts: int | str) -> int:
    """Returns a seed in [0, 2**31) that depends on every part and nothing else."""
    digest = hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=8)
    return int.from_bytes(digest.digest(), "little") % (1 << 31)
