"""The command line: flags, errors of one line, the exit status.

    python main.py --algo=personalized_fedavg --task=emnist
    python main.py --list

Exit status: 0 after a run; 1 if every round was rejected, so that the model is the
initial one (the results are written); 2 for an error that the user can mend; 128 + n
if signal n stopped the run, which goes on when it is started again.
"""

import collections
import re
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn

from absl import app, flags, logging

import tasks
from tasks.task import TaskError
from tff_algos import execution, messages
from tff_algos.experiments import catalog, plugins, report, runner
from tff_algos.experiments.errors import RunError
from tff_algos.experiments.help_texts import described
from tff_algos.experiments.launch import (
    RUN,
    Launch,
    Users,
    build_spec,
    set_context,
    users_of,
)
from tff_algos.experiments.run_spec import RunOptions, RunResult, RunSpec
from tff_algos.hyperparameters import HyperparameterError

FLAGS = flags.FLAGS
# Flags are the calling program's: `--helpshort` shows those of the main module.
flags.disclaim_key_flags()

# Longer than any name of a file may be.
_MAX_WORD = 300
_USER_ERRORS = (
    execution.CannotTravelError,
    execution.ClusterError,
    execution.NativeRuntimeError,
    execution.UnknownDeviceError,
    execution.WorkerLostError,
    HyperparameterError,
    RunError,
    TaskError,
    catalog.UnknownAlgorithmError,
)


def _define_launch_flags() -> None:
    flags.DEFINE_string("algo", None, "Algorithm; --list shows all.")
    flags.DEFINE_string("task", None, "Task; --list shows all.")
    flags.DEFINE_multi_string(
        "module", [], "Module of another package whose algorithms and tasks to offer."
    )
    flags.DEFINE_bool(
        "list",
        False,
        "List algorithms and tasks, or with --algo and --task that pair's flags and "
        "defaults, and exit.",
    )
    flags.DEFINE_enum(
        "data",
        "auto",
        ["auto", "tff", "generated"],
        "Data: the real set (tff, downloaded where it is not cached), a generated "
        "stand-in, or (auto) the real set if it is cached, else the stand-in.",
    )
    flags.DEFINE_string("cache_dir", None, "Folder of real data sets (~/.tff).")
    flags.DEFINE_string(
        "output_dir", None, "Results folder (runs/<algo>-<dataset>-<timestamp>)."
    )
    flags.DEFINE_bool("resume", True, "Go on with the run in --output_dir, if any.")
    flags.DEFINE_enum(
        "runtime",
        "in_process",
        ["in_process", "native", "ray"],
        "What runs TFF computations: this process, on GPUs where there are any; TFF's "
        "own C++ worker on the CPU; or this process with the clients in Ray workers.",
    )
    flags.DEFINE_list(
        "runtime_devices",
        None,
        "Devices of --runtime=in_process, such as GPU:0,GPU:1 or CPU:0 (all GPUs, or "
        "the CPU where there is none).",
    )
    flags.DEFINE_string(
        "ray_address",
        None,
        "HOST:PORT of the Ray cluster that --runtime=ray joins (Ray of its own on this "
        "machine).",
    )
    flags.DEFINE_integer(
        "ray_workers",
        None,
        "Number of workers of --runtime=ray (as many as there is room for).",
    )
    flags.DEFINE_list(
        "ray_worker_resources",
        None,
        "What a worker of --runtime=ray takes, such as CPU:2 or GPU:1 (CPU:1).",
    )


def _define_settings_flags(choices: plugins.Choices, users: Users) -> None:
    """Defines one flag per setting; unset, the chosen pair's default holds."""
    define = {int: flags.DEFINE_integer, float: flags.DEFINE_float}
    helps = described(RunOptions)
    for entry in choices.tasks.values():
        helps = {**described(entry.options), **helps}
    for name, by_user in sorted(users.items()):
        field = collections.Counter(by_user.values()).most_common(1)[0][0]
        text = (field if field.help else helps[name]).describe()
        if RUN not in by_user:
            text += f" [{_brief_users(tuple(by_user), tuple(choices.algorithms))}]"
        if field.kind is bool:
            flags.DEFINE_bool(name, None, text)
        else:
            define.get(field.kind, flags.DEFINE_string)(name, None, text)


def _brief_users(users: Sequence[str], algorithms: Sequence[str]) -> str:
    """Names a setting's users, or those that it does not have where they are fewer."""
    names = [user.partition("=")[2] for user in users]
    others = [name for name in algorithms if name not in names]
    if not users[0].startswith("--algo") or len(names) <= len(others):
        return ", ".join(names)
    return "all but " + ", ".join(others) if others else "all"


def define_flags(modules: Sequence[str] = ()) -> None:
    """Defines all flags, once in a process.

    Args:
      modules: Other packages' modules whose algorithms and tasks have flags too.

    Raises:
      ModuleError: If a module cannot be used.
    """
    if "algo" in FLAGS:
        return
    choices = plugins.load(modules)
    _define_launch_flags()
    _define_settings_flags(choices, users_of(choices))


def _values_of(flag: str, arguments: Sequence[str]) -> Iterator[str]:
    """Yields the values of a flag that is needed before flags are parsed."""
    for argument, following in zip(arguments, [*arguments[1:], ""], strict=True):
        name, equals, value = argument.partition("=")
        if name in (f"-{flag}", f"--{flag}"):
            yield value if equals else following


