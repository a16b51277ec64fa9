"""GradMA's local steps: without rows, and in float32."""

import numpy as np
import tensorflow_federated as tff

import tff_algos
from tests.testing import problems
from tff_algos import execution
from tff_algos.client_works import StepCorrection, local_training


def test_without_rows_steps_are_plain():
    correction = StepCorrection(local_rows=())
    assert correction.step_gradients(None) is local_training.plain_gradients
    assert correction.first_carry("weights") == ()


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
