"""How rounds are shared out among the stages of personalized FedAvg."""

import re

import attrs
import numpy as np
import pytest

from tasks.models.normalized import build_tiny_nn
from tests.testing import tiny_task
from tff_algos.experiments import catalog, stages
from tff_algos.experiments.stages import personalized_rounds
from tff_algos.finalizers import meta_update
from tff_algos.hyperparameters import HyperparameterError


@pytest.mark.parametrize(
    ("given_rounds", "expected"),
    [
        ((None, None, None), (8, 24)),
        ((700, None, None), (500, 200)),
        ((40, None, None), (29, 11)),
        ((10, None, 0), (10, 0)),
        ((10, 4, None), (4, 6)),
        ((None, 3, 5), (3, 5)),
        ((None, None, 3), (8, 3)),
        ((None, 5, None), (5, 24)),
    ],
)
def test_rounds_of_personalized_fedavg_are_shared_out(given_rounds, expected):
    assert personalized_rounds(*given_rounds) == expected


@pytest.mark.parametrize("given_rounds", [(10, None, 11), (10, 3, 3)])
def test_rounds_of_personalized_fedavg_must_add_up(given_rounds):
    with pytest.raises(HyperparameterError, match="total_rounds=10 is not valid"):
        personalized_rounds(*given_rounds)
    names = ("total_rounds", "pretrain_rounds", "finetune_rounds")
    chosen = dict(zip(names, given_rounds, strict=True))
    with pytest.raises(HyperparameterError, match="total_rounds=10 is not valid"):
        catalog.get("personalized_fedavg").resolve("emnist", {}, chosen)


def test_server_examples_that_are_too_large_tell_the_largest_fraction(monkeypatch):
    monkeypatch.setattr(meta_update, "MAX_BYTES", 240)
    monkeypatch.setattr(stages, "MAX_BYTES", 240)
    recipe, task = catalog.get("fedmeta"), tiny_task.make()

    def make(fraction):
        recipe.stages(task, recipe.resolve("tiny", {}, {"meta_fraction": fraction}))

    with pytest.raises(
        HyperparameterError,
        match=r"meta_fraction=1.0 .*expected at most (0\.\d+): D_meta",
    ) as error:
        make(1.0)
    most = float(re.search(r"at most (\S+):", str(error.value))[1])
    make(most)
    with pytest.raises(HyperparameterError, match="meta_fraction"):
        make(2 * most)


def test_moons_model_can_have_a_projection_head():
    recipe = catalog.get("moon")
    task = attrs.evolve(tiny_task.make(), model=build_tiny_nn((2,), 3, seed=0))
    plain = recipe.resolve("tiny", {}, {})
    assert recipe.prepare_task(task, plain) is task
    chosen = recipe.resolve("tiny", {}, {"projection_head": True})
    with_head = recipe.prepare_task(task, chosen)
    (stage,) = recipe.stages(with_head, chosen)
    weights = stage.process.get_model_weights(stage.process.initialize())
    assert len(weights.trainable) == len(task.model.initial_weights[0]) + 4


def test_damped_momentum_is_undamped_momentum_of_a_smaller_rate():
    recipe = catalog.get("mimelite")
    task = tiny_task.make()

    def weights(**chosen):
        settings = recipe.resolve("tiny", {}, {"base_momentum": 0.75, **chosen})
        (stage,) = recipe.stages(task, settings)
        state = stage.process.initialize()
        clients = [
            task.client_dataset(client_id, "train", stage.batches)
            for client_id in task.train_client_ids[:3]
        ]
        for _ in range(2):
            state = stage.process.next(state, clients).state
        return stage.process.get_model_weights(state).trainable

    damped = weights(client_learning_rate=0.4, damped_momentum=True)
    slower = weights(client_learning_rate=0.1)
    np.testing.assert_array_equal(damped[0], slower[0])
    assert not np.array_equal(damped[0], weights(client_learning_rate=0.4)[0])


