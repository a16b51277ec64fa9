"""A run with all that it prints: notices, the final table, errors of one line.

What `experiments.cli` does once it knows that the flags ask for a run.
"""

import contextlib
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import tasks
from tasks.task import TaskError
from tff_algos import cpus, execution
from tff_algos.execution import op_threads
from tff_algos.experiments import catalog, declarations, plugins, report, runner
from tff_algos.experiments.errors import RunError
from tff_algos.experiments.launch import build_spec, resolve, with_folder
from tff_algos.experiments.launch_options import Launch, set_context
from tff_algos.experiments.run_spec import RunResult, RunSpec

# TensorFlow's variable for the number of threads within an op.
_THREADS = "TF_NUM_INTRAOP_THREADS"

# Beside those of `experiments.cli`.
USER_ERRORS = (
    execution.CannotTravelError,
    execution.ClientError,
    execution.ClusterError,
    execution.NativeRuntimeError,
    execution.UnknownDeviceError,
    execution.WorkerLostError,
    TaskError,
    catalog.UnknownAlgorithmError,
)


def run(
    algo: str,
    task: str,
    settings: Mapping[str, Any],
    launch: Launch,
    modules: Sequence[str] = (),
) -> int:
    """Runs an algorithm on a task and returns the exit status.

    Args:
      algo: An `--algo` name.
      task: A `--task` name.
      settings: What was set, by name.
      launch: Data, results folder and runtime.
      modules: Modules of other packages that the names may be from.

    Raises:
      RunError: If the run cannot start or resume.
    """
    choices = plugins.load(modules)
    recipe = catalog.get(algo, choices.algorithms)
    entry = tasks.get(task, choices.tasks)
    _, _, resolved = resolve(recipe, entry, settings)
    _divide_cpus(resolved.get("clients_per_round"))
    set_context(launch)
    spec = with_folder(build_spec(recipe, entry, settings, launch), launch)
    print(f"Results: {spec.output_dir}", file=sys.stderr, flush=True)
    if spec.total_rounds == 0:
        print(_no_training_notice(spec), file=sys.stderr, flush=True)
    return _report(spec, runner.run(spec, may_exit=True))


def _divide_cpus(clients_per_round: int | None) -> None:
    """Lets an op use one thread if a round's clients occupy all CPUs.

    As many clients run at a time as there are CPUs. Rounds of the default settings took
    3 to 16 % longer on two CPUs of an Intel Xeon with AVX-512 where the clients' ops were
    divided among them as well.
    Changes nothing if the environment has a number of threads or TensorFlow runs.
    """
    if _THREADS not in os.environ and (clients_per_round or 0) >= cpus.count():
        with contextlib.suppress(RuntimeError):
            op_threads.set_count(1)


def check_declarations() -> None:
    """Raises `RunError` if the file of declarations differs from the code."""
    declared = declarations.to_json(plugins.declare(plugins.own()))
    if declared != declarations.FILE.read_text("utf-8"):
        raise RunError(
            f"{declarations.FILE} differs from what the code declares: write it again "
            "with `python -m tests.experiments.declarations_test`."
        )


def _no_training_notice(spec: RunSpec) -> str:
    """Says what is done where nothing is trained, which may take minutes."""
    num_epochs = spec.options.personalization_epochs
    personalized = f" and personalized (epochs: {num_epochs})" if num_epochs else ""
    num_clients = len(spec.eval_client_ids())
    return (
        "--total_rounds=0: no training; the initial model is evaluated"
        f"{personalized} on {num_clients} client{'s' * (num_clients != 1)}."
    )


def _report(spec: RunSpec, result: RunResult) -> int:
    """Prints the results of a run and returns the exit status."""
    if result.stopped_by is not None:
        saved, purpose = (
            (f"after round {result.rounds_done}, which is saved", "resume")
            if result.rounds_done
            else ("before a round ended, so nothing is saved", "start again")
        )
        print(
            f"Stopped {saved}; to {purpose}, run the same command with "
            f"--output_dir={shlex.quote(str(spec.output_dir))}",
            file=sys.stderr,
        )
        return 128 + result.stopped_by
    print(report.results_table(spec.title, result.summary))
    print(f"Results: {spec.output_dir}")
    if result.warning is not None:
        print(f"warning: {result.warning}", file=sys.stderr, flush=True)
    return 1 if result.learned_nothing else 0
