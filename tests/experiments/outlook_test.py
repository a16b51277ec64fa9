"""What is said before the first round, after it, and when a signal asks to stop."""

import io

import pytest

from tests.testing import tiny_task
from tff_algos.experiments import catalog, launch, outlook
from tff_algos.experiments.launch_options import Launch
from tff_algos.experiments.progress import Progress


@pytest.fixture
def make_spec(tmp_path):
    def make(algo, **settings):
        launched = Launch(output_dir=tmp_path)
        return launch.build_spec(
            catalog.get(algo), tiny_task.make(), settings, launched
        )

    return make


@pytest.fixture
def cohort(monkeypatch):
    """Clients 0, 1 and 2, which have 6, 7 and 8 examples, in every round."""
    monkeypatch.setattr(
        outlook.cohorts, "sample_cohort", lambda *arguments: ["0", "1", "2"]
    )


def _description(spec, rounds_done, seconds=1.0):
    estimated = outlook.Estimate(rounds=seconds, personalization=0.0)
    return outlook.describe(spec, rounds_done, estimated)


def _estimate(spec, rounds_done=0, personalized=()):
    batches = outlook.batches_by_round(spec)
    return outlook.estimate(spec, rounds_done, batches, personalized)


@pytest.mark.usefixtures("cohort")
def test_rounds_clients_batches_and_duration_are_told_in_one_line(make_spec):
    spec = make_spec(
        "fedavg", total_rounds=7, clients_per_round=3, client_batch_size=4,
        client_epochs_per_round=2,
    )  # fmt: skip
    count = len(tiny_task.make().train_client_ids)
    expected = (
        f"FedAvg on tiny_generated: 7 rounds, 3 of {count} clients in each, about "
        # Two epochs of two batches of at most four examples, at every client.
        "12 local batches per round. Estimated from a few training steps: about 34 s of "
        "training, plus compilation and evaluation."
    )
    assert _description(spec, 0, seconds=34.0) == expected
    resumed = _description(spec, 5)
    beginning = "FedAvg on tiny_generated: 2 more rounds (5 of 7 are done), 3 of "
    assert resumed.startswith(beginning)
    one_left = _description(spec, 6)
    assert ": 1 more round (6 of 7 are done), 3 of " in one_left
    assert ": 6 more rounds (1 of 7 is done), 3 of " in _description(spec, 1)


def test_a_cohort_that_is_drawn_has_about_its_size(make_spec):
    text = _description(make_spec("fedavg", clients_per_round=3, sampling="poisson"), 0)
    assert " rounds, about 3 of 8 clients in each, about " in text


def test_every_stage_is_told(make_spec):
    spec = make_spec(
        "personalized_fedavg", clients_per_round=2, pretrain_rounds=3, finetune_rounds=1
    )
    text = _description(spec, 0)
    assert ": 3 rounds of fedavg, 2 of " in text
    assert "; then 1 round of reptile, 2 of " in text
    assert "about 20 local batches per round." in text
    text = _description(spec, 2)
    assert ": 1 more round of fedavg (2 of 4 in all are done), 2 of " in text
    assert "; then 1 round of reptile, 2 of " in text
    text = _description(spec, 3)
    assert ": 1 more round of reptile (3 of 4 in all are done), 2 of " in text
    assert "then" not in text


def test_a_stage_without_rounds_is_not_told(make_spec):
    settings = {"clients_per_round": 2, "pretrain_rounds": 1, "finetune_rounds": 0}
    text = _description(make_spec("personalized_fedavg", **settings), 0)
    assert ": 1 round of fedavg, 2 of " in text
    assert "reptile" not in text


@pytest.mark.usefixtures("cohort")
def test_every_round_has_the_batches_of_its_stage(make_spec):
    spec = make_spec(
        "personalized_fedavg", clients_per_round=3, client_batch_size=4,
        client_epochs_per_round=2, finetune_steps=5, pretrain_rounds=2,
        finetune_rounds=3,
    )  # fmt: skip
    # Two epochs of two batches, or five steps, at each of three clients.
    assert outlook.batches_by_round(spec) == [12, 12, 15, 15, 15]


def test_pooled_training_has_batches_alone(make_spec):
    text = _description(make_spec("centralized", total_rounds=2), 0)
    assert ": 2 rounds, 100 batches of the pooled examples each. " in text


