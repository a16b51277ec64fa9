"""Whether what a server must remember fits into this machine's memory."""

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
      model: The model that they are updates of.
      num_rows: How many there are.
      dtype: Their type; None for the weights' own.
      flag: Name and value of the hyperparameter to name.

    Raises:
      HyperparameterError: If they take more than half of the memory.
    """
    needed = num_rows * sum(
        spec.shape.num_elements() * tf.as_dtype(dtype or spec.dtype).size
        for spec in local_model.trainable_specs(model)
    )
    # A round has an old and a new state.
    available = psutil.virtual_memory().total / 2
    if needed > available:
        raise HyperparameterError(
            *flag,
            f"remembered updates of at most {available / 2**30:.1f} GiB, half of the "
            f"memory; those of {num_rows} clients take {needed / 2**30:.1f} GiB: "
            "try --memory_dtype=bfloat16, a smaller --model or fewer clients",
        )
