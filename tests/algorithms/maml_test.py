"""MAML and FOMAML: NumPy's gradients at the query, FedSGD without local steps."""

import numpy as np
import pytest
import tensorflow_federated as tff

import tff_algos
from tests.testing import linear_processes, local_steps, numpy_rounds, problems
from tests.testing.linear_processes import EQUAL_CLIENTS, assert_close, maml, model
from tests.testing.local_steps import data_of, run, stage_of, trained
from tests.testing.numpy_rounds import through_training
from tests.testing.problems import f32
from tff_algos.hyperparameters import HyperparameterError

SGD = tff.learning.optimizers.build_sgdm
START = problems.initial_vector()
UNIFORM = tff.learning.ClientWeighting.UNIFORM


@pytest.mark.parametrize("query", ["next_batch", "all"])
def test_maml_is_numpys_gradient_through_the_steps_before_the_query(query):
    process = tff_algos.build_maml(
        problems.linear_model(),
        SGD(0.5),
        client_learning_rate=numpy_rounds.RATE,
        client_steps_per_round=4,
        query=query,
    )
    weights, _ = problems.run(process, numpy_rounds.cohort(epochs=1))
    rows = query if query == "next_batch" else slice(None)
    gradients = [
        through_training(c, START, f32(numpy_rounds.RATE), 4, rows)
        for c in numpy_rounds.CLIENTS
    ]
    numpy_rounds.assert_exact(
        weights, START - 0.5 * problems.mean(gradients, [1, 1, 1])
    )


def test_fomaml_is_numpys_gradient_at_the_adapted_weights():
    process = tff_algos.build_fomaml(
        problems.linear_model(),
        SGD(0.5),
        client_learning_rate=numpy_rounds.RATE,
        client_steps_per_round=3,
        query="all",
    )
    # Three batches of the first and the third client, both of the second's and one
    # of them again.
    gradients = []
    for client, steps in zip(
        numpy_rounds.CLIENTS, ([0, 2, 4], [0, 2, 0], [0, 2, 4]), strict=True
    ):
        y = START
        for start in steps:
            y = y - f32(numpy_rounds.RATE) * client.gradient(
                y, slice(start, start + numpy_rounds.BATCH)
            )
        gradients.append(client.gradient(y))
    weights, _ = problems.run(process, numpy_rounds.cohort(epochs=1))
    numpy_rounds.assert_exact(
        weights, START - 0.5 * problems.mean(gradients, [1, 1, 1])
    )


def test_without_local_steps_fomaml_and_maml_are_uniform_fedsgd():
    data = linear_processes.cohort()
    fedsgd = tff_algos.build_fed_sgd(model(), SGD(1.0), client_weighting=UNIFORM)
    expected, _ = problems.run(fedsgd, data, data)
    for build in (tff_algos.build_fomaml, tff_algos.build_maml):
        weights, _ = problems.run(maml(0, build=build), data, data)
        assert_close(weights, expected, rtol=1e-10, atol=1e-12)


def test_losses_linear_in_the_weights_make_maml_fomaml_uga_and_fedsgd_the_same():
    """Their gradient is the same at all weights."""
    linear = problems.linear_loss_model()
    data = linear_processes.cohort(EQUAL_CLIENTS)
    rate = {"client_learning_rate": 0.1}
    steps = {**rate, "client_steps_per_round": 4, "query": "all"}
    fedsgd, *others = (
        problems.run(process, data, data)[0]
        for process in (
            tff_algos.build_fed_sgd(linear, SGD(0.5)),
            tff_algos.build_maml(linear, SGD(0.5), **steps),
            tff_algos.build_fomaml(linear, SGD(0.5), **steps),
            tff_algos.build_unbiased_gradient_aggregation(
                linear, SGD(0.5), client_epochs_per_round=3, **rate
            ),
        )
    )
    mean = np.mean([c.x.T @ c.y / len(c.y) for c in EQUAL_CLIENTS], axis=0)
    assert_close((START - fedsgd)[:5], mean, rtol=1e-12, atol=1e-13)
    for each in others:
        assert_close(each, fedsgd, rtol=1e-12, atol=1e-13)


def test_fedavgs_delta_is_the_sum_of_fomaml_gradients():
    steps = 4
    data = [c.batches(2).repeat().take(steps) for c in EQUAL_CLIENTS]
    start = problems.initial_vector()
    fedavg = tff_algos.build_fed_avg(model(), SGD(0.1), client_weighting=UNIFORM)
    delta = start - problems.run(fedavg, data)[0]
    gradients = []
    for j in range(steps):
        process = maml(j, "next_batch", tff_algos.build_fomaml)
        gradients.append(start - problems.run(process, data)[0])
    # FOMAML(0) on the first batch is FedSGD on it.
    assert_close(delta, problems.f32(0.1) * sum(gradients), rtol=1e-10, atol=1e-12)


def test_maml_is_fomaml_up_to_the_local_rate():
    data = linear_processes.cohort()
    gaps = []
    for rate in (0.002, 0.001):
        both = [
            problems.run(
                build(
                    model(),
                    SGD(1.0),
                    client_learning_rate=rate,
                    client_steps_per_round=3,
                    query="all",
                ),
                data,
            )[0]
            for build in (tff_algos.build_maml, tff_algos.build_fomaml)
        ]
        gaps.append(np.linalg.norm(both[0] - both[1]))
    assert gaps[0] > 1e-4
    assert gaps[0] / gaps[1] == pytest.approx(2, abs=0.1)


@pytest.mark.parametrize("algo", ["fomaml", "maml"])
@pytest.mark.parametrize("num_steps", [0, 3])
def test_maml_takes_straddling_steps_and_all_examples_for_its_query(algo, num_steps):
    stage = stage_of(
        algo,
        query="all",
        client_steps_per_round=num_steps,
        server_learning_rate=0.5,
    )
    data, read = data_of(stage)
    gradients = []
    for number, own in read.items():
        batches = own["examples"][:num_steps]
        assert all(len(y) == local_steps.BATCH for _, y in batches)
        found = local_steps.CLIENTS[number].gradient(trained(START, batches))
        if algo == "maml":
            for x, y in reversed(batches):
                features = np.column_stack([x, np.ones(len(y))])
                hessian = features.T @ features / len(y)
                found = found - f32(local_steps.RATE) * hessian @ found
        gradients.append(found)
    local_steps.assert_exact(run(stage, data), START - 0.5 * np.mean(gradients, axis=0))


def test_maml_per_pass_repeats_the_batches_of_one_pass():
    stage = stage_of("fomaml", query="all", step_batching="per_pass")
    assert stage.client_data_fields == []
    assert stage.batches.num_epochs == 1


def test_held_out_queries_have_no_straddling_batches():
    with pytest.raises(
        HyperparameterError, match="step_batching='straddling'.*per_pass"
    ):
        stage_of("maml", query="held_out", step_batching="straddling")
    assert stage_of("maml", query="held_out").batches.num_epochs == 1
