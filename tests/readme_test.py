"""README and docs say what is true.

`python -m tests.readme_test` writes the tables of algorithms and tasks anew.
"""

import json
import pathlib
import re
import shlex
import subprocess
import sys
import types
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from PIL import Image

import tff_algos
from tests.testing.command_line import SMALL, run_apart, run_here, run_program
from tff_algos.experiments import catalog, declarations, plugins, report
from tff_algos.experiments.comparison import columns
from tff_algos.experiments.comparison import command as command_lib
from tff_algos.experiments.comparison import rows as rows_lib
from tff_algos.experiments.recipe import Recipe

_ROOT = pathlib.Path(__file__).parents[1]
_ALGORITHMS = _ROOT / "docs" / "algorithms.md"
_PAGES = [
    *(_ROOT / name for name in ("README.md", "CONTRIBUTING.md", "presets/README.md")),
    *sorted((_ROOT / "docs").rglob("*.md")),
]
_TABLES = re.compile(r"(<!-- algorithms: [^\n]*-->\n)(.*?)(<!-- end -->)", re.DOTALL)


def _tables() -> str:
    declared = plugins.declare(plugins.own())
    builders = {recipe.name: _builder(recipe) for recipe in catalog.RECIPES}
    return report.markdown_tables(
        declared.algorithms.values(), declared.all_tasks, builders
    )


def _builder(recipe: Recipe) -> str:
    """Returns the call, without arguments, that builds what the recipe runs."""
    name = recipe.build.__name__
    # Names with momentum at the server have a builder of their own.
    if recipe.name.endswith("m") and f"{name}_m" in tff_algos.__all__:
        name += "_m"
    for outer in reversed(recipe.also):
        name = f"{outer.__name__}({name}(...), ...)"
    return name


def test_the_tables_are_the_catalogs():
    assert _TABLES.search(_ALGORITHMS.read_text())[2] == f"{_tables()}\n"


def _anchors(page: pathlib.Path) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", t).lower().replace(" ", "-") for t in titles}


@pytest.mark.parametrize("page", _PAGES, ids=lambda page: str(page.relative_to(_ROOT)))
def test_every_link_leads_somewhere(page):
    for link in re.findall(r"\]\((?!http)([^)]+)\)", page.read_text()):
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        assert target.exists(), link
        assert not anchor or anchor in _anchors(target), link
    for name in re.findall(r"--flagfile=([^\s*'`]+)", page.read_text()):
        assert (_ROOT / name).exists(), name


def test_pages_are_found():
    names = {page.name for page in _PAGES}
    assert {"README.md", "runs.md", "gradma.md"} <= names and len(names) > 15


@pytest.mark.parametrize("page", _PAGES, ids=lambda page: str(page.relative_to(_ROOT)))
def test_every_page_opens_with_the_readers_question(page):
    if page != _ROOT / "README.md":
        title, _, opening = page.read_text().split("\n", 2)
        assert title.startswith("# ")
        assert re.match(r"\*[^*]+\?\*", opening), page


def test_every_public_module_is_in_the_reference():
    pages = "".join(page.read_text() for page in (_ROOT / "docs" / "api").glob("*.md"))
    modules = [
        name
        for name in tff_algos.__all__
        if isinstance(getattr(tff_algos, name), types.ModuleType)
    ]
    assert {"aggregators", "hyperparameters"} <= set(modules)
    for name in (*modules, "privacy", "algorithms"):
        assert f"::: tff_algos.{name}\n" in pages, name


def test_every_page_is_in_the_site():
    site = (_ROOT / "tools" / "site" / "mkdocs.yml").read_text()
    for page in (_ROOT / "docs").rglob("*.md"):
        assert f": {page.relative_to(_ROOT / 'docs')}\n" in site


_ON_A_LINE = re.compile(r"^\S*python main\.py ([^`\n]*)$", re.MULTILINE)
_IN_A_SENTENCE = re.compile(r"`(?:python )?main\.py ([^`\n]*)`")
# Of calls that stand in sentences, those that are whole and name no placeholders.
_WHOLE = re.compile(r"compare |--list|--algo=(?!NAME|\.)|--flagfile=")


def _calls() -> list[str]:
    """Every call of main.py: on lines of their own, and whole ones in sentences."""
    text = "\n".join(page.read_text() for page in _PAGES).replace("\\\n", "")
    found = _ON_A_LINE.findall(text)
    found += [call for call in _IN_A_SENTENCE.findall(text) if _WHOLE.match(call)]
    return list(dict.fromkeys(" ".join(call.split()) for call in found))


