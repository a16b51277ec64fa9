"""A client's batches as tensors, for work that visits them out of order.

A data set can only be read forwards. Work that goes back over the steps it took
reads the examples once, whole passes at a time, and takes batches by number.
"""

from typing import Any

import attrs
import tensorflow as tf

# More examples than any client has, more passes than any work takes.
_ALL = 1 << 20


@attrs.frozen
class Passes:
    """Passes over a client's examples, cut into batches of one size.

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
        """Examples of one pass, int32 []."""
        return tf.shape(self.examples[0])[1]

    @property
    def batch_size(self) -> tf.Tensor:
        """Examples of a batch that is not the last one of a pass, int32 []."""
        return tf.shape(self.first_batch[0])[1]

    @property
    def batches_per_pass(self) -> tf.Tensor:
        """Batches of one pass, int32 []; 0 without examples."""
        return -(-self.num_examples // tf.maximum(self.batch_size, 1))

    @property
    def num_batches(self) -> tf.Tensor:
        """Batches of all passes, int32 []."""
        return tf.shape(self.examples[0])[0] * self.batches_per_pass

    def batch(self, index: tf.Tensor) -> Any:
        """Returns batch `index` (int32 []); after the last comes the first again."""
        index %= self.num_batches
        which, position = index // self.batches_per_pass, index % self.batches_per_pass
        start = position * self.batch_size
        stop = tf.minimum(start + self.batch_size, self.num_examples)
        return tf.nest.pack_sequence_as(
            self.element_spec, [tensor[which, start:stop] for tensor in self.examples]
        )


def read(dataset: tf.data.Dataset, num_passes: int = 1) -> Passes:
    """Reads passes over a client's data set.

    Taken as a single element, they come without an iterator, whose making costs more
    than the steps of a small model.

    Args:
      dataset: One pass: the client's batches. The examples keep their order, and are
        batched anew by the size of the first batch. If it shuffles anew at every
        iteration, so do the passes.
      num_passes: How many, >= 1.

    Returns:
      The passes; of no examples if the data set has none.
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


def _no_examples(spec: tf.TensorSpec) -> tf.Tensor:
    """Returns a tensor like `spec` `[passes, examples, ...]`, without examples."""
    return tf.zeros([1, 0, *(size or 0 for size in spec.shape[2:])], spec.dtype)
