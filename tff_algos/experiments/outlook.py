"""What a run will do and how long it takes, in words for the terminal."""

import collections
import math
import statistics
from collections.abc import Iterator, Sequence

import tensorflow_federated as tff

from tff_algos.execution import types
from tff_algos.experiments import cohorts, step_time
from tff_algos.experiments.progress import Progress
from tff_algos.experiments.run_spec import RunSpec
from tff_algos.experiments.stage import Stage

NOT_STARTED = "stopping before the first round: nothing is saved."
# Seconds of training beyond which a run is told how to be shorter.
_LONG = 300.0
# Fewer local steps are soon done, and not measured: their first round tells the pace.
_MANY_STEPS = 1000
# Bytes of a server's state beyond which a run is told how to take less.
_MUCH_MEMORY = 2**28
# From here on, durations are told in minutes, and in hours.
_MANY_SECONDS, _MANY_MINUTES = 100, 100
# Of clients whose examples are counted, which means reading them.
_MAX_COUNTED = 10


def describe(spec: RunSpec, rounds_done: int) -> str:
    """Returns what the rounds that are left do: clients, local batches, memory.

    If clients share no weights, it also says which accuracies then mean something.

    Args:
      spec: The run.
      rounds_done: Rounds that an earlier run of the same folder completed.
    """
    parts = [
        _describe_stage(spec, stage, rounds, rounds_done if number == 0 else 0)
        for number, (stage, rounds) in enumerate(_remaining(spec, rounds_done))
    ]
    rounds = f"{spec.title}: {'; then '.join(parts)}."
    return "\n".join([rounds, *_describe_memory(spec), *_describe_untrained(spec)])


def describe_done(spec: RunSpec) -> str:
    """Returns what a run whose rounds are done still does."""
    return f"{spec.title}: all {spec.total_rounds} rounds are done; evaluating again."


def _remaining(spec: RunSpec, rounds_done: int) -> Iterator[tuple[Stage, range]]:
    """Yields each unfinished stage, with the numbers of its remaining rounds."""
    first = 1
    for stage in spec.stages:
        last = first + stage.num_rounds
        if left := range(max(first, rounds_done + 1), last):
            yield stage, left
        first = last


def _describe_untrained(spec: RunSpec) -> list[str]:
    if any(stage.shares_weights for stage in spec.stages):
        return []
    text = (
        "Clients share no weights, so the server's model is not trained and its held-out "
        "accuracy means nothing; see the accuracy of own models."
    )
    return [text]


def _describe_stage(spec: RunSpec, stage: Stage, left: range, rounds_done: int) -> str:
    """Describes a stage's rounds that are left, and how many are done, unless 0."""
    more = " more" if rounds_done else ""
    rounds = f"{len(left)}{more} round{'s' * (len(left) != 1)}"
    several = len(spec.stages) > 1
    if several:
        rounds += f" of {stage.name}"
    if rounds_done:
        verb = "is" if rounds_done == 1 else "are"
        rounds += (
            f" ({rounds_done} of {spec.total_rounds}{' in all' * several} {verb} done)"
        )
    batches = _batches_per_round(spec, stage, left[0])
    if stage.clients_per_round is None:
        return f"{rounds}, {batches} batches of the pooled examples each"
    total = len(spec.task.train_client_ids)
    about = "about " if stage.sampling == "poisson" else ""
    return (
        f"{rounds}, {about}{stage.clients_per_round} of {total} clients in each, about "
        f"{batches} local batches per round"
    )


def _batches_per_round(spec: RunSpec, stage: Stage, round_num: int) -> int:
    """Returns the batches of a round, by those of some of its clients."""
    if stage.batches.num_steps is not None:
        return (stage.clients_per_round or 1) * stage.batches.num_steps
    cohort = cohorts.sample_cohort(
        spec.task.train_client_ids,
        stage.clients_per_round,
        spec.options.seed,
        round_num,
    )
    counts = [_num_batches(spec, stage, name) for name in cohort[:_MAX_COUNTED]]
    return round(statistics.fmean(counts) * stage.clients_per_round)


def _num_batches(spec: RunSpec, stage: Stage, client_id: str) -> int:
    if stage.train_examples is not None:
        x, _ = stage.train_examples(client_id)
    else:
        x, _ = spec.task.examples(client_id, "train")
    own = stage.batches.num_examples(len(x))
    return stage.batches.num_epochs * math.ceil(own / stage.batches.batch_size)