def _commands() -> list[str]:
    """Every run in one process."""
    return [
        call
        for call in _calls()
        if "--runtime=ray" not in call and not call.startswith(("compare ", "--list"))
    ]


def _ray_commands() -> list[str]:
    """Every run in Ray workers."""
    return [call for call in _calls() if "--runtime=ray" in call]


def _lists() -> list[str]:
    return [
        call for call in _calls() if call.startswith("--list") and "..." not in call
    ]


def _comparisons() -> list[str]:
    # tests/experiments/plugins_test.py writes and loads the modules of a page.
    calls = [
        call
        for call in _calls()
        if call.startswith("compare ") and "--module=" not in call
    ]
    # Neither the help nor flags alone, as in a sentence on them.
    return [call for call in calls if not call.split()[1].startswith("--")]


@pytest.mark.parametrize("command", _comparisons())
def test_every_comparison_has_rows(command, monkeypatch):
    monkeypatch.chdir(_ROOT)
    _, *words = shlex.split(command)
    values, contenders, common = command_lib.parse(words)
    what = declarations.load()
    rows = rows_lib.make_rows(contenders, common, values.grid, what)
    assert len(rows) > 1 or "*" not in command
    assert all(map(columns.parse_column, values.columns))


@pytest.mark.parametrize("command", _lists())
def test_every_list_is_printed(command, capfd):
    done = run_here(capfd, *command.split())
    assert done.status == 0
    assert "--algo" in done.out or "--memory_decay=0.5" in done.out


def _short(command: str) -> list[str]:
    """Returns the flags that make a call short."""
    flags = [*SMALL, "--max_elements_per_client=20"]
    if "presets/personalized_fedavg/" in command:  # Its rounds are set by stage.
        flags = [flag for flag in flags if not flag.startswith("--total_rounds")]
        flags += ["--pretrain_rounds=1", "--finetune_rounds=1"]
    return flags


def _shortened_comparison(command: str, model: pathlib.Path) -> list[str]:
    """Returns a comparison's arguments: a seed, few rounds, two rows of a pattern."""
    words = []
    for word in shlex.split(command):
        if "*" in word:
            rows = sorted(p for p in _ROOT.glob(word) if p.stem != "common")
            words += [str(path.relative_to(_ROOT)) for path in rows[:2]]
        elif word.startswith("--initial_model="):
            words.append(f"--initial_model={model}")
        else:
            words.append(word)
    return [*words, *_short(command), "--seeds=1", "--jobs=2"]


@pytest.mark.slow
@pytest.mark.parametrize("command", _comparisons())
def test_every_comparison_runs(command, tmp_path):
    model = tmp_path / "model"
    if "--initial_model=" in command:
        first = ("--algo=fedavg", "--task=emnist", "--only_digits")
        done = run_apart(tmp_path, *first, *_short(""), f"--output_dir={model}")
        assert done.status == 0, done.err
    arguments = _shortened_comparison(command, model)
    done = run_program(*arguments, f"--output_dir={tmp_path}", cwd=_ROOT)
    assert done.status == 0, done.err
    assert (tmp_path / "report.html").stat().st_size > 10_000
    assert "failed" not in (tmp_path / "table.md").read_text()


def test_every_target_of_make_exists():
    text = "\n".join(page.read_text() for page in _PAGES)
    named = set(re.findall(r"(?:^|`)make ([a-z-]+)", text, re.MULTILINE))
    targets = re.findall(r"^([a-z-]+):", (_ROOT / "Makefile").read_text(), re.MULTILINE)
    assert {"run", "test", "site", "notebooks"} <= named <= set(targets)


def _tier(command: str) -> pytest.MarkDecorator:
    # An attack has to fit the cohort; the others repeat what other tests run.
    return pytest.mark.extended if "--attack" in command else pytest.mark.slow


# pytest numbers the parameters that are longer than this, so durations would be lost.
_LONGEST_ID = 90


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(command, marks=_tier(command), id=command[:_LONGEST_ID])
        for command in _commands()
    ],
)
def test_every_command_runs(tmp_path, command):
    run = tmp_path / "run"
    words = [_with_own_data(word, tmp_path) for word in shlex.split(command)]
    short = _short(command)
    if words != shlex.split(command):  # There is nothing to generate in its place.
        short.remove("--data=generated")
    flags = [*_with_those_of_files(words)]
    others = [flag for flag in flags if not flag.startswith("--initial_model=")]
    if others != flags:
        model = tmp_path / "model"
        done = run_apart(tmp_path, *others, *short, f"--output_dir={model}")
        assert done.status == 0, done.err
        short.append(f"--initial_model={model}")
    done = run_apart(tmp_path, *words, *short, f"--output_dir={run}")
    assert done.status == 0, done.err
    assert (run / "summary.json").exists()


