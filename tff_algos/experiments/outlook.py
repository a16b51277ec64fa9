"""What a run will do and how long it takes, in words for the terminal."""

import functools
import math
import statistics
from collections.abc import Iterator, Sequence

import attrs
import tensorflow_federated as tff

from tff_algos.clients.batching import Examples
from tff_algos.execution import types
from tff_algos.experiments import cohorts, step_time
from tff_algos.experiments.periodic_evaluation import is_due
from tff_algos.experiments.progress import Progress
from tff_algos.experiments.run_spec import RunSpec
from tff_algos.experiments.stage import Stage

# Seconds beyond which a run is told how to be shorter.
_LONG = 300.0
# Bytes of a server's state beyond which a run is told how to take less.
_MUCH_MEMORY = 2**28
# From here on, durations are told in minutes, and in hours.
_MANY_SECONDS, _MANY_MINUTES = 100, 100
# Of clients whose examples are counted, which means reading them.
_MAX_COUNTED = 10


@attrs.frozen
class Estimate:
    """About how long the rest of a run takes, without compilation and evaluation.

    Attributes:
      rounds: Seconds of training.
      personalization: Seconds of personalization; 0 without it.
    """

    rounds: float
    personalization: float


def describe(spec: RunSpec, rounds_done: int, estimated: Estimate) -> str:
    """Returns what the rounds that are left do: clients, local batches, time, memory.

    If clients share no weights, it also says which accuracies then mean something.

    Args:
      spec: The run.
      rounds_done: Rounds that an earlier run of the same folder completed.
      estimated: What `estimate` returns.
    """
    parts = [
        _describe_stage(spec, stage, rounds, rounds_done if number == 0 else 0)
        for number, (stage, rounds) in enumerate(_remaining(spec, rounds_done))
    ]
    rounds = f"{spec.title}: {'; then '.join(parts)}."
    first = f"{rounds} {_describe_duration(spec, estimated)}"
    return "\n".join([first, *_describe_memory(spec), *_describe_untrained(spec)])


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
        whose = "the pooled" if stage.pooled_examples is None else "the server's"
        return f"{rounds}, {batches} batches of {whose} examples each"
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
    if stage.clients_per_round is None:
        return _num_batches(stage, cohorts.pooled_examples(stage, spec.task))
    cohort = cohorts.sample_cohort(
        spec.task.train_client_ids,
        stage.clients_per_round,
        spec.options.seed,
        round_num,
    )
    examples = stage.train_examples or functools.partial(
        spec.task.examples, split="train"
    )
    counts = [_num_batches(stage, examples(name)) for name in cohort[:_MAX_COUNTED]]
    return round(statistics.fmean(counts) * stage.clients_per_round)


def _num_batches(stage: Stage, examples: Examples) -> int:
    own = stage.batches.num_examples(len(examples[0]))
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


def estimate(
    spec: RunSpec, rounds_done: int, batches: Sequence[int], personalized: Sequence[str]
) -> Estimate:
    """Returns what a few gradients of the model suggest that the rest of a run takes.

    Clients of small models, which train together, take less.

    Args:
      spec: The run.
      rounds_done: Rounds that an earlier run of the same folder completed.
      batches: What `batches_by_round` returns.
      personalized: The clients that personalize the model.
    """
    # The largest of a few: clients with less than a batch would take less time.
    some = spec.task.train_client_ids[:_MAX_COUNTED]
    examples = (spec.task.examples(client_id, "train") for client_id in some)
    x, y = max(examples, key=lambda own: len(own[0]))

    @functools.cache
    def step_seconds(size: int) -> float:
        if not len(x):
            return 0.0
        return step_time.measure(spec.task.model, (x[:size], y[:size]))

    seconds = 0.0
    for stage, rounds in _remaining(spec, rounds_done):
        left = sum(batches[rounds.start - 1 : rounds.stop - 1])
        of_one = spec.gradients_per_batch * step_seconds(stage.batches.batch_size)
        seconds += left * of_one
    own_steps = _personalization_steps(spec, rounds_done, personalized)
    own = 0.0
    if own_steps:
        own = own_steps * step_seconds(spec.options.personalization_batch_size)
    return Estimate(rounds=seconds, personalization=own)


