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
        for path in sorted(folder.glob("*.flags")):
            if path.stem != "common":
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
    comments, of_table = _lines(folder / "common.flags")
    of_paper = folder.parent / "common.flags"
    assert of_table[0] == f"--flagfile={of_paper.relative_to(_ROOT)}"
    shared = _lines(of_paper)[1] + of_table[1:]
    assert re.search(r"et al\., 20\d\d, arXiv \d{4}\.\d{5}", " ".join(comments))
    rows = [path for path in folder.glob("*.flags") if path.stem != "common"]
    assert len(rows) > 1
    for row in rows:
        _, own = _lines(row)
        assert own[0] == f"--flagfile={(folder / 'common.flags').relative_to(_ROOT)}"
        names = _names(shared + own[1:])
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


def _flags(path):
    """Returns the flags of a row, those of its table and its paper included."""
    files = [path, path.parent / "common.flags", path.parents[1] / "common.flags"]
    return {flag for file in files for flag in _lines(file)[1]}


def test_gradma_has_the_settings_of_its_authors_code():
    for kind in ("gradma", "gradma_w"):
        rows = sorted(_PRESETS.glob(f"gradma/*/{kind}.flags"))
        assert len(rows) == 14
        for row in rows:
            flags = _flags(row)
            assert "--qp_scope=per_tensor" in flags, row
            of_w = {"--persist_previous", "--server_learning_rate=2.0"}
            assert flags & of_w == (of_w if kind == "gradma_w" else set()), row


def test_larger_batches_change_the_learning_rates_of_femnist_only():
    """Yao et al., section 4.1.3: linear scaling is stated for FEMNIST alone."""
    rates = {}
    for folder in sorted(_PRESETS.glob("uga/*_b*")):
        for row in {*folder.glob("*.flags")} - {folder / "common.flags"}:
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
