"""A planned computation that can be called with Python values."""

import contextlib
import functools
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import tensorflow as tf
import tensorflow_federated as tff
from absl import logging
from tensorflow_federated.python.common_libs import structure
from tensorflow_federated.python.core.impl.executors import cardinalities_utils

from tff_algos.execution import communication, explanation, graph_functions, types
from tff_algos.execution import plan as plan_lib
from tff_algos.execution.client_passes import PassInputs, as_tensor, cause
from tff_algos.execution.dataflow import Placement, Port
from tff_algos.execution.explanation import PassReport, StageReport
from tff_algos.execution.lazy import Lazy
from tff_algos.execution.pass_runner import PassRunner, Resources
from tff_algos.execution.plan import ClientPass, Plan, ServerStage


class Program:
    """Runs a plan; threads may call it concurrently."""

    def __init__(self, plan: Plan, signature: tff.FunctionType, resources: Resources):
        """Initializes without tracing.

        Args:
          plan: The plan of a computation of type `signature`.
          signature: The types of the argument and the result.
          resources: The resources to run it with.
        """
        self._plan = plan
        self._signature = signature
        self._default_num_clients = resources.default_num_clients
        self._steps = [_Step(step, resources) for step in plan.steps]
        self._unneeded = _unneeded_after(plan)
        self._embed_client = types.Embedder()
        self._calls = 0
        self._description = Lazy(lambda: "not called yet")

    def run(self, arg: Any) -> Any:
        """Runs the computation.

        Args:
          arg: Its argument; `None` if it has none.

        Returns:
          Its result: NumPy values and datasets in `tff.structure.Struct`s; lists with
          one element per client for clients' values that are not all equal.

        Raises:
          ClientError: If a client's part fails.
          TypeError: If the argument is not of the computation's type.
        """
        start = time.perf_counter()
        parameter = self._signature.parameter
        if parameter is not None and arg is None:
            raise TypeError(f"Expected an argument of type {parameter}, found None.")
        values = _Values(self._num_clients(arg))
        if parameter is not None:
            embedded = _embed(arg, parameter, self._embed_client)
            for port, value in zip(
                self._plan.dataflow.parameters, embedded, strict=True
            ):
                values.set(port, value)
        reports = []
        for step, unneeded in zip(self._steps, self._unneeded, strict=True):
            reports.append(step.run(values))
            values.drop(unneeded)
        remaining = iter(self._plan.dataflow.results)
        result = _extract(remaining, self._signature.result, values)
        self._calls += 1
        seconds = time.perf_counter() - start
        self._description = Lazy(
            functools.partial(explanation.describe, reports, seconds, self._calls)
        )
        if self._calls == 1:
            logging.debug("%s", self.describe())
        return result

    def describe(self) -> str:
        """Returns what the last call ran where, and how long each step took."""
        return self._description()

    def _num_clients(self, arg: Any) -> int:
        parameter = self._signature.parameter
        cardinalities = {}
        if parameter is not None:
            cardinalities = cardinalities_utils.infer_cardinalities(arg, parameter)
        return cardinalities.get(tff.CLIENTS, self._default_num_clients)


def _unneeded_after(plan: Plan) -> list[set[Port]]:
    """Returns for each step the ports in use that no later step needs."""
    needed = set(plan.dataflow.results)
    unneeded = []
    for step in reversed(plan.steps):
        taken = set(_taken(step))
        unneeded.append((taken | set(_given(step))) - needed)
        needed |= taken
    return unneeded[::-1]


def _taken(step: ServerStage | ClientPass) -> list[Port]:
    if isinstance(step, ServerStage):
        return list(step.fragment.inputs)
    return [*step.fragment.inputs, *_zeros(step)]


def _given(step: ServerStage | ClientPass) -> list[Port]:
    if isinstance(step, ServerStage):
        return list(step.fragment.outputs)
    return [*_totals(step), *step.kept]


def _zeros(step: ClientPass) -> list[Port]:
    return [port for aggregate in step.aggregates for port in aggregate.zeros]


def _totals(step: ClientPass) -> list[Port]:
    return [port for aggregate in step.aggregates for port in aggregate.outputs()]


class _Values:
    """The values of ports in one run: a tensor, or a tensor per client."""

    def __init__(self, num_clients: int):
        self.num_clients = num_clients
        self.broadcasts = communication.Broadcasts()
        self._values: dict[Port, Any] = {}

    def set(self, port: Port, value: Any) -> None:
        self._values[port] = value

    def get(self, port: Port) -> Any:
        return self._values[port]

    def drop(self, ports: Iterable[Port]) -> None:
        """Frees the values of ports."""
        for port in ports:
            del self._values[port]

    def of_client(self, port: Port, position: int) -> tf.Tensor:
        value = self._values[port]
        if port.placement is Placement.CLIENTS:
            return as_tensor(value[position])
        return value


