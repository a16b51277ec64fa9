"""Runs TFF computations in this Python process, on its CPUs or GPUs.

TFF's own runtime sends computations, datasets and weights to a child process, which
does not use GPUs. This runtime compiles a computation with TFF's compiler, plans it as
server stages and passes over the clients, and runs its TensorFlow in the caller's
process. It works for all computations, not only for those of tff_algos:

    tff_algos.execution.set_in_process_context()
"""

import collections
import contextlib
import functools
import hashlib
import numbers
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import attrs
import tensorflow as tf
import tensorflow_federated as tff
import tree
from absl import logging
from tensorflow.python.eager import context as eager_context
from tensorflow.python.util import _pywrap_util_port
from tensorflow_federated.python.common_libs import structure
from tensorflow_federated.python.core.impl.computation import function_utils

from tff_algos import cpus, messages
from tff_algos.execution import (
    client_batches,
    client_passes,
    compilation,
    data_descriptors,
    devices,
    forks,
    op_threads,
    pass_runner,
    program,
    row_memory,
    types,
)
from tff_algos.execution.async_context import AsyncContext
from tff_algos.execution.program import Program

# Programs kept after their computations were freed, for reuse by equal computations.
# Each takes several megabytes plus several times the computation's constant weights.
_MAX_LATEST_PROGRAMS = 8


def _check_count(name: str, value: Any, least: int) -> None:
    if not isinstance(value, numbers.Integral) or value < least:
        raise ValueError(
            f"Expected {name} to be an integer of at least {least}, found {value!r}."
        )


def _check_choice(name: str, value: Any, choices: Sequence[Any]) -> None:
    if not any(value is choice for choice in choices):
        shown = ", ".join(map(str, choices))
        raise ValueError(f"Expected {name} to be one of {shown}, found {value!r}.")


class InProcessContext(tff.framework.SyncContext):
    """A synchronous TFF context without another process."""

    def __init__(
        self,
        default_num_clients: int = 0,
        runtime_devices: Sequence[str] | None = None,
        num_threads: int | None = None,
        insecure_aggregation: bool = False,
        batch_clients: bool | None = None,
        max_cached_bytes: int = 1 << 30,
        max_kept_bytes: int = 4 << 30,
        intra_op_threads: int | None = None,
    ):
        """Initializes the context; see `set_in_process_context` for the arguments."""
        _check_count("default_num_clients", default_num_clients, 0)
        if num_threads is not None:
            _check_count("num_threads", num_threads, 1)
        _check_count("max_cached_bytes", max_cached_bytes, 0)
        _check_count("max_kept_bytes", max_kept_bytes, 0)
        _check_choice("insecure_aggregation", insecure_aggregation, (False, True))
        _check_choice("batch_clients", batch_clients, (None, False, True))
        if intra_op_threads is not None:
            op_threads.set_count(intra_op_threads)
        self._resources = pass_runner.Resources(
            devices=devices.resolve(runtime_devices),
            workers=client_passes.Workers(num_threads or cpus.count()),
            cache=client_batches.BatchCache(max_cached_bytes),
            row_memory=row_memory.RowMemory(),
            batch_clients=batch_clients,
            default_num_clients=default_num_clients,
            max_kept_bytes=max_kept_bytes,
            devices_are_chosen=runtime_devices is not None,
        )
        logging.debug(
            "The in-process runtime has %d threads on %s; oneDNN is %s.",
            self._resources.workers.num_threads,
            ", ".join(self._resources.devices),
            "on" if _pywrap_util_port.IsMklEnabled() else "off",
        )
        self._insecure_aggregation = insecure_aggregation
        self._programs = _ProgramCache(self._compile)
        self._owner = forks.Owner()

    # Within a `tf.function`, AutoGraph would convert all of this package first.
    @tf.autograph.experimental.do_not_convert
    def invoke(self, comp: Any, arg: Any) -> Any:
        """Runs a computation.

        Args:
          comp: A `tff.Computation`.
          arg: Its argument, packed as TFF does; `None` without one.

        Returns:
          Its result in the Python containers of its type.

        Raises:
          ClientError: If a client's part fails; the message names the client.
          UnsupportedComputationError: If the runtime cannot run it; the message says
            why.
          RuntimeError: In a forked child, which lacks TensorFlow's threads.
          TypeError: If the argument is not of the computation's type.
        """
        self._owner.check("The in-process context")
        if arg is not None:
            arg = _transform_argument(arg, self)
        # Return values, even to a caller inside a graph or a `tf.function`.
        with eager_context.eager_mode():
            functions = program.functional_arguments(arg, comp.type_signature.parameter)
            known = self._programs.get(comp, functions)
            return known.to_containers(known.program.run(arg))

    def describe(self, comp: Any) -> str:
        """Returns what the last call of a computation ran where.

        Args:
          comp: A `tff.Computation` that this context has run.

        Raises:
          ValueError: If this context has not run it.
        """
        program = self._programs.latest(comp)
        if program is None:
            raise ValueError("Expected a computation that this context has run.")
        return program.describe()

    def _compile(self, comp: Any, functions: Sequence[Any]) -> Program:
        plan = compilation.compile_to_plan(comp, functions, self._insecure_aggregation)
        return Program(plan, comp.type_signature, self._resources)


