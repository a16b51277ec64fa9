"""Checks whether the server's remembered updates fit into this machine's memory."""

from typing import Any

import psutil
import tensorflow as tf

from tff_algos.hyperparameters import HyperparameterError
from tff_algos.models import ModelOrFn, local_model


def check_server_memory(
    model: ModelOrFn, num_rows: int, dtype: str | None, flag: tuple[str, Any]
) -> None:
    """Checks that the updates that a server remembers fit into memory.

    Args:
      model: The model.
      num_rows: The number of updates.
      dtype: The dtype of the updates; None for the weights' dtype.
      flag: Name and value of the hyperparameter to blame in the message.

    Raises:
      HyperparameterError: If they take more than half of the memory.
    """
    needed = num_rows * sum(
        spec.shape.num_elements() * tf.as_dtype(dtype or spec.dtype).size
        for spec in local_model.trainable_specs(model)
    )
    # The old and the new state are in memory during a round.
    available = psutil.virtual_memory().total / 2
    if needed > available:
        raise HyperparameterError(
            *flag,
            f"remembered updates of at most {available / 2**30:.1f} GiB, half of the "
            f"memory; those of {num_rows} clients take {needed / 2**30:.1f} GiB: "
            "try --memory_dtype=bfloat16, a smaller --model or fewer clients",
        )