class _Step:
    """A stage or a pass of the plan, with its functions."""

    def __init__(self, step: ServerStage | ClientPass, resources: Resources):
        self._step = step
        if isinstance(step, ServerStage):
            self._device = device = resources.devices[0]
            self._stage = Lazy(lambda: graph_functions.build(step.fragment, device))
        else:
            self._pass = PassRunner(step, resources)
            self._max_kept_bytes = resources.max_kept_bytes

    def run(self, values: _Values) -> StageReport | PassReport:
        """Reads the step's inputs from `values` and adds its outputs."""
        if isinstance(self._step, ServerStage):
            return self._run_stage(values)
        return self._run_pass(values)

    def _run_stage(self, values: _Values) -> StageReport:
        start = time.perf_counter()
        fragment = self._step.fragment
        try:
            outputs = self._stage()(*[values.get(port) for port in fragment.inputs])
        except tf.errors.OpError as error:
            # The same class of error, without the op's place in the graph.
            raise type(error)(error.node_def, error.op, cause(error)) from error
        for port, value in zip(fragment.outputs, outputs, strict=True):
            values.set(port, value)
        seconds = time.perf_counter() - start
        return StageReport(plan_lib.leaf_names(fragment), self._device, seconds)

    def _run_pass(self, values: _Values) -> PassReport:
        step = self._step
        inputs = {Placement.SERVER: {}, Placement.CLIENTS: {}}
        for port in step.fragment.inputs:
            inputs[port.placement][port] = values.get(port)
        result, report = self._pass.run(
            PassInputs(
                inputs[Placement.SERVER],
                inputs[Placement.CLIENTS],
                [values.get(port) for port in _zeros(step)],
                values.num_clients,
                self._max_kept_bytes,
            ),
            values.broadcasts,
        )
        communication.record(report.communication)
        for port, value in zip(_totals(step), result.accumulators, strict=True):
            values.set(port, value)
        for port, column in zip(step.kept, result.kept, strict=True):
            values.set(port, column)
        return report


def functional_arguments(arg: Any, type_spec: tff.Type | None) -> list[Any]:
    """Returns the computations in an argument, in the order of its type.

    Raises:
      TypeError: If the argument is not of that type; the message begins with the name.
    """
    match type_spec:
        case tff.FunctionType():
            return [arg]
        case tff.StructType():
            functions = []
            for name, value, element_type in _elements(arg, type_spec):
                with _naming(name):
                    functions += functional_arguments(value, element_type)
            return functions
        case _:
            return []


def _elements(
    arg: Any, type_spec: tff.StructType
) -> Iterator[tuple[str | None, Any, tff.Type]]:
    """Yields the names, values and types of a struct's elements.

    Positions decide, not the value's own names, as in TFF's runtime.
    """
    values = structure.from_container(arg)
    if len(values) != len(type_spec):
        raise TypeError(
            f"Expected {len(type_spec)} elements for {type_spec}, found {len(values)}."
        )
    for value, (name, element) in zip(
        values, structure.iter_elements(type_spec), strict=True
    ):
        yield name, value, element


@contextlib.contextmanager
def _naming(name: str | None) -> Iterator[None]:
    """Has a `TypeError` of the body say of which element it is."""
    try:
        yield
    except TypeError as error:
        if name is None:
            raise
        raise TypeError(f"{name}: {error}") from error


def _embed(
    arg: Any, type_spec: tff.Type, embed_client: types.Embedder
) -> Iterator[Any]:
    """Yields the values of a parameter's ports, in order."""
    match type_spec:
        case tff.StructType():
            for name, value, element in _elements(arg, type_spec):
                with _naming(name):
                    yield from _embed(value, element, embed_client)
        case tff.FederatedType() if _differs(type_spec):
            yield from _embed_clients(arg, type_spec.member, embed_client)
        case tff.FederatedType():
            yield from types.embed(arg, type_spec.member)
        case tff.FunctionType():
            return
        case _:
            yield from types.embed(arg, type_spec)


def _differs(type_spec: tff.FederatedType) -> bool:
    """Returns whether there is a separate value for each client."""
    return type_spec.placement is tff.CLIENTS and not type_spec.all_equal


def _embed_clients(
    values: Sequence[Any], member: tff.Type, embed_client: types.Embedder
) -> Iterator[list[Any]]:
    """Yields all clients' tensors or datasets, for each tensor of the type."""
    columns: list[list[Any]] = [[] for _ in types.flatten(member)]
    for position, value in enumerate(values):
        try:
            tensors = embed_client(value, member)
        except TypeError as error:
            raise TypeError(f"Client {position} of {len(values)}: {error}") from error
        for column, tensor in zip(columns, tensors, strict=True):
            column.append(tensor)
    yield from columns


def _extract(ports: Iterator[Port], type_spec: tff.Type, values: _Values) -> Any:
    """Returns the result of a type, consuming its ports in order."""
    match type_spec:
        case tff.FederatedType() if _differs(type_spec):
            taken = [next(ports) for _ in types.flatten(type_spec.member)]
            return [
                types.extract(
                    iter([values.of_client(port, position) for port in taken]),
                    type_spec.member,
                )
                for position in range(values.num_clients)
            ]
        case tff.FederatedType():
            return _extract(ports, type_spec.member, values)
        case tff.StructType():
            return structure.Struct(
                [
                    (name, _extract(ports, element, values))
                    for name, element in structure.iter_elements(type_spec)
                ]
            )
        case _:
            return types.extract(iter([values.get(next(ports))]), type_spec)