def _define_flags_of(arguments: Sequence[str]) -> None:
    try:
        define_flags(list(_values_of("module", arguments)))
    except plugins.ModuleError as error:
        _exit_with(str(error))


def parse_flags(arguments: Sequence[str]) -> list[str]:
    """Defines and sets the flags, or exits with one line if something is wrong.

    Args:
      arguments: The name of the program, then the command line.

    Returns:
      The name of the program, then the arguments that are not flags.
    """
    _define_flags_of(arguments)
    try:
        return FLAGS(arguments)
    except UnicodeDecodeError as error:
        files = " or ".join(_values_of("flagfile", arguments))
        _exit_with(f"--flagfile: {files}, or what it includes, is not text ({error}).")
    # Values of absl's own flags, such as --stderrthreshold, raise ValueError.
    except (flags.Error, ValueError) as error:
        text = str(error).removeprefix("ERROR:: ").partition("; use sys.")[0]
        reason = " ".join(text.split()).rstrip(".")
        _exit_with(f"{reason}; --helpshort shows the flags.")


def _exit_with(error: str) -> NoReturn:
    """Prints what is wrong, with the beginnings of words too long for a line."""
    text = re.sub(
        r"[^\s=:]+", lambda word: messages.shortened(word[0], _MAX_WORD), error
    )
    print(f"error: {text}", file=sys.stderr)
    sys.exit(2)


def _launch() -> Launch:
    return Launch(
        data=FLAGS.data,
        cache_dir=FLAGS.cache_dir,
        output_dir=FLAGS.output_dir,
        resume=FLAGS.resume,
        runtime=FLAGS.runtime,
        runtime_devices=FLAGS.runtime_devices,
        ray_address=FLAGS.ray_address,
        ray_workers=FLAGS.ray_workers,
        ray_worker_resources=FLAGS.ray_worker_resources,
        command=sys.argv,
    )


def settings_of_flags(users: Users) -> Mapping[str, Any]:
    """Returns the settings whose flags were set."""
    values = {name: FLAGS[name].value for name in users}
    return {name: value for name, value in values.items() if value is not None}


def _no_training_notice(spec: RunSpec) -> str:
    """Says what is done where nothing is trained, which may take minutes."""
    num_epochs = spec.options.personalization_epochs
    personalized = f" and personalized (epochs: {num_epochs})" if num_epochs else ""
    return (
        "--total_rounds=0: no training; the initial model is evaluated"
        f"{personalized} on the evaluation clients ({len(spec.eval_client_ids())})."
    )


def _run() -> int:
    """Runs what the flags ask for and returns the exit status."""
    choices = plugins.load(FLAGS.module)
    if FLAGS.list and FLAGS.algo is None:
        print(report.catalog(choices.algorithms.values(), choices.tasks.values()))
        return 0
    for name in ("algo", "task"):
        if FLAGS[name].value is None:
            raise RunError(f"--{name} is missing: --list shows what there is.")
    recipe = catalog.get(FLAGS.algo, choices.algorithms)
    entry = tasks.get(FLAGS.task, choices.tasks)
    if FLAGS.list:
        print(report.settings(recipe, entry, RunOptions))
        return 0
    launch = _launch()
    set_context(launch)
    spec = build_spec(recipe, entry, settings_of_flags(users_of(choices)), launch)
    print(f"Results: {spec.output_dir}", file=sys.stderr, flush=True)
    if spec.total_rounds == 0:
        print(_no_training_notice(spec), file=sys.stderr, flush=True)
    return _report(spec, runner.run(spec))


def _report(spec: RunSpec, result: RunResult) -> int:
    """Prints what a run came to and returns the exit status."""
    if result.stopped_by is not None:
        print(
            f"Stopped after round {result.rounds_done}, which is saved; the same "
            f"command with --output_dir={spec.output_dir} goes on.",
            file=sys.stderr,
        )
        return 128 + result.stopped_by
    print(report.results_table(spec.title, result.summary))
    print(f"Results: {spec.output_dir}")
    if result.warning is not None:
        print(f"warning: {result.warning}", file=sys.stderr, flush=True)
    return 1 if result.learned_nothing else 0


def run_flags(argv: list[str]) -> NoReturn:
    """Runs what parsed flags ask for; errors that the user can mend are one line."""
    if len(argv) > 1:
        _exit_with(f"{messages.shown(argv[1])} is not a flag.")
    # TensorFlow and TFF log every checkpoint on the level "info".
    if not FLAGS["verbosity"].present:
        logging.set_verbosity(logging.WARNING)
    try:
        sys.exit(_run())
    except KeyboardInterrupt:
        sys.exit(130)
    except _USER_ERRORS as error:
        if logging.get_verbosity() >= logging.DEBUG:
            raise
        prefix = "--" if isinstance(error, HyperparameterError) else ""
        _exit_with(f"{prefix}{error}")


def main() -> NoReturn:
    """The program's entry point."""
    # Until here a signal that interrupted the imports ended the program at once.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # Here, not in app.run: flags belong to the module that calls.
    _define_flags_of(sys.argv)
    try:
        app.run(run_flags, flags_parser=parse_flags)
    except KeyboardInterrupt:
        sys.exit(130)
