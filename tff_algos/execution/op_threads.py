"""The number of threads that TensorFlow uses within an op, in the whole process."""

import os

import tensorflow as tf

from tff_algos import cpus


def count() -> int:
    """Returns the number; results depend on it, because ops divide their sums by it."""
    set_here = tf.config.threading.get_intra_op_parallelism_threads()
    return (
        set_here or int(os.environ.get("TF_NUM_INTRAOP_THREADS") or 0) or cpus.count()
    )


def set_count(number: int) -> None:
    """Sets the number.

    Raises:
      ValueError: If it is less than 1.
      RuntimeError: If TensorFlow already runs with another number.
    """
    if number < 1:
        raise ValueError(f"Expected intra_op_threads of at least 1, found {number}.")
    if number == count():
        return
    try:
        tf.config.threading.set_intra_op_parallelism_threads(number)
    except RuntimeError as error:
        raise RuntimeError(
            f"Expected intra_op_threads={count()}, with which TensorFlow already runs, "
            f"found {number}: set it before TensorFlow's first op, or start Python with "
            f"TF_NUM_INTRAOP_THREADS={number}."
        ) from error