def set_in_process_context(
    default_num_clients: int = 0,
    runtime_devices: Sequence[str] | None = None,
    num_threads: int | None = None,
    insecure_aggregation: bool = False,
    batch_clients: bool | None = None,
    max_cached_bytes: int = 1 << 30,
    max_kept_bytes: int = 4 << 30,
    intra_op_threads: int | None = None,
) -> InProcessContext:
    """Makes the in-process runtime this thread's default context.

    It initializes TensorFlow's devices, so create logical devices first if you need
    them. On a CPU, the context keeps the memory for gathered rows of clients, up to
    the largest amount in use at once, for the next round.

    Args:
      default_num_clients: Number of clients if the arguments do not determine it.
      runtime_devices: Devices to run on, such as `["GPU:0", "GPU:1"]`: clients
        alternate between them, the server is on the first. By default all GPUs, with
        memory growth, but the CPU for clients with recurrent layers; the CPU if there
        is no GPU.
      num_threads: How many clients run concurrently; by default the number of this
        process's CPUs. Results do not depend on it.
      insecure_aggregation: Computes secure sums and selections in the clear, as
        `tff.backends.test` contexts do, instead of rejecting them.
      batch_clients: Vectorizes client work over clients: if it is faster (`None`),
        whenever possible (`True`), or never (`False`). It is possible for most client
        work, also that of Keras models, whose variables become state. Results agree up
        to rounding.
      max_cached_bytes: Memory for cached batches of clients' datasets, used by
        vectorized work.
      max_kept_bytes: Memory for clients' values that a later part of the same
        computation needs again, such as updates for a second pass of an aggregation.
        The excess is written to a temporary file. And for what is read of clients'
        datasets that call Python, in case their vectorized work fails and runs again.
      intra_op_threads: How many threads an op uses, in the whole process; `None` leaves
        it as it is, by default the number of CPUs. 1 is often faster if a round has at
        least as many clients as there are CPUs.

    Returns:
      The context.

    Raises:
      ValueError: If an argument is out of range or a device does not exist.
      RuntimeError: If TensorFlow already runs with another number of threads.
    """
    context = InProcessContext(
        default_num_clients=default_num_clients,
        runtime_devices=runtime_devices,
        num_threads=num_threads,
        insecure_aggregation=insecure_aggregation,
        batch_clients=batch_clients,
        max_cached_bytes=max_cached_bytes,
        max_kept_bytes=max_kept_bytes,
        intra_op_threads=intra_op_threads,
    )
    tff.framework.set_default_context(context)
    return context


@contextlib.contextmanager
def in_process_context(**kwargs: Any) -> Iterator[InProcessContext]:
    """Runs the body in a new `InProcessContext`.

    Args:
      **kwargs: As in `set_in_process_context`.

    Yields:
      The context.
    """
    context = InProcessContext(**kwargs)
    with tff.framework.get_context_stack().install(context):
        yield context


def explain(computation: Any, *args: Any, **kwargs: Any) -> None:
    """Runs a computation once and prints what ran where, and how long it took.

    A function that calls computations is explained by these, each by its last call.

    It shows every server stage and every pass over the clients: whether the pass was
    vectorized over clients, in chunks of how many, or why clients ran one by one. In
    the first call, tracing is included. With an `AsyncContext`, it waits for the result.

        tff_algos.execution.explain(process.next, state, clients)

    Args:
      computation: A `tff.Computation`, also one whose argument has no type yet, or a
        function.
      *args: Its arguments.
      **kwargs: Its arguments by name.

    Raises:
      TypeError: If the current context is not an `InProcessContext`, or an `AsyncContext`
        of one; or if no computation has run.
    """
    stack = tff.framework.get_context_stack()
    context = stack.current
    if isinstance(context, AsyncContext):
        context = context.synchronous
    # The default context creates an in-process one, from which it must be asked.
    context = getattr(context, "created", lambda: context)()
    if not isinstance(context, InProcessContext):
        raise TypeError(
            f"Expected the in-process context, found {type(context).__name__}: call "
            "tff_algos.execution.set_in_process_context() first."
        )
    recorder = _Recorder(context)
    with stack.install(recorder):
        computation(*args, **kwargs)
    if not recorder.invoked:
        raise TypeError(
            "Expected a tff.Computation, or a function that calls some, found "
            f"{messages.shown(computation)}, which ran none."
        )
    print("\n\n".join(map(context.describe, dict.fromkeys(recorder.invoked))))


