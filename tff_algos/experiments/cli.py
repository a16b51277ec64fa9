"""The command line: flags, errors of one line, the exit status.

    python main.py --algo=personalized_fedavg --task=emnist
    python main.py --list
    python main.py compare fedavg scaffold --task=mnist --seeds=3

Exit status: 0 after a run; 1 if every round was rejected, so that the model is the
initial one (the results are written); 2 for an error that the user can mend; 128 + n
if signal n stopped the run, which resumes when it is started again.
"""

import atexit
import functools
import gc
import importlib.metadata
import importlib.util
import logging as python_logging
import os
import platform
import re
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from absl import app, flags, logging

import tff_algos
from tff_algos import compat, messages
from tff_algos.experiments import (
    declarations,
    own_columns,
    report,
    run_flags,
    run_folders,
)
from tff_algos.experiments.declarations import Declarations
from tff_algos.experiments.errors import RunError
from tff_algos.hyperparameters import HyperparameterError

FLAGS = flags.FLAGS
# Flags are the calling program's: `--help` shows those of the main module.
flags.disclaim_key_flags()

# Longer than any name of a file may be.
_MAX_WORD = 300
# They log on the level "info" what says nothing of a run: fonts, event loops, every file.
_QUIET_LIBRARIES = ("asyncio", "matplotlib", "tensorflow", "tensorflow_federated")


def define_flags(modules: Sequence[str] = ()) -> None:
    """Defines all flags, once in a process.

    Args:
      modules: Other packages' modules whose algorithms and tasks have flags too.

    Raises:
      ModuleError: If a module cannot be used.
    """
    if "algo" in FLAGS:
        return
    run_flags.define(run_flags.declared(tuple(modules)), FLAGS)


def _define_flags_of(arguments: Sequence[str]) -> None:
    try:
        define_flags(run_flags.modules_of(arguments))
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
    except SystemExit:
        # absl ends with status 1 after it has shown help, which is no failure.
        sys.exit(0)
    # Values of absl's own flags, such as --stderrthreshold, raise ValueError.
    except (flags.Error, ValueError) as error:
        what = run_flags.declared(run_flags.modules_of(arguments))
        reason = run_flags.reason(error, what, FLAGS, arguments)
        _exit_with(f"{reason} --help shows the flags.")


def _exit_with(error: str) -> NoReturn:
    """Prints what is wrong, with the beginnings of words too long for a line."""
    text = re.sub(
        r"[^\s=:]+", lambda word: messages.shortened(word[0], _MAX_WORD), error
    )
    print(f"error: {text}", file=sys.stderr)
    sys.exit(2)


def _versions() -> str:
    packages = {
        "TensorFlow Federated": "tensorflow-federated",
        "TensorFlow": "tensorflow",
    }
    found = [f"{n} {importlib.metadata.version(p)}" for n, p in packages.items()]
    python = f"Python {platform.python_version()}"
    return f"tff-algos {tff_algos.__version__} ({', '.join([*found, python])})"


def _listed(what: Declarations) -> str:
    columns = sys.maxsize
    if sys.stdout.isatty():
        columns = shutil.get_terminal_size().columns
    if FLAGS.algo is None and FLAGS.task is None:
        return report.catalog(what.algorithms.values(), what.all_tasks, columns)
    # absl breaks and indents the help of a flag that may be repeated.
    launch = [
        (name, FLAGS[name].default, " ".join(FLAGS[name].help.split()))
        for name in run_flags.LAUNCH_FLAGS
    ]
    return report.settings(what, FLAGS.algo, FLAGS.task, launch, columns)


def _answer() -> int:
    """Does what the flags ask for and returns the exit status."""
    if FLAGS.version:
        print(_versions())
        return 0
    what = run_flags.declared(tuple(FLAGS.module))
    if FLAGS.list:
        print(_listed(what))
        return 0
    for name, known in (("algo", what.algorithm), ("task", what.task)):
        if FLAGS[name].value is not None:
            known(FLAGS[name].value)
    for name in ("algo", "task"):
        if FLAGS[name].value is None:
            raise RunError(f"--{name} is missing: --list shows what there is.")
    settings = run_flags.settings_of(FLAGS, what)
    declarations.check_own_data(what, FLAGS.task)
    # What data can tell, before TensorFlow is imported.
    resolved = declarations.resolve_pair(what, FLAGS.algo, FLAGS.task, settings)
    own_columns.check(what, FLAGS.task, resolved)
    run_folders.check_initial_model(resolved["initial_model"], FLAGS.output_dir)
    return _run(settings)


def _run(settings: Mapping[str, Any]) -> int:
    print("loading TensorFlow and the task", file=sys.stderr, flush=True)
    with compat.collection_paused():
        from tff_algos.experiments import console
        from tff_algos.experiments.launch_options import Launch

        # Modules stay to the end: no collection need look at their objects.
        gc.freeze()
    if signal.getsignal(signal.SIGINT) is _quit:
        # Until here there was nothing to clean up.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        launch = Launch.of_flags(FLAGS.flag_values_dict(), command=sys.argv)
        if not FLAGS.module:
            console.check_declarations()
        return console.run(FLAGS.algo, FLAGS.task, settings, launch, FLAGS.module)
    except console.USER_ERRORS as error:
        raise RunError(str(error)) from error


def _is_of_interest(record: python_logging.LogRecord) -> bool:
    """Returns whether a message is a warning, or not a library's own."""
    if record.levelno >= python_logging.WARNING:
        return True
    return not record.pathname.startswith(_folders_of_libraries())


@functools.cache
def _folders_of_libraries() -> tuple[str, ...]:
    specs = map(importlib.util.find_spec, _QUIET_LIBRARIES)
    return tuple(
        f"{folder}{os.sep}"
        for spec in specs
        if spec is not None
        for folder in spec.submodule_search_locations
    )


def run_parsed(argv: list[str]) -> NoReturn:
    """Runs what parsed flags ask for; errors that the user can mend are one line."""
    if len(argv) > 1:
        _exit_with(f"{messages.shown(argv[1])} is not a flag.")
    if not FLAGS["verbosity"].present:
        logging.set_verbosity(logging.WARNING)
    logging.get_absl_handler().python_handler.addFilter(_is_of_interest)
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


def _compare(arguments: Sequence[str]) -> NoReturn:
    from tff_algos.experiments.comparison import command  # Takes a moment to import.

    try:
        sys.exit(command.main(arguments))
    except KeyboardInterrupt:
        sys.exit(130)
    except (RunError, HyperparameterError) as error:
        prefix = "--" if isinstance(error, HyperparameterError) else ""
        _exit_with(f"{prefix}{error}")


def main() -> NoReturn:
    """The program's entry point."""
    # The collection at exit would take seconds, to free what the operating system frees.
    atexit.register(gc.freeze)
    try:
        try:
            _main()
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        # The program that reads the output, such as `head`, has stopped reading.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(128 + signal.SIGPIPE)


def _main() -> NoReturn:
    signal.signal(signal.SIGINT, _quit)
    if sys.argv[1:2] == ["compare"]:
        _compare(sys.argv[2:])
    # Here, not in app.run: flags belong to the module that calls.
    _define_flags_of(sys.argv)
    try:
        app.run(run_parsed, flags_parser=parse_flags)
    except KeyboardInterrupt:
        sys.exit(130)
