"""Compares Federated Averaging on TFF's runtimes, other frameworks, and by hand.

    python benchmarks/runtimes.py             # everything, half an hour
    python benchmarks/runtimes.py --quick     # W1 and W2 once, under 4 minutes
    python benchmarks/runtimes.py --workloads=W3 --engines=tff_native_keras,pfl

Every engine trains the same clients from the same weights, in its own process.
Repetitions of all engines alternate, so that a slowdown of the machine affects all of
them. After two rounds the weights are compared, to check correctness. All engines run
on the CPU. The first run creates an environment for each of the other frameworks
(several minutes, not counted). Do not use the machine meanwhile: PyTorch, for example,
gets tens of times slower next to a busy program. The output reports such disturbances.

Writes tables.md, results.json, plots (PNG) and logs/ to --output_dir.
"""

import datetime
import pathlib
import signal
import sys
import tempfile
import time
from collections.abc import Sequence

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

import attrs
import numpy as np
from absl import app, flags

from benchmarks.comparison import (
    engines,
    environments,
    machine,
    processes,
    runtime_plots,
    summary,
    tables,
)
from benchmarks.engines import workloads

_QUICK = flags.DEFINE_bool("quick", False, "Only W1 and W2, with few repetitions.")
_WORKLOADS = flags.DEFINE_list(
    "workloads",
    None,
    "Of W1 to W6; default: all, with --quick W1 and W2. W2x10000 is W2 with 10,000 "
    "clients.",
)
_ENGINES = flags.DEFINE_list("engines", None, "Names of engines; default: all.")
_GROWTH = flags.DEFINE_bool(
    "growth", None, "Whether to measure growth curves; default: not with --quick."
)
_PROCESS = flags.DEFINE_enum(
    "process", "tff", ["tff", "tff_algos"], "Whose federated averaging TFF runs."
)
_GPU = flags.DEFINE_bool(
    "gpu",
    False,
    "Lets engines use GPUs if their packages include CUDA, as this project's after "
    "`make setup GPU=1`.",
)
_OUTPUT_DIR = flags.DEFINE_string("output_dir", "runs/bench-runtimes", "Results.")
_MINUTES = flags.DEFINE_float(
    "minutes",
    None,
    "Time for repetitions; default: 19, with --quick 3.5. There is at least one.",
    lower_bound=0,
)
_MAX_REPETITIONS = flags.DEFINE_integer(
    "max_repetitions", 5, "Limit per workload.", lower_bound=1
)

_ROOT = pathlib.Path(__file__).parents[1]
_SEED = 0

# Limits of a process: the time of the rounds after the first, and until it is killed.
_SECONDS, _QUICK_SECONDS = 3.0, 1.5
_TIMEOUT_SECONDS = 240.0

# Limits of an engine's growth curve: the rounds of a point, and the whole curve.
_POINT_SECONDS = 0.5
_MAX_POINT_ROUNDS = 10
_CURVE_SECONDS = 60.0


