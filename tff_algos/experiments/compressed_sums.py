"""Compression by flag: `--compression=NAME:VALUE`."""

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow_federated as tff

from tff_algos import aggregators
from tff_algos.hyperparameters import (
    Form,
    HyperparameterError,
    UnusableHyperparameterError,
)

_CHOICES = (
    "quantize:BITS or rotate_quantize:BITS with BITS in [1, 16], or topk:SHARE with a "
    "share in (0, 1]"
)
_SUMS: dict[str, Callable[[str], tff.aggregators.UnweightedAggregationFactory]] = {
    "quantize": lambda bits: aggregators.build_quantized_sum(int(bits)),
    "rotate_quantize": lambda bits: aggregators.build_quantized_sum(
        int(bits), rotate=True
    ),
    "topk": lambda share: aggregators.TopKSumFactory(float(share)),
}
FORM = Form("(rotate_)?quantize:[0-9]+|topk:[0-9.eE+-]+", f"one of {_CHOICES}")


def build(text: str | None) -> tff.aggregators.UnweightedAggregationFactory | None:
    """Returns the sum that a flag's value names; None for the plain sum.

    Raises:
      HyperparameterError: If the value names none.
    """
    if text is None:
        return None
    name, _, value = str(text).partition(":")
    try:
        return _SUMS[name](value)
    except (KeyError, ValueError) as error:
        raise HyperparameterError("compression", text, f"one of {_CHOICES}") from error


def check(settings: Mapping[str, Any]) -> None:
    """Checks that the other settings of an algorithm go with compression.

    Args:
      settings: All settings of a run.

    Raises:
      HyperparameterError: If they do not.
    """
    text = settings["compression"]
    if text is None:
        return
    if settings.get("dp") is not None:
        obstacle = (
            "--dp: a compressed update may be longer than the clipping norm, for which "
            "the noise is chosen"
        )
    elif settings["aggregator"] not in (None, "clip", "zeroing"):
        obstacle = (
            f"--aggregator={settings['aggregator']}, which looks at every single update: "
            "encoders decode their sum"
        )
    else:
        return
    raise UnusableHyperparameterError("compression", text, f"with {obstacle}")
