"""The command line: what runs, and what is refused in one line."""

import asyncio
import json
import logging
import re
import subprocess
import sys

import pytest
import tensorflow_federated as tff

import tasks
import tff_algos
from tests.testing.command_line import (
    ROOT,
    SMALL,
    run_here,
    run_program,
)
from tff_algos.experiments import catalog, cli
from tff_algos.experiments.metrics_log import read_rows


@pytest.mark.parametrize("form", [["--flagfile={}"], ["--flagfile", "{}"]])
def test_a_flag_file_that_is_no_text_is_named(form, tmp_path, capfd):
    path = tmp_path / "bad.flags"
    path.write_bytes(b"--algo=\xff\xfe\n")
    finished = run_here(capfd, *(part.format(path) for part in form))
    assert finished.status == 2
    (line,) = finished.err.splitlines()
    assert line.startswith(f"error: --flagfile: {path}, or what it includes, is not ")


@pytest.mark.parametrize(
    ("logged_by", "level", "is_shown"),
    [
        (asyncio, logging.INFO, False),
        (tff, logging.INFO, False),
        (tff, logging.WARNING, True),
        (tff_algos, logging.DEBUG, True),
    ],
)
def test_what_libraries_log_is_shown_from_warnings_on(logged_by, level, is_shown):
    record = logging.LogRecord("n", level, logged_by.__file__, 1, "text", (), None)
    assert cli._is_of_interest(record) is is_shown


def test_list_shows_every_algorithm_and_task(capfd):
    finished = run_here(capfd, "--list")
    assert finished.status == 0
    for name in [*catalog.ALGORITHMS, *tasks.TASKS]:
        assert re.search(rf"^  {name} ", finished.out, re.MULTILINE)


def test_help_names_every_flag_and_who_uses_it():
    cli.define_flags()
    text = " ".join(f"--{name}: {cli.FLAGS[name].help}" for name in cli.FLAGS)
    for recipe in catalog.ALGORITHMS.values():
        for name in recipe.hyperparameters():
            assert re.search(rf"--(\[no\])?{name}: ", text), name
    words = " ".join(text.split())
    assert re.search(
        r"--proximal_strength: [^[]*\(mu; >= 0\) \[fedprox, fedproxm, mgda_prox\]",
        words,
    )
    assert re.search(
        r"--client_learning_rate: [^[]*\[all but fedsgd, pfedme, apfl\]; ", words
    )


# Without TensorFlow, which takes seconds to import.
ANSWERED_AT_ONCE = {
    ("--list",): (0, "Algorithms (--algo)"),
    ("--list", "--algo=uga"): (0, "UGA (Yao"),
    ("--list", "--algo=uga", "--task=adult"): (0, "adult (UCI"),
    ("--version",): (0, "tff-algos 0.1.0 (TensorFlow Federated 0.87.0, TensorFlow 2."),
    ("--help",): (0, "--[no]adaptive_regularization"),
    ("compare", "--help"): (0, "rounds_to:ACC"),
    ("compare", "fedavg", "fedproxx", "--task=mnist"): (2, "did you mean fedprox"),
    ("compare", "fedavg", "--task=mnist", "--q=1"): (2, "--q=1.0: no row has it"),
    ("compare", "fedavg", "--task=mnist", "--columns=lst:eval/accuracy"): (
        2,
        "--columns=lst:eval/accuracy: expected rounds_to:ACC, final:METRIC, ",
    ),
    ("--algos=fedavg",): (2, "--algos is unknown, did you mean --algo?"),
    ("--client_learning_rat=1",): (2, "did you mean --client_learning_rate?"),
    ("--algo=uga", "--task=mnist", "--learning_rate=1"): (
        2,
        "did you mean --client_learning_rate or --server_learning_rate or --",
    ),
    ("compare", "fedavg", "uga", "--task=mnist", "--rounds=1"): (
        2,
        "--rounds is unknown, did you mean --total_rounds or --",
    ),
    ("--out=x",): (2, "--out is unknown, did you mean --output_dir?"),
    ("--num_rounds=1",): (2, "did you mean --total_rounds or --"),
    ("--dirichlet=0.1",): (2, "--dirichlet is unknown, did you mean --partition?"),
    ("--wandb",): (2, "--wandb is unknown. --help shows the flags."),
    ("--algo=fedavgg", "--task=mnist"): (2, "did you mean fedavg"),
    ("--algo=fedavgg",): (2, "did you mean fedavg"),
    ("--algo=fedavg", "--task=mnist", "--model=x"): (2, "--model='x' is not valid"),
    ("--algo=fedavg", "--task=mnist", "--q=1"): (2, "--q=1.0 cannot be used"),
    ("--algo=fedavg", "--task=mnist", "--partition=dirichlett:0.1"): (
        2,
        "--partition='dirichlett:0.1' is not valid: expected iid:N, shards:K[:N] or",
    ),
    ("--algo=fedavg", "--task=adult", "--partition=iid:0"): (
        2,
        "dirichlet:ALPHA[:N] (N, K integers >= 1, ALPHA > 0)",
    ),
    ("--algo=fedavg", "--task=mnist", "--aggregator=krum:x"): (
        2,
        "--aggregator='krum:x' is not valid: expected one of median",
    ),
    ("--algo=uga", "--task=adult", "--attack=noise:1"): (2, "expected bias:VALUE"),
    ("compare", "fedavg", "uga", "--task=mnist", "--aggregator=mediann"): (
        2,
        "--aggregator='mediann' is not valid: expected one of median",
    ),
}