def _with_those_of_files(words: Sequence[str]) -> Iterator[str]:
    """Yields a command's flags, with the flags of a file in place of `--flagfile`."""
    for word in words:
        flag, _, name = word.partition("=")
        if flag == "--flagfile":
            lines = (_ROOT / name).read_text().splitlines()
            yield from (line for line in lines if line.startswith("--"))
        else:
            yield word


def _with_own_data(word: str, folder: pathlib.Path) -> str:
    """Returns a word of a command with a file in the place of a reader's own."""
    kind, colon, name = word.removeprefix("--task=").partition(":")
    if not colon or kind not in _OWN_DATA:
        return word
    _OWN_DATA[kind](folder / name)
    return f"--task={kind}:{folder / name}"


def _write_table(path: pathlib.Path) -> None:
    lines = [
        f"{20 + i % 50},{'AB'[i % 2]},{'XYZ'[i % 3]},{'high' if i % 7 else 'low'},{i % 4}"
        for i in range(120)
    ]
    path.write_text("\n".join(["age,job,city,income,hospital", *lines]))


def _write_arrays(path: pathlib.Path) -> None:
    rng = np.random.default_rng(0)
    arrays = {"x": rng.normal(size=(120, 3)), "y": rng.integers(0, 2, 120)}
    np.savez(path, **arrays, ids=np.arange(120) % 6)


def _write_images(path: pathlib.Path) -> None:
    rng = np.random.default_rng(0)
    for number in range(60):
        folder = path / "ab"[number % 2]
        folder.mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 256, (16, 16, 3), np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")


_OWN_DATA = {"csv": _write_table, "npz": _write_arrays, "folder": _write_images}


@pytest.mark.slow
@pytest.mark.parametrize("command", _ray_commands())
def test_every_command_with_ray_runs_on_a_cluster_of_one_machine(tmp_path, command):
    pytest.importorskip("ray", reason="ray is not installed (requirements-ray.txt)")
    arguments = [*shlex.split(command), *_short(command), f"--output_dir={tmp_path}"]
    done = subprocess.run(
        [sys.executable, "-m", "tests.testing.ray_commands", *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=_ROOT,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "config.json").read_text())["runtime"] == "ray"
    assert "sent to workers and received per round" in done.stdout


@pytest.mark.slow
def test_the_first_command_prints_what_the_readme_shows(tmp_path):
    readme = (_ROOT / "README.md").read_text()
    command = "--algo=personalized_fedavg --task=emnist"
    assert f"`python main.py {command}`" in readme
    flags = [f"--cache_dir={tmp_path / 'empty'}", f"--output_dir={tmp_path / 'run'}"]
    done = run_program(*command.split(), *flags)
    assert done.status == 0, done.err
    (shown,) = re.findall(r"^Personalized FedAvg on .*?(?=^```)", readme, _BLOCK)
    assert _labels(shown) == _labels(done.out[done.out.index("Personalized FedAvg") :])
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    clients = summary["personalization"]
    found = {
        "held-out accuracy": summary["final_metrics"]["eval/accuracy"],
        "initial accuracy": clients["initial_accuracy"],
        "personalized accuracy": clients["personalized_accuracy"],
    }
    for name, accuracy in found.items():
        (percent,) = re.findall(rf"{name}, .*?  +([\d.]+) %", shown)
        # Processors differ by about a point.
        assert accuracy == pytest.approx(float(percent) / 100, abs=0.02), name


_BLOCK = re.DOTALL | re.MULTILINE


def _labels(table: str) -> list[str]:
    """Returns the lines of a run's table without their numbers."""
    return re.findall(r"^ +(\S.*?)  +\S", table, re.MULTILINE)


def test_the_commands_are_found():
    commands = _commands()
    assert len(commands) >= 10
    assert len(_ray_commands()) >= 3
    assert len(_comparisons()) >= 4
    assert len(_lists()) >= 2
    assert any("--nomalicious_every_round" in command for command in commands)
    kinds = {k for k in _OWN_DATA for command in commands if f"--task={k}:" in command}
    assert kinds == _OWN_DATA.keys()


if __name__ == "__main__":
    text = _TABLES.sub(lambda m: f"{m[1]}{_tables()}\n{m[3]}", _ALGORITHMS.read_text())
    _ALGORITHMS.write_text(text)
