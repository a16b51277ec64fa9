"""Calls that are written for TFF's builders work with ours, by the same keywords."""

import inspect

import numpy as np
import pytest
import tensorflow_federated as tff

import tff_algos
from tests.testing import problems
from tff_algos.models import FunctionalVariableModel, local_model

SGD = tff.learning.optimizers.build_sgdm
THEIRS = tff.learning.algorithms

_SHARED = {
    "client_weighting": tff.learning.ClientWeighting.UNIFORM,
    "model_aggregator": tff.learning.robust_aggregator(zeroing=False),
    "metrics_aggregator": tff.learning.metrics.sum_then_finalize,
}
_BOTH = {"client_optimizer_fn": SGD(0.1), "server_optimizer_fn": SGD(0.5)}
_MIME = {"base_optimizer": SGD(0.1, momentum=0.5), "server_optimizer": SGD(0.5)}
_FED_SGD = {"server_optimizer_fn": SGD(0.5)}
PAIRS = {
    "fedavg": (
        tff_algos.build_fed_avg,
        THEIRS.build_weighted_fed_avg,
        {**_BOTH, **_SHARED},
    ),
    "fedprox": (
        tff_algos.build_fed_prox,
        THEIRS.build_weighted_fed_prox,
        {**_BOTH, **_SHARED, "proximal_strength": 0.5},
    ),
    "fedsgd": (
        tff_algos.build_fed_sgd,
        THEIRS.build_fed_sgd,
        {k: v for k, v in {**_FED_SGD, **_SHARED}.items() if k != "client_weighting"},
    ),
    "mimelite": (
        tff_algos.build_mime_lite,
        THEIRS.build_weighted_mime_lite,
        {**_MIME, **_SHARED, "full_gradient_aggregator": tff.aggregators.MeanFactory()},
    ),
}
# How TFF runs a client's loop, which is the runtime's to say here.
_OF_THE_RUNTIME = {"loop_implementation"}


@pytest.mark.parametrize("name", PAIRS)
def test_one_dict_of_arguments_is_for_both(name):
    ours, theirs, arguments = PAIRS[name]
    functional = problems.linear_model(np.float32)

    def model():
        return FunctionalVariableModel(functional)

    broadcast = tff.learning.templates.build_broadcast_process(
        local_model.weights_type(model)
    )
    arguments = {"model_fn": model, "model_distributor": broadcast, **arguments}
    processes = [build(**arguments) for build in (ours, theirs)]
    weights = [p.get_model_weights.type_signature.result for p in processes]
    assert weights[0].is_equivalent_to(weights[1])
    clients = [p.next.type_signature.parameter[1] for p in processes]
    assert clients[0].is_equivalent_to(clients[1])


@pytest.mark.parametrize("name", PAIRS)
def test_every_keyword_of_theirs_is_ours(name):
    ours, theirs, _ = PAIRS[name]
    keywords = set(inspect.signature(theirs).parameters) - _OF_THE_RUNTIME
    assert keywords <= set(inspect.signature(ours).parameters)


@pytest.mark.parametrize(
    "name", [name for name in tff_algos.__all__ if name.startswith("build_")]
)
def test_builders_name_shared_arguments_as_tff_does(name):
    old = {"model", "client_optimizer", "server_optimizer", "optimizer"}
    exempt = {"build_mime_lite": {"server_optimizer"}}
    exempt["build_personalization_eval"] = {"optimizer"}
    found = set(inspect.signature(getattr(tff_algos, name)).parameters) & old
    assert found <= exempt.get(name, set())
