"""Runs a federated learning algorithm on a task.

python main.py --algo=personalized_fedavg --task=emnist
python main.py --list

Exit status: 0 after a run; 1 if every round was rejected, so that the model is the
initial one (the results are written); 2 for an error that the user can mend; 128 + n
if signal n stopped the run, which goes on when it is started again.
"""

import os
import signal
import sys

if __name__ == "__main__":
    # TensorFlow takes seconds to import, and there is nothing to clean up yet.
    _on_interrupt = signal.signal(signal.SIGINT, lambda *_: os._exit(130))

import collections
import datetime
import importlib.metadata
import pathlib
import platform
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn

# Read when TensorFlow is imported; its C++ side logs to the console otherwise.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

try:
    from tff_algos import compat  # noqa: F401
except ImportError as error:
    sys.exit(f"error: {error}")

import attrs
from absl import app, flags, logging

import tasks
from tasks.task import DataOptions, TaskEntry, TaskError
from tff_algos import execution, messages, registry
from tff_algos.algorithms import algorithm as algorithm_lib
from tff_algos.algorithms.algorithm import Algorithm
from tff_algos.experiments import malicious_clients, report, runner
from tff_algos.experiments.errors import RunError
from tff_algos.hyperparameters import HyperparameterError

FLAGS = flags.FLAGS
_RUN = "run"
# Longer than any name of a file may be.
_MAX_WORD = 300
_USER_ERRORS = (
    execution.NativeRuntimeError,
    execution.UnknownDeviceError,
    HyperparameterError,
    RunError,
    TaskError,
    registry.UnknownAlgorithmError,
)

flags.DEFINE_string("algo", None, "Algorithm; --list shows all.")
flags.DEFINE_string("task", None, "Task; --list shows all.")
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
    ["in_process", "native"],
    "What runs TFF computations: this process, on GPUs where there are any, or TFF's "
    "own C++ worker on the CPU.",
)
flags.DEFINE_list(
    "runtime_devices",
    None,
    "Devices of --runtime=in_process, such as GPU:0,GPU:1 or CPU:0 (all GPUs, or the "
    "CPU where there is none).",
)


def _derived_fields() -> dict[str, dict[str, attrs.Attribute]]:
    """Returns who uses which field: name -> user -> field of the user's record."""
    users: dict[str, dict[str, attrs.Attribute]] = {}
    records = {_RUN: runner.RunOptions}
    records |= {f"--algo={a.name}": a.hparams for a in registry.ALGORITHMS.values()}
    records |= {f"--task={t.name}": t.options for t in tasks.TASKS.values()}
    for user, record in records.items():
        for name, field in attrs.fields_dict(record).items():
            users.setdefault(name, {})[user] = field
    return users


def _brief_users(users: Sequence[str]) -> str:
    """Names a field's users, or those that it does not have where they are fewer."""
    names = [user.partition("=")[2] for user in users]
    others = [name for name in registry.ALGORITHMS if name not in names]
    if not users[0].startswith("--algo") or len(names) <= len(others):
        return ", ".join(names)
    return "all but " + ", ".join(others) if others else "all"


def _define_flags(fields: Mapping[str, Mapping[str, attrs.Attribute]]) -> None:
    """Defines one flag per field; unset, the chosen pair's default holds."""
    define = {int: flags.DEFINE_integer, float: flags.DEFINE_float}
    for name, by_user in sorted(fields.items()):
        field = collections.Counter(by_user.values()).most_common(1)[0][0]
        text = report.describe(field)
        if _RUN not in by_user:
            text += f" [{_brief_users(tuple(by_user))}]"
        kind = field.metadata.get("kind", field.type)
        if kind is bool:
            flags.DEFINE_bool(name, None, text)
        else:
            define.get(kind, flags.DEFINE_string)(name, None, text)


_FIELDS = _derived_fields()
_define_flags(_FIELDS)


