"""The plots of a run: what they show, on which scales, and where words stand."""

import itertools

import attrs
import numpy as np
import pytest
from matplotlib.backends import backend_agg

from tff_algos.experiments import plots
from tff_algos.experiments.evaluation import ClientResult


def test_a_round_without_a_loss_is_a_gap(figures, tmp_path):
    losses = [1.0, np.nan, 0.5, 0.25]
    rows = [
        {"round": number, "stage": "fedavg", "train/loss": loss}
        for number, loss in enumerate(losses, 1)
    ]
    plots.draw_all(rows, [], "title", tmp_path)
    line = figures["learning_curves.png"].axes[0].lines[0]
    np.testing.assert_array_equal(line.get_ydata(), losses)
    # The first point is no line, hence it must be marked; the others are one.
    assert (line.get_marker(), line.get_markevery()) == ("o", [0])


def test_a_legend_names_the_curves_that_there_are(figures, tmp_path):
    rows = [{"round": number, "train/loss": 1.0} for number in (1, 2)]
    plots.draw_all(rows, [], "title", tmp_path)
    (legend,) = figures["learning_curves.png"].legends
    (text,) = legend.get_texts()
    assert text.get_text() == "training clients, as they train"


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1.0, 2.0, 99.0], "linear"),
        ([1.0, 1e11, np.nan, np.inf], "log"),
        ([-1.0, 1e5], "symlog"),
        ([0.0, 1e11], "symlog"),
        ([0.0, 99.0], "linear"),
        ([], "linear"),
        ([np.nan], "linear"),
    ],
)
def test_values_that_span_decades_are_on_a_logarithmic_axis(values, expected):
    assert plots.scale_of(values) == expected


def _row(number, loss, accuracy):
    metrics = {"loss": loss, "accuracy": accuracy}
    row = {"round": number, "stage": "fedavg"}
    row |= {f"{kind}/{n}": v for kind in ("train", "eval") for n, v in metrics.items()}
    names = ("mean", "std", "worst_decile", "best_decile")
    return row | {f"eval/client_accuracy_{name}": accuracy for name in names}


def _ticks(axis):
    backend_agg.FigureCanvasAgg(axis.figure).draw()
    low, high = axis.get_view_interval()
    labels = zip(axis.get_majorticklocs(), axis.get_ticklabels(), strict=True)
    return [label.get_text() for place, label in labels if low <= place <= high]


def test_learning_curves_have_whole_rounds_and_per_cent(figures, tmp_path):
    rows = [_row(1, 1e11, 0.1), _row(2, 2.0, 0.6)]
    plots.draw_all(rows, [], "title", tmp_path)
    loss, accuracy = figures["learning_curves.png"].axes
    assert (loss.get_yscale(), accuracy.get_yscale()) == ("log", "linear")
    assert _ticks(loss.xaxis) == ["1", "2"]
    assert _ticks(accuracy.yaxis) == [f"{number} %" for number in range(10, 70, 10)]


def test_a_single_round_is_a_whole_number_with_a_mark_for_each_line(figures, tmp_path):
    plots.draw_all([_row(3, 1.0, 0.5)], [], "title", tmp_path)
    (axis,) = figures["fairness.png"].axes
    assert _ticks(axis.xaxis) == ["3"]
    assert len({line.get_marker() for line in axis.lines}) == 3


def _result(name, accuracy, train=30):
    return ClientResult(
        client_id=name,
        num_train_examples=train,
        num_test_examples=10,
        accuracy=accuracy,
        loss=tuple(1 - a for a in accuracy),
    )


TWO = [_result("phd", (0.5, 0.75)), _result("others", (0.6, 0.7))]
MANY = [_result(str(number), (number / 40, 0.9)) for number in range(20)]


def test_a_few_clients_have_names(figures, tmp_path):
    plots.draw_all([_row(1, 1.0, 0.5)], TWO, "title", tmp_path)
    (axis,) = figures["accuracy_distribution.png"].axes
    assert _ticks(axis.xaxis) == ["phd", "others"]
    assert sorted(bar.get_height() for bar in axis.patches) == [0.5, 0.6, 0.7, 0.75]
    (axis,) = figures["personalization_by_epoch.png"].axes
    assert [line.get_label() for line in axis.lines] == ["phd", "others"]
    np.testing.assert_array_equal(axis.lines[1].get_ydata(), [0.6, 0.7])
    (legend,) = figures["personalization_by_client.png"].legends
    assert [text.get_text() for text in legend.get_texts()] == ["phd", "others"]
    (axis,) = figures["fairness.png"].axes
    labels = [line.get_label() for line in axis.lines]
    assert labels == ["mean over clients", "best client", "worst client"]


