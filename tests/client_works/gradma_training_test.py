"""GradMA's local steps: without rows, and in float32."""

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_federated as tff

import tff_algos
from tests.testing import problems
from tests.testing.remembering_cohorts import Training
from tff_algos import client_works, execution
from tff_algos.client_works import StepCorrection, local_training


def test_without_rows_steps_are_plain():
    correction = StepCorrection(local_rows=())
    assert correction.step_gradients(None) is local_training.plain_gradients
    assert correction.first_carry("weights").previous == ()


def test_float32_steps_of_full_batches_are_those_of_float64():
    client = problems.clients(sizes=(8,), seed=2)[0]
    ends = {}
    for dtype in (np.float32, np.float64):
        process = tff_algos.build_gradma_w(
            problems.linear_model(dtype), tff.learning.optimizers.build_sgdm(0.05)
        )
        with execution.in_process_context():
            ends[dtype], _ = problems.run(process, [client.batches(None, 5, dtype)])
    np.testing.assert_allclose(ends[np.float32], ends[np.float64], atol=1e-5)


@pytest.mark.parametrize("persist_previous", [False, True])
def test_programs_without_a_solution_are_counted(persist_previous):
    # After a full-batch step, the drift and the server's gradient are opposite.
    data = {
        number: client.batches(epochs=3)
        for number, client in enumerate(problems.clients(sizes=(6, 6), seed=2))
    }
    counts = {}
    for qp_margin in (0.0, 0.1):
        process = tff_algos.build_gradma_w(
            problems.linear_model(),
            tff.learning.optimizers.build_sgdm(0.05),
            qp_margin=qp_margin,
            persist_previous=persist_previous,
        )
        training = Training(process, len(data))
        measured = training.round(data).metrics["client_work"]
        counts[qp_margin] = measured["client_qp_fallbacks"]
    assert counts == {0.0: 0, 0.1: 4}


def test_a_model_that_draws_anew_at_every_look_is_refused_where_it_looks_twice():
    plain = problems.linear_model()

    @tf.function
    def predict(weights, x, training):
        return plain.predict_on_batch(weights, tf.nn.dropout(x, 0.5), training)

    model = tff.learning.models.FunctionalModel(
        initial_weights=plain.initial_weights,
        predict_on_batch_fn=predict,
        loss_fn=plain.loss,
        metrics_fns=problems.LOSS_METRICS,
        input_spec=plain.input_spec,
    )
    sgd = tff.learning.optimizers.build_sgdm(0.1)
    build = client_works.build_gradma_training_client_work
    for rows in (["previous"], ["server"]):
        with pytest.raises(ValueError, match="RandomUniform, so a step's gradient and"):
            build(model, sgd, StepCorrection(local_rows=rows))
    build(model, sgd, StepCorrection(local_rows=["drift"]))
