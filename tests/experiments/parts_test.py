"""The small parts of a run: cohorts, files, metrics, progress."""

import io
import json
import math

import numpy as np
import pytest

from tests.testing import tiny_task
from tff_algos.clients.batching import BatchSpec
from tff_algos.experiments import cohorts, evaluation, files, metrics_log
from tff_algos.experiments.errors import CohortSizeError
from tff_algos.experiments.progress import Progress

IDS = [f"client {n}" for n in range(50)]


def test_a_cohort_is_a_function_of_seed_and_round():
    first = cohorts.sample_cohort(IDS, 10, seed=1, round_num=3)
    assert first == cohorts.sample_cohort(IDS, 10, seed=1, round_num=3)
    assert first != cohorts.sample_cohort(IDS, 10, seed=1, round_num=4)
    assert first != cohorts.sample_cohort(IDS, 10, seed=2, round_num=3)
    assert len(set(first)) == 10 and set(first) <= set(IDS)


def test_cohorts_are_uniform_over_clients():
    counts = dict.fromkeys(IDS, 0)
    for round_num in range(2000):
        for client_id in cohorts.sample_cohort(IDS, 5, 0, round_num):
            counts[client_id] += 1
    # 200 expected, standard deviation 13.4: five of them either way.
    assert 133 < min(counts.values()) and max(counts.values()) < 267


def test_a_cohort_may_be_everyone_but_not_more():
    assert set(cohorts.sample_cohort(IDS, 50, 0, 0)) == set(IDS)
    with pytest.raises(CohortSizeError, match="--clients_per_round=51 is more than"):
        cohorts.sample_cohort(IDS, 51, 0, 0)


def test_pooled_batches_take_every_example_once_before_any_twice():
    task = tiny_task.make()
    total = sum(len(task.examples(c, "train")[1]) for c in task.train_client_ids)
    spec = BatchSpec(batch_size=1, num_steps=total)
    points = [tuple(x.numpy()[0]) for x, _ in cohorts.pooled_batches(task, spec, 0, 1)]
    assert len(set(points)) == total
    again = [tuple(x.numpy()[0]) for x, _ in cohorts.pooled_batches(task, spec, 0, 1)]
    later = [tuple(x.numpy()[0]) for x, _ in cohorts.pooled_batches(task, spec, 0, 2)]
    assert points == again and points != later and set(points) == set(later)


def test_the_evaluated_clients_are_a_fixed_sample_or_all():
    chosen = evaluation.choose_clients(IDS, 7, seed=3)
    assert len(chosen) == 7 and chosen == evaluation.choose_clients(IDS, 7, seed=3)
    assert chosen == sorted(chosen, key=IDS.index)
    for all_of_them in (0, 50, 99):
        assert evaluation.choose_clients(IDS, all_of_them, seed=3) == IDS


def _result(name, num_test, *accuracy):
    return evaluation.ClientResult(
        client_id=name,
        num_train_examples=10,
        num_test_examples=num_test,
        accuracy=accuracy,
        loss=accuracy,
    )


def test_personalization_means_are_uniform_over_clients_that_have_a_test():
    results = [
        _result("a", 1000, 0.2, 0.4),
        _result("b", 1, 0.6, 1.0),
        _result("nobody", 0, 0.0, 0.0),
    ]
    summary = evaluation.personalization_summary(results)
    assert summary["initial_accuracy"] == pytest.approx(0.4)
    assert summary["personalized_accuracy"] == pytest.approx(0.7)
    assert summary["personalized_accuracy_std"] == pytest.approx(0.3)
    assert summary["num_clients"] == 2
    assert summary["num_clients_without_test"] == 1
    np.testing.assert_allclose(summary["accuracy_by_epoch"], [0.4, 0.7])


def test_deciles_are_means_of_the_worst_and_the_best_tenth():
    results = [_result(str(n), 1, 0.0, n / 20) for n in range(20)]
    summary = evaluation.personalization_summary(results)
    assert summary["personalized_accuracy_worst_decile"] == pytest.approx(0.5 / 20)
    assert summary["personalized_accuracy_best_decile"] == pytest.approx(18.5 / 20)


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path):
    path = tmp_path / "value.json"
    files.write_json(path, {"a": np.float32(1.5), "b": np.arange(2)})
    assert path.read_text() == '{\n  "a": 1.5,\n  "b": [\n    0,\n    1\n  ]\n}\n'
    with pytest.raises(ZeroDivisionError), files.replacing(path) as file:
        file.write("half")
        raise ZeroDivisionError
    assert path.read_text().startswith('{\n  "a": 1.5')
    assert list(tmp_path.iterdir()) == [path]


def test_json_has_null_where_there_is_no_number(tmp_path):
    value = {
        "nan": math.nan,
        "scalar": np.float32("inf"),
        "array": np.array([1.0, -np.inf]),
        "tuple": (math.inf, {"deep": np.float64("nan")}),
        "kept": [0.5, 3, True, None, "nan"],
    }
    files.write_json(tmp_path / "value.json", value)

    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    text = (tmp_path / "value.json").read_text()
    assert json.loads(text, parse_constant=refuse) == {
        "nan": None,
        "scalar": None,
        "array": [1.0, None],
        "tuple": [None, {"deep": None}],
        "kept": [0.5, 3, True, None, "nan"],
    }
    with pytest.raises(TypeError, match="not JSON serializable"):
        files.write_json(tmp_path / "value.json", {"of no type": object()})
    assert (tmp_path / "value.json").read_text() == text


