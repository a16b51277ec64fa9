"""A comparison as a command."""

import json
import signal
import time

import pytest

from tests.testing import programs
from tests.testing.command_line import SMALL, run_program, start
from tests.testing.made_up_runs import write_run
from tff_algos.experiments.comparison import command
from tff_algos.experiments.errors import RunError
from tff_algos.experiments.metrics_log import read_rows


@pytest.fixture
def program(monkeypatch):
    monkeypatch.setattr(command.signal, "signal", lambda *_: None)
    return programs.stand_in(monkeypatch)


def test_the_command_prints_the_table_and_goes_on_where_it_was(
    program, tmp_path, capsys
):
    words = ["fedavg", "uga", "--task=mnist", "--seeds=1", f"--output_dir={tmp_path}"]
    assert command.main(words) == 0
    first = capsys.readouterr().out
    assert "held-out accuracy, %" in first and f"Report: {tmp_path}" in first
    assert command.main(words) == 0
    assert capsys.readouterr().out == first
    assert len(program.calls) == 2


def test_existing_runs_need_no_task(program, tmp_path, capsys):
    write_run(tmp_path / "a", curve=(0.5,))
    assert command.main([str(tmp_path / "a"), f"--output_dir={tmp_path}/out"]) == 0
    assert "fedavg (a)" in capsys.readouterr().out
    assert program.calls == []


@pytest.mark.parametrize("name", ["metrics.csv", "summary.json", "per_client.csv"])
def test_existing_runs_that_cannot_be_read_are_errors_before_any_run(
    program, tmp_path, name
):
    write_run(tmp_path / "a")
    (tmp_path / "a" / name).write_text("torn\na line\n")
    words = ["uga", str(tmp_path / "a"), "--task=mnist", f"--output_dir={tmp_path}/out"]
    with pytest.raises(RunError, match=rf"{name}(:| cannot be read)"):
        command.main(words)
    assert program.calls == []


def test_how_existing_runs_differ_is_below_the_table_and_in_all_reports(
    program, tmp_path, capsys
):
    for name, rounds in (("a", 9), ("b", 6)):
        write_run(tmp_path / name)
        config = {"algo": "fedavg", "task": "mnist", "total_rounds": rounds}
        path = tmp_path / name / "config.json"
        path.write_text(json.dumps({"hyperparameters": config}))
    out = tmp_path / "out"
    folders = [str(tmp_path / name) for name in "ab"]
    assert command.main([*folders, f"--output_dir={out}"]) == 0
    note = "Rows differ in --total_rounds (9, 6)."
    assert f"\n{note}\n" in capsys.readouterr().out
    assert f"\n{note}\n" in (out / "table.md").read_text()
    assert f"<p>{note}</p>" in (out / "report.html").read_text()


def test_a_failed_run_is_told_and_the_exit_status_is_1(program, tmp_path, capsys):
    program._failures = ("uga",)
    words = ["fedavg", "uga", "--task=mnist", "--seeds=2", f"--output_dir={tmp_path}"]
    assert command.main(words) == 1
    out, err = capsys.readouterr()
    assert "uga (2 of 2 failed)" in out
    assert "uga, seed 1: failed, " in err and "error: broken" in err


def test_help_says_what_the_command_does(capsys):
    assert command.main(["--help"]) == 0
    assert "rounds_to:ACC" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "nothing to compare: name algorithms, flag files or folders of runs"),
        (["fedavg", "--task=mnist", "--columns=final:"], "--columns=final:: expected"),
        (
            ["fedavg", "--task=mnist", "--columns=nothing"],
            "--columns=nothing: expected",
        ),
        (
            ["fedavg", "--task=mnist", "--seeds=0"],
            "--seeds='0' is not valid: expected an integer >= 1",
        ),
        (
            ["fedavg", "--task=mnist", "--job=2"],
            r"--job is unknown, did you mean --jobs\?",
        ),
        (["fedavg", "--task=mnist", "--seds=2"], r"did you mean --seeds\?"),
        (
            ["fedavg", "--task=mnist", "--output_dir=runs/[a]"],
            r"^--output_dir=runs/\[a\]: expected a path without \*, \?, \[ or ",
        ),
        (
            ["fedavg", "--task=mnist", "--output_dir=/dev/null/a"],
            "/dev/null/a: .*folder",
        ),
    ],
)
def test_wrong_flags_are_one_line(program, tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RunError, match=message) as error:
        command.main(words)
    assert "\n" not in str(error.value)


@pytest.mark.slow
def test_the_program_compares_and_its_runs_are_those_of_single_commands(tmp_path):
    table = tmp_path / "table.csv"
    lines = [f"{i % 7},{i % 5},{i % 2},{'abcd'[i // 3 % 4]}" for i in range(120)]
    table.write_text("\n".join(["x,y,label,client", *lines]))
    common = [
        f"--task=csv:{table}",
        "--client_column=client",
        "--model=linear",
        "--clients_per_round=2",
        "--total_rounds=2",
        "--rounds_per_eval=1",
        "--personalization_epochs=1",
    ]
    out = tmp_path / "out"
    words = ["compare", "fedavg", "fedprox", *common, "--proximal_strength=1"]
    words += ["--seeds=1", f"--output_dir={out}"]
    done = run_program(*words)
    assert done.status == 0, done.err
    assert "fedavg does not have --proximal_strength." in done.err
    assert "2/2 fedprox, seed 0: done" in done.err
    alone = run_program("--algo=fedavg", *common, f"--output_dir={tmp_path}/alone")
    assert alone.status == 0, alone.err
    curves = [
        [
            {k: v for k, v in row.items() if k != "seconds"}
            for row in read_rows(folder / "metrics.csv")
        ]
        for folder in (out / "fedavg+seed=0", tmp_path / "alone")
    ]
    assert curves[0] == curves[1]
    both = [str(out / "fedavg+seed=0"), str(tmp_path / "alone")]
    again = run_program("compare", *both, f"--output_dir={tmp_path}/again")
    assert again.status == 2
    assert "are runs of the same settings and seed" in again.err


@pytest.mark.slow
def test_ctrl_c_is_answered_at_once_and_the_same_command_goes_on(tmp_path):
    flags = [*SMALL, "--total_rounds=400", "--rounds_per_eval=400"]
    words = ["compare", "fedavg", "--task=adult", *flags, "--seeds=1"]
    process = start(*words, f"--output_dir={tmp_path}")
    rows = tmp_path / "fedavg+seed=0" / "metrics.csv"
    while not (rows.exists() and read_rows(rows)):
        assert process.poll() is None, process.communicate()
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    first, last = err.splitlines()[-2:]
    assert first.startswith("stopping after the current rounds (about ")
    assert last == f"stopped; the same command resumes in {tmp_path}"
    num_done = len(read_rows(rows))
    log = (rows.parent / "log.txt").read_text()
    assert f"stopping after round {num_done}" in log
    assert (rows.parent / "checkpoints" / f"round_{num_done}").exists()


@pytest.mark.slow
def test_a_typo_in_a_later_row_is_an_error_before_any_run(tmp_path):
    words = ["compare", "fedavg", "fedproxx", "--task=adult"]
    done = run_program(*words, f"--output_dir={tmp_path}/out")
    assert done.status == 2
    assert done.err.startswith("error: --algo=fedproxx is unknown, did you mean fedpro")
    assert not (tmp_path / "out").exists()
