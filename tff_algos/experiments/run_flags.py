"""The flags of a run, defined from what algorithms and tasks declare."""

import contextlib
import functools
import importlib.metadata
import itertools
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from absl import flags

from tff_algos import messages
from tff_algos.experiments import declarations
from tff_algos.experiments.declarations import RUN, Declarations
from tff_algos.experiments.errors import RunError
from tff_algos.hyperparameters import NONE, Hyperparameter, HyperparameterError

# Flags are the calling program's: `--help` shows those of the main module.
flags.disclaim_key_flags()

ENTRY_POINTS = "tff_algos"
# Flags that belong to no setting, in the order in which they are listed.
LAUNCH_FLAGS = (
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


# Names that other programs give to these flags.
_ALSO_CALLED = {"dataset": "task"}
# absl defines them only when the program starts.
_HELP_FLAGS = ("help", "helpfull", "helpshort", "helpxml")


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


def values_of(flag: str, arguments: Sequence[str]) -> Iterator[str]:
    """Yields the values of a flag that is needed before flags are parsed."""
    pairs = itertools.zip_longest(arguments, arguments[1:], fillvalue="")
    for argument, following in pairs:
        name, equals, value = argument.partition("=")
        if name in (f"-{flag}", f"--{flag}"):
            yield value if equals else following


def modules_of(arguments: Sequence[str]) -> tuple[str, ...]:
    """Returns the modules that are named by arguments or in their flag files.

    Of flag files that are no regular files, such as pipes, nothing is known: what is
    read from them is gone.
    """
    files = values_of("flagfile", arguments)
    if all(os.path.isfile(os.path.expanduser(each)) for each in files):
        # What is wrong with a file is told where flags are parsed.
        with contextlib.suppress(flags.Error, UnicodeDecodeError):
            arguments = flags.FlagValues().read_flags_from_files(list(arguments))
    return tuple(values_of("module", arguments))


def _define_launch_flags(into: flags.FlagValues) -> None:
    flags.DEFINE_string("algo", None, "Algorithm; --list shows all.", flag_values=into)
    flags.DEFINE_string("task", None, "Task; --list shows all.", flag_values=into)
    flags.DEFINE_multi_string(
        "module",
        [],
        "Python module with further algorithms or tasks: a dotted name, or a file in "
        "the current folder, without .py",
        flag_values=into,
    )
    flags.DEFINE_bool(
        "list",
        False,
        "List algorithms and tasks, or with --algo, --task or both their flags and "
        "defaults, and exit.",
        flag_values=into,
    )
    flags.DEFINE_bool("version", False, "Print versions and exit.", flag_values=into)
    flags.DEFINE_enum(
        "data",
        "auto",
        ["auto", "tff", "generated"],
        "The real dataset (tff; downloaded unless cached), generated data, or (auto) the "
        "real dataset if it is cached, else generated data.",
        flag_values=into,
    )
    flags.DEFINE_string(
        "cache_dir",
        None,
        "Folder of real datasets (default: ~/.tff).",
        flag_values=into,
    )
    flags.DEFINE_string(
        "output_dir",
        None,
        "Results folder (default: runs/<algo>-<dataset>-<timestamp>).",
        flag_values=into,
    )
    flags.DEFINE_bool(
        "resume", True, "Resume the run in --output_dir, if any.", flag_values=into
    )
    flags.DEFINE_enum(
        "runtime",
        "in_process",
        ["in_process", "native", "ray"],
        "What runs TFF computations: this process, on GPUs where there are any; TFF's "
        "own C++ worker on the CPU; or this process with the clients in Ray workers.",
        flag_values=into,
    )
    flags.DEFINE_list(
        "runtime_devices",
        None,
        "Devices of --runtime=in_process, such as GPU:0,GPU:1 or CPU:0 (default: all "
        "GPUs; the CPU if there is none, or for models with recurrent layers).",
        flag_values=into,
    )
    flags.DEFINE_string(
        "ray_address",
        None,
        "HOST:PORT of the Ray cluster that --runtime=ray joins (default: starts Ray on "
        "this machine).",
        flag_values=into,
    )
    flags.DEFINE_integer(
        "ray_workers",
        None,
        "Number of workers of --runtime=ray (default: as many as there is room for).",
        flag_values=into,
    )
    flags.DEFINE_list(
        "ray_worker_resources",
        None,
        "What a worker of --runtime=ray takes, such as CPU:2 or GPU:1 (default: CPU:1).",
        flag_values=into,
    )


class _OptionalParser(flags.ArgumentParser):
    """Parses a number, or the word for None."""

    def __init__(self, kind: type) -> None:
        self._number = flags.IntegerParser() if kind is int else flags.FloatParser()
        self.syntactic_help = self._number.syntactic_help

    def parse(self, argument: Any) -> Any:
        """Returns the number, or the word."""
        return argument if argument == NONE else self._number.parse(argument)

    def flag_type(self) -> str:
        """Returns what absl calls the kind of the number."""
        return self._number.flag_type()


def _define_settings_flags(what: Declarations, into: flags.FlagValues) -> None:
    """Defines one flag per setting; unset, the chosen pair's default holds.

    Raises:
      RunError: If another package's setting has the name of another flag.
    """
    define = {int: flags.DEFINE_integer, float: flags.DEFINE_float}
    for name, by_user in sorted(what.users.items()):
        if name in into or name in _HELP_FLAGS:
            raise RunError(
                f"{', '.join(by_user)} has the setting {name}, but --{name} is another "
                "flag; choose another name."
            )
        field = next(iter(by_user.values()))
        text = _help(name, what)
        if field.kind is bool:
            flags.DEFINE_bool(name, None, text, flag_values=into)
        elif field.kind in define and any(f.is_optional for f in by_user.values()):
            parser, serializer = _OptionalParser(field.kind), flags.ArgumentSerializer()
            flags.DEFINE(parser, name, None, text, into, serializer)
        else:
            define.get(field.kind, flags.DEFINE_string)(
                name, None, text, flag_values=into
            )


def _help(name: str, what: Declarations) -> str:
    """Says what a setting is for each of its users."""
    by_user = what.users[name]
    if RUN in by_user:
        return by_user[RUN].describe()
    users: dict[str, list[str]] = {}
    for user, field in by_user.items():
        users.setdefault(field.describe(), []).append(user)
    main = _main_setting(name, what.users)
    if main is not None and len(users) == 1:
        return f"{next(iter(users))} [same as --{main}]"
    algorithms = tuple(what.algorithms)
    return "; ".join(f"{text} [{_brief(of, algorithms)}]" for text, of in users.items())


def _main_setting(
    name: str, users: Mapping[str, Mapping[str, Hyperparameter]]
) -> str | None:
    """Returns the setting that another one is a detail of: `dp` of `dp_clip`."""
    return next(
        (
            other
            for other, by_user in users.items()
            if name.startswith(f"{other}_") and by_user.keys() == users[name].keys()
        ),
        None,
    )


def _brief(users: Sequence[str], algorithms: Sequence[str]) -> str:
    """Names a setting's users, or those that it does not have where they are fewer."""
    names = [user.partition("=")[2] for user in users]
    others = [name for name in algorithms if name not in names]
    if not users[0].startswith("--algo") or len(names) <= len(others):
        return ", ".join(names)
    return "all but " + ", ".join(others) if others else "all"


def define(what: Declarations, into: flags.FlagValues) -> None:
    """Defines the flags of a run.

    Args:
      what: What there is to set.
      into: Where to define them.

    Raises:
      RunError: If another package's setting has the name of another flag.
    """
    _define_launch_flags(into)
    _define_settings_flags(what, into)


def reason(
    error: flags.Error | ValueError,
    what: Declarations,
    values: flags.FlagValues,
    arguments: Sequence[str],
) -> str:
    """Says on one line what is wrong with a command line, and in which flag file.

    Args:
      error: What parsing it raised.
      what: What there is to set.
      values: The flags that there are.
      arguments: The command line.
    """
    if isinstance(error, UnicodeDecodeError):
        files = " or ".join(values_of("flagfile", arguments))
        return f"--flagfile: {files}, or what it includes, is not text ({error})."
    if isinstance(error, flags.UnrecognizedFlagError):
        return origin(error.flagname, arguments) + _unknown(
            error.flagname, what, values
        )
    text = str(error).removeprefix("ERROR:: ").partition("; use sys.")[0]
    found = re.match(r"flag --(\w+)", text)
    where = origin(found[1], arguments) if found else ""
    said = _expectation(text, what) or _expected_kind(text, values)
    return f"{where}{said or ' '.join(text.split()).rstrip('.') + '.'}"


def origin(word: str, arguments: Sequence[str]) -> str:
    """Returns a message's prefix: the flag files, if only they contain the word."""
    files = list(values_of("flagfile", arguments))
    names = [argument.lstrip("-").partition("=")[0] for argument in arguments]
    if not files or {word, f"no{word}"} & {*names, *arguments}:
        return ""
    return f"in {' or '.join(files)}: "


def _unknown(name: str, what: Declarations, values: flags.FlagValues) -> str:
    """Says that there is no such flag, and which may be meant."""
    word, space, rest = name.partition(" ")
    if space and word in values and not values[word].boolean:
        return (
            f"--{messages.shortened(name)} is one word: write "
            f"--{word}={messages.shortened(rest.strip())}."
        )
    wanted = name.lower()
    if wanted in _ALSO_CALLED:
        nearest: Sequence[str] = [_ALSO_CALLED[wanted]]
    else:
        # What most algorithms have is meant most often.
        names = sorted(values, key=lambda name: -len(what.users.get(name, ())))
        nearest = declarations.nearest_names(wanted, names) or _named_in_help(
            wanted, names, values
        )
    meant = " or ".join(f"--{each}" for each in nearest)
    question = f", did you mean {meant}?" if meant else "."
    return f"--{messages.shortened(name)} is unknown{question}"


def _named_in_help(
    word: str, names: Iterable[str], values: flags.FlagValues
) -> Sequence[str]:
    """Returns the flags whose help has the word: `--partition` for `--dirichlet`."""
    if len(word) < 2:
        return []
    whole = re.compile(rf"\b{re.escape(word)}\b", re.IGNORECASE)
    return [name for name in names if whole.search(values[name].help or "")][:2]


def _expectation(text: str, what: Declarations) -> str | None:
    """Returns what is expected of the setting whose value absl could not parse."""
    # Of digits, there are too many: absl says so.
    found = re.match(r"flag --(\w+)=(?!\d+: )(.*?): ", text, re.DOTALL)
    for hyperparameter in what.users.get(found[1], {}).values() if found else ():
        try:
            hyperparameter.checked(found[2])
        except HyperparameterError as error:
            return f"--{error}"
    return None


def _expected_kind(text: str, values: flags.FlagValues) -> str | None:
    """Returns what is expected of a flag of the program, by its parser."""
    # Of more digits than that, absl says so.
    found = re.match(r"flag --(\w+)=(?!\d{20})(.*?): ", text, re.DOTALL)
    parser = values[found[1]].parser if found and found[1] in values else None
    if isinstance(parser, flags.BooleanParser):
        expected = "True or False"
    elif isinstance(parser, flags.IntegerParser):
        low = parser.lower_bound
        expected = "an integer" if low is None else f"an integer >= {low}"
    else:
        return None
    return f"--{HyperparameterError(found[1], found[2], expected)}"


def settings_of(values: flags.FlagValues, what: Declarations) -> Mapping[str, Any]:
    """Returns the settings whose flags were set."""
    found = {name: values[name].value for name in what.users}
    return {name: value for name, value in found.items() if value is not None}