def test_of_many_clients_the_distribution_is_shown(figures, tmp_path):
    plots.draw_all([_row(1, 1.0, 0.5)], MANY, "title", tmp_path)
    (axis,) = figures["accuracy_distribution.png"].axes
    assert axis.get_ylabel() == "clients"
    assert sum(bar.get_height() for bar in axis.patches) == 40
    (axis,) = figures["personalization_by_epoch.png"].axes
    (mean,) = axis.lines
    np.testing.assert_allclose(mean.get_ydata(), [19 / 80, 0.9])
    assert not figures["personalization_by_client.png"].legends
    (axis,) = figures["fairness.png"].axes
    labels = [line.get_label() for line in axis.lines]
    assert labels == [
        "mean ± one standard deviation",
        "mean of the best tenth",
        "mean of the worst tenth",
    ]


def test_the_band_is_from_the_mean_of_the_worst_tenth_to_that_of_the_best(
    figures, tmp_path
):
    plots.draw_all([], MANY, "title", tmp_path)
    (axis,) = figures["personalization_by_epoch.png"].axes
    (band,) = axis.collections
    accuracies = band.get_paths()[0].vertices
    found = {accuracy for epoch, accuracy in accuracies if epoch == 0}
    assert sorted(found) == [0.5 / 40, 18.5 / 40]
    assert "worst tenth" in band.get_label()


def test_bars_of_two_kinds_are_side_by_side(figures, tmp_path):
    plots.draw_all([], MANY, "title", tmp_path)
    (axis,) = figures["accuracy_distribution.png"].axes
    bars = sorted((bar.get_x(), bar.get_width()) for bar in axis.patches)
    for (left, width), (right, _) in itertools.pairwise(bars):
        assert left + width < right + 1e-9


@pytest.mark.parametrize("accuracy", [(0.5,), (0.5, 0.6)])
def test_accuracies_have_a_legend_where_there_are_several(figures, tmp_path, accuracy):
    plots.draw_all([], [_result("phd", accuracy)], "title", tmp_path)
    legends = figures["accuracy_distribution.png"].legends
    assert len(legends) == len(accuracy) - 1


def test_clients_with_the_same_accuracies_are_both_seen(figures, tmp_path):
    both = [_result(name, (1.0, 1.0)) for name in ("St. Mary's", "Hôpital")]
    plots.draw_all([], both, "title", tmp_path)
    (axis,) = figures["personalization_by_client.png"].axes
    one, other = (dots.get_paths()[0].vertices for dots in axis.collections)
    assert one.shape != other.shape
    for ticks in (axis.xaxis, axis.yaxis):
        assert _ticks(ticks) == [f"{number} %" for number in range(95, 101)]


@pytest.mark.parametrize("lowest", [0.0, 0.3, 0.62, 0.97])
def test_ticks_of_initial_accuracies_do_not_touch(figures, tmp_path, lowest):
    both = [_result("a", (lowest, 1.0)), _result("b", (1.0, lowest))]
    plots.draw_all([], both, "title", tmp_path)
    (axis,) = figures["personalization_by_client.png"].axes
    texts = _ticks(axis.xaxis)
    assert 4 <= len(texts) <= 8 and texts[-1] == "100 %"
    ends = [label.get_window_extent() for label in axis.get_xticklabels()]
    ends = [box for box in ends if box.width]
    space = axis.figure.dpi / 12
    assert all(a.x1 + space < b.x0 for a, b in itertools.pairwise(ends))


@pytest.mark.parametrize("number", [2, 10, 20])
@pytest.mark.parametrize(
    "name",
    [
        "learning_curves.png",
        "accuracy_distribution.png",
        "fairness.png",
        "personalization_by_epoch.png",
        "personalization_by_client.png",
    ],
)
def test_legends_cover_nothing(figures, tmp_path, name, number):
    results = [
        attrs.evolve(each, client_id=f"client {each.client_id}", own_accuracy=0.5)
        for each in MANY[:number]
    ]
    plots.draw_all([_row(1, 1.0, 0.5)], results, "title", tmp_path)
    figure = figures[name]
    backend_agg.FigureCanvasAgg(figure).draw()
    (legend,) = figure.legends
    box = legend.get_window_extent()
    for axis in figure.axes:
        assert axis.get_legend() is None
        assert not box.overlaps(axis.get_tightbbox())
