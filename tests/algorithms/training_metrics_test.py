"""Training metrics count each step of the model once, wherever it keeps them."""

import numpy as np
import pytest
import tensorflow_federated as tff

import tff_algos
from tests.testing import problems
from tests.testing.remembering_cohorts import Training
from tests.testing.remembering_processes import NUM_CLIENTS, cohort
from tff_algos.models.variable_model import FunctionalVariableModel

SGD = tff.learning.optimizers.build_sgdm
# All compute more losses than those of the steps that they report.
BUILDERS = {
    "scaffold": lambda model: tff_algos.build_scaffold(
        model,
        client_learning_rate=0.1,
        num_clients=NUM_CLIENTS,
        control_variate="full_gradient",
    ),
    "ditto": lambda model: tff_algos.build_ditto(
        model, SGD(0.1), personal_strength=0.5
    ),
    "apfl": lambda model: tff_algos.build_apfl(
        model, client_learning_rate=0.1, mixing=0.3
    ),
    "pfedme": lambda model: tff_algos.build_pfedme(
        model,
        client_learning_rate=0.1,
        personal_strength=2.0,
        personal_steps=3,
        personal_learning_rate=0.2,
    ),
    "mimelite": lambda model: tff_algos.build_mime_lite(model, SGD(0.1, momentum=0.5)),
    "qfedavg": lambda model: tff_algos.build_q_fed_avg(model, SGD(0.1), lipschitz=1.0),
}


@pytest.mark.parametrize("name", BUILDERS)
def test_models_with_variables_report_what_functional_ones_do(name):
    model = problems.linear_model()
    losses = []
    for kind in (model, lambda: FunctionalVariableModel(model)):
        training = Training(BUILDERS[name](kind), NUM_CLIENTS)
        outputs = [training.round(cohort((0, 1))) for _ in range(2)]
        losses.append(
            [each.metrics["client_work"]["train"]["loss"] for each in outputs]
        )
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-6)
