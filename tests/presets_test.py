"""Every preset is a run that the command line would take.

`python -m tests.presets_test` writes the pages that list each paper's presets.
"""

import pathlib
import re

import pytest
from absl.testing import flagsaver

import tasks
from tff_algos.experiments import catalog, cli, launch, run_flags
from tff_algos.experiments.recipe import EVERY_TASK

_ROOT = pathlib.Path(__file__).parents[1]
_PRESETS = _ROOT / "presets"
_FOLDERS = sorted({path.parent for path in _PRESETS.glob("*/*/*.flags")})
_PAPERS = sorted({folder.relative_to(_PRESETS).parts[0] for folder in _FOLDERS})

_LETTERS = {
    "b": "client_batch_size",
    "e": "client_epochs_per_round",
    "k": "finetune_steps",
    "m": "clients_per_round",
}


def test_every_paper_has_presets():
    assert _PAPERS == ["fedavg", "fedmgda", "gradma", "personalized_fedavg", "uga"]
    readme = (_PRESETS / "README.md").read_text()
    assert all(f"[`{paper}/`]({paper}/README.md)" in readme for paper in _PAPERS)


def _lines(path):
    """Returns the comments and the flags of a file."""
    lines = path.read_text().splitlines()
    comments = [line for line in lines if line.startswith("#")]
    return comments, lines[len(comments) :]


def _included(path):
    """Returns the files that a file includes, each with those that it includes."""
    files = []
    for flag in _lines(path)[1]:
        if flag.startswith("--flagfile="):
            file = _ROOT / flag.removeprefix("--flagfile=")
            files += [file, *_included(file)]
    return files


def _own_flags(path):
    return [flag for flag in _lines(path)[1] if not flag.startswith("--flagfile=")]


def _flags(path):
    """Returns the flags of a file, those of the files that it includes too."""
    return [flag for file in (path, *_included(path)) for flag in _own_flags(file)]


def _rows(folder):
    """Returns the files of a table's rows."""
    return sorted({*folder.glob("*.flags")} - {folder / "common.flags"})


def _text(comments):
    return " ".join(line.removeprefix("#").strip() for line in comments)


def _page(paper):
    """Returns the page of a paper's presets, with what their first lines say."""
    how = f"--flagfile=presets/{paper}/FOLDER/NAME.flags"
    comments, shared = _lines(_PRESETS / paper / "common.flags")
    results = f"[Our results](../../docs/papers/{paper}.md)."
    parts = [
        f"# Presets of `{paper}/`",
        "*Which tables and figures can be run, and what did the paper report?*",
        f"{results} The row `NAME` of the table `FOLDER` runs with `{how}`.",
        f"{_text(comments)} All tables have `{' '.join(shared)}`.",
    ]
    for folder in (each for each in _FOLDERS if each.parent.name == paper):
        rows = ["| preset | published number, or note |", "|---|---|"]
        for path in _rows(folder):
            rows.append(f"| `{path.stem}` | {_text(_lines(path)[0])} |")
        about = _text(_lines(folder / "common.flags")[0])
        parts += [f"## {folder.name}", about, "\n".join(rows)]
    return "\n\n".join(parts) + "\n"


@pytest.mark.parametrize("paper", _PAPERS)
def test_the_page_of_a_paper_lists_its_presets(paper):
    assert (_PRESETS / paper / "README.md").read_text() == _page(paper)


def _names(flags):
    return [flag.removeprefix("--").partition("=")[0] for flag in flags]


@pytest.mark.parametrize("folder", _FOLDERS, ids=lambda f: "/".join(f.parts[-2:]))
def test_presets_set_flags_that_their_algorithm_and_task_use(folder, monkeypatch):
    monkeypatch.chdir(_ROOT)
    cli.define_flags()
    of_table = folder / "common.flags"
    assert folder.parent / "common.flags" in _included(of_table)
    about = " ".join(_lines(of_table)[0])
    assert re.search(r"et al\., 20\d\d, arXiv \d{4}\.\d{5}", about)
    rows = _rows(folder)
    assert len(rows) > 1
    for row in rows:
        assert _lines(row)[0], f"{row} says nothing of published numbers"
        assert of_table in _included(row)
        names = _names(_flags(row))
        assert len(names) == len(set(names)), f"{row} sets a flag twice"
        with flagsaver.flagsaver():
            cli.FLAGS.unparse_flags()
            cli.FLAGS(["main.py", f"--flagfile={row}"])
            recipe, entry = catalog.get(cli.FLAGS.algo), tasks.get(cli.FLAGS.task)
            chosen = run_flags.settings_of(cli.FLAGS, run_flags.declared())
            _, _, settings = launch.resolve(recipe, entry, chosen)
            assert cli.FLAGS.data == "tff"
        _check_name(row, settings)
        of_pair = recipe.settings.get(EVERY_TASK, {}) | recipe.settings.get(
            entry.name, {}
        )
        left = of_pair.keys() & settings.keys() - chosen.keys()
        assert not left, f"{row} leaves {left} to defaults that teach in minutes"


