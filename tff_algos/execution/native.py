"""TFF's own C++ runtime, with a managed worker process.

Computations and results are those of TFF's default context, but the worker process
ends with this process, inherits none of its open files and writes nothing to the
terminal; a worker that dies raises an error instead of hanging; and start-up takes only
as long as the worker's, instead of whole seconds.
"""

import contextlib
import os
import pathlib
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import tensorflow_federated as tff
from absl import logging

from tff_algos.execution import call_loop, forks
from tff_algos.execution import worker as worker_lib

_CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", 2_000_000_000),
    ("grpc.max_send_message_length", 2_000_000_000),
    # Calls to localhost must not go through a proxy from the environment.
    ("grpc.enable_http_proxy", 0),
)

# The kernel reports a dead process slightly later than its broken connection.
_DEATH_SECONDS = 2.0

_CLOSED = "This native context was closed: call set_native_context() again."
_CLOSED_MEANWHILE = "This native context was closed during a computation."


class NativeContextClosedError(worker_lib.NativeRuntimeError):
    """The context was closed and can no longer run computations."""


class NativeContext(tff.framework.SyncContext):
    """A synchronous context that owns one worker process, started on demand."""

    def __init__(
        self,
        default_num_clients: int = 0,
        max_concurrent_computation_calls: int = -1,
        stream_structs: bool = False,
        worker_log: str | os.PathLike[str] | None = None,
    ):
        """Initializes the context; see `set_native_context` for the arguments."""
        arguments = (
            f"--max_concurrent_computation_calls={max_concurrent_computation_calls}",
        )
        log = None if worker_log is None else pathlib.Path(worker_log)
        self._factory = _WorkerExecutorFactory(
            lambda: worker_lib.Worker(_worker_binary(), arguments, log),
            default_num_clients,
            stream_structs,
        )
        self._context = tff.framework.AsyncExecutionContext(
            executor_fn=self._factory,
            compiler_fn=tff.backends.native.desugar_and_transform_to_native,
            transform_args=tff.tensorflow.transform_args,
            transform_result=tff.tensorflow.transform_result,
        )
        self._calls = call_loop.CallLoop()
        self._owner = forks.Owner()
        # Runs when the context is no longer referenced, or else at interpreter exit.
        self._finalizer = weakref.finalize(self, _close, self._factory, self._calls)

    @property
    def worker_pid(self) -> int | None:
        """The worker's process id; `None` if there is no worker."""
        return self._factory.worker_pid

    def invoke(self, comp: Any, arg: Any) -> Any:
        """Runs `comp`; an interrupt ends the worker too.

        Otherwise the worker would continue the abandoned computation, and the next call
        would wait for it.

        Raises:
          RuntimeError: In a forked child, which lacks the thread that calls the worker.
        """
        self._owner.check("The native context")
        try:
            return self._calls.run(lambda: self._context.invoke(comp, arg))
        except call_loop.CallLoopEndedError:
            raise NativeContextClosedError(_CLOSED) from None
        except (KeyboardInterrupt, SystemExit):
            self._factory.end_worker()
            raise

    def close(self) -> None:
        """Ends the worker and waits for its exit; idempotent.

        Running computations fail; later ones raise `NativeContextClosedError`.
        """
        self._finalizer()


def set_native_context(
    default_num_clients: int = 0,
    max_concurrent_computation_calls: int = -1,
    stream_structs: bool = False,
    worker_log: str | os.PathLike[str] | None = None,
) -> NativeContext:
    """Makes TFF's C++ runtime this thread's default context, as it is in TFF.

    If a worker dies during a call, the call raises `WorkerDiedError`, and the next call
    starts another worker.

    Args:
      default_num_clients: Number of clients if the arguments do not determine it.
      max_concurrent_computation_calls: Limit on concurrent calls of one
        computation in the worker (clients in parallel); no limit if not positive.
      stream_structs: Sends structures leaf by leaf, for values above gRPC's 2 GB.
      worker_log: File that the worker's output is appended to; dropped if `None`. The
        environment's `TF_CPP_MIN_LOG_LEVEL` sets its verbosity.

    Returns:
      The context; its `close()` ends the worker before this process does.

    Raises:
      WorkerStartError: If the worker does not start.
    """
    context = NativeContext(
        default_num_clients,
        max_concurrent_computation_calls,
        stream_structs,
        worker_log,
    )
    tff.framework.set_default_context(context)
    return context


@contextlib.contextmanager
def native_context(**kwargs: Any) -> Iterator[NativeContext]:
    """Runs the body in a new `NativeContext`, closed at the end.

    Args:
      **kwargs: As in `set_native_context`.

    Yields:
      The context.
    """
    context = NativeContext(**kwargs)
    try:
        with tff.framework.get_context_stack().install(context):
            yield context
    finally:
        context.close()


def _worker_binary() -> pathlib.Path:
    path = pathlib.Path(tff.__file__).parent / "data" / "worker_binary"
    if not path.is_file():
        raise worker_lib.WorkerStartError(
            f"TFF's worker {path} does not exist: this TFF has no native runtime."
        )
    return path


