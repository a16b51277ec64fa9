"""Where a run's data come from, where its results go, and what runs it."""

import errno
import math
import numbers
import os
import pathlib
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Literal, Self, get_args

import attrs
import tensorflow_federated as tff

from tff_algos import execution, paths
from tff_algos.execution import default_context
from tff_algos.hyperparameters import (
    HyperparameterError,
    UnusableHyperparameterError,
    check_list,
)

Runtime = Literal["in_process", "native", "ray"]
# The settings of one runtime alone.
_OF_RUNTIME = {
    "runtime_devices": "in_process",
    "ray_address": "ray",
    "ray_workers": "ray",
    "ray_worker_resources": "ray",
}


def _check_choice(launch: Any, field: attrs.Attribute, value: Any) -> None:
    choices = (True, False) if field.type is bool else get_args(field.type)
    if not isinstance(value, Hashable) or value not in choices:
        expected = f"one of {', '.join(map(str, choices))}"
        raise HyperparameterError(field.name, value, expected)


def _check_names(launch: Any, field: attrs.Attribute, value: Any) -> None:
    check_list(field.name, value)


def _check_path(launch: Any, field: attrs.Attribute, value: Any) -> None:
    if not isinstance(value, str | os.PathLike | None) or value == "":
        raise HyperparameterError(field.name, value, "a path")
    try:
        os.stat(value or ".")
    except ValueError as error:
        raise HyperparameterError(field.name, value, "a path") from error
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise HyperparameterError(field.name, value, "a shorter path") from error


def _check_output_dir(launch: Any, field: attrs.Attribute, value: Any) -> None:
    _check_path(launch, field, value)
    if value is not None and paths.is_pattern(value):
        raise HyperparameterError(field.name, value, paths.NO_PATTERN)


def _expanded(path: Any) -> Any:
    """Returns a path whose ~ stands for a home folder, which shells leave in flags."""
    return os.path.expanduser(path) if isinstance(path, str | os.PathLike) else path


@attrs.frozen(kw_only=True)
class Launch:
    """Where a run's data come from, where its results go, and what runs it.

    Attributes:
      data: As in `tasks.task.DataOptions`.
      cache_dir: As in `tasks.task.DataOptions`.
      output_dir: The results folder; None for a new one below `runs`.
      resume: Whether to resume the run in `output_dir`, if there is one.
      runtime: What runs TFF computations: this process, TFF's own C++ worker, or this
        process with the clients in Ray workers.
      runtime_devices: Devices of the in-process runtime; None for all GPUs, or the CPU.
      ray_address: The Ray cluster to join; None to start Ray on this machine.
      ray_workers: The number of Ray workers; None for as many as there is room for.
      ray_worker_resources: What a Ray worker takes, as "GPU:1"; None for "CPU:1".
      command: What config.json records as the run's origin.
    """

    data: Literal["auto", "tff", "generated"] = attrs.field(
        default="auto", validator=_check_choice
    )
    cache_dir: str | None = attrs.field(
        default=None, converter=_expanded, validator=_check_path
    )
    output_dir: str | pathlib.Path | None = attrs.field(
        default=None, converter=_expanded, validator=_check_output_dir
    )
    resume: bool = attrs.field(default=True, validator=_check_choice)
    runtime: Runtime = attrs.field(default="in_process", validator=_check_choice)
    runtime_devices: Sequence[str] | None = None
    ray_address: str | None = None
    ray_workers: int | None = None
    ray_worker_resources: Sequence[str] | None = attrs.field(
        default=None, validator=_check_names
    )
    command: Any = None

    @classmethod
    def of_flags(cls, values: Mapping[str, Any], command: Any = None) -> Self:
        """Returns what flags say; each attribute but `command` has one of its name."""
        names = [each.name for each in attrs.fields(cls) if each.name != "command"]
        return cls(command=command, **{name: values[name] for name in names})


def check_runtime(launch: Launch) -> None:
    """Checks the settings of the runtime, as far as is possible without it.

    Raises:
      HyperparameterError: If a setting is invalid, or of another runtime.
    """
    for name, runtime in _OF_RUNTIME.items():
        value = getattr(launch, name)
        if value is not None and launch.runtime != runtime:
            raise UnusableHyperparameterError(
                name,
                ",".join(value) if isinstance(value, list | tuple) else value,
                f"with --runtime={launch.runtime}: it belongs to --runtime={runtime}",
            )
    workers = launch.ray_workers
    is_integer = isinstance(workers, numbers.Integral) and not isinstance(workers, bool)
    if workers is not None and not (is_integer and workers >= 1):
        raise HyperparameterError("ray_workers", launch.ray_workers, "an integer >= 1")
    _worker_resources(launch.ray_worker_resources)


def set_context(launch: Launch) -> None:
    """Makes the runtime that was asked for TFF's default.

    Raises:
      HyperparameterError: If a setting is invalid, or of another runtime, or this is
        inside of another context.
      execution.ClusterError: If Ray cannot run what was asked for.
      execution.UnknownDeviceError: If a device does not exist.
    """
    check_runtime(launch)
    if default_context.is_installed():
        _check_installed(launch)
        return
    if launch.runtime == "in_process":
        execution.set_in_process_context(runtime_devices=launch.runtime_devices)
    elif launch.runtime == "native":
        execution.set_native_context()
    else:
        execution.set_ray_context(
            launch.ray_workers,
            address=launch.ray_address,
            resources_per_worker=_worker_resources(launch.ray_worker_resources),
        )


def _check_installed(launch: Launch) -> None:
    """Raises `HyperparameterError` if the context around a run is not the one asked for."""
    current = tff.framework.get_context_stack().current
    # Of the default context and that of `explain`, the one that runs computations.
    current = type(getattr(current, "created", lambda: current)())
    name, value = "runtime", launch.runtime
    if value == "in_process" and current is execution.InProcessContext:
        if launch.runtime_devices is None:
            return
        name, value = "runtime_devices", ",".join(launch.runtime_devices)
    raise UnusableHyperparameterError(
        name,
        value,
        f"inside of a `with` statement that installs {current.__name__}: run outside of "
        "it",
    )


def _worker_resources(texts: Sequence[str] | None) -> dict[str, float] | None:
    """Returns the amounts of resources by name.

    Raises:
      HyperparameterError: If a text is not NAME:AMOUNT.
    """
    if texts is None:
        return None
    found = {}
    for text in texts:
        name, _, amount = text.partition(":")
        try:
            found[name] = float(amount)
        except ValueError:
            found[name] = math.nan
        if not name or not 0 < found[name] < math.inf:
            raise HyperparameterError(
                "ray_worker_resources",
                text,
                "a list of NAME:AMOUNT, such as CPU:1 or GPU:1, with amounts > 0",
            )
    return found or None
