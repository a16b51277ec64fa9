"""Who is malicious, when they take part, what their batches say, what is refused."""

import functools

import numpy as np
import pytest
from tensorflow_federated import learning

import tasks
import tff_algos
from tests.testing import tiny_task
from tests.testing.speed import some_fast
from tff_algos.clients.batching import BatchSpec
from tff_algos.experiments import catalog, cohorts, launch, malicious_clients
from tff_algos.experiments.launch_options import Launch
from tff_algos.experiments.run_spec import RunOptions
from tff_algos.experiments.stage import Stage
from tff_algos.hyperparameters import HyperparameterError

SGD = learning.optimizers.build_sgdm
TASK = tiny_task.make()
FED_AVG = tff_algos.build_fed_avg(TASK.model, SGD(0.1))
IDS = [f"client {n}" for n in range(40)]


def make(kind="bias", value=3.0, client_ids=("2",), every_round=True):
    return malicious_clients.Attack(kind, value, frozenset(client_ids), every_round)


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("bias:1000", "bias", 1000.0),
        ("bias:-0.5", "bias", -0.5),
        ("scale:10", "scale", 10.0),
        ("scale:1e3", "scale", 1000.0),
        ("scale_update:-1", "scale_update", -1.0),
    ],
)
def test_an_attack_is_a_kind_and_a_number(text, kind, value):
    assert malicious_clients.parse(text) == (kind, value)
    assert RunOptions(attack=text).attack == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "bias",
        "bias:",
        "bias:much",
        "scale:nan",
        "scale:-inf",
        "noise:1",
        "bias:1:2",
    ],
)
def test_anything_else_is_refused_with_what_there_is(text):
    for refuse in (malicious_clients.parse, lambda attack: RunOptions(attack=attack)):
        with pytest.raises(HyperparameterError) as error:
            refuse(text)
        assert error.value.name == "attack"
        assert str(error.value).startswith(f"attack={text!r} is not valid: expected ")
        assert "bias:VALUE" in str(error.value) and "scale:VALUE" in str(error.value)


def test_named_clients_are_taken_as_they_are():
    assert malicious_clients.choose_clients("client 7,client 3", IDS, 0) == [
        "client 7",
        "client 3",
    ]


def test_a_client_whose_id_is_a_number_is_a_client_and_no_share():
    assert malicious_clients.choose_clients("1", ["0", "1", "2"], 0) == ["1"]
    assert malicious_clients.choose_clients('b, "a,c"', ["a,c", "b"], 0) == ["b", "a,c"]


@pytest.mark.parametrize(
    ("text", "count"),
    [(None, 1), ("0.25", 10), ("1", 40), ("0.001", 1), ("0.06", 2)],
)
def test_a_share_is_drawn_by_the_seed(text, count):
    chosen = malicious_clients.choose_clients(text, IDS, 3)
    assert len(set(chosen)) == count and set(chosen) <= set(IDS)
    assert chosen == malicious_clients.choose_clients(text, IDS, 3)


def test_every_client_can_be_drawn():
    drawn = {
        malicious_clients.choose_clients(None, IDS, seed)[0] for seed in range(500)
    }
    assert drawn == set(IDS)


@pytest.mark.parametrize("text", ["0", "1.5", "-0.5", "nan", "bob", "client 3,bob", ""])
def test_clients_that_there_are_not_are_refused_with_some_that_there_are(text):
    with pytest.raises(HyperparameterError) as error:
        malicious_clients.choose_clients(text, IDS, 0)
    assert str(error.value) == (
        f"malicious_clients={text!r} is not valid: expected a share in (0, 1] or ids "
        "out of client 0, client 1, client 2, client 3, client 4 and 35 more."
    )


def test_malicious_clients_replace_the_last_honest_ones():
    attack = make(client_ids=("b", "y", "x"))
    assert attack.cohort(["a", "b", "c", "d"]) == ["a", "b", "x", "y"]
    assert attack.cohort(["b", "c", "x", "y"]) == ["b", "c", "x", "y"]
    assert attack.cohort(["c", "d", "e"]) == ["b", "x", "y"]


