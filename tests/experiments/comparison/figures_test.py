"""A comparison's plots, on runs that are made up."""

import itertools
import json
import math

import numpy as np
import pytest

from tests.testing.made_up_runs import write_run
from tff_algos.experiments.comparison import figures
from tff_algos.experiments.comparison.columns import read_results
from tff_algos.experiments.comparison.errors import ComparisonError
from tff_algos.experiments.comparison.rows import Row


def _clients(accuracies):
    """Returns the accuracies of as many clients, with a seed each."""
    return {str(number): [each] for number, each in enumerate(accuracies)}


def _results(folder, curve):
    write_run(folder, curve=curve)
    return read_results(folder)


def test_curves_leave_out_what_is_no_number(tmp_path):
    results = _results(tmp_path, (0.1, math.nan, 0.3))
    rounds, values = figures.learning_curves({Row(label="a"): [results]})["a"]
    assert list(rounds) == [5, 15] and values.tolist() == [[0.1, 0.3]]


def test_curves_are_over_the_rounds_that_all_seeds_have(tmp_path):
    longer, shorter = (
        _results(tmp_path / str(len(curve)), curve)
        for curve in ((0.1, 0.2, 0.3), (0.3, 0.4))
    )
    outcomes = {Row(label="a"): [longer, None, shorter], Row(label="b"): [None]}
    curves = figures.learning_curves(outcomes)
    assert list(curves) == ["a"]
    rounds, values = curves["a"]
    assert list(rounds) == [5, 10]
    assert values.tolist() == [[0.1, 0.2], [0.3, 0.4]]


def test_the_mean_and_range_are_drawn_and_the_best_comes_first(tmp_path):
    rounds = figures.np.array([1, 2])
    curves = {
        "worse": (rounds, figures.np.array([[0.1, 0.2], [0.3, 0.4]])),
        "better": (rounds, figures.np.array([[0.5, 0.6]])),
    }
    figure = figures.plot_curves(curves, None)
    (axis,) = figure.axes
    lines = {line.get_label(): line for line in axis.lines}
    assert lines["worse"].get_ydata().tolist() == pytest.approx([0.2, 0.3])
    band = axis.collections[1].get_paths()[0].vertices
    for number, range_of_seeds in ((1, (0.1, 0.3)), (2, (0.2, 0.4))):
        ends = band[band[:, 0] == number, 1]
        assert (min(ends), max(ends)) == pytest.approx(range_of_seeds)
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["better", "worse"]


@pytest.mark.parametrize("count", [1, 2, 5, 6, 16, 20, 21, 27])
def test_no_two_lines_look_alike_and_neighbors_differ_in_color(count):
    rounds = figures.np.array([1, 2])
    curves = {
        f"row {n}": (rounds, figures.np.array([[0.1, n / 100]])) for n in range(count)
    }
    (axis,) = figures.plot_curves(curves, None).axes
    looks = [(tuple(line.get_color()), line.get_linestyle()) for line in axis.lines]
    assert len(set(looks)) == count
    assert all(one[0] != other[0] for one, other in itertools.pairwise(looks))


@pytest.mark.parametrize(
    ("num_seeds", "subject", "title"),
    [
        (1, None, ""),
        (1, "mnist", "mnist"),
        (2, None, "mean over seeds; shaded: least to greatest"),
        (2, "mnist", "mnist\nmean over seeds; shaded: least to greatest"),
    ],
)
def test_the_title_has_the_dataset_and_speaks_of_seeds_where_there_are_several(
    num_seeds, subject, title
):
    rounds = figures.np.array([1, 2])
    other = (rounds, figures.np.array([[0.1, 0.2]]))
    several = (rounds, figures.np.array([[0.1, 0.2]] * num_seeds))
    figure = figures.plot_curves({"one": other, "several": several}, subject)
    assert figure.axes[0].get_title() == title


@pytest.mark.parametrize("count", [2, 20, 21, 40])
@pytest.mark.parametrize(
    "name", ["personalized_fedavg", "fedavg " + 6 * "--flag=value "]
)
def test_the_whole_legend_is_on_the_plot_and_leaves_room_for_lines(count, name):
    rounds, values = figures.np.array([1, 2]), figures.np.array([[0.1, 0.2]])
    curves = {f"{name} {n}": (rounds, values) for n in range(count)}
    figure = figures.plot_curves(curves, None)
    figure.draw_without_rendering()
    (legend,) = figure.legends
    (axis,) = figure.axes
    box, page = legend.get_window_extent(), figure.bbox
    assert len(legend.get_texts()) == count
    assert axis.get_window_extent().height > 2.5 * figure.dpi
    assert page.x0 <= box.x0 and box.x1 <= page.x1
    assert page.y0 <= box.y0 and box.y1 <= page.y1


def test_clients_accuracies_are_of_all_seeds_and_of_clients_with_tests(tmp_path):
    results = [_results(tmp_path / name, (0.5,)) for name in "ab"]
    assert figures.client_accuracies([*results, None]) == {
        "server's model": {"a": [0.5, 0.5], "c": [1.0, 1.0]},
        "personalized": {"a": [0.75, 0.75], "c": [0.25, 0.25]},
    }
    path = tmp_path / "a" / "per_client.csv"
    path.write_text("client,accuracy\na,0.5\n")
    with pytest.raises(
        ComparisonError, match="per_client.csv cannot be read: it has no column 'epoch'"
    ):
        figures.client_accuracies(results)
    path.unlink()
    assert figures.client_accuracies(results[:1]) == {}