class _Recorder(tff.framework.SyncContext):
    """Runs computations in a context, and records which.

    Attributes:
      invoked: The computations, in order.
    """

    def __init__(self, context: InProcessContext):
        self._context = context
        self.invoked: list[Any] = []

    def created(self) -> InProcessContext:
        """Returns the context in which computations run."""
        return self._context

    def invoke(self, comp: Any, arg: Any) -> Any:
        """Runs a computation, as `InProcessContext.invoke` does."""
        self.invoked.append(comp)
        return self._context.invoke(comp, arg)


def _transform_argument(arg: Any, context: tff.framework.SyncContext) -> Any:
    """Converts the values that TFF packed to NumPy, as TFF's own contexts do."""

    def to_python(value: Any) -> Any:
        # Clients' datasets stay as they are. Visiting each would slow down short rounds.
        if isinstance(value, list) and all(
            isinstance(each, tf.data.Dataset) for each in value
        ):
            return value
        if isinstance(value, data_descriptors.Ingestable):
            return tree.traverse(to_python, data_descriptors.values_of(value, context))
        if isinstance(value, structure.Struct):
            value = structure.to_odict_or_tuple(value)
        elif not isinstance(value, tf.Tensor | tf.Variable):
            return None
        return tff.tensorflow.transform_args(value)

    if not isinstance(arg, structure.Struct):
        return tree.traverse(to_python, arg)
    args, kwargs = function_utils.unpack_args_from_struct(arg)
    args, kwargs = (tree.traverse(to_python, each) for each in (args, kwargs))
    return function_utils.pack_args_into_struct(args, kwargs)


class _ProgramCache:
    """A cache of programs, one for each set of equal computations.

    A program lives as long as one of its computations. Of the programs without, only
    those most recently requested by a new computation are kept.
    """

    def __init__(self, compile_program: Callable[..., Program]):
        self._compile = compile_program
        self._by_object: dict[tuple[int, ...], _Known] = {}
        self._by_value: weakref.WeakValueDictionary[bytes, Program]
        self._by_value = weakref.WeakValueDictionary()
        self._latest: collections.OrderedDict[bytes, Program]
        self._latest = collections.OrderedDict()
        self._lock = threading.RLock()

    def get(self, comp: Any, functions: Sequence[Any]) -> "_Known":
        """Returns what is known of a computation and its functional arguments."""
        computations = (comp, *functions)
        key = tuple(map(id, computations))
        # Concurrent requests wait for a program that is being built.
        with self._lock:
            known = self._by_object.pop(key, None)
            if known is None or not known.is_of(computations):
                program = self._get_by_value(comp, functions)
                # The callbacks must not reference this cache, which may be freed first.
                forget = functools.partial(self._by_object.pop, key, None)
                references = [
                    weakref.ref(each, lambda _: forget()) for each in computations
                ]
                known = _Known(
                    references, program, types.containers(comp.type_signature.result)
                )
            self._by_object[key] = known  # As the last one, which `latest` finds.
            return known

    def latest(self, comp: Any) -> Program | None:
        """Returns the program of a computation; `None` if there is none."""
        with self._lock:
            # A copy, because computations that are freed leave the cache at any time.
            for key, known in reversed(list(self._by_object.items())):
                if key[0] == id(comp) and known.references[0]() is comp:
                    return known.program
        return None

    def _get_by_value(self, comp: Any, functions: Sequence[Any]) -> Program:
        digest = hashlib.sha256()
        for computation in (comp, *functions):
            proto = tff.framework.serialize_computation(computation)
            digest.update(proto.SerializeToString(deterministic=True))
        key = digest.digest()
        program = self._by_value.get(key)
        if program is None:
            program = self._by_value[key] = self._compile(comp, functions)
        self._latest[key] = program
        self._latest.move_to_end(key)
        if len(self._latest) > _MAX_LATEST_PROGRAMS:
            self._latest.popitem(last=False)
        return program


@attrs.frozen(eq=False)
class _Known:
    """The program of computations that may have been freed.

    Attributes:
      references: The computation and its functional arguments.
      program: Their program, which equal computations share.
      to_containers: From its result to the containers of the computation's own type.
    """

    references: Sequence[weakref.ref]
    program: Program
    to_containers: Callable[[Any], Any]

    def is_of(self, computations: Sequence[Any]) -> bool:
        """Returns whether it is for these objects, not for others with reused ids."""
        return all(
            reference() is each
            for reference, each in zip(self.references, computations, strict=True)
        )