def test_malicious_clients_replace_all_of_a_cohort_with_fewer_honest_ones():
    attack = make(client_ids=("v", "w", "x", "y", "z"))
    assert attack.cohort(["a", "b", "c"]) == ["v", "w", "x", "y", "z"]
    assert attack.cohort(["a", "x", "b"]) == ["x", "v", "w", "y", "z"]


def test_malicious_clients_may_come_as_they_are_drawn():
    attack = make(client_ids=("x", "b"), every_round=False)
    assert attack.cohort(["a", "b", "c"]) == ["a", "b", "c"]


def stage(process=FED_AVG, **changes):
    return Stage(
        name="a stage",
        process=process,
        num_rounds=50,
        clients_per_round=3,
        batches=BatchSpec(batch_size=4, num_epochs=1),
        **changes,
    )


def test_every_cohort_holds_the_malicious_clients_and_is_as_large_as_ever():
    attack = make(client_ids=("2", "5"))
    for round_num in range(1, 51):
        honest = cohorts.cohort_ids(stage(), TASK, 0, round_num)
        cohort = cohorts.cohort_ids(stage(), TASK, 0, round_num, attack)
        assert {"2", "5"} <= set(cohort)
        assert len(cohort) == len(set(cohort)) == 3
        # Nobody else comes in.
        assert set(cohort) - {"2", "5"} <= set(honest)


def told(dataset):
    """Labels of all examples of a client, loss scales, loss biases, update scales."""
    labels = [label for _, label in dataset.as_numpy_iterator()]
    return tuple(
        np.concatenate([label[key] for label in labels])
        for key in ("label", "loss_scale", "loss_bias", "update_scale")
    )


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("bias", (1.0, 3.0, 1.0)),
        ("scale", (3.0, 0.0, 1.0)),
        ("scale_update", (1.0, 0.0, 3.0)),
    ],
)
def test_only_malicious_clients_batches_tell_of_the_attack(kind, expected):
    attack = make(kind)
    cohort = cohorts.cohort_ids(stage(), TASK, 0, 1, attack)
    datasets = cohorts.cohort_datasets(stage(), TASK, 0, 1, attack)
    for client_id, dataset in zip(cohort, datasets, strict=True):
        labels, *others = told(dataset)
        _, honest_labels = TASK.examples(client_id, "train")
        np.testing.assert_array_equal(np.sort(labels), np.sort(honest_labels))
        own = expected if client_id == "2" else (1.0, 0.0, 1.0)
        assert [set(other) for other in others] == [{value} for value in own]


def test_an_attack_leaves_examples_and_their_order_alone():
    attack = make(every_round=False)
    clean = cohorts.cohort_datasets(stage(), TASK, 0, 1)
    under_attack = cohorts.cohort_datasets(stage(), TASK, 0, 1, attack)
    for honest, lying in zip(clean, under_attack, strict=True):
        for (x, y), (same_x, label) in zip(honest, lying, strict=True):
            np.testing.assert_array_equal(x, same_x)
            np.testing.assert_array_equal(y, label["label"])


def test_clients_that_tell_their_number_can_attack_too():
    numbered = stage(
        tff_algos.build_mifa(
            TASK.model, SGD(0.1), num_clients=len(TASK.train_client_ids)
        )
    )
    cohort = cohorts.cohort_ids(numbered, TASK, 0, 1, make())
    datasets = cohorts.cohort_datasets(numbered, TASK, 0, 1, make())
    for client_id, data in zip(cohort, datasets, strict=True):
        (number,) = data["client_index"].as_numpy_iterator()
        assert TASK.train_client_ids[number] == client_id
        assert set(told(data["examples"])[2]) == {3.0 if client_id == "2" else 0.0}


def test_the_task_under_attack_has_a_model_for_such_batches():
    task = make().task(TASK)
    (dataset, *_) = cohorts.cohort_datasets(stage(), task, 0, 1, make())
    x_spec, label_spec = task.model.input_spec
    assert dataset.element_spec == (x_spec, label_spec)
    assert task.train_client_ids == TASK.train_client_ids


