"""The devices that computations run on."""

from collections.abc import Sequence

import tensorflow as tf
from absl import logging


class UnknownDeviceError(ValueError):
    """A device does not exist; the message lists those that do."""


def resolve(names: Sequence[str] | None) -> tuple[str, ...]:
    """Returns the full names of devices.

    Args:
      names: Names such as `GPU:0`, or `GPU:*` for all of a kind, or TensorFlow's
        logical devices; if `None`, all GPUs, or the CPU if there is no GPU.

    Returns:
      The names in the order given, at least one.

    Raises:
      UnknownDeviceError: If `names` is empty or a device does not exist.
    """
    if isinstance(names, str):
        raise UnknownDeviceError(
            f"Expected runtime_devices to be a list of names, found {names!r}."
        )
    grow_memory()
    logical = [device.name for device in tf.config.list_logical_devices()]
    known = [name.removeprefix("/device:") for name in logical]
    if names is None:
        gpus = [name for name in known if name.startswith("GPU:")]
        names = gpus or ["CPU:0"]
    resolved = []
    for name in names:
        name = getattr(name, "name", name)  # Of a logical device.
        short = name.removeprefix("/device:").removeprefix("/").upper()
        kind = short.removesuffix("*")
        matching = [
            k for k in known if k == short or (kind != short and k[: len(kind)] == kind)
        ]
        if not matching:
            raise UnknownDeviceError(
                f"Expected runtime_devices out of {', '.join(known)}, found {name!r}."
            )
        resolved += matching
    if not resolved:
        raise UnknownDeviceError(
            f"Expected at least one of runtime_devices, out of {', '.join(known)}."
        )
    return tuple(f"/device:{name}" for name in resolved)


def grow_memory() -> None:
    """Enables memory growth on GPUs, instead of allocating all memory at once.

    To be called before anything runs on them.
    """
    for gpu in tf.config.list_physical_devices("GPU"):
        try:
            tf.config.experimental.set_memory_growth(gpu, True)
        except (RuntimeError, ValueError) as error:
            # The GPU is in use already, or split into logical devices.
            logging.debug("%s keeps its way of allocating: %s", gpu.name, error)
