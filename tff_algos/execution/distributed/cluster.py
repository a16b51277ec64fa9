"""Starts Ray on this machine, or joins a cluster, and says in one line what is wrong."""

import atexit
import contextlib
import importlib
import logging as python_logging
import os
import pathlib
import shutil
import signal
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import attrs

from tff_algos import cpus, messages
from tff_algos.execution.distributed import tokens
from tff_algos.execution.distributed.janitor import Janitor

# Values on their way; Ray writes what exceeds it to disk.
_OBJECT_STORE_BYTES = 2 << 30
_SHARED_MEMORY = "/dev/shm"
# Of a path of a UNIX socket below the folder, and of that path at most.
_SOCKET_NAME, _MAX_SOCKET_PATH = 70, 107
# The address of a cluster that runs on this machine.
_OWN_MACHINE = "auto"
_CONNECT_SECONDS = 10.0
_PACKAGE_ROOT = pathlib.Path(__file__).parents[3]


class ClusterError(RuntimeError):
    """Ray cannot run what was asked for; the message is one line."""


@attrs.frozen(eq=False)
class Cluster:
    """A connection to Ray.

    Attributes:
      ray: The package.
      num_workers: How many workers to start.
      close: Ends what was started here; idempotent.
    """

    ray: Any
    num_workers: int
    close: Callable[[], None]


def import_ray() -> Any:
    """Returns the package `ray`.

    Raises:
      ClusterError: If it is not installed.
    """
    # Ray reports its use to its makers otherwise.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        return importlib.import_module("ray")
    except ImportError as error:
        raise ClusterError(
            f"the Ray runtime needs the package ray ({messages.one_line(error)}): "
            "pip install -r requirements-ray.txt, or make setup RAY=1."
        ) from error


def fitting(
    num_workers: int | None,
    per_worker: Mapping[str, float],
    machines: Sequence[Mapping[str, float]],
) -> int:
    """Returns how many workers to start.

    Args:
      num_workers: How many are wanted; `None` for as many as fit.
      per_worker: What each of them takes.
      machines: What each machine has.

    Raises:
      ClusterError: If there is too little of something.
    """

    def room(machine: Mapping[str, float]) -> int:
        shares = (machine.get(name, 0.0) / each for name, each in per_worker.items())
        return int(min(shares) + 1e-9)  # 7 / 0.14 is below 50.

    fit = sum(map(room, machines))
    wanted = max(1, fit) if num_workers is None else num_workers
    workers = f"{wanted} worker{'s' if wanted > 1 else ''}"
    less = "ask for fewer workers or less per worker."
    for name, amount in per_worker.items():
        there = sum(machine.get(name, 0.0) for machine in machines)
        if wanted * amount > there + 1e-9:
            raise ClusterError(
                f"{workers} with {name}: {amount:g} each need {wanted * amount:g}, "
                f"found {there:g}: {less}"
            )
    if wanted > fit:
        needed = ", ".join(f"{name}: {each:g}" for name, each in per_worker.items())
        raise ClusterError(
            f"{workers} with {needed} each do not fit: the machines of the cluster have "
            f"room for {fit}: {less}"
        )
    return wanted


def open_cluster(
    address: str | None, num_workers: int | None, per_worker: Mapping[str, float]
) -> Cluster:
    """Starts Ray here or joins a cluster, and checks that the workers fit.

    A program that has called `ray.init` itself goes on with its Ray, which stays.

    Args:
      address: The cluster's `HOST:PORT`; `None` to start Ray on this machine.
      num_workers: The number of workers; `None` for as many as fit.
      per_worker: What each of them takes.

    Returns:
      The connection.

    Raises:
      ClusterError: If Ray is missing, does not start or cannot be reached, or if there
        is too little for the workers.
    """
    ray = import_ray()
    if address is not None:
        _check_address(address)
    if ray.is_initialized():
        close = _nothing
    elif address is None:
        close = _start(ray)
    else:
        close = _join(ray, address)
    try:
        machines = [each["Resources"] for each in ray.nodes() if each["Alive"]]
        wanted = fitting(num_workers, per_worker, machines)
    except BaseException:
        close()
        raise
    return Cluster(ray, wanted, close)


def _nothing() -> None:
    """Leaves Ray to the program that started it."""


