"""Client work for clients that keep a row of tensors between rounds.

The process does not store the rows. A client's row is an input, its `memory`, and its
new row is an output, among the measurements; the caller stores the rows
(`clients.client_memory`). The server can keep tensors that the clients' contributions
update and that are broadcast to all clients.
"""

import collections
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import attrs
import numpy as np
import tensorflow as tf
import tensorflow_federated as tff

from tff_algos.aggregators import build_gather_computation
from tff_algos.autograph import convertible
from tff_algos.client_works.client_report import ClientReport
from tff_algos.client_works.round_process import measurements, with_index
from tff_algos.clients.client_data import ClientData, ClientDataFields
from tff_algos.finite import all_finite, zero_unless
from tff_algos.models import local_model
from tff_algos.models.local_model import LocalModel, ModelOrFn, Tensors


class RememberingState(NamedTuple):
    """The server's part of the state.

    Attributes:
      round_num: int32 [].
      shared: A tuple of tensors, broadcast to all clients; empty if there are none.
    """

    round_num: object
    shared: object


@attrs.frozen
class RememberingInput:
    """The input of a client with memory.

    Attributes:
      round_num: int32 [].
      server_weights: `tff.learning.models.ModelWeights`.
      data: The client's data; its `row` is zeros in the client's first round.
      shared: The server's shared tensors.
    """

    round_num: tf.Tensor
    server_weights: tff.learning.models.ModelWeights
    data: ClientData
    shared: Tensors

    @property
    def dataset(self) -> tf.data.Dataset:
        """The client's batches of the round."""
        return self.data.batches

    @property
    def row(self) -> Any:
        """The client's row before the round."""
        return self.data.row


@attrs.frozen
class RememberingReport:
    """The result of a client with memory.

    Attributes:
      report: The client's report; excludes it if `row` or `contribution` is not finite.
      row: The client's new row, unless it is excluded.
      contribution: The client's term in the sum that updates `shared`, unless it is
        excluded.
    """

    report: ClientReport
    row: Any
    contribution: Tensors = ()


def add_scaled(
    left: Tensors, right: Tensors, factor: float | tf.Tensor = 1.0
) -> Tensors:
    """Returns `left + factor * right`."""
    # Without the hint, a Python number would be rounded to float32.
    factor = tf.convert_to_tensor(factor, dtype_hint=tf.float64)
    return tuple(
        a + tf.cast(factor, b.dtype) * b for a, b in zip(left, right, strict=True)
    )


def build_remembering_process(
    model: ModelOrFn,
    client_update: Callable[[LocalModel, RememberingInput], RememberingReport],
    row_specs: Any,
    *,
    initial_shared: Callable[[], Tensors] = tuple,
    next_shared: Callable[[Tensors, Tensors], Tensors] = lambda shared, _: shared,
    metrics_aggregator: tff.learning.metrics.MetricsAggregatorType | None = None,
    update_with_index: bool = False,
    with_num_examples: bool = False,
    with_full_pass: bool = False,
) -> tff.learning.templates.ClientWorkProcess:
    """Builds the process that passes each client its row and returns the new one.

    Args:
      model: A `tff.learning.models.FunctionalModel`, or a no-argument function that
        returns a `tff.learning.models.VariableModel`.
      client_update: Maps the view of the model and a client's input to its result.
      row_specs: A structure of `tf.TensorSpec`s of known shape: one client's row.
      initial_shared: Returns the shared tensors of the first round.
      next_shared: Maps the shared tensors and the sum of the contributions of clients
        that are not excluded to the next round's shared tensors. If these are not
        finite, the shared tensors and all rows stay unchanged.
      metrics_aggregator: As in `tff.learning.algorithms.build_weighted_fed_avg`.
      update_with_index: Whether updates are `<client_index, update>`, as in
        `round_process.build_round_process`.
      with_num_examples: Whether clients' data include `num_examples`; see
        `client_data`.
      with_full_pass: Whether clients' data include `full_pass`; see `client_data`.

    Returns:
      A process whose `next` maps `<RememberingState@SERVER, {ModelWeights}@CLIENTS,
      {<examples=B*, client_index=int32*, memory=row*>}@CLIENTS>` to client results of
      type `<update, update_weight=float32>@CLIENTS` and the measurements of
      `build_local_training_client_work`, plus `memory`: `client_index` int32 [S],
      `accepted` bool [S] and `row` with a leading axis of S, for
      `clients.client_memory.ClientMemory.update`.
    """
    weights_type = local_model.weights_type(model)
    fields = ClientDataFields(
        client_index=True,
        num_examples=with_num_examples,
        full_pass=with_full_pass,
        memory=row_specs,
    )
    data_type = fields.type(model)
    aggregate_metrics = local_model.build_metrics_aggregation(model, metrics_aggregator)

    @tff.tensorflow.computation
    def first_state():
        return RememberingState(tf.constant(0), convertible(initial_shared)())

    @tff.federated_computation
    def initialize():
        return tff.federated_eval(first_state, tff.SERVER)

    state_type = first_state.type_signature.result

    @tff.tensorflow.computation(state_type, weights_type, data_type)
    def client_work(state, server_weights, data):
        view = local_model.create(model)

        @tf.function
        def work(state, server_weights, data):
            own = fields.read(data)
            result = convertible(client_update)(
                view,
                RememberingInput(state.round_num, server_weights, own, state.shared),
            )
            report = result.report.with_num_examples(own.num_examples)
            reported = collections.OrderedDict(
                client_index=own.client_index,
                accepted=report.counts_in,
                row=tf.nest.map_structure(
                    lambda new, old: tf.where(report.counts_in, new, old),
                    result.row,
                    own.row,
                ),
            )
            contribution = zero_unless(report.counts_in, result.contribution)
            outcome = report.result
            if update_with_index:
                outcome = with_index(outcome, reported["client_index"])
            return (
                outcome,
                report.metrics,
                report.counts,
                reported,
                contribution,
            )

        return work(state, server_weights, data)

    *_, reported_type, contribution_type = client_work.type_signature.result
    gather = build_gather_computation(reported_type, is_sent=False)

    @tff.tensorflow.computation(state_type, contribution_type)
    @tf.function
    def next_state(state, total):
        shared = convertible(next_shared)(state.shared, total)
        finite = all_finite(shared) if shared else tf.constant(True)
        kept = tf.nest.map_structure(
            lambda new, old: tf.where(finite, new, old), shared, state.shared
        )
        return RememberingState(state.round_num + 1, kept), finite

    @tff.tensorflow.computation(gather.type_signature.result.member, np.bool_)
    def accept_if(rows, finite):
        accepted = tf.logical_and(rows["accepted"], finite)
        return collections.OrderedDict(rows, accepted=accepted)

    @tff.federated_computation(
        initialize.type_signature.result,
        tff.FederatedType(weights_type, tff.CLIENTS),
        tff.FederatedType(data_type, tff.CLIENTS),
    )
    def next_fn(state, weights, client_data):
        result, metrics, counts, reported, contribution = tff.federated_map(
            client_work, (tff.federated_broadcast(state), weights, client_data)
        )
        new_state, finite = tff.federated_map(
            next_state, (state, tff.federated_sum(contribution))
        )
        memory = tff.federated_map(accept_if, (gather(reported), finite))
        return tff.templates.MeasuredProcessOutput(
            new_state,
            result,
            measurements(aggregate_metrics(metrics), counts, memory=memory),
        )

    return tff.learning.templates.ClientWorkProcess(initialize, next_fn)