def _print_status(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


class _Runner:
    """Runs engines and stores their results."""

    def __init__(self, folder: pathlib.Path, inputs: pathlib.Path, seconds: float):
        """Initializes the runner.

        Args:
          folder: The folder of the logs.
          inputs: The temporary folder of workload files and weights.
          seconds: Time of the rounds of a process.
        """
        self._logs = folder / "logs"
        self._logs.mkdir(parents=True, exist_ok=True)
        self._inputs = inputs
        self._seconds = seconds
        self._pythons = {None: pathlib.Path(sys.executable)}
        self.setup_errors = {}

    def set_up(self, chosen: Sequence[engines.Engine]) -> None:
        """Creates the environments of engines; failures go to `setup_errors`."""
        for name in dict.fromkeys(engine.environment for engine in chosen):
            if name in self._pythons:
                continue
            try:
                self._pythons[name] = environments.python_of(name, _ROOT)
            except environments.EnvironmentSetupError as error:
                self.setup_errors[name] = str(error)

    def write_inputs(self, workload: workloads.Workload) -> workloads.Inputs:
        """Generates and writes a workload's data, unless already done."""
        inputs = workloads.generate(workload, _SEED)
        if not self._path(workload).exists():
            inputs.save(self._path(workload))
        return inputs

    def _path(self, workload: workloads.Workload) -> pathlib.Path:
        return self._inputs / f"{workload.name}.npz"

    def weights_path(self, engine: str, workload: str) -> pathlib.Path:
        """Returns the path of an engine's trained weights."""
        return self._inputs / f"weights-{engine}-{workload}.npz"

    def run(self, engine: engines.Engine, workload: str) -> processes.Outcome:
        """Runs an engine on a workload."""
        return self._run(
            engine,
            workload,
            f"--inputs={self._inputs / workload}.npz",
            f"--weights={self.weights_path(engine.name, workload)}",
            f"--seconds={self._seconds}",
        )

    def run_growth(
        self, engine: engines.Engine, growth: engines.Growth
    ) -> processes.Outcome:
        """Runs an engine on all sizes, one by one, in one process."""
        return self._run(
            engine,
            growth.name,
            *["--inputs", *(str(self._path(w)) for w in growth.workloads)],
            f"--seconds={_POINT_SECONDS}",
            f"--max_rounds={_MAX_POINT_ROUNDS}",
            f"--limit_seconds={_CURVE_SECONDS}",
        )

    def _run(
        self, engine: engines.Engine, name: str, *arguments: str
    ) -> processes.Outcome:
        if engine.environment in self.setup_errors:
            return processes.Outcome(error=self.setup_errors[engine.environment])
        module = f"benchmarks.engines.{engine.module}"
        return processes.run(
            [
                str(self._pythons[engine.environment]),
                *["-m", module, *arguments, *engine.arguments],
            ],
            result=self._inputs / "result.json",
            log=self._logs / f"{name}-{engine.name}.txt",
            timeout=_TIMEOUT_SECONDS,
            cwd=_ROOT,
            gpu=_GPU.value,
        )


class _Comparison:
    """The measurements of one workload."""

    def __init__(
        self,
        workload: workloads.Workload,
        chosen: Sequence[engines.Engine],
        runner: _Runner,
    ):
        self.workload = workload
        self.repetitions = 0
        self.seconds = 0.0  # Duration of a repetition.
        self._engines = [e for e in chosen if e.runs(workload.name)]
        self._runner = runner
        self._measurements = {}
        self._errors = {}
        self._differences = {}

    def repeat(self) -> None:
        """Runs every engine once, alternating between forward and reverse order."""
        start = time.monotonic()
        order = self._engines[:: -1 if self.repetitions % 2 else 1]
        for engine in order:
            if engine.name not in self._errors:
                self._measure(engine)
        if not self.repetitions:
            self._compare_weights()
        self.repetitions += 1
        self.seconds = time.monotonic() - start

    def _measure(self, engine: engines.Engine) -> None:
        outcome = self._runner.run(engine, self.workload.name)
        label = f"{self.workload.name}, {engine.name}"
        if outcome.error is not None:
            self._errors[engine.name] = outcome.error
            self._measurements.pop(engine.name, None)
            _print_status(f"{label}: {outcome.error}")
            return
        (result,) = outcome.results
        measurement = summary.Measurement(
            repetition=self.repetitions,
            round_seconds=tuple(result["round_seconds"]),
            round_cpu_seconds=tuple(result["round_cpu_seconds"]),
            start_up_seconds=result["start_up_seconds"],
            peak_megabytes=outcome.peak_megabytes,
            other_cores=outcome.other_cores,
            onednn=result["onednn"],
        )
        self._measurements.setdefault(engine.name, []).append(measurement)
        seconds = tables.format_number(measurement.median_seconds)
        _print_status(f"{label}: {seconds} s/round ({outcome.seconds:.0f} s in all)")

    def _compare_weights(self) -> None:
        initial = self._runner.write_inputs(self.workload).weights
        measured = [e.name for e in self._engines if e.name in self._measurements]
        if not measured:
            return
        native = engines.REFERENCE
        reference = native if native in measured else measured[0]
        trained = {
            name: _load_weights(self._runner.weights_path(name, self.workload.name))
            for name in measured
        }
        for name in measured:
            if name == reference:
                continue
            self._differences[name] = summary.relative_difference(
                trained[name], trained[reference], initial
            )

    def results(self) -> tables.WorkloadResults:
        """Returns the results for the table."""
        names = dict.fromkeys(engine.name for engine in self._engines)
        return tables.WorkloadResults(
            title=engines.title(self.workload),
            measurements={
                n: self._measurements[n] for n in names if n in self._measurements
            },
            errors={n: self._errors[n] for n in names if n in self._errors},
            differences=self._differences,
            tolerance=engines.tolerance(self.workload),
            reference=engines.REFERENCE,
            ours=engines.OURS,
            peers=engines.PEERS,
        )


def _load_weights(path: pathlib.Path) -> list[np.ndarray]:
    with np.load(path) as file:
        return [file[f"arr_{n}"] for n in range(len(file.files))]


def _repeat_all(comparisons: Sequence[_Comparison], deadline: float) -> None:
    """Repeats workloads while another repetition is expected to end in time."""
    by_name = {c.workload.name: c for c in comparisons}
    while True:
        name = summary.next_to_repeat(
            {name: c.seconds for name, c in by_name.items()},
            {name: c.repetitions for name, c in by_name.items()},
            deadline - time.monotonic(),
            _MAX_REPETITIONS.value,
        )
        if name is None:
            return
        by_name[name].repeat()


def _measure_growth(
    growth: engines.Growth, chosen: Sequence[engines.Engine], runner: _Runner
) -> dict[str, dict[int, summary.Spread]]:
    """Returns, by engine, seconds per round by size."""
    for workload in growth.workloads:
        runner.write_inputs(workload)
    size_of = {w.name: s for w, s in zip(growth.workloads, growth.sizes, strict=True)}
    curves = {}
    for engine in chosen:
        outcome = runner.run_growth(engine, growth)
        if outcome.error is not None:
            _print_status(f"growth of {growth.name}, {engine.name}: {outcome.error}")
            continue
        curves[engine.name] = {
            size_of[r["workload"]]: summary.spread(r["round_seconds"][1:])
            for r in outcome.results
        }
        _print_status(
            f"growth of {growth.name}, {engine.name}: up to {max(curves[engine.name])} "
            f"({outcome.seconds:.0f} s in all)"
        )
    return curves


def _growth_engines(chosen: Sequence[engines.Engine]) -> list[engines.Engine]:
    # Growth curves use dense models, like W2.
    names = engines.GROWTH_ENGINES
    return [e for e in chosen if e.name in names and e.runs("W2")]


def _write_results(
    folder: pathlib.Path,
    comparisons: Sequence[_Comparison],
    growths: dict[str, tuple[engines.Growth, dict]],
    seconds: float,
) -> None:
    """Writes tables, JSON and plots, and prints the tables."""
    # Imported after the engines have ended, because they would inherit environment
    # variables that TFF's import sets.
    from tff_algos.experiments import files

    described = machine.describe()
    all_results = [comparison.results() for comparison in comparisons]
    heading = (
        f"{described['cores']} cores ({machine.processor_line(described)}), "
        f"{described['memory_megabytes'] / 1024:.0f} GB, Python {described['python']}, "
        f"{datetime.date.today()}; TFF's process: {_PROCESS.value}; "
        f"GPUs {'visible' if _GPU.value else 'hidden'}; "
        f"{seconds / 60:.1f} minutes."
    )
    sections = [heading, tables.describe_disturbance(all_results), tables.LEGEND]
    for comparison, results in zip(comparisons, all_results, strict=True):
        times = f"Repetitions: {comparison.repetitions}."
        sections.append(f"{tables.workload_table(results)}{times}")
    for growth, curves in growths.values():
        table = tables.growth_table(growth.label, curves)
        sections.append(f"Seconds per round, {growth.title}\n\n{table}")
    text = "\n\n".join(sections) + "\n"
    (folder / "tables.md").write_text(text, encoding="utf-8")
    content = {
        "machine": described,
        "process": _PROCESS.value,
        "workloads": {
            c.workload.name: attrs.asdict(r)
            for c, r in zip(comparisons, all_results, strict=True)
        },
        "growth": {
            name: {
                engine: {size: attrs.asdict(value) for size, value in curve.items()}
                for engine, curve in curves.items()
            }
            for name, (_, curves) in growths.items()
        },
    }
    files.write_json(folder / "results.json", content)
    _draw(folder, all_results, growths)
    print(text)
    print(f"Written to {folder}.")


def _draw(
    folder: pathlib.Path,
    all_results: Sequence[tables.WorkloadResults],
    growths: dict[str, tuple[engines.Growth, dict]],
) -> None:
    summaries = {
        results.title: {
            name: summary.summarize(measurements)
            for name, measurements in results.measurements.items()
        }
        for results in all_results
        if results.measurements
    }
    if summaries:
        runtime_plots.plot_rounds(summaries, folder / "seconds_per_round.png")
        runtime_plots.plot_time_to_rounds(summaries, folder / "time_to_rounds.png")
    if growths:
        runtime_plots.plot_growth(
            {g.title: (g.label, curves) for g, curves in growths.values()},
            folder / "growth.png",
        )


def _chosen_workloads(names: Sequence[str] | None) -> list[workloads.Workload]:
    try:
        return [engines.workload(n) for n in dict.fromkeys(names or engines.WORKLOADS)]
    except engines.UnknownWorkloadError as error:
        raise app.UsageError(f"--workloads: {error}") from None


def _chosen_engines() -> list[engines.Engine]:
    known = [engine.name for engine in engines.ENGINES]
    names = known if _ENGINES.value is None else _ENGINES.value
    unknown = sorted(set(names) - set(known))
    if unknown:
        raise app.UsageError(
            f"--engines: expected names out of {', '.join(known)}, found "
            f"{', '.join(unknown)}."
        )
    process = (f"--process={_PROCESS.value}",)
    return [
        attrs.evolve(e, arguments=e.arguments + process) if e.module == "run_tff" else e
        for e in engines.ENGINES
        if e.name in names
    ]


def main(argv: list[str]) -> None:
    """Measures, prints and writes."""
    if argv[1:]:
        raise app.UsageError(f"Unexpected arguments: {' '.join(argv[1:])}.")
    # An exception, so that the running engine is ended as well.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    quick = _QUICK.value
    default = ["W1", "W2"] if quick else None
    chosen_workloads = _chosen_workloads(_WORKLOADS.value or default)
    chosen = _chosen_engines()
    with_growth = not quick if _GROWTH.value is None else _GROWTH.value
    minutes = (3.5 if quick else 19.0) if _MINUTES.value is None else _MINUTES.value
    folder = pathlib.Path(_OUTPUT_DIR.value)
    with tempfile.TemporaryDirectory(prefix="bench-runtimes-") as scratch:
        runner = _Runner(
            folder, pathlib.Path(scratch), _QUICK_SECONDS if quick else _SECONDS
        )
        runner.set_up(chosen)
        start = time.monotonic()
        comparisons = []
        for workload in chosen_workloads:
            runner.write_inputs(workload)
            comparison = _Comparison(workload, chosen, runner)
            comparison.repeat()
            comparisons.append(comparison)
        growths = {}
        for growth in engines.GROWTHS if with_growth else ():
            curves = _measure_growth(growth, _growth_engines(chosen), runner)
            growths[growth.name] = (growth, curves)
        _repeat_all(comparisons, start + 60 * minutes)
        _write_results(folder, comparisons, growths, time.monotonic() - start)


if __name__ == "__main__":
    app.run(main)
