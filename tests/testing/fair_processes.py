"""The fair algorithms and those they are compared with, each process built once."""

import functools

import numpy as np
import tensorflow_federated as tff

import tff_algos
from tests.testing import problems
from tests.testing.numbered_clients import numbered
from tff_algos import clients

SGD = tff.learning.optimizers.build_sgdm
CLIENTS = problems.clients(sizes=(6, 4, 7, 5))
RATE = problems.f32(0.1)
FAIR = ("fedmgda", "fedmgda_plus", "mgda_prox", "fedavg_n", "qfedavg", "afl")


def fed_meta(model, client_optimizer, server_optimizer):
    inner = tff_algos.build_fed_avg(model, client_optimizer, server_optimizer)
    return tff_algos.build_fed_meta(
        inner, model, (CLIENTS[1].x, CLIENTS[1].y), meta_learning_rate=0.1
    )


def fed_sgd(model, client_optimizer, server_optimizer, **kwargs):
    del client_optimizer
    return tff_algos.build_fed_sgd(model, server_optimizer, **kwargs)


def without_client_optimizer(build, **kwargs):
    """For algorithms that take a rate of their own."""

    def build_as_others(model, client_optimizer, server_optimizer):
        del client_optimizer
        return build(model, server_optimizer, client_learning_rate=0.1, **kwargs)

    return build_as_others


# Of AFL's clients 4, 5 and 6 are those that do not count.
AFL = {"num_clients": 7, "mixture_learning_rate": 0.3, "returned_model": "last"}
BUILDERS = {
    "fedavg": (tff_algos.build_fed_avg, {}),
    "fedprox": (tff_algos.build_fed_prox, {"proximal_strength": 0.5}),
    "fedshare": (tff_algos.build_fed_share, {}),
    "fedmeta": (fed_meta, {}),
    "fedsgd": (fed_sgd, {}),
    "mimelite": (tff_algos.build_mime_lite, {}),
    "reptile": (tff_algos.build_reptile, {}),
    "uga": (
        without_client_optimizer(
            tff_algos.build_unbiased_gradient_aggregation, client_epochs_per_round=2
        ),
        {},
    ),
    "maml": (
        without_client_optimizer(tff_algos.build_maml, client_steps_per_round=2),
        {},
    ),
    "fomaml": (
        without_client_optimizer(tff_algos.build_fomaml, client_steps_per_round=2),
        {},
    ),
    "fedmgda": (tff_algos.build_fed_mgda, {}),
    "fedmgda_plus": (tff_algos.build_fed_mgda_plus, {}),
    "mgda_prox": (tff_algos.build_mgda_prox, {"proximal_strength": 0.5}),
    "fedavg_n": (tff_algos.build_fed_avg_n, {}),
    "qfedavg": (tff_algos.build_q_fed_avg, {"q": 2.0, "lipschitz": 10.0}),
    "afl": (tff_algos.build_agnostic_federated_learning, AFL),
}


@functools.cache
def process(name, attacked=False, server_rate=1.0, **changes):
    """An algorithm on linear regression; its clients take steps of rate 0.1."""
    model = problems.linear_model()
    if attacked:
        model = clients.attacked_model(model)
    build, kwargs = BUILDERS[name]
    return build(model, SGD(0.1), SGD(server_rate), **kwargs | changes)


def cohort(clients=CLIENTS, batch_size=2, epochs=2):
    return [client.batches(batch_size, epochs) for client in clients]


def one_step_each(clients=CLIENTS):
    return cohort(clients, batch_size=None, epochs=1)


def broken_and_empty():
    """Batches of a client of NaN, of one without examples and of one of NaN."""
    broken = problems.Client(np.full((3, problems.NUM_FEATURES), np.nan), np.ones(3))
    empty = problems.Client(np.zeros((0, problems.NUM_FEATURES)), np.zeros(0))
    return cohort([broken, empty, broken])


def attacked(datasets, **attack):
    """The batches of clients of which the second attacks."""
    return [
        clients.attacked_batches(dataset, **(attack if number == 1 else {}))
        for number, dataset in enumerate(datasets)
    ]


def cohort_for(name, datasets, numbers=None):
    return numbered(datasets, numbers) if name == "afl" else datasets


def after(process, *cohorts):
    weights, _ = problems.run(process, *cohorts)
    return weights


def assert_close(found, expected, rtol=1e-9, atol=1e-10):
    np.testing.assert_allclose(found, expected, rtol=rtol, atol=atol)


def assert_differ(left, right):
    assert np.max(np.abs(left - right)) > 1e-3