def _chosen(users: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    """Returns the flags that were set, by user.

    Raises:
      HyperparameterError: If a flag is set that none of the users has.
    """
    chosen: dict[str, dict[str, Any]] = {user: {} for user in users}
    for name, by_user in _FIELDS.items():
        value = FLAGS[name].value
        if value is None:
            continue
        takers = [user for user in users if user in by_user]
        if not takers:
            raise HyperparameterError(
                name,
                value,
                f"nothing, {' '.join(users[1:])} does not use it; it belongs to "
                f"{', '.join(by_user)}",
            )
        for user in takers:
            chosen[user][name] = value
    return chosen


def _output_dir(algorithm: Algorithm, dataset_name: str) -> pathlib.Path:
    if FLAGS.output_dir:
        return pathlib.Path(FLAGS.output_dir)
    now = datetime.datetime.now().strftime("%Y%m%d-%H%M%S")
    return pathlib.Path("runs") / f"{algorithm.name}-{dataset_name}-{now}"


def _git_commit() -> str | None:
    """Returns the commit of the source, or None where it is not a checkout."""
    try:
        return subprocess.run(
            ["git", "rev-parse", "HEAD"],
            cwd=pathlib.Path(__file__).parent,
            capture_output=True,
            check=True,
            text=True,
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def _versions() -> dict[str, str]:
    packages = ("tensorflow", "tensorflow-federated", "tf-keras", "numpy")
    versions = {name: importlib.metadata.version(name) for name in packages}
    return versions | {"python": platform.python_version()}


def _personalization_optimizer(options: runner.RunOptions, hparams: Any):
    """Builds fine-tuning's optimizer: the training clients' unless flags say."""
    name = options.personalization_optimizer
    rate = options.personalization_learning_rate
    return algorithm_lib.build_optimizer(
        name or getattr(hparams, "client_optimizer", "sgd"),
        rate or getattr(hparams, "client_learning_rate", 0.02),
    )


def _build_spec(algorithm: Algorithm, entry: TaskEntry) -> runner.RunSpec:
    """Turns flags into a run."""
    algo_user, task_user = f"--algo={algorithm.name}", f"--task={entry.name}"
    chosen = _chosen((_RUN, algo_user, task_user))
    options = runner.RunOptions(**chosen[_RUN])
    task_options = entry.options(**chosen[task_user])
    # Before data are loaded or downloaded, so that what is wrong is said at once.
    hparams = algorithm.resolve(entry.name, entry.settings, chosen[algo_user])
    task = tasks.load_task(
        entry.name,
        task_options,
        DataOptions(data=FLAGS.data, cache_dir=FLAGS.cache_dir, seed=options.seed),
    )
    if task.notice:
        print(task.notice, file=sys.stderr, flush=True)
    attack = malicious_clients.build(
        options.attack,
        options.malicious_clients,
        options.malicious_every_round,
        task,
        getattr(hparams, "clients_per_round", None),
    )
    stages = algorithm.build_stages(attack.task(task) if attack else task, hparams)
    hyperparameters = {"algo": algorithm.name, "task": entry.name}
    hyperparameters |= {"dataset": task.dataset_name}
    for record in (options, task_options, hparams):
        hyperparameters |= attrs.asdict(record)
    # How often a run is saved changes none of its numbers.
    cadence = {"rounds_per_checkpoint": hyperparameters.pop("rounds_per_checkpoint")}
    return runner.RunSpec(
        title=f"{algorithm.title} on {task.dataset_name}",
        stages=stages,
        task=task,
        output_dir=_output_dir(algorithm, task.dataset_name),
        hyperparameters=hyperparameters,
        config={
            "command": sys.argv,
            "runtime": FLAGS.runtime,
            "data_source": task.data_source,
            "cache_dir": FLAGS.cache_dir,
            "git_commit": _git_commit(),
            "versions": _versions(),
            **cadence,
        },
        personalization_optimizer=_personalization_optimizer(options, hparams),
        options=options,
        attack=attack,
        resume=FLAGS.resume,
    )


def _set_context() -> None:
    """Makes the runtime that the flags name the default.

    Raises:
      HyperparameterError: If devices are chosen for a runtime that has none.
      execution.UnknownDeviceError: If a device does not exist.
    """
    if FLAGS.runtime == "in_process":
        execution.set_in_process_context(runtime_devices=FLAGS.runtime_devices)
        return
    if FLAGS.runtime_devices is not None:
        raise HyperparameterError(
            "runtime_devices",
            ",".join(FLAGS.runtime_devices),
            "nothing, --runtime=native does not use it; it belongs to "
            "--runtime=in_process",
        )
    execution.set_native_context()


def _no_training_notice(spec: runner.RunSpec) -> str:
    """Says what is done where nothing is trained, which may take minutes."""
    num_epochs = spec.options.personalization_epochs
    personalized = f" and personalized (epochs: {num_epochs})" if num_epochs else ""
    return (
        "--total_rounds=0: no training; the initial model is evaluated"
        f"{personalized} on the evaluation clients ({len(spec.eval_client_ids())})."
    )


def _run() -> int:
    """Runs what the flags ask for and returns the exit status."""
    if FLAGS.list and FLAGS.algo is None:
        print(report.catalogue(registry.ALGORITHMS.values(), tasks.TASKS.values()))
        return 0
    for name in ("algo", "task"):
        if FLAGS[name].value is None:
            raise RunError(f"--{name} is missing: --list shows what there is.")
    algorithm = registry.get(FLAGS.algo)
    entry = tasks.get(FLAGS.task)
    if FLAGS.list:
        records = [algorithm.resolve(entry.name, entry.settings, {}), entry.options()]
        print(report.settings(algorithm, entry, [*records, runner.RunOptions()]))
        return 0
    _set_context()
    spec = _build_spec(algorithm, entry)
    print(f"Results: {spec.output_dir}", file=sys.stderr, flush=True)
    if spec.total_rounds == 0:
        print(_no_training_notice(spec), file=sys.stderr, flush=True)
    result = runner.run(spec)
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


def _exit_with(error: str) -> NoReturn:
    """Prints what is wrong, with the beginnings of words too long for a line."""
    text = re.sub(
        r"[^\s=:]+", lambda word: messages.shortened(word[0], _MAX_WORD), error
    )
    print(f"error: {text}", file=sys.stderr)
    sys.exit(2)


def _flag_files(arguments: Sequence[str]) -> Iterator[str]:
    """Yields the values of `--flagfile`."""
    for argument, following in zip(arguments, [*arguments[1:], ""], strict=True):
        flag, equals, value = argument.partition("=")
        if flag in ("-flagfile", "--flagfile"):
            yield value if equals else following


def parse_flags(arguments: Sequence[str]) -> list[str]:
    """Sets the flags, or exits with one line if there is something wrong with them.

    Args:
      arguments: The name of the program, then the command line.

    Returns:
      The name of the program, then what is no flag.
    """
    try:
        return FLAGS(arguments)
    except UnicodeDecodeError as error:
        files = " or ".join(_flag_files(arguments))
        _exit_with(f"--flagfile: {files}, or what it includes, is no text ({error}).")
    # Values of absl's own flags, such as --stderrthreshold, raise ValueError.
    except (flags.Error, ValueError) as error:
        text = str(error).removeprefix("ERROR:: ").partition("; use sys.")[0]
        reason = " ".join(text.split()).rstrip(".")
        _exit_with(f"{reason}; --helpshort shows the flags.")


def main(argv: list[str]) -> None:
    """Entry point for absl: errors that the user can mend are one line."""
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


if __name__ == "__main__":
    signal.signal(signal.SIGINT, _on_interrupt)
    try:
        app.run(main, flags_parser=parse_flags)
    except KeyboardInterrupt:
        sys.exit(130)
