"""The benchmark of runtimes: its data, statistics, tables and its protocol.

No time is asserted and nothing is downloaded.
"""

import math

import attrs
import numpy as np
import pytest

from benchmarks.comparison import (
    engines,
    runtime_plots,
    summary,
    tables,
)
from benchmarks.comparison.summary import Measurement, Spread
from benchmarks.engines import workloads
from benchmarks.engines.workloads import Workload

SMALL = Workload("small", "dense", 3, 4, 2)


def _measurement(repetition=0, rounds=(5.0, 1.0, 3.0, 2.0), start_up=9.0, peak=100.0):
    cpu_rounds = tuple(2 * seconds for seconds in rounds)
    return Measurement(repetition, rounds, cpu_rounds, start_up, peak)


def _results(**kwargs):
    defaults = {
        "title": "a workload",
        "measurements": {},
        "errors": {},
        "differences": {},
        "tolerance": 1e-3,
        "reference": "tff_native_keras",
        "ours": "tff_in_process",
        "peers": ("fedjax", "pfl"),
    }
    return tables.WorkloadResults(**(defaults | kwargs))


def _cells(table, engine):
    for line in table.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells[0] == engine:
            return cells
    raise AssertionError(f"{engine} is not in\n{table}")


def test_the_models_have_the_sizes_of_the_literature():
    sizes = {name: w.num_weights for name, w in engines.WORKLOADS.items()}
    assert sizes == {
        "W1": 1206590,
        "W2": 7850,
        "W3": 820522,
        "W4": 7850,
        "W5": 269722,
        "W6": 428122,
    }


def test_data_are_a_function_of_the_seed_and_survive_their_file(tmp_path):
    inputs = workloads.generate(SMALL, seed=1)
    inputs.save(tmp_path / "small.npz")
    loaded = workloads.load(tmp_path / "small.npz")
    assert loaded.workload == SMALL
    for actual in (loaded, workloads.generate(SMALL, seed=1)):
        np.testing.assert_array_equal(actual.x, inputs.x)
        np.testing.assert_array_equal(actual.y, inputs.y)
        assert [w.shape for w in actual.weights] == [(784, 10), (10,)]
        for own, expected in zip(actual.weights, inputs.weights, strict=True):
            np.testing.assert_array_equal(own, expected)
    other = workloads.generate(SMALL, seed=2)
    assert not np.array_equal(other.x, inputs.x)


def test_batches_keep_the_order_of_examples():
    inputs = workloads.generate(SMALL, seed=1)
    x, y = inputs.batches()
    assert x.shape == (3, 2, 2, 784) and y.shape == (3, 2, 2)
    np.testing.assert_array_equal(x[1, 1, 0], inputs.x[1, 2])


@pytest.mark.parametrize("model", ["lstm", "transformer"])
def test_text_has_no_padding_and_predicts_the_next_character(model):
    inputs = workloads.generate(Workload("text", model, 2, 4, 4), seed=0)
    assert inputs.x.min() >= 1 and inputs.y.max() < workloads.VOCAB_SIZE
    np.testing.assert_array_equal(inputs.x[..., 1:], inputs.y[..., :-1])


def test_a_batch_size_that_does_not_divide_is_refused():
    with pytest.raises(ValueError, match="not a multiple of the batch size 3"):
        Workload("odd", "dense", 1, 10, 3)


def test_workloads_are_named_with_other_numbers_of_clients():
    assert engines.workload("W3") == engines.WORKLOADS["W3"]
    large = engines.workload("W2x10000")
    assert (large.name, large.num_clients) == ("W2x10000", 10_000)
    assert attrs.evolve(engines.Engine("e", "m"), workloads=("W2",)).runs(large.name)
    assert "10000 clients" in engines.title(large) and "599 MB" in engines.title(large)
    for name in ("W9", "W2x", "W2x0", "x10"):
        with pytest.raises(engines.UnknownWorkloadError, match=name):
            engines.workload(name)


@pytest.mark.parametrize("name", engines.WORKLOADS)
def test_the_size_of_an_example_is_that_of_its_arrays(name):
    workload = engines.workload(f"{name}x1")
    inputs = workloads.generate(workload, seed=0)
    size = workloads.example_bytes(workload) * workload.examples_per_client
    assert inputs.x.nbytes + inputs.y.nbytes == size


