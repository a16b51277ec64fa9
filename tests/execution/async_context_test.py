"""Programs that await their computations run in this package's contexts."""

import asyncio

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

from tests.testing import learning_models as models
from tff_algos import execution


@tff.tensorflow.computation(np.float32)
def _double(x):
    return 2 * x


def _three_rounds(context, process, clients):
    """Returns the weights after three rounds of a program, and the mean absolute error of each."""

    async def program():
        data = tff.program.DatasetDataSource(clients).iterator()
        state, errors = process.initialize(), []
        for _ in range(3):
            output = process.next(state, data.select(len(clients)))
            state = output.state
            metrics = await tff.program.materialize_value(output.metrics)
            errors.append(float(metrics["client_work"]["train"]["error"]))
        state = await tff.program.materialize_value(state)
        weights = state.global_model_weights.trainable
        return tf.nest.flatten(weights), errors

    federated = tff.program.NativeFederatedContext(context)
    with tff.framework.get_context_stack().install(federated):
        return asyncio.run(program())


def test_a_tff_program_trains_as_in_tffs_own_asynchronous_context():
    process = tff.learning.algorithms.build_weighted_fed_avg(
        models.functional_model(), tff.learning.optimizers.build_sgdm(0.1)
    )
    (clients,) = models.cohorts((5, 3, 4))
    ours, errors = _three_rounds(
        execution.AsyncContext(execution.InProcessContext()), process, clients
    )
    theirs, expected = _three_rounds(
        tff.backends.native.create_async_local_cpp_execution_context(),
        process,
        clients,
    )
    assert errors == pytest.approx(expected, rel=1e-5)
    assert errors[2] < errors[0]
    for our, their in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(our, their, rtol=1e-5, atol=1e-6)


def test_arguments_that_stand_for_data_are_replaced_in_programs():
    ids = tff.FederatedType(np.float32, tff.CLIENTS)

    @tff.federated_computation(ids)
    def doubled(values):
        return tff.federated_map(_double, values)

    @tff.federated_computation(ids)
    def total(values):
        return tff.federated_sum(values)

    data = tff.framework.DataDescriptor(doubled, [1.0, 2.0, 3.0], ids, 3)

    async def program():
        return await tff.program.materialize_value(total(data))

    async def awaited():
        return await total(data)

    context = execution.AsyncContext(execution.InProcessContext())
    with tff.framework.get_context_stack().install(context):
        assert asyncio.run(awaited()) == 12.0
    with tff.framework.get_context_stack().install(
        tff.program.NativeFederatedContext(context)
    ):
        assert asyncio.run(program()) == 12.0


def test_computations_may_be_awaited_together_and_errors_come_out():
    context = execution.AsyncContext(execution.InProcessContext())

    async def together():
        return await asyncio.gather(
            *(context.invoke(_double, np.float32(x)) for x in range(5)),
            context.invoke(_double, "no number"),
            return_exceptions=True,
        )

    *doubles, error = asyncio.run(together())
    assert doubles == [0.0, 2.0, 4.0, 6.0, 8.0]
    assert isinstance(error, TypeError)


def test_what_is_no_synchronous_context_is_refused():
    context = execution.AsyncContext(execution.InProcessContext())
    with pytest.raises(TypeError, match="context: Expected .*, found AsyncContext"):
        execution.AsyncContext(context)


def test_a_computation_can_be_explained(capsys):
    context = execution.AsyncContext(execution.InProcessContext())
    with tff.framework.get_context_stack().install(context):
        execution.explain(_double, 3.0)
        assert capsys.readouterr().out.startswith("call 1: ")
        # The context is as it was.
        assert asyncio.run(_awaited(_double(4.0))) == 8.0


async def _awaited(value):
    return await value


def test_what_is_sent_is_measured_as_in_one_thread():
    @tff.federated_computation(
        tff.FederatedType(np.float32, tff.SERVER),
        tff.FederatedType(np.float32, tff.CLIENTS),
    )
    def total(server, values):
        sent = tff.federated_map(_double, tff.federated_broadcast(server))
        return tff.federated_sum(values), tff.federated_sum(sent)

    with execution.in_process_context(), execution.measured_communication() as expected:
        total(1.0, [1.0, 2.0])
    context = execution.AsyncContext(execution.InProcessContext())
    with (
        tff.framework.get_context_stack().install(context),
        execution.measured_communication() as found,
    ):
        asyncio.run(_awaited(total(1.0, [1.0, 2.0])))
    assert found.total == expected.total and expected.total.bytes_up > 0