def _describe_duration(spec: RunSpec, estimated: Estimate) -> str:
    own = estimated.personalization
    told = f"{rough_duration(estimated.rounds)} of training"
    if own:
        told += f" and {rough_duration(own)} of personalization"
    shorter = ""
    if estimated.rounds + own >= _LONG:
        shorter = _ways_to_shorten(spec, personalizes=own > 0)
    return (
        f"Estimated from a few training steps: {told}, plus compilation and "
        f"evaluation{shorter}."
    )


def _personalization_steps(
    spec: RunSpec, rounds_done: int, client_ids: Sequence[str]
) -> int:
    """Returns about how many batches clients personalize the model with."""
    options = spec.options
    counts = [
        math.ceil(
            len(spec.task.examples(client_id, "train")[0])
            / options.personalization_batch_size
        )
        for client_id in client_ids[:_MAX_COUNTED]
    ]
    every, last = options.rounds_per_personalization, spec.total_rounds
    due = [is_due(each, every, last) for each in range(rounds_done + 1, last + 1)]
    one_time = options.personalization_epochs * len(client_ids) * _mean(counts)
    return round(one_time * max(1, sum(due)))


def _mean(counts: Sequence[int]) -> float:
    return statistics.fmean(counts) if counts else 0.0


def warn_of_long_runs(spec: RunSpec, progress: Progress) -> None:
    """Says after the first round how long the others take, if that is long."""
    seconds = progress.remaining_seconds
    if seconds is not None and seconds >= _LONG:
        progress.note(
            f"At the pace of the first round, which includes compilation, the others take "
            f"{rough_duration(seconds)}{_ways_to_shorten(spec)}."
        )


def rough_duration(seconds: float) -> str:
    """Returns a duration, rounded as befits an estimate."""
    if seconds < _MANY_SECONDS:
        return f"about {max(1, round(seconds))} s"
    minutes = round(seconds / 60)
    if minutes < _MANY_MINUTES:
        return f"about {minutes} minutes"
    return f"about {seconds / 3600:.1f} hours"


def _ways_to_shorten(spec: RunSpec, *, personalizes: bool = False) -> str:
    names = ("total_rounds", "clients_per_round", "max_elements_per_client")
    names += ("personalization_epochs", "eval_clients") * personalizes
    usable = [f"--{name}" for name in names if name in spec.hyperparameters]
    return f"; smaller values of {', '.join(usable)} make it shorter" if usable else ""


def stop_before_rounds(saved: int, total: int) -> str:
    """Returns what a signal to stop does before a run's first round, or its next.

    Args:
      saved: The last round with a checkpoint; 0 if there is none.
      total: The last round of the run.
    """
    if saved >= total > 0:
        return "stopping; all rounds are saved."
    if saved:
        return f"stopping before round {saved + 1}; the last saved round is {saved}."
    return "stopping before the first round: nothing is saved."


def stop_notice(
    last_round: int | None, saved: int, seconds_left: float | None, may_exit: bool
) -> str:
    """Returns what a signal to stop does.

    Args:
      last_round: The round after which the run stops; None if all rounds are done.
      saved: The last round with a checkpoint; 0 if there is none.
      seconds_left: About how long the current round still takes; None if unknown.
      may_exit: Whether a second signal ends the process at once.
    """
    now = "now" if may_exit else "as soon as the current computation has ended"
    again = f"press Ctrl-C again, or send another signal, to stop {now}"
    if last_round is None:
        return f"stopping after the current clients; all rounds are saved; {again}."
    about = "" if seconds_left is None else f" (about {max(1, round(seconds_left))} s)"
    last = f"the last saved round is {saved}" if saved else "nothing is saved yet"
    return f"stopping after round {last_round}{about}, which will be saved; {again}: {last}."
