"""Algorithms in float32 on models of both kinds, each process built once."""

import functools

import numpy as np
import tensorflow_federated as tff

import tff_algos
from tests.testing import problems
from tests.testing.numbered_clients import numbered
from tff_algos.models.variable_model import FunctionalVariableModel

SGD = tff.learning.optimizers.build_sgdm
CLIENTS = problems.clients(sizes=(6, 3, 7))


def functional():
    return problems.linear_model(np.float32)


def variable():
    return FunctionalVariableModel(functional())


def cohort(epochs=2):
    return [client.batches(2, epochs, np.float32) for client in CLIENTS]


BUILDERS = {
    "fedsgd": lambda m: tff_algos.build_fed_sgd(m, SGD(0.1)),
    "fedavg": lambda m: tff_algos.build_fed_avg(m, SGD(0.1)),
    "fedprox": lambda m: tff_algos.build_fed_prox(m, SGD(0.1), proximal_strength=0.5),
    "mimelite": lambda m: tff_algos.build_mime_lite(m, SGD(0.1, momentum=0.9)),
    "centralized": lambda m: tff_algos.build_centralized(m, SGD(0.1)),
    "fomaml": lambda m: tff_algos.build_fomaml(
        m, SGD(0.1), client_learning_rate=0.1, client_steps_per_round=2
    ),
    "fedmgda_plus": lambda m: tff_algos.build_fed_mgda_plus(m, SGD(0.1)),
    "qfedavg": lambda m: tff_algos.build_q_fed_avg(m, SGD(0.1), q=0.5, lipschitz=10.0),
    "afl": lambda m: tff_algos.build_agnostic_federated_learning(
        m, SGD(0.1), num_clients=3, mixture_learning_rate=0.1
    ),
}
# Gradients go back through functional models only.
SECOND_ORDER = {
    "uga": lambda m: tff_algos.build_unbiased_gradient_aggregation(
        m, SGD(0.1), client_learning_rate=0.1
    ),
    "maml": lambda m: tff_algos.build_maml(
        m, SGD(0.1), client_learning_rate=0.1, client_steps_per_round=2
    ),
}
# Differ from others by their aggregators alone.
RELATIVES = {
    "fedmgda": lambda m: tff_algos.build_fed_mgda(m, SGD(0.1)),
    "mgda_prox": lambda m: tff_algos.build_mgda_prox(
        m, SGD(0.1), proximal_strength=0.5
    ),
    "fedavg_n": lambda m: tff_algos.build_fed_avg_n(m, SGD(0.1)),
}


@functools.cache
def built(name):
    """The process on a functional model."""
    return (BUILDERS | SECOND_ORDER | RELATIVES)[name](functional())


def cohort_for(name):
    if name == "centralized":
        return cohort()[:1]
    return numbered(cohort()) if name == "afl" else cohort()


def fed_meta(inner=None, **kwargs):
    return tff_algos.build_fed_meta(
        inner or built("fedavg"),
        functional(),
        (np.ones((4, 5), np.float32), np.ones(4, np.float32)),
        **kwargs,
    )
