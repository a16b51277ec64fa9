"""How every algorithm here is put together from its parts."""

from collections.abc import Callable

import tensorflow_federated as tff

from tff_algos import aggregators, client_works, finalizers
from tff_algos.algorithms.arguments import (
    Distributor,
    LearningProcess,
    Optimizer,
    WeightedAggregator,
)
from tff_algos.client_works import client_report
from tff_algos.hyperparameters import HyperparameterError, checked
from tff_algos.models import local_model
from tff_algos.models.local_model import ModelOrFn

Finalizer = tff.learning.templates.FinalizerProcess


@checked
def compose(
    model: ModelOrFn,
    client_work: tff.learning.templates.ClientWorkProcess,
    server_optimizer: Optimizer | None = None,
    *,
    finalizer: Finalizer | None = None,
    wrap_finalizer: Callable[[Finalizer], Finalizer] | None = None,
    model_distributor: Distributor | None = None,
    model_aggregator: WeightedAggregator | None = None,
) -> LearningProcess:
    """Composes distributor, client work, aggregator and finalizer.

        SERVER     weights ---> model_distributor             finalizer ---> new weights
                                     |                            ^           (rejected:
                                     v                            |            the old)
        CLIENTS   data, rows ---> client_work --- update, ---> model_aggregator
                                     |            weight
                                     v
                             metrics, new rows

    Two things are added where they are needed, so that no algorithm can forget them:

    * A model whose training changes weights that are not trainable (batch normalization's
      moving statistics): clients' updates then carry them,
      `aggregators.StatisticsFactory` averages them beside the update, in the clear, and
      `finalizers.build_statistics_finalizer` puts them in the server's place.
    * A client work with a state of more than a round number, such as MimeLite's momentum
      or what clients remember (`client_works.build_remembering_process`): a round that
      the finalizer rejects then changes nothing of it (`client_works.undo_rejected_rounds`).

    Args:
      model: The model that the client work trains.
      client_work: The client work.
      server_optimizer: Takes its step with the aggregate as gradient; ignored with
        `finalizer`; plain SGD with learning rate 1 by default.
      finalizer: Replaces the step of `server_optimizer`. For models with moving
        statistics and clients that remember, it has to measure `num_rejected_rounds`, as
        those of `finalizers` do.
      wrap_finalizer: Maps the finalizer of all weights, statistics included, to the one
        to use.
      model_distributor: Replaces the plain broadcast.
      model_aggregator: Replaces the weighted mean.

    Returns:
      A learning process; its `get_hparams` and `set_hparams` are those of the client
      work and the finalizer.

    Raises:
      HyperparameterError: If the optimizer, the distributor or the aggregator is not of
        TFF's class, or the finalizer does not measure what it has to.
    """
    initial_weights = local_model.build_initial_weights_computation(model)
    weights_type = initial_weights.type_signature.result
    aggregator = model_aggregator or aggregators.MeanFactory()
    finalizer = finalizer or finalizers.build_apply_optimizer_finalizer(
        server_optimizer or tff.learning.optimizers.build_sgdm(1.0), weights_type
    )
    result_type = client_work.next.type_signature.result.result.member
    state_type = client_work.initialize.type_signature.result.member
    has_statistics = _is_record_of(
        result_type.update, client_report.UpdateWithStatistics
    )
    remembers = _is_record_of(state_type, client_works.RememberingState)
    if has_statistics or remembers:
        _check_measures_rejections(finalizer)
    has_state = not isinstance(state_type, tff.TensorType) and len(state_type) > 0
    undoes = remembers or (has_state and _measures_rejections(finalizer))
    if has_statistics:
        aggregator = aggregators.StatisticsFactory(aggregator)
        finalizer = finalizers.build_statistics_finalizer(
            finalizer,
            result_type.update.statistics,
            local_model.statistics_of(model),
        )
    if wrap_finalizer is not None:
        finalizer = wrap_finalizer(finalizer)
    process = tff.learning.templates.compose_learning_process(
        initial_weights,
        model_distributor
        or tff.learning.templates.build_broadcast_process(weights_type),
        client_work,
        aggregator.create(result_type.update, result_type.update_weight),
        finalizer,
    )
    return client_works.undo_rejected_rounds(process) if undoes else process


def _measures_rejections(finalizer: Finalizer) -> bool:
    measured = finalizer.next.type_signature.result.measurements.member
    is_struct = isinstance(measured, tff.StructType)
    return is_struct and "num_rejected_rounds" in tff.structure.name_list(measured)


def _check_measures_rejections(finalizer: Finalizer) -> None:
    if not _measures_rejections(finalizer):
        raise HyperparameterError(
            "finalizer",
            finalizer,
            "one that measures num_rejected_rounds, such as "
            "tff_algos.finalizers.build_apply_optimizer_finalizer's, for a model with "
            "moving statistics or clients that remember",
        )


def _is_record_of(type_signature: tff.Type, container: type) -> bool:
    return (
        isinstance(type_signature, tff.StructWithPythonType)
        and type_signature.python_container is container
    )
