"""Leaves the functions of this package to Python, and users' functions to AutoGraph.

AutoGraph rewrites the control flow of every function that a TFF computation calls,
directly or not. A function takes 0.05 to 0.1 seconds, which made the first round of an
algorithm 3 to 8 seconds longer, and no function of this package needs it. What a skipped
function calls is skipped as well, so users' functions, such as a model's loss, are
called through `convertible`.
"""

from collections.abc import Callable
from typing import Any

import tensorflow as tf
from tensorflow.python.autograph.core import config

# Modules of TFF whose control flow depends on no tensor. They call users' functions only
# through Keras, which has AutoGraph convert them. The optimizers' schedules and Keras'
# optimizers are not among them.
_TFF_MODULES = (
    "common_libs.py_typecheck",
    "learning.metrics.counters",
    "learning.metrics.keras_finalizer",
    "learning.models.keras_utils",
    "learning.optimizers.adafactor",
    "learning.optimizers.adagrad",
    "learning.optimizers.adam",
    "learning.optimizers.adamw",
    "learning.optimizers.nest_utils",
    "learning.optimizers.optimizer",
    "learning.optimizers.rmsprop",
    "learning.optimizers.sgdm",
    "learning.optimizers.yogi",
    "learning.tensor_utils",
)
_TFF_PACKAGES = tuple(f"tensorflow_federated.python.{each}" for each in _TFF_MODULES)


def leave_to_python(*packages: str) -> None:
    """Lets AutoGraph convert no function of `packages`, for the whole process."""
    config.CONVERSION_RULES = (
        # `_call` is what AutoGraph is to convert, with all that it calls.
        config.Convert(__name__),
        *map(config.DoNotConvert, packages),
        *config.CONVERSION_RULES,
    )


def leave_own_to_python() -> None:
    """Lets it convert neither this package nor those modules of TFF that allow that."""
    leave_to_python(__package__, *_TFF_PACKAGES)


def convertible(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a user's function as one that AutoGraph converts where it is called.

    It does so in TFF computations and in `tf.function`, unless either was told not to.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        context = tf.__internal__.autograph.control_status_ctx()
        converted = tf.__internal__.autograph.tf_convert(
            _call, context, convert_by_default=False
        )
        return converted(function, *args, **kwargs)

    return call


def _call(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return function(*args, **kwargs)