def test_growth_curves_grow_in_one_size():
    for growth in engines.GROWTHS:
        assert list(growth.sizes) == sorted(growth.sizes)
        varied = {
            field
            for field in ("num_clients", "examples_per_client", "hidden_units")
            if len({getattr(w, field) for w in growth.workloads}) > 1
        }
        assert len(varied) == 1


def test_every_engine_runs_once_for_every_workload_it_is_for():
    for workload in engines.WORKLOADS:
        names = [e.name for e in engines.ENGINES if e.runs(workload)]
        assert len(names) == len(set(names))
        assert {engines.REFERENCE, engines.OURS, "pfl"} <= set(names)


def test_the_first_round_does_not_count():
    measurements = [
        _measurement(0),
        _measurement(1, (9.0, 4.0), start_up=3.0, peak=300.0),
    ]
    result = summary.summarize(measurements)
    assert result.seconds_per_round == Spread(3.0, 2.0, 4.0)
    assert result.start_up_seconds == 6.0
    assert result.first_round_seconds == 7.0  # Of 5 and 9.
    assert result.cpu_seconds_per_round == 6.0  # Of 2 * (1 + 3 + 2) / 3 and 2 * 4.
    assert result.peak_megabytes == 300.0


def test_a_single_repetition_is_spread_over_its_rounds():
    assert summary.seconds_per_round([_measurement()]) == Spread(2.0, 1.0, 3.0)


def test_no_values_have_no_spread():
    with pytest.raises(ValueError, match="at least one value"):
        summary.spread([])


def test_speeds_are_compared_within_repetitions():
    fast = [_measurement(n, (9.0, seconds)) for n, seconds in enumerate((1.0, 10.0))]
    slow = [_measurement(n, (9.0, seconds)) for n, seconds in enumerate((3.0, 40.0))]
    assert summary.speed(fast, slow) == Spread(3.5, 3.0, 4.0)


def test_the_speed_of_one_repetition_spans_the_extremes_of_rounds():
    fast = [_measurement(0, (9.0, 1.0, 2.0, 4.0))]
    slow = [_measurement(0, (9.0, 6.0, 8.0, 12.0))]
    assert summary.speed(fast, slow) == Spread(4.0, 1.5, 12.0)


@pytest.mark.parametrize(
    ("own", "other", "expected"),
    [
        ((10.0, 1.0), (4.0, 2.0), 7.0),  # 10 + 6 * 1 = 4 + 6 * 2
        ((10.0, 1.0), (4.5, 2.0), 7.0),
        ((4.0, 1.0), (10.0, 2.0), 1.0),
        ((4.0, 2.0), (10.0, 1.0), math.inf),
        ((4.0, 1.0), (4.0, 1.0), 1.0),
        ((5.0, 1.0), (4.0, 1.0), math.inf),
    ],
)
def test_break_even(own, other, expected):
    assert summary.break_even_rounds(*own, *other) == expected


@pytest.mark.parametrize(
    ("ahead_from", "behind_from", "expected"),
    [
        (7.0, math.inf, "from round 7"),
        (math.inf, 7.0, "up to round 6"),
        (math.inf, 1.0, "never"),
    ],
)
def test_leads_in_words(ahead_from, behind_from, expected):
    assert tables.describe_lead(ahead_from, behind_from) == expected


def test_differences_are_relative_to_what_was_learned():
    initial = [np.array([100.0, 100.0]), np.array([[5.0]])]
    reference = [np.array([103.0, 100.0]), np.array([[9.0]])]
    off = [np.array([103.0, 100.5]), np.array([[9.0]])]
    assert summary.relative_difference(reference, reference, initial) == 0
    assert summary.relative_difference(off, reference, initial) == pytest.approx(0.1)
    # Who learned nothing differs wholly, whatever the size of the weights.
    assert summary.relative_difference(initial, reference, initial) == 1
    with pytest.raises(ValueError, match="shape"):
        summary.relative_difference(reference[::-1], reference, initial)


@pytest.mark.parametrize(
    ("difference", "expected"),
    [
        (1e-4, "agrees (1e-04)"),
        (0.2, "DIFFERS (2e-01)"),
        (math.nan, "DIFFERS (nan)"),
        (None, "reference"),
    ],
)
def test_agreement_in_words(difference, expected):
    assert tables.describe_agreement(difference, 1e-3) == expected