def _assert_nothing_is_repeated(files):
    """Asserts that several files have at most one flag, their subject, in common."""
    repeated = set.intersection(*(set(_own_flags(file)) for file in files))
    assert len(files) == 1 or len(repeated) <= 1, (files, repeated)


@pytest.mark.parametrize("paper", _PAPERS)
def test_what_all_tables_of_a_task_share_is_in_one_file(paper):
    by_task = {}
    for folder in (each for each in _FOLDERS if each.parent.name == paper):
        table = folder / "common.flags"
        task = [flag for flag in _flags(table) if flag.startswith("--task=")]
        by_task.setdefault(tuple(task), []).append(table)
    for tables in by_task.values():
        _assert_nothing_is_repeated(tables)


def test_what_a_method_of_gradmas_tables_has_in_all_columns_is_in_one_file():
    columns = sorted(_PRESETS.glob("gradma/tables_1_2_*"))
    for row in _rows(_PRESETS / "gradma/tables_1_2_mnist_10_per_round_0.01"):
        _assert_nothing_is_repeated([column / row.name for column in columns])


def _check_name(row, settings):
    """Asserts that the names of folder and file say what the flags say."""
    words = f"{row.parent.name}_{row.stem}".split("_")
    for letter, name in _LETTERS.items():
        if said := {word for word in words if re.fullmatch(rf"{letter}\d+", word)}:
            assert said == {f"{letter}{settings[name]}"}, row


def test_full_batches_are_one_step():
    """Hu et al., section 6.1.1: users have 400 training examples."""
    shared = _flags(_PRESETS / "fedmgda/figures_3_4_cifar10_b400/common.flags")
    assert "--client_batch_size=400" in shared
    assert "--client_test_fraction=0.2" in shared
    assert "--partition=shards:5" in shared


def test_gradma_has_the_settings_of_its_authors_code():
    for kind in ("gradma", "gradma_w"):
        rows = sorted(_PRESETS.glob(f"gradma/*/{kind}.flags"))
        assert len(rows) == 14
        for row in rows:
            flags = _flags(row)
            assert "--qp_scope=per_tensor" in flags, row
            of_w = {"--persist_previous", "--server_learning_rate=2.0"}
            assert set(flags) & of_w == (of_w if kind == "gradma_w" else set()), row


def test_larger_batches_change_the_learning_rates_of_femnist_only():
    """Yao et al., section 4.1.3: linear scaling is stated for FEMNIST alone."""
    rates = {}
    for folder in sorted(_PRESETS.glob("uga/*_b*")):
        for row in _rows(folder):
            flags = {flag for flag in _flags(row) if "client_learning_rate=" in flag}
            if "ten_times" not in row.stem:
                rates.setdefault(folder.name, set()).update(flags)
    assert all(len(flags) == 1 for flags in rates.values())
    found = {name: flags.pop().partition("=")[2] for name, flags in rates.items()}
    assert found == {
        "cifar10_e2_b128": "0.002",
        "cifar10_e2_b64": "0.002",
        "cifar10_e5_b128": "0.002",
        "femnist_e2_b64": "0.002",
        "femnist_e5_b128": "0.004",
        "femnist_e5_b64": "0.002",
    }


def test_q_fedavg_has_the_authors_lipschitz_constant_on_adult():
    rows = sorted(_PRESETS.glob("fedmgda/table_7_adult/qfedavg_*.flags"))
    assert len(rows) == 12
    assert all("--lipschitz=1.0" in _flags(row) for row in rows)


if __name__ == "__main__":
    for each in _PAPERS:
        (_PRESETS / each / "README.md").write_text(_page(each))