def build(attack="bias:2", clients=None, every_round=True, cohort_size=3, seed=0):
    return malicious_clients.build(
        attack, clients, every_round, TASK, cohort_size, seed
    )


def test_flags_make_an_attack():
    assert build(None) is None
    assert build(clients="3,4") == make(value=2.0, client_ids=("3", "4"))
    everyone = build("scale:5", "1.0", every_round=False)
    assert everyone == make("scale", 5.0, TASK.train_client_ids, every_round=False)
    all_in_a_round = build("scale:5", "1.0", cohort_size=len(TASK.train_client_ids))
    assert all_in_a_round == make("scale", 5.0, TASK.train_client_ids)
    drawn = build()
    assert len(drawn.client_ids) == 1 and build() == drawn
    assert any(build(seed=seed) != drawn for seed in range(1, 5))


@pytest.mark.parametrize(
    ("flags", "named", "expected"),
    [
        (
            {"cohort_size": None},
            "attack='bias:2'",
            "an algorithm that trains on clients, not on pooled data",
        ),
        (
            {"clients": "0.5"},
            "malicious_clients='0.5'",
            (
                "at most 2 of clients_per_round=3 clients, found 4, or "
                "--nomalicious_every_round"
            ),
        ),
        (  # No honest client would ever take part.
            {"clients": "3,4,5"},
            "malicious_clients='3,4,5'",
            (
                "at most 2 of clients_per_round=3 clients, found 3, or "
                "--nomalicious_every_round"
            ),
        ),
        (
            {"clients": "8"},
            "malicious_clients='8'",
            "a share in (0, 1] or ids out of 0, 1, 2, 3, 4 and 3 more",
        ),
        (
            {"attack": "noise:1"},
            "attack='noise:1'",
            malicious_clients._KINDS,
        ),
    ],
)
def test_bad_flags_are_named(flags, named, expected):
    with pytest.raises(HyperparameterError) as error:
        build(**flags)
    assert str(error.value) == f"{named} is not valid: expected {expected}."


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ({"clients": "3"}, "malicious_clients='3'"),
        ({"every_round": False}, "malicious_every_round=False"),
    ],
)
def test_flags_of_an_attack_need_one(flags, named):
    with pytest.raises(HyperparameterError) as error:
        build(attack=None, **flags)
    assert str(error.value) == f"{named} cannot be used without --attack."


@pytest.mark.parametrize(
    ("attack", "client_ids", "expected"),
    [
        (
            make("scale", 10.0, ("client 3", "client 1")),
            IDS,
            "attack scale:10 by 2 of 40 clients",
        ),
        (make("bias", 1000.0, ("phd",)), ["phd", "others"], "attack bias:1000 by phd"),
        (
            make("scale_update", -0.5, ("phd",), every_round=False),
            ["phd", "others"],
            "attack scale_update:-0.5 by phd, in rounds that sample them",
        ),
    ],
)
def test_an_attack_is_told_in_titles(attack, client_ids, expected):
    assert attack.describe(client_ids) == expected


@functools.cache
def _task_of_blocks():
    return tasks.from_arrays(
        np.arange(160.0).reshape(80, 2),
        np.arange(80) % 2,
        partition="iid:8",
        model="mlp",
        eval_client_fraction=0.25,
    )


# Pooled training has no clients that could attack.
@pytest.mark.parametrize(
    "name",
    some_fast(
        [name for name in catalog.ALGORITHMS if name != "centralized"],
        ["fedavg", "reptile", "scaffold"],
    ),
)
def test_the_clients_of_every_algorithm_send_what_an_attack_makes_of_their_update(
    name, tmp_path
):
    """Otherwise `Attack.check_applied` raises an error."""
    spec = launch.build_spec(
        catalog.get(name),
        _task_of_blocks(),
        {"attack": "scale_update:2"},
        Launch(output_dir=str(tmp_path)),
    )
    assert spec.attack.kind == "scale_update"
