"""What can be set and listed, as data: names, types, ranges, defaults and help.

Builders, recipes and records of options declare it, but to import them takes seconds.
`declarations.json` says the same, so that the command line answers at once; a test
compares the two, and `python -m tests.experiments.declarations_test` writes the file.
"""

import difflib
import functools
import json
import math
import os
import pathlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs

from tff_algos import messages, paths
from tff_algos.experiments.errors import RunError
from tff_algos.hyperparameters import (
    REQUIRED,
    Form,
    Hyperparameter,
    Interval,
    MissingHyperparameterError,
    UnusableHyperparameterError,
    check_replaced,
)

FILE = pathlib.Path(__file__).with_name("declarations.json")
RUN = "run"
EVERY_TASK = "*"
_MAX_SUGGESTIONS = 3
# difflib's ratio from which a name is another one with a typo.
_ALMOST = 0.8
# Too many words begin with the shorter ones of a mistyped name.
_MIN_BEGINNING = 3

_KINDS = {kind.__name__: kind for kind in (int, float, bool, str, tuple)}

Fields = Mapping[str, Hyperparameter]
# A run's hyperparameters by name.
Settings = Mapping[str, Any]
# Who declares which setting: name -> user -> declaration.
Users = Mapping[str, Mapping[str, Hyperparameter]]


class UnknownNameError(RunError):
    """Nothing has the name; says which is similar."""

    def __init__(self, flag: str, name: str, names: Iterable[str]) -> None:
        super().__init__(messages.unknown(flag, name, names))


@attrs.frozen(kw_only=True)
class Algorithm:
    """What one `--algo` name declares; the attributes are those of a recipe."""

    name: str
    title: str
    summary: str
    paper: str
    fields: Fields
    settings: Mapping[str, Settings]
    refused: Mapping[str, str] = attrs.field(factory=dict)

    @property
    def user(self) -> str:
        """Who uses the fields."""
        return f"--algo={self.name}"


@attrs.frozen(kw_only=True)
class Task:
    """What one `--task` name declares; the attributes are those of a task's entry."""

    name: str
    summary: str
    fields: Fields
    settings: Settings

    @property
    def user(self) -> str:
        """Who uses the fields."""
        return f"--task={self.name}"


@attrs.frozen(kw_only=True)
class Declarations:
    """All that can be set.

    Attributes:
      run: What every run has.
      algorithms: Algorithms by name.
      tasks: Tasks by name.
      formats: Forms of own data by name; a task of one is FORM:PATH.
    """

    run: Fields
    algorithms: Mapping[str, Algorithm]
    tasks: Mapping[str, Task]
    formats: Mapping[str, Task] = attrs.field(factory=dict)

    @property
    def all_tasks(self) -> tuple[Task, ...]:
        """The tasks, then the forms of own data."""
        return (*self.tasks.values(), *self.formats.values())

    def algorithm(self, name: str) -> Algorithm:
        """Returns an algorithm; raises `UnknownNameError`."""
        if name not in self.algorithms:
            raise UnknownNameError("algo", name, self.algorithms)
        return self.algorithms[name]

    def task(self, name: str) -> Task:
        """Returns a task; raises `UnknownNameError`."""
        if name in self.tasks:
            return self.tasks[name]
        form, _, argument = name.partition(":")
        if form in self.formats and argument:
            return attrs.evolve(self.formats[form], name=name)
        raise UnknownNameError("task", name, [each.name for each in self.all_tasks])

    @functools.cached_property
    def users(self) -> Users:
        """Who declares which setting."""
        users: dict[str, dict[str, Hyperparameter]] = {}
        of_user = {RUN: self.run}
        for each in (*self.algorithms.values(), *self.all_tasks):
            of_user[each.user] = each.fields
        for user, fields in of_user.items():
            for name, field in fields.items():
                users.setdefault(name, {})[user] = field
        return users


def nearest_names(name: str, names: Iterable[str]) -> Sequence[str]:
    """Returns up to three names that a wrong one may stand for.

    They contain it, or it abbreviates their last words (`lr`, `client_lr`); if there are
    none, the one that is spelled almost like it, or those that begin with it or have
    its last word, or the one that is spelled most like it.
    """
    names = list(names)
    _, *last_word = name.split("_")
    return (
        _containing(name, names)
        or difflib.get_close_matches(name, names, n=1, cutoff=_ALMOST)
        or _beginning(name, names)
        or (_containing(last_word[-1], names) if last_word else [])
        or difflib.get_close_matches(name, names, n=1)
    )