def _with_round_nums(old: Any, new: Any) -> Any:
    """Returns a state with the `round_num`s of records in the state after it.

    A mapping with one may be a scheduled optimizer's state, and stays whole.
    """
    if hasattr(old, "round_num"):
        is_tuple = isinstance(old, tuple)
        evolve = type(old)._replace if is_tuple else attrs.evolve
        return evolve(old, round_num=new.round_num)
    if type(old) in (tuple, list):
        return type(old)(map(_with_round_nums, old, new))
    return old


def undo_rejected_rounds(
    process: tff.learning.templates.LearningProcess,
) -> tff.learning.templates.LearningProcess:
    """Leaves client rows and the client work's state unchanged in a rejected round.

    If the finalizer rejects a round, the model stays unchanged. So does then all of the
    client work's state but the `round_num` of a record, and no client's row is accepted.

    Args:
      process: A process composed of a client work and a finalizer that measures
        `num_rejected_rounds`.

    Returns:
      A process of the same type.
    """
    output_type = process.next.type_signature.result
    state_type = process.initialize.type_signature.result.member
    metrics_type = output_type.metrics.member
    work_type = metrics_type.client_work
    has_rows = isinstance(work_type, tff.StructType) and hasattr(work_type, "memory")

    @tff.tensorflow.computation(state_type, state_type, metrics_type)
    @tf.function
    def undo(old, new, metrics):
        measured = metrics["finalizer"]
        count = (
            measured["num_rejected_rounds"]
            if isinstance(measured, Mapping)
            else measured.num_rejected_rounds
        )
        rejected = count > 0
        before = _with_round_nums(old.client_work, new.client_work)
        client_work = tf.cond(rejected, lambda: before, lambda: new.client_work)
        new = new._replace(client_work=client_work)
        if not has_rows:
            return new, metrics
        work = metrics["client_work"]
        memory = work["memory"]
        accepted = tf.logical_and(memory["accepted"], tf.logical_not(rejected))
        memory = collections.OrderedDict(memory, accepted=accepted)
        work = collections.OrderedDict(work, memory=memory)
        return new, collections.OrderedDict(metrics, client_work=work)

    @tff.federated_computation(process.next.type_signature.parameter)
    def next_fn(state, client_data):
        output = process.next(state, client_data)
        new_state, metrics = tff.federated_map(
            undo, (state, output.state, output.metrics)
        )
        return tff.learning.templates.LearningProcessOutput(new_state, metrics)

    return tff.learning.templates.LearningProcess(
        process.initialize,
        next_fn,
        get_model_weights=process.get_model_weights,
        set_model_weights=process.set_model_weights,
        get_hparams_fn=process.get_hparams,
        set_hparams_fn=process.set_hparams,
    )