def batches_by_round(spec: RunSpec) -> list[int]:
    """Returns about how many local batches each round of a run has, at least 1."""
    batches, first = [], 1
    for stage in spec.stages:
        if stage.num_rounds:
            one_round = max(1, _batches_per_round(spec, stage, first))
            batches += [one_round] * stage.num_rounds
        first += stage.num_rounds
    return batches


def _describe_memory(spec: RunSpec) -> list[str]:
    """Returns a line about what the server remembers; none if that is little."""
    held = max(_state_bytes(stage) for stage in spec.stages)
    if held < _MUCH_MEMORY:
        return []
    ways = {
        "model": "a smaller --model",
        "memory_size": "a smaller --memory_size",
        "memory_dtype": "--memory_dtype=bfloat16",
    }
    usable = [way for name, way in ways.items() if name in spec.hyperparameters]
    less = f"; to take less, use {_any_of(usable)}" if usable else ""
    text = (
        f"The server remembers {held / 2**30:.1f} GiB, of which a round holds several "
        f"copies{less}."
    )
    return [text]


def _any_of(ways: Sequence[str]) -> str:
    *others, last = ways
    return f"{', '.join(others)} or {last}" if others else last


def _state_bytes(stage: Stage) -> int:
    state_type = stage.process.initialize.type_signature.result.member
    tensors = [t for t in types.flatten(state_type) if isinstance(t, tff.TensorType)]
    return sum(math.prod(t.shape) * t.dtype.itemsize for t in tensors)


def tell_duration(
    spec: RunSpec, rounds_done: int, batches: Sequence[int], progress: Progress
) -> None:
    """Says before the first round roughly how long the run takes.

    It times a few gradients of the model. Clients of small models, which train together,
    take less. Evaluation and personalization are not included.

    Args:
      spec: The run.
      rounds_done: Rounds that an earlier run of the same folder completed.
      batches: What `batches_by_round` returns.
      progress: Where to say it.
    """
    steps: collections.Counter[int] = collections.Counter()
    for stage, rounds in _remaining(spec, rounds_done):
        left = batches[rounds.start - 1 : rounds.stop - 1]
        steps[stage.batches.batch_size] += sum(left)
    if steps.total() < _MANY_STEPS:
        return
    client_id = spec.task.train_client_ids[0]
    x, y = spec.task.examples(client_id, "train")
    seconds = sum(
        count * step_time.measure(spec.task.model, (x[:size], y[:size]))
        for size, count in steps.items()
    )
    seconds *= spec.gradients_per_batch
    shorter = _ways_to_shorten(spec) if seconds >= _LONG else ""
    rounds_left = "the remaining rounds" if rounds_done else "all rounds"
    progress.note(
        f"At the pace of a few steps of the model alone, {rounds_left} take "
        f"{_about(seconds)}{shorter}."
    )


def warn_of_long_runs(spec: RunSpec, progress: Progress) -> None:
    """Says after the first round how long the others take, if that is long."""
    seconds = progress.remaining_seconds
    if seconds is not None and seconds >= _LONG:
        progress.note(
            f"At the pace of the first round, which includes compilation, the others take "
            f"{_about(seconds)}{_ways_to_shorten(spec)}."
        )


def _about(seconds: float) -> str:
    """Returns a duration, rounded as befits an estimate."""
    if seconds < _MANY_SECONDS:
        return f"about {max(1, round(seconds))} s"
    minutes = round(seconds / 60)
    if minutes < _MANY_MINUTES:
        return f"about {minutes} minutes"
    return f"about {seconds / 3600:.1f} hours"


def _ways_to_shorten(spec: RunSpec) -> str:
    names = ("total_rounds", "clients_per_round", "max_elements_per_client")
    usable = [f"--{name}" for name in names if name in spec.hyperparameters]
    return f"; smaller values of {', '.join(usable)} make it shorter" if usable else ""


def stop_notice(last_round: int | None, saved: int, seconds_left: float | None) -> str:
    """Returns what a signal to stop does.

    Args:
      last_round: The round after which the run stops; None if all rounds are done.
      saved: The last round with a checkpoint; 0 if there is none.
      seconds_left: About how long the current round still takes; None if unknown.
    """
    if last_round is None:
        return (
            "stopping after these clients; all rounds are saved; press Ctrl-C again, or "
            "send another signal, to stop now."
        )
    about = "" if seconds_left is None else f" (about {max(1, round(seconds_left))} s)"
    last = f"the last saved round is {saved}" if saved else "nothing is saved yet"
    return (
        f"stopping after round {last_round}{about}, which will be saved; press "
        f"Ctrl-C again, or send another signal, to stop now: {last}."
    )
