"""A comparison as one HTML page that needs no other file."""

import base64
import datetime
import html
import itertools
import pathlib
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from tff_algos import messages
from tff_algos.experiments.comparison.columns import Results
from tff_algos.experiments.comparison.rows import Row
from tff_algos.experiments.comparison.runs import Outcomes
from tff_algos.experiments.metric_names import ROUND

_TITLE_LENGTH = 80  # characters of rows' names
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 60em;
       padding: 0 1em; color: #222; }
table { border-collapse: collapse; }
th, td { border-bottom: 1px solid #ccc; padding: .3em .8em; text-align: right; }
th:first-child, td:first-child { text-align: left; }
.table { overflow-x: auto; }
img { max-width: 100%; }
dl { display: grid; grid-template-columns: max-content auto; column-gap: 1em; }
dd { margin: 0; }
code { overflow-wrap: anywhere; }
"""
# Settings that are no flags, or no two runs of a row share.
_NO_FLAGS = ("dataset", "seed")
_ATTACK = ("attack", "malicious_clients", "malicious_every_round")
# Rows' names and the note on attacks tell these apart.
_TOLD = (*_NO_FLAGS, "algo", *_ATTACK)


def render(
    outcomes: Outcomes,
    header: Sequence[str],
    lines: Sequence[Sequence[str]],
    notes: Sequence[str],
    plots: Sequence[pathlib.Path],
) -> str:
    """Returns the page.

    Args:
      outcomes: The results.
      header: The names of the table's columns.
      lines: The cells of each row.
      notes: What stands below the table.
      plots: The plots' files.
    """
    body = "\n".join(f"<tr>{_elements('td', texts)}</tr>" for texts in lines)
    told = "\n".join(
        _element("dt", name) + _element("dd", value)
        for name, value in facts(outcomes).items()
    )
    images = "\n".join(
        f'<img alt="{path.stem}" src="data:image/png;base64,'
        f'{base64.b64encode(path.read_bytes()).decode()}">'
        for path in plots
    )
    heading = html.escape(title(outcomes))
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width"><title>{heading}</title>
<style>{_STYLE}</style></head><body>
<h1>{heading}</h1>
<dl>
{told}
</dl>
<div class="table"><table><thead><tr>{_elements("th", header)}</tr></thead><tbody>
{body}
</tbody></table></div>
{_elements("p", notes)}
{images}
{_flags(outcomes)}</body></html>
"""


def shared_subject(outcomes: Outcomes) -> str | None:
    """Returns what all completed runs are of; None if their datasets differ.

    That is the dataset's name, and the attack if all of them are under the same.
    """
    completed = _completed(outcomes)
    datasets = {each.dataset for each in completed}
    attacks = {attack_flags(each.settings) for each in completed}
    if len(datasets) != 1:
        return None
    (dataset,) = datasets
    attack = attacks.pop() if len(attacks) == 1 else ""
    return f"{dataset} under {attack}" if dataset and attack else dataset


def attack_flags(settings: Mapping[str, Any]) -> str:
    """Returns the flags of a run's attack; "" if there is none."""
    found = _attack_settings(settings)
    return " ".join(f"--{name}={value}" for name, value in found.items())


def _attack_settings(settings: Mapping[str, Any]) -> dict[str, str]:
    """Returns what the settings of a run say of an attack; nothing if there is none."""
    if not settings.get("attack"):
        return {}
    unset = {"malicious_every_round": True}
    return {
        name: _text(settings[name])
        for name in _ATTACK
        if settings.get(name) not in (None, unset.get(name))
    }


def with_attacks_in_labels(outcomes: Outcomes) -> Outcomes:
    """Returns the same results; where attacks differ, rows' labels say the attack."""
    found = {
        row: _attack_settings(completed[0].settings)
        for row, results in outcomes.items()
        if (completed := [each for each in results if each is not None])
    }

    def label(row: Row) -> str:
        words = [
            value if name == "attack" else f"{name}={value}"
            for name, value in found.get(row, {}).items()
            if {value} != {each.get(name) for each in found.values()}
        ]
        # Not the end of a longer word, or its beginning.
        untold = [
            word
            for word in words
            if not re.search(rf"(?<![\w.]){re.escape(word)}(?![\w.])", row.label)
        ]
        return f"{row.label} under {', '.join(untold)}" if untold else row.label

    return {attrs.evolve(row, label=label(row)): outcomes[row] for row in outcomes}


def title(outcomes: Outcomes) -> str:
    """Returns what is compared, and on what; of many rows the first ones."""
    subject = shared_subject(outcomes)
    first, *others = [row.label for row in outcomes]
    while others and len(first) + len(others[0]) < _TITLE_LENGTH:
        first += f", {others.pop(0)}"
    more = f" and {len(others)} more" if others else ""
    return f"Comparison{f' on {subject}' if subject else ''}: {first}{more}"


def facts(outcomes: Outcomes) -> dict[str, str]:
    """Returns what a reader asks of the completed runs as a whole, by its name."""
    completed = _completed(outcomes)
    found = {
        "task": sorted({each.dataset for each in completed if each.dataset}),
        "rounds": sorted({each.rows[-1][ROUND] for each in completed if each.rows}),
        "seeds": sorted({each.settings.get("seed", 0) for each in completed}),
        "date": [datetime.date.today().isoformat()],
    }
    return {name: ", ".join(map(str, each)) for name, each in found.items() if each}


def shared_flags(outcomes: Outcomes) -> list[str]:
    """Returns the flags, `--name=value`, that all completed runs have, unless unset."""
    first, *others = [each.settings for each in _completed(outcomes)] or [{}]
    # The noise that a target needs is recorded too, but both cannot be set.
    derived = ["dp_noise_multiplier"] if first.get("dp_target_epsilon") else []
    return [
        shlex.quote(f"--{name}={_text(value)}")
        for name, value in first.items()
        if value is not None
        and name not in (*_NO_FLAGS, *derived)
        and all(name in each and each[name] == value for each in others)
    ]


def differing_datasets(outcomes: Outcomes) -> list[str]:
    """Returns the datasets of rows, as one text, if they differ and no name says it."""
    named = {
        row.label: next((each.dataset for each in results if each), None)
        for row, results in outcomes.items()
    }
    datasets = {label: dataset for label, dataset in named.items() if dataset}
    if len(set(datasets.values())) < 2:
        return []
    if all(dataset in label for label, dataset in datasets.items()):
        return []
    return [f"the dataset ({', '.join(map(str, named.values()))})"]


def differing_flags(outcomes: Outcomes) -> list[str]:
    """Returns the flags in which rows differ, with the value of each row.

    Settings that only one row has are left out. "-" stands for a row without a setting.
    """
    completed = [next(filter(None, results), None) for results in outcomes.values()]
    by_row = [each.settings if each else {} for each in completed]
    return [
        f"--{name} ({', '.join(_value(settings, name) for settings in by_row)})"
        for name in dict.fromkeys(itertools.chain(*by_row))
        if name not in _TOLD and _differs(name, by_row)
    ]


def _differs(name: str, by_row: Sequence[Mapping[str, Any]]) -> bool:
    first, *others = [settings[name] for settings in by_row if name in settings]
    return any(value != first for value in others)


def _value(settings: Mapping[str, Any], name: str) -> str:
    if name not in settings:
        return "-"
    value = settings[name]
    return "unset" if value is None else messages.shortened(_text(value))


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _completed(outcomes: Outcomes) -> list[Results]:
    return [each for results in outcomes.values() for each in results if each]


def _flags(outcomes: Outcomes) -> str:
    """Returns the flags that runs share, folded: there are dozens of them."""
    found = " ".join(shared_flags(outcomes))
    if not found:
        return ""
    code = _element("code", found)
    summary = "<summary>Flags that all runs share</summary>"
    return f"<details>{summary}<p>{code}</p></details>\n"


def _element(kind: str, text: str) -> str:
    return f"<{kind}>{html.escape(text)}</{kind}>"


def _elements(kind: str, texts: Sequence[str]) -> str:
    return "".join(_element(kind, text) for text in texts)