def worker_environment() -> dict[str, str]:
    """Returns the environment variables of workers that must be as in this process."""
    names = ("TF_ENABLE_ONEDNN_OPTS", "TF_CPP_MIN_LOG_LEVEL")
    environment = {name: os.environ[name] for name in names if name in os.environ}
    # For a checkout, which is not installed.
    environment["PYTHONPATH"] = os.pathsep.join(
        [str(_PACKAGE_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    return environment


def _start(ray: Any) -> "_Close":
    folder = tempfile.mkdtemp(prefix="tff_algos-ray-")
    if len(folder) + _SOCKET_NAME > _MAX_SOCKET_PATH:
        shutil.rmtree(folder)
        folder = tempfile.mkdtemp(prefix="tff_algos-ray-", dir="/tmp")
    close = _Close(ray, Janitor(folder))
    try:
        with (
            _own_signals(),
            _on_loopback(),
            close.janitor.marking(),
            tokens.kept_private(),
        ):
            ray.init(
                num_cpus=cpus.count(),
                # Ray counts the machine's GPUs itself.
                object_store_memory=_object_store_bytes(),
                include_dashboard=False,
                configure_logging=True,
                logging_level=python_logging.ERROR,
                log_to_driver=False,
                _node_ip_address="127.0.0.1",
                _temp_dir=folder,
                _system_config={
                    # Workers have an environment of their own; idle others take memory.
                    "prestart_worker_first_driver": False,
                    # As one process: Ray's 15 would let all other programs go first.
                    "worker_niceness": 0,
                },
            )
    except BaseException as error:
        close()
        if isinstance(error, Exception):
            reason = messages.one_line(error)
            raise ClusterError(f"Ray did not start here: {reason}") from error
        raise
    return close


def _check_address(address: str) -> None:
    """Checks that something listens at an address, which Ray waits for in vain.

    Raises:
      ClusterError: If it is no address, or nothing answers.
    """
    if address == _OWN_MACHINE:
        return
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal() or "/" in host:
        raise ClusterError(
            f"ray_address: expected HOST:PORT of a cluster's head, or "
            f"{_OWN_MACHINE!r} for this machine's, found {messages.shown(address)}."
        )
    try:
        socket.create_connection((host, int(port)), timeout=_CONNECT_SECONDS).close()
    except (OSError, OverflowError, UnicodeError) as error:
        raise ClusterError(
            f"ray_address: nothing answers at {messages.shown(address)} "
            f"({messages.one_line(error)}): start the head there with "
            f"ray start --head --port={port}."
        ) from error


def _join(ray: Any, address: str) -> "_Close":
    # Ray itself sends the token to a cluster that it finds on this machine.
    obstacle = "" if address == _OWN_MACHINE else tokens.send_if_required(address)
    if obstacle:
        raise _refused(address, obstacle)
    close = _Close(ray)
    try:
        with _own_signals():
            ray.init(
                address,
                logging_level=python_logging.CRITICAL,
                log_to_driver=False,
            )
    except BaseException as error:
        close()
        if isinstance(error, Exception):
            raise _refused(address, _reason(error)) from error
        raise
    return close


def _refused(address: str, reason: str) -> ClusterError:
    shown = messages.shown(address)
    return ClusterError(f"ray_address: cannot join a Ray cluster at {shown}: {reason}")


def _reason(error: Exception) -> str:
    text = messages.one_line(error)
    return text if text.endswith(".") else f"{text}."


def _object_store_bytes() -> int:
    """Returns the size of Ray's store, which is in shared memory."""
    if not os.path.isdir(_SHARED_MEMORY):
        return _OBJECT_STORE_BYTES
    return min(_OBJECT_STORE_BYTES, int(0.8 * shutil.disk_usage(_SHARED_MEMORY).free))


class _Close:
    """Ends Ray: once, at the latest when this process ends.

    Attributes:
      janitor: Deletes the files of a Ray that was started here.
    """

    def __init__(self, ray: Any, janitor: Janitor | None = None):
        self.janitor = janitor
        self._ray = ray
        self._owner = os.getpid()
        # After Ray's own, and thus called before it.
        atexit.register(self)

    def __call__(self) -> None:
        atexit.unregister(self)
        if self._ray is None or os.getpid() != self._owner:
            return  # Closed before, or in a fork of the owner.
        with _own_signals():
            self._ray.shutdown()
        self._ray = None
        if self.janitor is not None:
            self.janitor.end()


@contextlib.contextmanager
def _own_signals() -> Iterator[None]:
    """Restores the handler of SIGTERM, which Ray replaces."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def _on_loopback() -> Iterator[None]:
    """Keeps Ray from replacing 127.0.0.1 by the address that other machines use."""
    constants = importlib.import_module("ray._private.ray_constants")
    before = constants.ENABLE_RAY_CLUSTER
    constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        constants.ENABLE_RAY_CLUSTER = before