def test_workloads_are_repeated_while_there_is_time():
    seconds, done = {"a": 10.0, "b": 30.0}, {"a": 1, "b": 1}
    assert summary.next_to_repeat(seconds, done, 100.0, 3) == "a"
    assert summary.next_to_repeat(seconds, done | {"a": 2}, 100.0, 3) == "b"
    assert summary.next_to_repeat(seconds, done | {"a": 2}, 20.0, 3) == "a"
    assert summary.next_to_repeat(seconds, done, 5.0, 3) is None
    assert summary.next_to_repeat(seconds, {"a": 3, "b": 3}, 100.0, 3) is None


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0.00123456, "0.00123"), (1.0, "1.00"), (12345.6, "12346"), (0.0, "0")],
)
def test_numbers_have_three_digits_at_least(value, expected):
    assert tables.format_number(value) == expected


def test_the_table_says_who_is_how_fast_and_who_failed():
    table = tables.workload_table(
        _results(
            measurements={
                "tff_native_keras": [
                    attrs.evolve(
                        _measurement(0, (12.0, 8.0), start_up=12.0), onednn="1"
                    )
                ],
                "tff_in_process": [_measurement(0, (12.0, 2.0), start_up=18.0)],
                "pfl": [_measurement(0, (5.0, 4.0), start_up=5.0)],
            },
            errors={"fedjax": "installation failed: no | network"},
            differences={"tff_in_process": 1e-6, "pfl": 0.5},
        )
    )
    assert table.startswith("a workload\n") and "Best peer: pfl." in table
    assert len({len(line) for line in table.splitlines() if line[:1] == "|"}) == 1
    native = _cells(table, "tff_native_keras")
    assert native[3:5] == ["1", "0.500 (0.500-0.500)"]
    assert native[8] == "1"  # Its oneDNN.
    own = _cells(table, "tff_in_process")
    assert own[1:3] == ["2.00 (2.00-2.00)", "4.00"]
    assert own[3].startswith("4.00") and own[4].startswith("2.00")
    assert own[6:] == ["12.0", "100", "", "", "agrees (1e-06)"]
    assert native[9:] == ["from round 2", "reference"]
    assert _cells(table, "pfl")[9:] == ["from round 8", "DIFFERS (5e-01)"]
    assert _cells(table, "fedjax")[1] == "installation failed: no / network"


def test_a_table_of_failures_only_is_one_too():
    table = tables.workload_table(_results(errors={"pfl": "killed after 9 s"}))
    assert "killed after 9 s" in table and "No peer ran." in table


def test_a_busy_machine_is_told():
    quiet, busy = (
        _results(
            measurements={"pfl": [attrs.evolve(_measurement(), other_cores=cores)]}
        )
        for cores in (0.1, 1.5)
    )
    assert "DISTURBED" not in tables.describe_disturbance([quiet])
    line = tables.describe_disturbance([quiet, busy])
    assert "0.8 cores busy" in line and "1.5 at most" in line and "DISTURBED" in line
    assert tables.describe_disturbance([_results()]) == "Nothing was measured."


def test_growth_tables_have_a_row_for_every_size():
    curves = {
        "a": {1: Spread(1.0, 1.0, 1.0), 10: Spread(2.0, 2.0, 2.0)},
        "b": {1: Spread(3.0, 3.0, 3.0)},
    }
    table = tables.growth_table("clients", curves)
    assert _cells(table, "10")[1:] == ["2.00 (2.00-2.00)", "not measured"]


def test_plots_name_every_engine_in_words():
    words = {
        engine.name: runtime_plots._words(engine.name) for engine in engines.ENGINES
    }
    assert not any("_" in each for each in words.values())
    assert len(set(words.values())) == len(words)
    assert runtime_plots._words("something new") == "something new"


def test_plots_are_drawn(tmp_path):
    own = summary.summarize([_measurement()])
    by_workload = {"W1": {"tff_native_keras": own, "something new": own}}
    runtime_plots.plot_rounds(by_workload, tmp_path / "rounds.png")
    runtime_plots.plot_time_to_rounds(by_workload, tmp_path / "time.png")
    curves = {"fedjax": {1: Spread(1, 1, 1), 10: Spread(2, 1, 3)}}
    runtime_plots.plot_growth({"title": ("clients", curves)}, tmp_path / "growth.png")
    assert all((tmp_path / f"{n}.png").exists() for n in ("rounds", "time", "growth"))
