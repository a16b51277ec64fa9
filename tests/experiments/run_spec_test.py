"""All that a run is: its rounds and clients, and its metrics as columns."""

import types

import attrs
import numpy as np
import pytest
import tensorflow_federated as tff

from tests.testing import tiny_task
from tff_algos.experiments import run_spec
from tff_algos.hyperparameters import HyperparameterError


def make_spec(*rounds, clients_per_round=3, **options):
    stages = [
        types.SimpleNamespace(
            num_rounds=n, clients_per_round=clients_per_round, keeps_models=False
        )
        for n in rounds
    ]
    return run_spec.RunSpec(
        title="a test",
        stages=stages,
        task=tiny_task.make(),
        output_dir="unused",
        hyperparameters={},
        personalization_optimizer=tff.learning.optimizers.build_sgdm(0.1),
        options=run_spec.RunOptions(**options),
    )


def test_its_rounds_are_those_of_all_stages():
    assert make_spec(5, 4).total_rounds == 9


def test_it_evaluates_some_clients_or_all():
    everybody = list(tiny_task.make().eval_client_ids)
    assert make_spec(1, eval_clients=0).eval_client_ids() == everybody
    some = make_spec(1, eval_clients=2, seed=1).eval_client_ids()
    assert len(some) == 2 and set(some) < set(everybody)


def test_pooled_data_have_nobody_to_drop_out():
    with pytest.raises(HyperparameterError, match="client_dropout=0.5 is not valid"):
        make_spec(1, clients_per_round=None, client_dropout=0.5)
    assert make_spec(1, clients_per_round=None).options.client_dropout == 0.0


def test_pooled_data_have_nobody_who_could_be_worse_off():
    with pytest.raises(HyperparameterError, match="track_improvement=True is not val"):
        make_spec(1, clients_per_round=None, track_improvement=True)


@pytest.mark.parametrize(
    "bad", [{"seed": -1}, {"client_dropout": 1.0}, {"rounds_per_checkpoint": 0}]
)
def test_options_out_of_range_are_named(bad):
    ((name, value),) = bad.items()
    with pytest.raises(HyperparameterError, match=f"{name}={value} is not valid"):
        run_spec.RunOptions(**bad)


def test_metrics_are_columns_with_nan_where_there_is_no_value():
    rows = [{"round": 1, "loss": 0.5}, {"round": 2, "loss": 0.25, "eval": 0.75}]
    result = run_spec.RunResult(
        spec=make_spec(2),
        rows=rows,
        weights=tff.learning.models.ModelWeights((), ()),
        rounds_done=2,
    )
    np.testing.assert_array_equal(result.metrics["loss"], [0.5, 0.25])
    np.testing.assert_array_equal(result.metrics["eval"], [np.nan, 0.75])


def test_seen_clients_are_told_apart_only_where_others_are_evaluated():
    task = tiny_task.make()
    spec = make_spec(1, seen_eval_clients=3)
    assert len(spec.seen_eval_client_ids()) == 3
    assert set(spec.seen_eval_client_ids()) <= set(task.train_client_ids)
    assert make_spec(1).seen_eval_client_ids() == []
    overlapping = attrs.evolve(task, eval_client_ids=("0", "1", "8"))
    seen = attrs.evolve(make_spec(1, seen_eval_clients=8), task=overlapping)
    assert seen.seen_eval_client_ids() == ["2", "3", "4", "5", "6", "7"]
    all_train = attrs.evolve(task, eval_client_ids=task.train_client_ids)
    with pytest.raises(HyperparameterError, match=r"seen_eval_clients=3 .*=tiny: all"):
        attrs.evolve(spec, task=all_train)
