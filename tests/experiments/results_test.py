"""What a run says of the rounds and clients that did not count, and its speed."""

import json
import math
import re

import pytest
import tensorflow_federated as tff

import tff_algos
from tests.testing import tiny_task
from tests.testing.command_line import SMALL, run_here
from tff_algos.clients.batching import BatchSpec
from tff_algos.experiments import malicious_clients, report, results, run_spec, runner
from tff_algos.experiments.evaluation import ClientResult
from tff_algos.experiments.metrics_log import read_rows
from tff_algos.experiments.stage import Stage

TASK = tiny_task.make()
SGD = tff.learning.optimizers.build_sgdm
COUNTS = {"num_non_finite_clients": 0, "num_rejected_rounds": 0}
GOOD = COUNTS | {"train/num_examples": 30}
SILENT = COUNTS | {"train/num_examples": 0, "num_rejected_rounds": 1}
NON_FINITE = SILENT | {"num_non_finite_clients": 3}
WEIGHTLESS = GOOD | {"num_rejected_rounds": 1, "total_weight": 0.0}
OVERFLOWED = GOOD | {"num_rejected_rounds": 1}
EXCLUDED_LATER = GOOD | {"aggregator/inner/num_non_finite_clients": 2}
NOT_FINITE = "client updates were not finite (the client learning rate may be too high"


def test_rounds_of_no_time_have_no_speed():
    rows = [{"round": 1, "seconds": 0.0}]
    rejections = results.Rejections.of_rows(rows, num_rounds=1, num_participations=2)
    summary = results.summarize(
        TASK, rows, [], rejections, wall_seconds=1.0, peak_memory={}
    )
    assert summary["rounds_per_second"] is None


def test_a_summary_names_the_attack():
    rejections = results.Rejections.of_rows([], num_rounds=1, num_participations=2)
    attack = malicious_clients.Attack("scale", 10.0, frozenset({"4", "1"}))
    summaries = [
        results.summarize(
            TASK, [], [], rejections, wall_seconds=1.0, peak_memory={}, attack=each
        )
        for each in (attack, None)
    ]
    expected = {"kind": "scale", "value": 10.0, "clients": ["1", "4"]}
    assert summaries[0]["attack"] == expected | {"every_round": True}
    assert summaries[1]["attack"] is None


def test_clients_have_a_row_for_each_epoch(tmp_path):
    client = ClientResult(
        client_id="a",
        num_train_examples=7,
        num_test_examples=3,
        accuracy=(0.25, 0.5),
        loss=(2.0, 1.0),
    )
    results.write_clients(tmp_path / "per_client.csv", [client])
    assert (tmp_path / "per_client.csv").read_text().splitlines() == [
        "client_id,seen,num_train_examples,num_test_examples,epoch,accuracy,loss",
        "a,false,7,3,0,0.25,2.0",
        "a,false,7,3,1,0.5,1.0",
    ]


def test_a_client_without_test_examples_has_no_accuracy(tmp_path):
    client = ClientResult(
        client_id="a",
        num_train_examples=7,
        num_test_examples=0,
        accuracy=(0.0,),
        loss=(0.0,),
        own_accuracy=0.0,
        own_loss=0.0,
    )
    results.write_clients(tmp_path / "per_client.csv", [client])
    _, line = (tmp_path / "per_client.csv").read_text().splitlines()
    assert line == "a,false,7,0,0,nan,nan,nan,nan"


def describe(*rows, dropout=0.0, attacked=False):
    found = results.Rejections.of_rows(rows, len(rows), 3 * len(rows))
    return found.describe(dropout, attacked=attacked)


@pytest.mark.parametrize(
    ("rows", "options", "counts", "reasons"),
    [
        (
            (GOOD, NON_FINITE),
            {},
            "1 of 2 rounds rejected and 3 of 6 client updates excluded",
            f"{NOT_FINITE})",
        ),
        (
            (GOOD, EXCLUDED_LATER),
            {"attacked": True},
            "2 of 6 client updates excluded",
            f"{NOT_FINITE}, or --attack makes them so)",
        ),
        (
            (SILENT, GOOD, SILENT),
            {"dropout": 0.9},
            "2 of 3 rounds rejected",
            "no client reported in 2 rounds (--client_dropout=0.9 may be too high)",
        ),
        (
            (SILENT, GOOD),
            {},
            "1 of 2 rounds rejected",
            "no client reported in 1 round (they may have no training examples)",
        ),
        (
            (WEIGHTLESS, GOOD),
            {},
            "1 of 2 rounds rejected",
            "all that reported weighed zero in 1 round (--clients_per_round may be low)",
        ),
        (
            (GOOD, OVERFLOWED),
            {},
            "1 of 2 rounds rejected",
            "the aggregated update overflowed in 1 round (a learning rate may be too high)",
        ),
    ],
)
def test_rejections_are_counted_and_explained(rows, options, counts, reasons):
    assert describe(*rows, **options) == f"{counts}: {reasons}."


