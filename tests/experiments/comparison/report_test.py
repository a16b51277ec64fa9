"""The report of a comparison, on runs that are made up."""

import csv

import attrs

from tests.testing.made_up_runs import write_run
from tff_algos.experiments.comparison import report
from tff_algos.experiments.comparison.columns import parse_column, read_results
from tff_algos.experiments.comparison.rows import Row

COLUMNS = [
    parse_column(name) for name in ("last:eval/accuracy", "rounds_to:0.4", "seconds")
]


def _outcomes(tmp_path):
    folders = [tmp_path / name for name in "abc"]
    curves = ((0.1, 0.6), (0.2, 0.3), (0.2, 0.4))
    for folder, curve in zip(folders, curves, strict=True):
        write_run(folder, curve=curve)
    one, two, three = map(read_results, folders)
    return {
        Row(label="fedavg", left_out=("memory_size",)): [one, one],
        Row(label="<uga>"): [two, three, None],
        Row(label="afl"): [None],
    }


def test_cells_are_means_and_deviations_and_say_what_failed(tmp_path):
    table = report.build_table(COLUMNS, _outcomes(tmp_path))
    assert table.header == [
        "",
        "held-out accuracy, %",
        "rounds to 40 %",
        "seconds per round",
    ]
    assert table.lines == [
        ["fedavg", "60.00 (0.00)", "10 (0)", "2.00 (0)"],
        ["<uga> (1 of 3 failed)", "35.00 (5.00)", "10, 1 of 2", "2.00 (0)"],
        ["afl (1 of 1 failed)", "failed", "failed", "failed"],
    ]


def test_published_numbers_are_beside_ours(tmp_path):
    outcomes = {
        Row(label="gradma", published="77.97 +- 1.28 %"): [None],
        Row(label="fedavg"): [None],
    }
    table = report.build_table(COLUMNS[:1], outcomes)
    assert table.header == ["", "held-out accuracy, %", "published number, or note"]
    assert [line[-1] for line in table.lines] == ["77.97 +- 1.28 %", ""]


def test_a_wide_table_has_a_line_for_each_column_where_that_is_narrower():
    table = report.Table(
        ["", "accuracy, %", "loss"], [["fedavg", "80", "1"]], ["Mean."]
    )
    wide = table.markdown
    assert wide.splitlines()[0] == "|        | accuracy, % | loss |"
    assert table.for_width(31) == wide
    turned = table.for_width(30).splitlines()
    assert turned[0] == "|             | fedavg |"
    assert turned[2:4] == ["| accuracy, % |     80 |", "| loss        |      1 |"]
    assert turned[-1] == "Mean."
    # Turned, a table of many rows would be as wide.
    many = report.Table(["", "loss"], [[f"row_{n}", "1"] for n in range(9)])
    assert many.for_width(5) == many.markdown


def test_notes_say_what_was_left_out(tmp_path):
    assert report.notes(_outcomes(tmp_path)) == [
        "Mean (population standard deviation) over seeds.",
        "fedavg does not have --memory_size.",
    ]
    assert report.notes({Row(label="a"): [None]}) == []


def test_notes_say_on_which_datasets_rows_are_if_names_do_not(tmp_path):
    (run, _), *_ = _outcomes(tmp_path).values()

    def notes(*labels):
        runs = [
            attrs.evolve(run, dataset=each) for each in ("mnist", "mnist_generated")
        ]
        folders = [(), (tmp_path,)]
        return report.notes(
            {
                Row(label=label, folders=paths): [each]
                for label, paths, each in zip(labels, folders, runs, strict=True)
            }
        )

    told = "Rows differ in the dataset (mnist, mnist_generated)."
    assert notes("fedavg", "fedavg (one)") == [told]
    assert notes("fedavg on mnist", "fedavg on mnist_generated") == []


def test_notes_say_in_which_flags_existing_runs_differ(tmp_path):
    (run, _), *_ = _outcomes(tmp_path).values()
    runs = [
        attrs.evolve(run, settings={**run.settings, "total_rounds": rounds})
        for rounds in (9, 6)
    ]
    note = "Rows differ in --total_rounds (9, 6)."
    existing = Row(label="a", folders=(tmp_path,))
    assert report.notes({existing: runs[:1], Row(label="b"): runs[1:]}) == [note]
    assert report.notes({existing: runs[:1], Row(label="b"): runs[:1]}) == []
    # Grids and defaults of their own say it of rows that were run.
    assert report.notes({Row(label="a"): runs[:1], Row(label="b"): runs[1:]}) == []


def test_notes_say_who_is_under_attack(tmp_path):
    (run, _), *_ = _outcomes(tmp_path).values()
    attack = {"attack": "scale:10", "malicious_clients": "0.05"}
    attacked = [attrs.evolve(run, settings={**run.settings, **attack})]
    flags = "--attack=scale:10 --malicious_clients=0.05"
    outcomes = {Row(label="a"): [run], Row(label="b"): attacked}
    assert report.notes(outcomes) == [f"Under attack, {flags}: b."]
    outcomes = {Row(label="a"): attacked, Row(label="b"): attacked}
    assert report.notes(outcomes) == [f"Under attack, {flags}: all rows."]


def test_the_table_the_runs_the_plots_and_a_page_are_written(tmp_path):
    table = report.write(tmp_path, COLUMNS, _outcomes(tmp_path))
    assert (tmp_path / "table.md").read_text() == table.markdown
    with open(tmp_path / "runs.csv", newline="") as file:
        header, *rows = csv.reader(file)
    assert header == ["row", "seed", "folder", *(column.name for column in COLUMNS)]
    assert rows[2] == ["<uga>", "0", str(tmp_path / "b"), "0.3", "", "2.0"]
    assert len(rows) == 4
    page = (tmp_path / "report.html").read_text()
    assert "<h1>Comparison on made_up: fedavg, &lt;uga&gt;, afl</h1>" in page
    assert "<td>&lt;uga&gt; (1 of 3" in page
    assert page.count('src="data:image/png;base64,iVBOR') == 2
    # One file that needs no other.
    assert "http" not in page and "href" not in page


def test_what_a_tenth_of_few_clients_is_is_said_where_it_is_shown(tmp_path):
    write_run(tmp_path / "run", curve=(0.1, 0.6))
    results = read_results(tmp_path / "run")
    worst = parse_column("initial_accuracy_worst_decile")
    note = "Of fewer than 10 clients, a tenth is one client."

    def notes(column, num_clients):
        numbers = {"num_clients": num_clients, worst.name: 0.5}
        run = attrs.evolve(results, summary=results.summary | numbers)
        return report.build_table([column], {Row(label="fedavg"): [run]}).notes

    assert note in notes(worst, 2)
    assert note not in notes(worst, 10)
    assert note not in notes(COLUMNS[0], 2)