def _containing(name: str, names: Sequence[str]) -> Sequence[str]:
    words = "_".join(map(_abbreviation, name.split("_")))
    last_words = re.compile(rf"(\w+_)?{words}")
    found = [
        each
        for each in names
        if f"_{name}_" in f"_{each}_" or last_words.fullmatch(each)
    ]
    # Of learning_rate, client_learning_rate comes before client_learning_rate_decay.
    found.sort(
        key=lambda each: not (each.startswith(name) or last_words.fullmatch(each))
    )
    return found[:_MAX_SUGGESTIONS]


def _beginning(name: str, names: Sequence[str]) -> Sequence[str]:
    long = len(name) >= _MIN_BEGINNING
    return [each for each in names if long and each.startswith(name)][:_MAX_SUGGESTIONS]


def _abbreviation(word: str) -> str:
    """Returns a pattern of a word that begins so, or of words with these initials."""
    ways = [re.escape(word) + "[^_]*" * (len(word) >= _MIN_BEGINNING)]
    if len(word) > 1:
        ways.append("_".join(f"{re.escape(letter)}[^_]*" for letter in word))
    return f"({'|'.join(ways)})"


def by_user(
    settings: Settings, declared: Mapping[str, Fields], refused: Mapping[str, str]
) -> dict[str, dict[str, Any]]:
    """Returns the settings of each of a run's users.

    Args:
      settings: What was set, by name; a list may be a text, as in a flag.
      declared: What each user declares.
      refused: Why the algorithm cannot have some settings of others.

    Raises:
      HyperparameterError: If none of the users has a setting.
    """
    found: dict[str, dict[str, Any]] = {user: {} for user in declared}
    for name, value in settings.items():
        takers = [user for user, fields in declared.items() if name in fields]
        if not takers:
            why = refused.get(name) or _nobody(name, declared)
            raise UnusableHyperparameterError(name, value, why)
        for user in takers:
            found[user][name] = declared[user][name].parse(value)
    return found


def _nobody(name: str, declared: Mapping[str, Fields]) -> str:
    """Says that none of a run's users has a setting, and who has it."""
    users_of = load().users
    owners = users_of.get(name, {})
    belongs = f"it belongs to {', '.join(owners)}"
    if not owners:
        # The algorithm's and the task's before those of every run.
        own = [each for user in reversed(declared) for each in declared[user]]
        nearest = nearest_names(name, own) or nearest_names(name, tuple(users_of))
        question = f"; did you mean {' or '.join(nearest)}?" if nearest else ""
        belongs = f"nothing has it{question}"
    return f"with {' '.join(tuple(declared)[1:])}: {belongs}"


def resolve(
    fields: Fields,
    layers: Iterable[Settings],
    chosen: Settings,
    *,
    may_be_missing: bool = False,
) -> dict[str, Any]:
    """Returns all settings: `chosen`, else the last layer's that has it, or the default.

    Args:
      fields: The declarations; what a layer has besides is ignored.
      layers: Defaults that replace the declared ones.
      chosen: What the user set.
      may_be_missing: Whether values that the user has to set may be missing.

    Raises:
      HyperparameterError: If a value is invalid or missing, or `chosen` holds two
        hyperparameters of which one replaces the other.
    """
    values = {name: field.default for name, field in fields.items()}
    for layer in layers:
        values |= {name: layer[name] for name in layer if name in fields}
    for name in chosen:
        check_replaced(name, fields[name].replaces, chosen)
    # A user's choice also wins over defaults of what would replace it.
    values |= {
        name: None
        for name, field in fields.items()
        if field.replaces in chosen and field.is_optional
    }
    values |= chosen
    missing = [name for name, value in values.items() if value is REQUIRED]
    if missing and not may_be_missing:
        raise MissingHyperparameterError(missing[0], "it has no default")
    return {
        name: value if value is REQUIRED else fields[name].checked(value)
        for name, value in values.items()
    }


def resolve_pair(
    declarations: Declarations,
    algo: str,
    task: str,
    settings: Settings,
    *,
    may_be_missing: bool = False,
) -> Settings:
    """Returns all settings of a run, and checks them as far as data can tell.

    With `may_be_missing`, values that the user has to set may be missing.

    Raises:
      UnknownNameError: If there is no such algorithm or task.
      HyperparameterError: If a setting is invalid, or nobody uses it.
    """
    algorithm, entry = declarations.algorithm(algo), declarations.task(task)
    declared = {
        RUN: declarations.run,
        algorithm.user: algorithm.fields,
        entry.user: entry.fields,
    }
    chosen = by_user(settings, declared, algorithm.refused)
    resolved = resolve(declarations.run, (), chosen[RUN])
    of_pair = of_task(algorithm.settings, task)
    resolved |= resolve(
        entry.fields, [of_pair], chosen[entry.user], may_be_missing=may_be_missing
    )
    return resolved | resolve(
        algorithm.fields,
        [entry.settings, of_pair],
        chosen[algorithm.user],
        may_be_missing=may_be_missing,
    )