def _close(factory: "_WorkerExecutorFactory", calls: call_loop.CallLoop) -> None:
    # Running calls end because their worker is gone.
    factory.close()
    calls.end()


class _WorkerExecutorFactory(tff.framework.ExecutorFactory):
    """Creates executors in one worker, which it starts and restarts if it died."""

    def __init__(
        self,
        start_worker: Callable[[], worker_lib.Worker],
        default_num_clients: int,
        stream_structs: bool,
    ):
        self._start_worker = start_worker
        self._default_num_clients = default_num_clients
        self._stream_structs = stream_structs
        self._closed = False
        self._worker = None
        self._stub = None
        self._executors = None

    @property
    def worker_pid(self) -> int | None:
        running = self._worker is not None and self._worker.is_alive()
        return self._worker.pid if running else None

    def create_executor(self, cardinalities: tff.framework.CardinalitiesType) -> Any:
        if self._closed:
            raise NativeContextClosedError(_CLOSED)
        if self._worker is None or not self._worker.is_alive():
            self._start()
        return self._executors.create_executor(cardinalities)

    def clean_up_executor(self, cardinalities: tff.framework.CardinalitiesType) -> None:
        if self._executors is not None:
            self._executors.clean_up_executor(cardinalities)

    def close(self) -> None:
        self._closed = True
        self.end_worker()

    def end_worker(self) -> None:
        worker, self._worker = self._worker, None
        if worker is not None:
            worker.kill()
            self._stub.close()

    def _start(self) -> None:
        if self._worker is not None:
            logging.warning(
                "TFF's worker is started again: %s.", self._worker.describe_end()
            )
            self.end_worker()
        self._worker = self._start_worker()
        self._stub = _WorkerStub(self._worker)
        self._executors = tff.framework.ResourceManagingExecutorFactory(
            self._create_remote_executor
        )

    def _create_remote_executor(
        self, cardinalities: tff.framework.CardinalitiesType
    ) -> tff.framework.RemoteExecutor:
        cardinalities = {
            tff.CLIENTS: self._default_num_clients,
            **cardinalities,
        }
        executor = tff.framework.RemoteExecutor(
            self._stub, stream_structs=self._stream_structs
        )
        executor.set_cardinalities(cardinalities)
        return executor


class _UnwatchedChannel:
    """A channel without connectivity watching.

    TFF's stub makes gRPC watch it from a separate thread, for `is_ready`, which the
    worker answers here. When the connection breaks at the end of the program, that
    thread starts another one, which fails on Python 3.12 and prints an error.
    """

    def __init__(self, channel: grpc.Channel):
        self._channel = channel

    def subscribe(self, callback: Callable, try_to_connect: bool = False) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        return getattr(self._channel, name)


class _WorkerStub(tff.framework.RemoteExecutorStub):
    """The worker's remote calls; calls that a retry cannot fix fail at once.

    TFF's contexts retry indefinitely while the status of a failed call is UNAVAILABLE
    or FAILED_PRECONDITION. On one machine, the first means that the worker is gone, and
    the second comes from the computation itself, so a retry does not help.
    """

    def __init__(self, worker: worker_lib.Worker):
        self._worker = worker
        self._channel = grpc.insecure_channel(
            f"localhost:{worker.port}", _CHANNEL_OPTIONS
        )
        unwatched = _UnwatchedChannel(self._channel)
        self._stub = tff.framework.RemoteExecutorGrpcStub(unwatched)

    def close(self) -> None:
        self._channel.close()

    @property
    def is_ready(self) -> bool:
        return self._worker.is_alive()

    def get_executor(self, request):
        return self._call(self._stub.get_executor, request)

    def create_value(self, request):
        return self._call(self._stub.create_value, request)

    def create_struct(self, request):
        return self._call(self._stub.create_struct, request)

    def create_call(self, request):
        return self._call(self._stub.create_call, request)

    def create_selection(self, request):
        return self._call(self._stub.create_selection, request)

    def compute(self, request):
        return self._call(self._stub.compute, request)

    def dispose(self, request):
        return self._dispose(self._stub.dispose, request)

    def dispose_executor(self, request):
        return self._dispose(self._stub.dispose_executor, request)

    def _call(self, method, request):
        try:
            return method(request)
        except tff.framework.RetryableError as error:
            if self._worker.wait(_DEATH_SECONDS):
                raise worker_lib.WorkerDiedError(
                    "TFF's worker died during a computation: "
                    f"{self._worker.describe_end()}."
                ) from None
            raise worker_lib.NativeRuntimeError(
                f"{error.code().name}: {error.details()}"
            ) from None
        except ValueError as error:  # gRPC's error for a closed channel.
            raise NativeContextClosedError(_CLOSED_MEANWHILE) from error
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.CANCELLED:
                raise
            # ... and for a channel that is closed during the call.
            raise NativeContextClosedError(_CLOSED_MEANWHILE) from error

    def _dispose(self, method, request):
        # Values of a dead worker need no disposal.
        if self._worker.is_alive():
            with contextlib.suppress(
                tff.framework.RetryableError, grpc.RpcError, ValueError
            ):
                return method(request)
        return None
