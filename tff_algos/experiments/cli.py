"""The command line: flags, errors of one line, the exit status.

    python main.py --algo=personalized_fedavg --task=emnist
    python main.py --list

Exit status: 0 after a run; 1 if every round was rejected, so that the model is the
initial one (the results are written); 2 for an error that the user can mend; 128 + n
if signal n stopped the run, which goes on when it is started again.
"""

import collections
import functools
import importlib.metadata
import os
import platform
import re
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn

from absl import app, flags, logging

import tff_algos
from tff_algos import messages
from tff_algos.experiments import declarations, report
from tff_algos.experiments.declarations import RUN, Declarations
from tff_algos.experiments.errors import RunError
from tff_algos.hyperparameters import HyperparameterError

FLAGS = flags.FLAGS
# Flags are the calling program's: `--helpshort` shows those of the main module.
flags.disclaim_key_flags()

ENTRY_POINTS = "tff_algos"
# Longer than any name of a file may be.
_MAX_WORD = 300
# Flags that belong to no setting, in the order in which they are listed.
_LAUNCH_FLAGS = (
    "data",
    "cache_dir",
    "output_dir",
    "resume",
    "runtime",
    "runtime_devices",
    "ray_address",
    "ray_workers",
    "ray_worker_resources",
    "module",
)


@functools.cache
def declared(modules: tuple[str, ...] = ()) -> Declarations:
    """Returns what can be set; without modules of other packages, at once.

    Raises:
      ModuleError: If a module cannot be used.
    """
    if not modules and not importlib.metadata.entry_points(group=ENTRY_POINTS):
        return declarations.load()
    from tff_algos.experiments import plugins  # Takes seconds, as what it imports may.

    return plugins.declare(plugins.load(modules))


def _define_launch_flags() -> None:
    flags.DEFINE_string("algo", None, "Algorithm; --list shows all.")
    flags.DEFINE_string("task", None, "Task; --list shows all.")
    flags.DEFINE_multi_string(
        "module", [], "Module of another package whose algorithms and tasks to offer."
    )
    flags.DEFINE_bool(
        "list",
        False,
        "List algorithms and tasks, or with --algo, --task or both their flags and "
        "defaults, and exit.",
    )
    flags.DEFINE_bool("version", False, "Print versions and exit.")
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


def _define_settings_flags(what: Declarations) -> None:
    """Defines one flag per setting; unset, the chosen pair's default holds."""
    define = {int: flags.DEFINE_integer, float: flags.DEFINE_float}
    for name, by_user in sorted(what.users.items()):
        variants = collections.Counter(by_user.values()).most_common()
        field = next((f for f, _ in variants if f.help), variants[0][0])
        text = field.describe()
        if RUN not in by_user:
            text += f" [{_brief_users(tuple(by_user), tuple(what.algorithms))}]"
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
    what = declared(tuple(modules))
    _define_launch_flags()
    _define_settings_flags(what)


def _values_of(flag: str, arguments: Sequence[str]) -> Iterator[str]:
    """Yields the values of a flag that is needed before flags are parsed."""
    for argument, following in zip(arguments, [*arguments[1:], ""], strict=True):
        name, equals, value = argument.partition("=")
        if name in (f"-{flag}", f"--{flag}"):
            yield value if equals else following


def _define_flags_of(arguments: Sequence[str]) -> None:
    try:
        define_flags(list(_values_of("module", arguments)))
    except RunError as error:
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


def settings_of_flags(what: Declarations) -> Mapping[str, Any]:
    """Returns the settings whose flags were set."""
    values = {name: FLAGS[name].value for name in what.users}
    return {name: value for name, value in values.items() if value is not None}


def _versions() -> str:
    packages = {
        "TensorFlow Federated": "tensorflow-federated",
        "TensorFlow": "tensorflow",
    }
    found = [f"{n} {importlib.metadata.version(p)}" for n, p in packages.items()]
    python = f"Python {platform.python_version()}"
    return f"tff-algos {tff_algos.__version__} ({', '.join([*found, python])})"


def _listed(what: Declarations) -> str:
    if FLAGS.algo is None and FLAGS.task is None:
        return report.catalog(what.algorithms.values(), what.all_tasks)
    launch = [(n, FLAGS[n].default, FLAGS[n].help) for n in _LAUNCH_FLAGS]
    return report.settings(what, FLAGS.algo, FLAGS.task, launch)


def _answer() -> int:
    """Does what the flags ask for and returns the exit status."""
    if FLAGS.version:
        print(_versions())
        return 0
    what = declared(tuple(FLAGS.module))
    if FLAGS.list:
        print(_listed(what))
        return 0
    for name in ("algo", "task"):
        if FLAGS[name].value is None:
            raise RunError(f"--{name} is missing: --list shows what there is.")
    settings = settings_of_flags(what)
    declarations.check_own_data(what, FLAGS.task)
    # What data can tell, before TensorFlow is imported.
    declarations.resolve_pair(what, FLAGS.algo, FLAGS.task, settings)
    return _run(settings)


def _run(settings: Mapping[str, Any]) -> int:
    # TensorFlow takes seconds to import.
    from tff_algos.experiments import console
    from tff_algos.experiments.launch import Launch

    if signal.getsignal(signal.SIGINT) is _quit:
        # Until here there was nothing to clean up.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    launch = Launch(
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
    try:
        if not FLAGS.module:
            console.check_declarations()
        return console.run(FLAGS.algo, FLAGS.task, settings, launch, FLAGS.module)
    except console.USER_ERRORS as error:
        raise RunError(str(error)) from error


def run_flags(argv: list[str]) -> NoReturn:
    """Runs what parsed flags ask for; errors that the user can mend are one line."""
    if len(argv) > 1:
        _exit_with(f"{messages.shown(argv[1])} is not a flag.")
    # TensorFlow and TFF log every checkpoint on the level "info".
    if not FLAGS["verbosity"].present:
        logging.set_verbosity(logging.WARNING)
    try:
        sys.exit(_answer())
    except KeyboardInterrupt:
        sys.exit(130)
    except (RunError, HyperparameterError) as error:
        if logging.get_verbosity() >= logging.DEBUG:
            raise
        prefix = "--" if isinstance(error, HyperparameterError) else ""
        _exit_with(f"{prefix}{error}")


def _quit(number: int, frame: Any) -> NoReturn:
    """Ends the process while there is nothing to clean up."""
    del frame
    os._exit(128 + number)


def main() -> NoReturn:
    """The program's entry point."""
    signal.signal(signal.SIGINT, _quit)
    # Here, not in app.run: flags belong to the module that calls.
    _define_flags_of(sys.argv)
    try:
        app.run(run_flags, flags_parser=parse_flags)
    except KeyboardInterrupt:
        sys.exit(130)