def of_task(settings: Mapping[str, Settings], task: str) -> Settings:
    """Returns an algorithm's own defaults on a task, of those by task."""
    return {**settings.get(EVERY_TASK, {}), **settings.get(task, {})}


def check_own_data(declarations: Declarations, task: str) -> None:
    """Raises `RunError` if a task names a file or folder that cannot be read."""
    form, _, argument = task.partition(":")
    if task in declarations.tasks or form not in declarations.formats or not argument:
        return
    path = pathlib.Path(os.path.expanduser(argument))
    is_folder = declarations.formats[form].name.endswith(":DIR")
    fault = paths.fault(path, is_folder=is_folder)
    if fault is not None:
        raise RunError(f"--task={messages.shortened(task)}: {fault}.")


def to_json(declarations: Declarations) -> str:
    """Returns declarations as the text of a file, a line for each field.

    The `check` functions of fields are left out: `load` returns fields without them.
    """

    def whole(each: Algorithm | Task) -> dict[str, Any]:
        plain = attrs.asdict(each, filter=lambda field, _: field.name != "fields")
        return plain | {"fields": _encoded(each.fields)}

    def listed(entries: Iterable[Algorithm | Task]) -> str:
        return ",\n".join(json.dumps(whole(each), default=dict) for each in entries)

    text = (
        f'{{"run": {json.dumps(_encoded(declarations.run))},\n'
        f'"algorithms": [\n{listed(declarations.algorithms.values())}],\n'
        f'"tasks": [\n{listed(declarations.tasks.values())}],\n'
        f'"formats": [\n{listed(declarations.formats.values())}]}}\n'
    )
    return text.replace(', {"name": ', ',\n{"name": ').replace("[{", "[\n{")


def _encoded(fields: Fields) -> list[dict[str, Any]]:
    return [_encoded_field(field) for field in fields.values()]


def _encoded_field(field: Hyperparameter) -> dict[str, Any]:
    found = {"name": field.name, "kind": field.kind.__name__, "help": field.help}
    if field.default is not REQUIRED:
        found["default"] = field.default
    bounds = [None if math.isinf(b) else b for b in (field.valid.low, field.valid.high)]
    if field.valid != Interval():
        found["valid"] = [*bounds, field.valid.low_open, field.valid.high_open]
    for name in ("is_optional", "choices", "symbol", "replaces"):
        if getattr(field, name):
            found[name] = getattr(field, name)
    if field.form is not None:
        found["form"] = attrs.asdict(field.form)
    return found


def _decoded_field(found: Mapping[str, Any]) -> Hyperparameter:
    low, high, low_open, high_open = found.get("valid", (None, None, False, False))
    kind = _KINDS[found["kind"]]
    default = found.get("default", REQUIRED)
    return Hyperparameter(
        name=found["name"],
        kind=kind,
        default=tuple(default) if isinstance(default, list) else default,
        is_optional=found.get("is_optional", False),
        valid=Interval(
            -math.inf if low is None else low,
            math.inf if high is None else high,
            low_open,
            high_open,
        ),
        choices=tuple(found.get("choices", ())),
        symbol=found.get("symbol"),
        replaces=found.get("replaces"),
        form=Form(**found["form"]) if "form" in found else None,
        check=None,
        help=found["help"],
    )


def from_json(text: str) -> Declarations:
    """Returns the declarations that `to_json` wrote."""
    found = json.loads(text)

    def fields(encoded: Iterable[Mapping[str, Any]]) -> Fields:
        return {field["name"]: _decoded_field(field) for field in encoded}

    def named(kind: type, entries: Iterable[Mapping[str, Any]]) -> Mapping[str, Any]:
        return {
            each["name"]: kind(**{**each, "fields": fields(each["fields"])})
            for each in entries
        }

    return Declarations(
        run=fields(found["run"]),
        algorithms=named(Algorithm, found["algorithms"]),
        tasks=named(Task, found["tasks"]),
        formats={
            each.name.partition(":")[0]: each
            for each in named(Task, found["formats"]).values()
        },
    )


@functools.cache
def load() -> Declarations:
    """Returns the declarations of this package's algorithms and tasks."""
    return from_json(FILE.read_text("utf-8"))
