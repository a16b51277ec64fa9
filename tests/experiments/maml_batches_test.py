"""Tests of MAML's batches."""

import pytest

from tff_algos.experiments import catalog, maml_batches
from tff_algos.hyperparameters import HyperparameterError

_STEPS = 3


def _settings(**chosen):
    chosen = {"client_steps_per_round": _STEPS, **chosen}
    return catalog.get("maml").resolve("any", {}, chosen)


@pytest.mark.parametrize(
    ("chosen", "num_steps"),
    [
        ({"query": "next_batch"}, _STEPS + 1),
        ({"query": "next_batch", "client_steps_per_round": 0}, 1),
        ({"query": "all"}, _STEPS),
        # The client leaves the batch, but data without any have no shape.
        ({"query": "all", "client_steps_per_round": 0}, 1),
    ],
)
def test_batches_that_straddle_passes_are_the_steps_and_their_query(chosen, num_steps):
    batches = maml_batches.batches(_settings(**chosen))
    assert (batches.num_steps, batches.num_epochs) == (num_steps, None)
    assert batches.step_batching == "straddling"


@pytest.mark.parametrize(
    "chosen", [{"query": "held_out"}, {"query": "all", "step_batching": "per_pass"}]
)
def test_whole_passes_are_read_once_and_repeated_by_the_client_work(chosen):
    batches = maml_batches.batches(_settings(**chosen))
    assert (batches.num_steps, batches.num_epochs) == (None, 1)
    assert not maml_batches.needs_full_pass(_settings(**chosen))


def test_a_query_of_all_examples_needs_those_that_the_steps_leave_out():
    assert maml_batches.needs_full_pass(_settings(query="all"))
    assert not maml_batches.needs_full_pass(_settings(query="next_batch"))


def test_the_next_batch_is_as_large_as_those_of_the_steps():
    with pytest.raises(HyperparameterError, match="straddling for --query=next_batch"):
        _settings(query="next_batch", step_batching="per_pass")


def test_none_of_the_batches_that_straddle_passes_can_be_held_out():
    settings = {**_settings(), "query": "held_out", "step_batching": "straddling"}
    with pytest.raises(HyperparameterError, match="per_pass for --query=held_out"):
        maml_batches.check(settings)