def test_reptiles_clients_tell_by_how_many_examples_statistics_are_weighted():
    task = tiny_task.make()
    assert not _reptile(task).client_data_fields
    with_statistics = attrs.evolve(task, model=build_tiny_nn((2,), 3, seed=0))
    assert "num_examples" in _reptile(with_statistics).client_data_fields


def test_clients_of_whom_a_part_counts_tell_how_many_examples_they_have():
    plain = tiny_task.make()
    with_statistics = attrs.evolve(plain, model=build_tiny_nn((2,), 3, seed=0))

    def tell(name, task, **chosen):
        recipe = catalog.get(name)
        (stage,) = recipe.stages(task, recipe.resolve("tiny", {}, chosen))
        return "num_examples" in stage.client_data_fields

    # Statistics alone are weighted by them.
    assert tell("fomaml", with_statistics, query="held_out")
    assert not tell("fomaml", with_statistics, query="all", step_batching="per_pass")
    assert not tell("fomaml", plain, query="held_out")
    assert not tell("afl", plain, afl_mode="batch")
    assert tell("afl", with_statistics, afl_mode="batch")
    assert not tell("afl", with_statistics, afl_mode="epochs")


def _reptile(task, **chosen):
    recipe = catalog.get("personalized_fedavg")
    settings = recipe.resolve("tiny", {}, {"finetune_steps": 2, **chosen})
    return recipe.stages(task, settings)[1]


def test_reptiles_server_optimizer_is_the_one_that_its_flags_name():
    task = tiny_task.make()

    def steps(**chosen):
        stage = _reptile(task, **chosen)
        clients = [
            task.client_dataset(client_id, "train", stage.batches)
            for client_id in task.train_client_ids[:3]
        ]
        state, weights = stage.process.initialize(), []
        for _ in range(2):
            before = stage.process.get_model_weights(state).trainable[0]
            state = stage.process.next(state, clients).state
            weights.append(stage.process.get_model_weights(state).trainable[0] - before)
        return weights

    plain, second = steps(
        finetune_server_optimizer="sgd", finetune_server_learning_rate=1.0
    )
    tenth, _ = steps(finetune_server_optimizer="sgd", finetune_server_learning_rate=0.1)
    np.testing.assert_allclose(tenth, 0.1 * plain, rtol=1e-4, atol=1e-7)
    first, with_momentum = steps(
        finetune_server_optimizer="sgd",
        finetune_server_learning_rate=1.0,
        finetune_server_momentum=0.9,
    )
    np.testing.assert_array_equal(first, plain)
    # Heavy ball: the second step from the same weights, and 0.9 of the first.
    np.testing.assert_allclose(
        with_momentum, second + 0.9 * plain, rtol=1e-4, atol=1e-6
    )
    adam, _ = steps(finetune_server_learning_rate=0.01)
    np.testing.assert_allclose(np.abs(adam), 0.01, rtol=1e-2)


def test_only_sgd_has_reptiles_server_momentum():
    with pytest.raises(HyperparameterError, match="finetune_server_momentum=0.9"):
        catalog.get("personalized_fedavg").resolve(
            "tiny", {}, {"finetune_server_momentum": 0.9}
        )


def test_personalized_fedavg_runs_its_default_rounds_in_two_stages():
    recipe = catalog.get("personalized_fedavg")
    settings = recipe.resolve("tiny", {}, {"client_epochs_per_round": 3})
    assert settings["total_rounds"] is None
    pretrain, finetune = recipe.stages(tiny_task.make(), settings)
    assert (pretrain.name, pretrain.num_rounds) == ("fedavg", 8)
    assert (finetune.name, finetune.num_rounds) == ("reptile", 24)
    assert (pretrain.batches.num_epochs, finetune.batches.num_steps) == (3, 10)
    assert pretrain.clients_per_round == finetune.clients_per_round == 5