def test_a_warm_start_has_batches_of_the_shared_set(make_spec):
    spec = make_spec(
        "fedshare", total_rounds=2, clients_per_round=3, shared_fraction=0.5,
        client_batch_size=4, warm_start_rounds=1,
    )  # fmt: skip
    text = _description(spec, 0)
    num_shared = len(spec.stages[0].pooled_examples[1])
    assert (
        f": 1 round of warm_start, {-(-num_shared // 4)} batches of the server's examples "
        "each; then 1 round of fedshare, 3 of 8 clients in each" in text
    )
    assert outlook.batches_by_round(spec)[0] == -(-num_shared // 4)


def test_a_server_that_remembers_much_says_so_and_what_helps(make_spec, monkeypatch):
    spec = make_spec("mifa", clients_per_round=4)
    assert "remembers" not in _description(spec, 0)
    # 8 clients' updates of 9 float32.
    monkeypatch.setattr(outlook, "_MUCH_MEMORY", 8 * 9 * 4)
    _, line = _description(spec, 0).splitlines()
    assert line == (
        "The server remembers 0.0 GiB, of which a round holds several copies; to take "
        "less, use --memory_dtype=bfloat16."
    )
    assert "remembers" not in _description(make_spec("fedavg", clients_per_round=4), 0)


@pytest.mark.parametrize(
    ("ways", "expected"), [("a", "a"), ("ab", "a or b"), ("abc", "a, b or c")]
)
def test_ways_to_take_less_are_alternatives(ways, expected):
    assert outlook._any_of(ways) == expected


@pytest.mark.parametrize(("algo", "untrained"), [("local", True), ("ditto", False)])
def test_a_server_whose_model_is_not_trained_says_so(make_spec, algo, untrained):
    text = _description(make_spec(algo, clients_per_round=4), 0)
    assert ("Clients share no weights" in text) == untrained


class _Progress(Progress):
    remaining_seconds = None


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (None, ""),
        (299.0, ""),
        (
            10_000.0,
            (
                "the others take about 2.8 hours; smaller values of --total_rounds, "
                "--clients_per_round, --max_elements_per_client make it shorter.\n"
            ),
        ),
        (
            4000.0,
            (
                "the others take about 67 minutes; smaller values of --total_rounds, "
                "--clients_per_round, --max_elements_per_client make it shorter.\n"
            ),
        ),
    ],
)
def test_a_long_run_says_how_to_make_it_shorter(make_spec, seconds, expected):
    stream = io.StringIO()
    progress = _Progress(3, stream=stream)
    progress.remaining_seconds = seconds
    outlook.warn_of_long_runs(make_spec("fedavg", clients_per_round=2), progress)
    assert stream.getvalue().endswith(expected)
    assert bool(stream.getvalue()) is bool(expected)


@pytest.mark.parametrize(
    ("rounds", "personalization", "told"),
    [
        (34.0, 0.0, "about 34 s of training, plus compilation and evaluation."),
        (
            240.0,
            12.0,
            (
                "about 4 minutes of training and about 12 s of personalization, plus "
                "compilation and evaluation."
            ),
        ),
        (
            240.0,
            90.0,
            (
                "about 4 minutes of training and about 90 s of personalization, plus "
                "compilation and evaluation; smaller values of --total_rounds, "
                "--clients_per_round, --max_elements_per_client, --personalization_epochs, "
                "--eval_clients make it shorter."
            ),
        ),
        (
            1200.0,
            0.0,
            (
                "about 20 minutes of training, plus compilation and evaluation; smaller "
                "values of --total_rounds, --clients_per_round, --max_elements_per_client "
                "make it shorter."
            ),
        ),
    ],
)
def test_the_estimate_is_told_and_for_long_runs_what_shortens_them(
    make_spec, rounds, personalization, told
):
    estimated = outlook.Estimate(rounds=rounds, personalization=personalization)
    text = outlook.describe(make_spec("fedavg", clients_per_round=4), 0, estimated)
    assert text.endswith(f"Estimated from a few training steps: {told}")


