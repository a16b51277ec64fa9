"""The benchmark's tables, in Markdown that is also readable on a terminal."""

import math
import statistics
from collections.abc import Mapping, Sequence

import attrs

from benchmarks.comparison import summary
from benchmarks.comparison.summary import Measurement, Spread, Summary

# In cores; more than the system's own activity.
_DISTURBING_CORES = 0.3

_HEADER = (
    "engine",
    "s/round",
    "CPU s/round",
    "vs native",
    "vs best peer",
    "start-up s",
    "first round s",
    "peak MB",
    "oneDNN",
    "in-process leads",
    "weights",
)

LEGEND = """\
s/round: median over repetitions (min-max), a process's first round not counted.
CPU s/round: user and system time of the process and its children, the same rounds.
vs native, vs best peer: how many times as fast as TFF's own runtime with a Keras
model, and as the fastest of the other frameworks; compared repetition by
repetition (min-max).
start-up: from the start of the process to the end of its first round: imports,
data, and the first round, which includes tracing and compiling.
peak MB: the most that the process and its children held, looked up five times a
second. oneDNN: TF_ENABLE_ONEDNN_OPTS in the engine's process, for TensorFlow. in-process leads: in which rounds it is ahead of
this engine when both start together. weights: whether the change after two rounds
is that of the reference (TFF native with Keras, else the first engine that ran),
and the relative difference."""


@attrs.frozen(kw_only=True)
class WorkloadResults:
    """The results of one workload.

    Attributes:
      title: The title of the table.
      measurements: By engine, in the order of the rows; only engines that ran.
      errors: By engine: why it did not run.
      differences: By engine: the relative difference of its weight change from the
        reference's; without the reference itself.
      tolerance: The largest difference at which engines agree.
      reference: The engine for the first ratio and for comparing weights.
      ours: The engine whose break-even rounds are shown.
      peers: Engines whose fastest one is used for the other ratio.
    """

    title: str
    measurements: Mapping[str, Sequence[Measurement]]
    errors: Mapping[str, str]
    differences: Mapping[str, float]
    tolerance: float
    reference: str
    ours: str
    peers: Sequence[str]


def format_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Returns a Markdown table; the first column is left-aligned, others right."""
    widths = [
        max(len(cell) for cell in column) for column in zip(header, *rows, strict=True)
    ]
    lines = []
    for row in (header, *rows):
        first, *others = zip(row, widths, strict=True)
        cells = [first[0].ljust(first[1]), *(c.rjust(w) for c, w in others)]
        lines.append(f"| {' | '.join(cells)} |")
    rule = [f"{'-' * widths[0]}", *(f"{'-' * (w - 1)}:" for w in widths[1:])]
    lines.insert(1, f"| {' | '.join(rule)} |")
    return "\n".join(lines)


def format_number(value: float) -> str:
    """Returns at least three significant digits, without exponential notation."""
    if not math.isfinite(value):
        return str(value)
    if value == 0:
        return "0"
    decimals = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:.{decimals}f}"


def format_spread(value: Spread) -> str:
    """Returns "median (low-high)"."""
    low, high = format_number(value.low), format_number(value.high)
    return f"{format_number(value.median)} ({low}-{high})"


def workload_table(results: WorkloadResults) -> str:
    """Returns the table of a workload, with a row for each engine."""
    summaries = {
        name: summary.summarize(measurements)
        for name, measurements in results.measurements.items()
    }
    best_peer = summary.fastest(summaries, results.peers)
    rows = [_row(name, results, summaries, best_peer) for name in summaries]
    for name, error in results.errors.items():
        rows.append([name, error.replace("|", "/"), *[""] * (len(_HEADER) - 2)])
    peer = f"Best peer: {best_peer}." if best_peer else "No peer ran."
    return f"{results.title}\n\n{format_table(_HEADER, rows)}\n\n{peer}\n"


def _row(
    name: str,
    results: WorkloadResults,
    summaries: Mapping[str, Summary],
    best_peer: str | None,
) -> list[str]:
    own = summaries[name]
    return [
        name,
        format_spread(own.seconds_per_round),
        format_number(own.cpu_seconds_per_round),
        _speed(name, results.reference, results.measurements),
        _speed(name, best_peer, results.measurements),
        format_number(own.start_up_seconds),
        format_number(own.first_round_seconds),
        f"{own.peak_megabytes:.0f}",
        results.measurements[name][0].onednn or "",
        _ahead(name, results.ours, summaries),
        describe_agreement(results.differences.get(name), results.tolerance),
    ]


def _speed(
    name: str,
    reference: str | None,
    measurements: Mapping[str, Sequence[Measurement]],
) -> str:
    if reference not in measurements:
        return ""
    if name == reference:
        return "1"
    return format_spread(summary.speed(measurements[name], measurements[reference]))


def _ahead(name: str, ours: str, summaries: Mapping[str, Summary]) -> str:
    """Returns the rounds in which our engine leads `name`, if both start together."""
    if ours not in summaries or name == ours:
        return ""
    own, other = (
        (s.start_up_seconds, s.seconds_per_round.median)
        for s in (summaries[ours], summaries[name])
    )
    return describe_lead(
        summary.break_even_rounds(*own, *other), summary.break_even_rounds(*other, *own)
    )


def describe_lead(ahead_from: float, behind_from: float) -> str:
    """Returns a description of two break-even rounds from the first engine's view."""
    if math.isfinite(ahead_from):
        return f"from round {ahead_from:.0f}"
    if behind_from > 1:
        return f"up to round {behind_from - 1:.0f}"
    return "never"


def describe_agreement(difference: float | None, tolerance: float) -> str:
    """Returns whether the trained weights agree with the reference's.

    Args:
      difference: Relative difference of the change; `None` for the reference itself.
      tolerance: The largest difference at which they agree.
    """
    if difference is None:
        return "reference"
    # Not `>`, which would be false for NaN.
    verdict = "agrees" if difference <= tolerance else "DIFFERS"
    return f"{verdict} ({difference:.0e})"


def describe_disturbance(all_results: Sequence[WorkloadResults]) -> str:
    """Returns a line about other programs' load, with a warning if it was high."""
    cores = [
        measurement.other_cores
        for results in all_results
        for measurements in results.measurements.values()
        for measurement in measurements
    ]
    if not cores:
        return "Nothing was measured."
    line = (
        f"Other programs kept {statistics.median(cores):.1f} cores busy (median over "
        f"processes; {max(cores):.1f} at most)."
    )
    if max(cores) > _DISTURBING_CORES:
        line += " DISTURBED: measure again on an idle machine, these are too slow."
    return line


def growth_table(label: str, curves: Mapping[str, Mapping[int, Spread]]) -> str:
    """Returns a table of seconds per round, with a row for each size.

    Args:
      label: The name of the size.
      curves: By engine: the spread over rounds for each size.
    """
    sizes = sorted({size for curve in curves.values() for size in curve})
    rows = [
        [
            str(size),
            *(
                format_spread(curve[size]) if size in curve else "not measured"
                for curve in curves.values()
            ),
        ]
        for size in sizes
    ]
    return format_table([label, *curves], rows)
