"""What a comparison shows while it runs."""

import io

from tests.testing.made_up_runs import write_run
from tff_algos.experiments.comparison.columns import read_results
from tff_algos.experiments.comparison.live import LiveTable
from tff_algos.experiments.comparison.rows import Row
from tff_algos.experiments.comparison.runs import LOG_FILE, make_runs

ROWS = [Row(label="fedavg", arguments=("--a=1",)), Row(label="uga")]


class _Terminal(io.StringIO):
    def isatty(self):
        return True


def _half_done(tmp_path, stream):
    runs = make_runs(ROWS, 2, tmp_path)
    write_run(runs[0].folder, curve=(0.25,))
    write_run(runs[1].folder, curve=(0.5, 0.75))
    live = LiveTable(runs, stream)
    live.ended(runs[0], read_results(runs[0].folder))
    live.ended(runs[3], None)
    return live


def test_the_table_has_what_is_done_what_runs_and_accuracies(tmp_path):
    lines = _half_done(tmp_path, _Terminal()).lines()
    fedavg, uga = (" ".join(line.split()) for line in lines[1:])
    assert fedavg == "fedavg 1/2 25.0 %"
    assert uga == "uga 0/2, 1 failed seed 0, round 10 75.0 %"


def test_stopping_takes_about_as_long_as_the_longest_of_the_last_rounds(tmp_path):
    stream = io.StringIO()
    runs = make_runs(ROWS, 2, tmp_path)
    for run, seconds in zip(runs, (90.0, 12.0, 40.0), strict=False):
        write_run(run.folder, curve=(0.5, 0.75), seconds=seconds)
        (run.folder / LOG_FILE).write_text("")
    live = LiveTable(runs, stream)
    live.ended(runs[0], read_results(runs[0].folder))
    live.stopping()
    assert "after the current rounds (about 40 s), which" in stream.getvalue()


def test_before_the_first_round_stopping_takes_an_unknown_time(tmp_path):
    stream = io.StringIO()
    runs = make_runs(ROWS, 2, tmp_path)
    write_run(runs[0].folder, curve=(0.5, 0.75))
    for run in runs[:2]:
        run.folder.mkdir(exist_ok=True)
        (run.folder / LOG_FILE).write_text("")
    LiveTable(runs, stream).stopping()
    assert "after the current rounds, which will be saved" in stream.getvalue()


def test_a_run_that_has_not_ended_a_round_is_starting(tmp_path):
    runs = make_runs(ROWS, 1, tmp_path)
    runs[1].folder.mkdir()
    (runs[1].folder / LOG_FILE).write_text("")
    fedavg, uga = LiveTable(runs, _Terminal()).lines()[1:]
    assert fedavg.split() == ["fedavg", "0/1"]
    assert " ".join(uga.split()) == "uga 0/1 seed 0, starting"


def test_lines_fit_the_terminal(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "20")
    assert max(map(len, _half_done(tmp_path, _Terminal()).lines())) <= 20


def test_long_labels_leave_room_for_accuracies(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    name = "fedavg aggregator=trimmed_mean:0.2 client_learning_rate=0.05 model=cnn"
    row = Row(label=name, arguments=("--a=1",))
    runs = make_runs([row], 5, tmp_path)
    for run, accuracy in zip(runs, (0.25, 0.5, 0.75, 0.625, 0.375), strict=True):
        write_run(run.folder, curve=(accuracy,))
    _, line = LiveTable(runs, _Terminal()).lines()
    assert line.startswith("fedavg aggregator=") and "=cnn " in line
    assert line.endswith("  seed 0, round 5  25.0 to 75.0 %") and len(line) <= 80


def test_a_table_is_lower_than_the_terminal(tmp_path, monkeypatch):
    live = _half_done(tmp_path, _Terminal())
    whole = live.lines()
    monkeypatch.setenv("LINES", str(len(whole) + 1))
    assert live.lines() == whole
    monkeypatch.setenv("LINES", "4")
    for number in range(9):
        live.note(f"note {number}")
    assert live.lines() == [*whole[:2], f"... and {len(whole) + 7} more lines"]
    assert len(live.lines(whole=True)) == len(whole) + 9


def test_a_table_replaces_the_one_before(tmp_path):
    stream = _Terminal()
    live = _half_done(tmp_path, stream)
    live._draw()
    first = stream.getvalue()
    live._draw()
    assert stream.getvalue() == f"{first}\x1b[3F\x1b[J{first}"


def test_runs_that_print_to_the_terminal_get_lines_in_place_of_a_table(tmp_path):
    runs = make_runs(ROWS, 1, tmp_path)
    stream = _Terminal()
    with LiveTable(runs, stream, redraw=False) as live:
        live.ended(runs[0], None)
    assert stream.getvalue() == "1/2 fedavg, seed 0: failed\n"


def test_a_log_gets_a_line_for_each_run_and_note(tmp_path):
    stream = io.StringIO()
    with _half_done(tmp_path, stream) as live:
        live.note("a column is misspelt")
    assert stream.getvalue().splitlines() == [
        "1/4 fedavg, seed 0: done",
        "2/4 uga, seed 1: failed",
        "a column is misspelt",
    ]


def test_notes_stay_below_the_table(tmp_path):
    stream = _Terminal()
    live = _half_done(tmp_path, stream)
    live.note("a column is misspelt")
    assert stream.getvalue() == ""
    assert live.lines()[-1] == "a column is misspelt"