def test_a_mean_over_no_examples_is_no_number():
    of_nobody = {
        "train/loss": np.float32(0.0),
        "train/accuracy": 0.0,
        "train/num_examples": 0,
        "train/num_batches": np.int64(0),
        "eval/loss": 0.0,
        "eval/num_examples": 7,
        "update_norm": 0.0,
        "stage": "fedavg",
    }
    found = metrics_log.without_empty_means(of_nobody)
    assert math.isnan(found.pop("train/loss"))
    assert math.isnan(found.pop("train/accuracy"))
    del of_nobody["train/loss"], of_nobody["train/accuracy"]
    assert found == of_nobody
    of_somebody = {"train/loss": 0.0, "train/num_examples": 1}
    assert metrics_log.without_empty_means(of_somebody) == of_somebody


def test_a_mean_over_no_examples_is_written_and_read_as_no_number(tmp_path):
    log = metrics_log.MetricsLog(tmp_path)
    log.write(1, {"train/loss": math.nan})
    (row,) = metrics_log.read_rows(log.path)
    assert log.path.read_text().splitlines() == ["round,train/loss", "1,nan"]
    assert math.isnan(row["train/loss"])


def test_metrics_are_flat_scalars_without_the_names_of_process_parts():
    nested = {
        "distributor": (),
        "client_work": {"train": {"loss": np.float32(2.0)}, "num_empty_clients": 1},
        "aggregator": {"mean_value": (), "table": np.zeros(3)},
        "finalizer": {"update_norm": np.float32(0.5)},
    }
    assert metrics_log.flatten_metrics(nested) == {
        "train/loss": 2.0,
        "num_empty_clients": 1,
        "update_norm": 0.5,
    }


def test_a_row_that_is_written_again_replaces_itself_and_all_later_ones(tmp_path):
    log = metrics_log.MetricsLog(tmp_path)
    for round_num in range(1, 5):
        log.write(round_num, {"loss": float(round_num)})
    (tmp_path / "metrics.csv_temp1234").write_text("left by a kill")
    log = metrics_log.MetricsLog(tmp_path)
    log.write(3, {"loss": 30.0, "extra": "word"})
    assert metrics_log.read_rows(log.path) == [
        {"round": 1, "loss": 1.0},
        {"round": 2, "loss": 2.0},
        {"round": 3, "loss": 30.0, "extra": "word"},
    ]
    assert not list(tmp_path.glob("*_temp*"))


def test_rounds_to_target_is_the_first_evaluated_round_that_reaches_it():
    rows = [
        {"round": 1},
        {"round": 2, "eval/accuracy": 0.5},
        {"round": 3},
        {"round": 4, "eval/accuracy": 0.45},
        {"round": 6, "eval/accuracy": 0.8},
    ]
    targets = metrics_log.rounds_to_target(rows, "eval/accuracy", (0.4, 0.5, 0.6, 0.9))
    assert targets == {"0.4": 2, "0.5": 2, "0.6": 6, "0.9": None}


def test_progress_without_a_terminal_is_one_line_per_step():
    stream = io.StringIO()
    with Progress(10, done=4, stream=stream) as progress:
        progress.advance("fedavg", {"train/loss": np.float32(1.25), "other": 3})
        progress.advance("fedavg", {"eval/accuracy": 0.5}, steps=2)
    first, second = stream.getvalue().splitlines()
    assert first.startswith("fedavg: round 5/10  loss 1.2500  ")
    assert second.startswith("fedavg: round 7/10  held-out accuracy 0.5000  ")
    assert "rounds/s" in first and "ETA 0:0" in first


@pytest.mark.parametrize(
    ("excluded", "note"),
    [(0, "no loss: no client reported"), (3, "no loss: every update was excluded")],
)
def test_progress_says_why_there_is_no_loss(excluded, note):
    stream = io.StringIO()
    row = {
        "train/loss": math.nan,
        "train/accuracy": math.nan,
        "train/num_examples": 0,
        "num_non_finite_clients": excluded,
        "eval/accuracy": 0.5,
    }
    with Progress(3, stream=stream) as progress:
        progress.advance("fedavg", row)
    expected = f"fedavg: round 1/3  {note}  held-out accuracy 0.5000  "
    assert stream.getvalue().startswith(expected)


def test_a_loss_that_overflowed_is_shown():
    stream = io.StringIO()
    with Progress(1, stream=stream) as progress:
        progress.advance("fedavg", {"train/loss": math.nan, "train/num_examples": 5})
    assert "loss nan" in stream.getvalue()


def test_progress_on_a_terminal_is_a_bar():
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    stream = Terminal()
    with Progress(3, stream=stream) as progress:
        for _ in range(3):
            progress.advance("fedavg", {"train/loss": 0.5})
    assert "fedavg: 100%" in stream.getvalue()
    assert "loss=0.5000" in stream.getvalue()