def test_models_that_clients_keep_are_a_third_kind(tmp_path):
    results = _results(tmp_path, (0.5,))
    (tmp_path / "per_client.csv").write_text(
        "client_id,seen,num_train_examples,num_test_examples,epoch,accuracy,loss,"
        "own_accuracy,own_loss\n"
        "a,true,9,4,0,0.5,1.0,0.8,1.0\na,true,9,4,1,0.75,1.0,0.8,1.0\n"
    )
    kept = figures.client_accuracies([results])
    assert kept == {
        "server's model": {"a": [0.5]},
        "personalized": {"a": [0.75]},
        "own model": {"a": [0.8]},
    }
    # Training clients beside those that the run evaluates.
    seen = {"num_clients": 1, "num_clients_without_test": 0}
    summary = json.loads((tmp_path / "summary.json").read_text())
    summary |= {"personalization": seen, "personalization_seen": seen}
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    with open(tmp_path / "per_client.csv", "a") as file:
        file.write("b,true,9,4,0,0.6,1.0,0.9,1.0\nb,true,9,4,1,0.7,1.0,0.9,1.0\n")
    apart = figures.client_accuracies([read_results(tmp_path)])
    assert apart == kept | {"own model, training clients": {"b": [0.9]}}
    shared = {kind: _clients([0.2] * 10) for kind in ("server's model", "personalized")}
    own = {kind: _clients([0.5] * 10) for kind in kept}
    figure = figures.plot_clients({"fedavg": shared, "ditto": own}, None)
    assert _legend(figure) == [
        "server's model",
        "personalized",
        "own model",
        "box: middle half",
        "whiskers: 10th to 90th percentile",
        "median",
        "mean",
    ]


def test_clients_are_drawn_with_a_box_for_each_row_and_kind():
    figure = figures.plot_clients(
        {
            "fedavg": {"server's model": _clients([0.2, 0.4] * 5)},
            "uga": {
                "server's model": _clients([0.6] * 10),
                "personalized": _clients([0.7] * 10),
            },
        },
        "mnist",
    )
    (axis,) = figure.axes
    assert figure.get_suptitle() == "clients of mnist"
    assert [text.get_text() for text in axis.get_yticklabels()] == ["fedavg", "uga"]
    medians = {
        round(line.get_xdata()[0], 3): line.get_ydata().mean()
        for line in axis.lines
        if line.get_color() == "black"
    }
    # A row's boxes are around its name.
    assert medians[0.3] == pytest.approx(0)
    assert medians[0.6] + medians[0.7] == pytest.approx(2)


def test_whiskers_end_at_the_percentiles_that_the_legend_names():
    accuracies = np.linspace(0, 1, 11) ** 2
    clients = _clients(accuracies)
    figure = figures.plot_clients({"fedavg": {"server's model": clients}}, None)
    (axis,) = figure.axes
    ends = {float(x) for line in axis.lines for x in line.get_xdata()}
    assert {0.01, 0.81} <= {round(end, 6) for end in ends} and not {0.0, 1.0} & ends


def test_all_of_the_plot_of_clients_is_on_it_however_long_names_are():
    label = "fedprox proximal_strength=0.1 client_learning_rate=0.05 total_rounds=200"
    kinds = {
        kind: _clients([0.5, 0.9])
        for kind in ("server's model", "personalized", "own model")
    }
    figure = figures.plot_clients({label: kinds, "fedavg": kinds}, "mnist")
    figure.draw_without_rendering()
    (legend,), (axis,) = figure.legends, figure.axes
    for part in (legend, axis.xaxis.label, *axis.get_yticklabels()):
        box = part.get_window_extent()
        assert figure.bbox.x0 <= box.x0 and box.x1 <= figure.bbox.x1
    one, other = (label.get_window_extent() for label in axis.get_yticklabels())
    assert not one.overlaps(other)


def _legend(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def test_few_clients_are_shown_themselves_by_name():
    few = {"phd": [0.2, 0.3], "others": [0.6, 0.5]}
    many = _clients(np.linspace(0, 1, 12))
    rows = {"a": {"server's model": few}, "b": {"server's model": many}}
    figure = figures.plot_clients(rows, None)
    (axis,) = figure.axes
    shown = {line.get_marker(): line.get_xdata().tolist() for line in axis.lines}
    assert shown["o"] == [0.2, 0.3] and shown["s"] == [0.6, 0.5]
    assert len(axis.patches) == 1
    assert {"phd", "others", "median", "mean"} <= set(_legend(figure))
    alone = figures.plot_clients({"a": rows["a"]}, None)
    assert _legend(alone) == ["server's model", "phd", "others", "mean"]
    means = [line.get_xdata() for line in axis.lines if line.get_marker() == "h"]
    assert "h" not in figures.MARKERS
    assert pytest.approx(0.4) in [float(np.squeeze(mean)) for mean in means]


def test_two_clients_with_many_seeds_are_no_distribution():
    clients = {"phd": [0.2] * 10, "others": [0.6] * 10}
    figure = figures.plot_clients({"a": {"server's model": clients}}, None)
    assert not figure.axes[0].patches


def test_more_clients_than_have_names_in_plots_are_shown_alike():
    rows = {
        row: {"server's model": {f"{row}{number}": [0.5] for number in range(8)}}
        for row in "ab"
    }
    figure = figures.plot_clients(rows, None)
    assert _legend(figure) == ["server's model", "a client", "mean"]