@pytest.mark.usefixtures("cohort")
@pytest.mark.parametrize(("rounds_done", "seconds"), [(0, 1200.0), (60, 300.0)])
def test_steps_of_the_model_tell_how_long_the_remaining_rounds_take(
    make_spec, monkeypatch, rounds_done, seconds
):
    sizes = []

    def measure(model, batch):
        del model
        sizes.append([len(each) for each in batch])
        return 2.5

    monkeypatch.setattr(outlook.step_time, "measure", measure)
    # Rounds of six steps: three clients with two batches each.
    spec = make_spec(
        "fedavg", total_rounds=80, clients_per_round=3, client_batch_size=4
    )
    expected = outlook.Estimate(rounds=seconds, personalization=0.0)
    assert _estimate(spec, rounds_done) == expected
    assert sizes == [[4, 4]]


def test_a_single_step_is_measured_too(make_spec):
    spec = make_spec("fedavg", total_rounds=1, clients_per_round=1, client_batch_size=8)
    assert 0.0 < _estimate(spec).rounds < 10.0


@pytest.mark.usefixtures("cohort")
@pytest.mark.parametrize("steps", [5, 1])
def test_algorithms_with_several_gradients_per_batch_take_as_many_steps(
    make_spec, monkeypatch, steps
):
    monkeypatch.setattr(outlook.step_time, "measure", lambda *_: 10.0)
    spec = make_spec(
        "pfedme",
        total_rounds=4,
        clients_per_round=3,
        client_batch_size=4,
        personal_steps=steps,
    )
    assert _estimate(spec).rounds == 4 * 6 * steps * 10.0


@pytest.mark.usefixtures("cohort")
@pytest.mark.parametrize(
    ("rounds_done", "expected"),
    [
        # 8 examples in two batches of 5, for 4 epochs, at 3 clients, after rounds 2 and 3.
        (0, outlook.Estimate(rounds=36.0, personalization=96.0)),
        (2, outlook.Estimate(rounds=12.0, personalization=48.0)),
    ],
)
def test_personalization_is_estimated_apart(
    make_spec, monkeypatch, rounds_done, expected
):
    monkeypatch.setattr(outlook.step_time, "measure", lambda *_: 2.0)
    spec = make_spec(
        "fedavg",
        total_rounds=3,
        clients_per_round=3,
        client_batch_size=4,
        personalization_batch_size=5,
        personalization_epochs=4,
        rounds_per_personalization=2,
    )
    assert _estimate(spec, rounds_done, ["2"] * 3) == expected


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        (0.2, "about 1 s"),
        (99.0, "about 99 s"),
        (100.0, "about 2 minutes"),
        (7200.0, "about 2.0 hours"),
    ],
)
def test_durations_are_rounded_as_befits_an_estimate(seconds, told):
    assert outlook.rough_duration(seconds) == told


@pytest.mark.usefixtures("cohort")
def test_steps_are_measured_with_full_batches_if_a_client_has_one(
    make_spec, monkeypatch
):
    sizes = []

    def measure(_, batch):
        sizes.append(len(batch[0]))
        return 1.0

    monkeypatch.setattr(outlook.step_time, "measure", measure)
    # The first client has 6 examples, the third one 8.
    spec = make_spec("fedavg", total_rounds=4, clients_per_round=3, client_batch_size=8)
    _estimate(spec)
    assert sizes == [8]


@pytest.mark.parametrize(
    ("saved", "told"),
    [
        (0, "stopping before the first round: nothing is saved."),
        (12, "stopping before round 13; the last saved round is 12."),
        (30, "stopping; all rounds are saved."),
    ],
)
def test_a_signal_before_rounds_is_answered_with_what_is_saved(saved, told):
    assert outlook.stop_before_rounds(saved, 30) == told


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            (14, 12, 39.8, True),
            (
                "stopping after round 14 (about 40 s), which will be saved; press Ctrl-C "
                "again, or send another signal, to stop now: the last saved round is 12."
            ),
        ),
        (
            (1, 0, None, True),
            (
                "stopping after round 1, which will be saved; press Ctrl-C again, or "
                "send another signal, to stop now: nothing is saved yet."
            ),
        ),
        (
            (None, 30, None, True),
            (
                "stopping after the current clients; all rounds are saved; press Ctrl-C again, or "
                "send another signal, to stop now."
            ),
        ),
        (
            (14, 12, None, False),
            (
                "stopping after round 14, which will be saved; press Ctrl-C again, or send "
                "another signal, to stop as soon as the current computation has ended: the "
                "last saved round is 12."
            ),
        ),
    ],
)
def test_a_signal_is_answered_with_what_it_does(arguments, expected):
    assert outlook.stop_notice(*arguments) == expected
