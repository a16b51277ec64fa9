"""Algorithms without memory: orders of clients, invalid clients, updates of zero."""

import numpy as np
import pytest
import tensorflow_federated as tff

import tff_algos
from tests.testing import fair_processes, problems
from tests.testing.linear_processes import META, assert_close, cohort, model
from tests.testing.speed import some_fast

SGD = tff.learning.optimizers.build_sgdm
FAST = ("fedavg", "fedproxm", "mimelite", "uga", "maml", "fedmeta")


PROCESSES = {
    "fedsgd": lambda m: tff_algos.build_fed_sgd(m, SGD(0.1)),
    "fedavg": lambda m: tff_algos.build_fed_avg(m, SGD(0.1)),
    "fedavgm": lambda m: tff_algos.build_fed_avg_m(m, SGD(0.1)),
    "fedprox": lambda m: tff_algos.build_fed_prox(m, SGD(0.1), proximal_strength=0.5),
    "fedproxm": lambda m: tff_algos.build_fed_prox_m(
        m, SGD(0.1), proximal_strength=0.5
    ),
    "mimelite": lambda m: tff_algos.build_mime_lite(m, SGD(0.1, momentum=0.9)),
    "reptile": lambda m: tff_algos.build_reptile(m, SGD(0.1)),
    "uga": lambda m: tff_algos.build_unbiased_gradient_aggregation(
        m, SGD(0.5), client_learning_rate=0.1
    ),
    "maml": lambda m: tff_algos.build_maml(
        m, SGD(0.5), client_learning_rate=0.1, client_steps_per_round=2
    ),
    "fomaml": lambda m: tff_algos.build_fomaml(
        m, SGD(0.5), client_learning_rate=0.1, client_steps_per_round=2
    ),
    "fedshare": lambda m: tff_algos.build_fed_share(m, SGD(0.1)),
    "fedmeta": lambda m: tff_algos.build_fed_meta(
        tff_algos.build_fed_avg(m, SGD(0.1)),
        m,
        tuple(array.astype(np.float32) for array in META),
        meta_learning_rate=0.1,
    ),
}


@pytest.mark.parametrize("name", some_fast(PROCESSES, FAST))
def test_the_order_of_clients_and_invalid_clients_do_not_matter(name):
    process = PROCESSES[name](model(np.float32))
    data = cohort(epochs=2, dtype=np.float32)
    weights, _ = problems.run(process, data, data)

    permuted = [data[2], data[0], data[3], data[1]]
    assert_close(problems.run(process, permuted, data)[0], weights)

    broken = problems.Client(np.full((3, problems.NUM_FEATURES), np.nan), np.ones(3))
    empty = problems.Client(np.zeros((0, problems.NUM_FEATURES)), np.zeros(0))
    invalid = cohort([broken, empty, broken], dtype=np.float32)
    with_invalid = [invalid[0], data[0], invalid[1], *data[1:], invalid[2]]
    same, output = problems.run(process, data, with_invalid)
    np.testing.assert_array_equal(same, weights)
    assert output.metrics["client_work"]["num_non_finite_clients"] == 2
    assert output.metrics["client_work"]["num_empty_clients"] == 1
    assert np.isfinite(output.metrics["client_work"]["train"]["loss"])


@pytest.mark.parametrize(
    "name", some_fast([n for n in PROCESSES if n != "fedmeta"], FAST[:-1])
)
def test_a_round_without_valid_clients_changes_nothing(name):
    process = PROCESSES[name](model(np.float32))
    data = cohort(epochs=2, dtype=np.float32)
    before = process.next(process.initialize(), data).state
    empty = problems.Client(np.zeros((0, problems.NUM_FEATURES)), np.zeros(0))
    output = process.next(before, cohort([empty, empty], dtype=np.float32))
    assert output.metrics["finalizer"]["num_rejected_rounds"] == 1
    np.testing.assert_array_equal(
        problems.vector_of(process, output.state), problems.vector_of(process, before)
    )
    # The next round goes on as if that one had not been.
    np.testing.assert_array_equal(
        problems.vector_of(process, process.next(output.state, data).state),
        problems.vector_of(process, process.next(before, data).state),
    )


BY_EXAMPLES = ("fedsgd", "fedavg", "fedprox", "fedshare", "mimelite", "uga")
UNIFORM = ("reptile", "maml", "fomaml", "afl")


@pytest.mark.parametrize(
    "name", some_fast((*BY_EXAMPLES, *UNIFORM), ["fedavg", "mimelite", "maml"])
)
def test_a_client_whose_update_is_zero_counts_in_the_mean(name):
    start = problems.initial_vector()
    # Of inputs of zero the model predicts its bias.
    content = problems.Client(
        np.zeros((8, problems.NUM_FEATURES)), np.full(8, start[-1])
    )
    process = fair_processes.process(name)
    others = fair_processes.cohort(epochs=1)
    alone = fair_processes.cohort([content], epochs=1)

    def after(data):
        return problems.run(process, fair_processes.cohort_for(name, data))

    np.testing.assert_array_equal(after(alone)[0], start)
    without, _ = after(others)
    weights, output = after([*others, *alone])
    sizes = [len(client.y) for client in fair_processes.CLIENTS]
    share = 4 / 5 if name in UNIFORM else sum(sizes) / (sum(sizes) + 8)
    # AFL's mixture is of float32 weights.
    rtol = 1e-6 if name == "afl" else 1e-9
    fair_processes.assert_close(weights - start, share * (without - start), rtol)
    measured = output.metrics["client_work"]
    assert measured["num_non_finite_clients"] == measured["num_empty_clients"] == 0