def test_there_is_nothing_to_say_where_everything_counts():
    assert describe(GOOD, GOOD) is None
    assert describe() is None


def test_the_model_is_the_initial_one_only_if_every_round_was_rejected():
    last = "Every round was rejected: the model is the initial one."
    assert describe(SILENT, NON_FINITE).endswith(last)
    assert last not in describe(SILENT, GOOD)
    for rows, num_rounds, expected in (
        ([SILENT], 1, True),
        # The row of a round that counted may have been deleted.
        ([SILENT], 2, False),
        ([], 0, False),
    ):
        found = results.Rejections.of_rows(rows, num_rounds, 3)
        assert found.all_rounds is expected


def make_spec(directory, rounds=3, **options):
    process = tff_algos.build_fed_avg(TASK.model, SGD(0.5))
    stage = Stage(
        name="fedavg",
        process=process,
        num_rounds=rounds,
        clients_per_round=2,
        batches=BatchSpec(batch_size=4, num_epochs=1),
    )
    return run_spec.RunSpec(
        title="a test",
        stages=(stage,),
        task=TASK,
        output_dir=directory,
        hyperparameters={"algo": "test", **options},
        personalization_optimizer=SGD(0.5),
        options=run_spec.RunOptions(
            rounds_per_eval=0, eval_clients=1, personalization_epochs=0, **options
        ),
    )


def strictly(path):
    """Reads JSON that a parser in another language reads too."""

    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(path.read_text(), parse_constant=refuse)


def test_rounds_without_reports_have_no_loss_and_end_in_a_warning(tmp_path):
    result = runner.run(make_spec(tmp_path, client_dropout=0.5))
    rows = read_rows(tmp_path / "metrics.csv")
    # With seed 0 one client stays, in the last round.
    assert [row["train/num_examples"] > 0 for row in rows] == [False, False, True]
    assert [math.isnan(row["train/loss"]) for row in rows] == [True, True, False]
    assert strictly(tmp_path / "summary.json") == result.summary
    assert result.summary["participations"] == 1
    assert not result.learned_nothing
    assert result.warning == (
        "2 of 3 rounds rejected: no client reported in 2 rounds (--client_dropout=0.5 "
        "may be too high)."
    )
    table = report.results_table("a test", result.summary)
    assert re.search(r"^  rounds rejected +2 of 3$", table, re.MULTILINE)


def test_a_run_that_learned_nothing_says_so_and_exits_with_1(tmp_path, capfd):
    finished = run_here(
        capfd,
        "--algo=fedavg",
        "--task=mnist",
        "--model=2nn",
        "--clients_per_round=2",
        "--client_epochs_per_round=1",
        "--max_elements_per_client=20",
        "--client_learning_rate=1e30",
        f"--output_dir={tmp_path}",
        *SMALL,
    )
    assert finished.status == 1
    assert finished.err.splitlines()[-1] == (
        "warning: 2 of 2 rounds rejected and 4 of 4 client updates excluded: client "
        "updates were not finite (the client learning rate may be too high). Every "
        "round was rejected: the model is the initial one."
    )
    assert "no loss: every update was excluded" in finished.err
    for label, value in (
        ("rounds rejected", "2 of 2"),
        ("client updates excluded, not finite", "4 of 4"),
        ("training loss, last round", "none"),
    ):
        (line,) = [line for line in finished.out.splitlines() if label in line]
        assert line.split(label)[1].strip() == value
    summary = strictly(tmp_path / "summary.json")
    assert summary["final_metrics"]["train/loss"] is None
    assert summary["final_metrics"]["update_norm"] is None
    assert summary["participations"] == 4
    assert (tmp_path / "plots" / "learning_curves.png").stat().st_size > 5000
