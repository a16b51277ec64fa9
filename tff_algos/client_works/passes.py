"""A client's batches as tensors, for client work that needs random access.

A dataset can only be read forward. Client work that goes back through its steps
reads the examples once, in whole passes, and accesses batches by index.
"""

from typing import Any

import attrs
import tensorflow as tf

# More examples than a client can hold, and more passes than any client work makes.
_ALL = 1 << 30


@attrs.frozen
class Passes:
    """Passes over a client's examples, split into batches of one size.

    Only the last batch of a pass may be smaller.

    Attributes:
      examples: Flat tuple of tensors `[passes, n, ...]`.
      first_batch: Flat tuple of tensors `[passes, batch size, ...]`.
      element_spec: The structure of a batch.
    """

    examples: tuple[tf.Tensor, ...]
    first_batch: tuple[tf.Tensor, ...]
    element_spec: Any

    @property
    def num_examples(self) -> tf.Tensor:
        """Examples per pass, int32 []."""
        return tf.shape(self.examples[0])[1]

    @property
    def batch_size(self) -> tf.Tensor:
        """Examples per batch, except for the last batch of a pass, int32 []."""
        return tf.shape(self.first_batch[0])[1]

    @property
    def batches_per_pass(self) -> tf.Tensor:
        """Batches per pass, int32 []; 0 without examples."""
        return -(-self.num_examples // tf.maximum(self.batch_size, 1))

    @property
    def num_batches(self) -> tf.Tensor:
        """Batches of all passes, int32 []."""
        return tf.shape(self.examples[0])[0] * self.batches_per_pass

    def batch(self, index: tf.Tensor) -> Any:
        """Returns batch `index` (int32 []), modulo the number of batches."""
        index %= self.num_batches
        which, position = index // self.batches_per_pass, index % self.batches_per_pass
        start = position * self.batch_size
        stop = tf.minimum(start + self.batch_size, self.num_examples)
        return tf.nest.pack_sequence_as(
            self.element_spec, [tensor[which, start:stop] for tensor in self.examples]
        )


def read(dataset: tf.data.Dataset, num_passes: int = 1) -> Passes:
    """Reads passes over a client's dataset.

    They are read as a single element, without an iterator, because creating one costs
    more than the steps of a small model.

    Args:
      dataset: One pass: the client's batches. The examples keep their order and are
        rebatched to the size of the first batch. If the dataset reshuffles each
        iteration, the passes differ in order.
      num_passes: The number of passes, >= 1.

    Returns:
      The passes; they have no examples if the dataset has none.
    """
    one_pass = tf.data.Dataset.zip((dataset.unbatch().batch(_ALL), dataset.take(1)))
    passes = one_pass.repeat(num_passes).batch(_ALL)
    nothing = tf.nest.map_structure(_no_examples, passes.element_spec)
    whole = passes.concatenate(tf.data.Dataset.from_tensors(nothing)).take(1)
    examples, first_batch = whole.get_single_element()
    return Passes(
        tuple(tf.nest.flatten(examples)),
        tuple(tf.nest.flatten(first_batch)),
        dataset.element_spec,
    )


def split(dataset: tf.data.Dataset, num_passes: int) -> Passes:
    """Splits a client's dataset of several passes, one after the other.

    Args:
      dataset: The batches of `num_passes` passes, each of which contains every example
        once, in an order of its own.
      num_passes: The number of passes, >= 1.

    Returns:
      The passes; as from `read`, a pass's examples are rebatched to the size of the
      first batch.
    """
    joined = read(dataset)
    examples = tuple(
        tf.reshape(x, tf.concat([[num_passes, -1], tf.shape(x)[2:]], axis=0))
        for x in joined.examples
    )
    return attrs.evolve(joined, examples=examples)


def _no_examples(spec: tf.TensorSpec) -> tf.Tensor:
    """Returns an empty tensor like `spec` `[passes, examples, ...]`."""
    return tf.zeros([1, 0, *(size or 0 for size in spec.shape[2:])], spec.dtype)