@pytest.mark.parametrize("arguments", ANSWERED_AT_ONCE, ids=" ".join)
def test_questions_and_typos_are_answered_without_tensorflow(arguments):
    status, expected = ANSWERED_AT_ONCE[arguments]
    finished = subprocess.run(
        [sys.executable, "-X", "importtime", str(ROOT / "main.py"), *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == status
    assert expected in finished.stdout + finished.stderr
    imported = re.findall(r"\| +(\S+)$", finished.stderr, re.MULTILINE)
    assert "absl.flags" in imported
    assert not {"tensorflow", "tensorflow_federated", "matplotlib"} & set(imported)


@pytest.mark.parametrize("arguments", ["--help", "--list", "compare --help"])
def test_a_reader_that_has_seen_enough_is_no_error(arguments):
    # `true` exits, which closes the pipe, before anything is written.
    command = f"sleep 1; {sys.executable} {ROOT / 'main.py'} {arguments}; echo $? >&2"
    found = subprocess.run(
        ["bash", "-c", f"{{ {command}; }} | true"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stderr.split() == ["141"]


def test_list_of_a_pair_shows_its_flags_and_defaults(capfd):
    finished = run_here(capfd, "--list", "--algo=centralized", "--task=emnist")
    assert finished.status == 0
    assert re.search(r"--client_learning_rate=0\.001 .*\(eta; > 0\)", finished.out)
    assert re.search(
        r"--model=cnn .*\(cnn\|cnn_dropout\|2nn\|cnn_dense_dropout\)", finished.out
    )
    assert "proximal_strength" not in finished.out
    assert re.search(r"--module= +Python module .* without \.py; repeat", finished.out)


def test_list_says_which_default_another_one_replaces(capfd):
    replaced = "not used, because --client_steps_per_round is set"
    for algo, expected in (("gradma", True), ("fedavg", False)):
        finished = run_here(capfd, "--list", f"--algo={algo}", "--task=mnist")
        lines = " ".join(finished.out.split())
        assert (f"(E; >= 1); {replaced}" in lines) == expected
        assert lines.count("not used") == expected


def test_none_unsets_the_attack_of_a_flag_file(tmp_path):
    run = tmp_path / "run"
    row = ROOT / "presets/fedmgda/table_7_adult/fedmgda_plus_bias1.flags"
    assert {"--attack=bias:1", "--malicious_clients=phd"} <= {*row.read_text().split()}
    short = [*SMALL, f"--output_dir={run}"]
    done = run_program(f"--flagfile={row}", "--attack=none", *short, cwd=ROOT)
    assert done.status == 0, done.err
    assert "attack bias:1" not in done.out
    settings = json.loads((run / "config.json").read_text())["hyperparameters"]
    assert settings["attack"] is None and settings["malicious_clients"] is None


def test_resuming_names_a_changed_hyperparameter(tmp_path, capfd):
    command = [
        "--algo=fedavg",
        "--task=emnist",
        "--model=2nn",
        "--max_elements_per_client=8",
        f"--output_dir={tmp_path}",
        *SMALL,
    ]
    assert run_here(capfd, *command).status == 0
    finished = run_here(capfd, *command, "--client_learning_rate=0.5")
    assert finished.status == 2
    assert "--client_learning_rate: was 0.02, now 0.5" in finished.err


def test_a_run_under_attack_tells_how_clients_fare(tmp_path, capfd):
    finished = run_here(
        capfd,
        "--algo=qfedavg",
        "--task=emnist",
        "--only_digits",
        "--model=2nn",
        "--clients_per_round=3",
        "--max_elements_per_client=8",
        "--attack=bias:1000",
        "--track_improvement",
        f"--output_dir={tmp_path}",
        *SMALL,
    )
    assert finished.status == 0, finished.err
    assert "clients no worse off, mean over rounds" in finished.out
    rows = read_rows(tmp_path / "metrics.csv")
    assert len(rows) == 2
    for row in rows:
        # The attacker takes part in every round, and lies in what it reports alone.
        assert 1000 < row["max_loss"] < 1100 and row["train/loss"] < 100
        count = 3 * row["improved_clients"]
        assert 0 <= count <= 3 and count == pytest.approx(round(count))
    worst, mean, best = (
        rows[-1][f"eval/client_accuracy_{name}"]
        for name in ("worst_decile", "mean", "best_decile")
    )
    assert 0 <= worst <= mean <= best <= 1
    assert (tmp_path / "plots" / "fairness.png").stat().st_size > 5000
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["hyperparameters"]["attack"] == "bias:1000"


def test_both_runtimes_give_the_same_numbers(tmp_path, capfd):
    rows = {}
    for runtime in ("in_process", "native"):
        finished = run_here(
            capfd,
            "--algo=fedprox",
            "--task=emnist",
            "--only_digits",
            "--model=2nn",
            "--client_learning_rate=0.005",
            f"--runtime={runtime}",
            f"--output_dir={tmp_path / runtime}",
            *SMALL,
        )
        assert finished.status == 0, finished.err
        config = json.loads((tmp_path / runtime / "config.json").read_text())
        assert config["runtime"] == runtime
        rows[runtime] = read_rows(tmp_path / runtime / "metrics.csv")
    for ours, theirs in zip(rows["in_process"], rows["native"], strict=True):
        # TFF's runtime does not measure what it sends.
        sent = {"bytes_down", "bytes_up"}
        assert ours.keys() - theirs.keys() == sent
        for name in ours.keys() - {"seconds", "stage"} - sent:
            assert ours[name] == pytest.approx(theirs[name], rel=1e-4), name


def test_ray_workers_give_one_processs_numbers(tmp_path):
    pytest.importorskip("ray", reason="ray is not installed (requirements-ray.txt)")
    rows = {}
    for runtime in ("in_process", "ray"):
        workers = ["--ray_workers=2"] if runtime == "ray" else []
        # A program of its own: Ray of other tests in this process may have its CPUs.
        finished = run_program(
            "--algo=scaffold",
            "--task=emnist",
            "--only_digits",
            "--model=2nn",
            "--client_learning_rate=0.005",
            f"--runtime={runtime}",
            f"--output_dir={tmp_path / runtime}",
            *workers,
            *SMALL,
        )
        assert finished.status == 0, finished.err
        rows[runtime] = read_rows(tmp_path / runtime / "metrics.csv")
    for here, there in zip(rows["in_process"], rows["ray"], strict=True):
        sent, received = there.pop("bytes_to_workers"), there.pop("bytes_from_workers")
        assert {**here, "seconds": 0} == {**there, "seconds": 0}
        # Weights and clients' rows, but no examples.
        assert 0 < sent < received
    summary = json.loads((tmp_path / "ray" / "summary.json").read_text())
    assert summary["bytes_from_workers_per_round"] == received
    assert "sent to workers and received per round" in finished.out


def test_generated_data_say_so(tmp_path, capfd):
    finished = run_here(
        capfd,
        "--algo=fedavg",
        "--task=emnist",
        "--model=2nn",
        "--total_rounds=0",
        "--eval_clients=1",
        "--personalization_epochs=0",
        f"--cache_dir={tmp_path / 'empty'}",
        f"--output_dir={tmp_path / 'run'}",
    )
    assert finished.status == 0, finished.err
    assert "generated data are used" in finished.err
    assert (
        "--total_rounds=0: no training; the initial model is evaluated on 1 client.\n"
        in finished.err
    )
    assert "--data=tff" in finished.err
    assert "FedAvg on emnist_generated" in finished.out
