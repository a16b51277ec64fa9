"""The notebooks run where Jupyter starts them, and hold what they printed and drew."""

import base64
import importlib.metadata
import json
import os
import pathlib
import runpy
import subprocess
import sys

import pytest

_ROOT = pathlib.Path(__file__).parents[1]
_FOLDER = _ROOT / "notebooks"
_RUNNER = _ROOT / "tests" / "testing" / "notebook_cells.py"

# By notebook: expressions of its variables that hold in the end.
_CLAIMS = {
    "quickstart": (
        "losses[-1] < losses[0]",
        "curve[-1] > curve[0] + 0.1",
        "result.metrics['eval/accuracy'][-1] > 0.5",
    ),
    "own_algorithm": (
        "comparison.num_failed == 0",
        "[len(runs) for runs in comparison.outcomes.values()] == [3, 3]",
        "{row.label for row in comparison.outcomes} == {'fedavg', 'clipped'}",
    ),
    "aggregators_in_tff": (
        "plain_mean[-1] < 0.2",
        "guarded[-1] > 0.4",
        "min_norm[-1] > 0.3",
        "private[0.01][-1] > 0.3",
    ),
    "own_data": (
        "stations_run.metrics['eval/accuracy'][-1] > 0.7",
        "table_run.metrics['eval/accuracy'][-1] > 0.7",
        "photos_run.metrics['eval/accuracy'][-1] > 0.9",
        "result.spec.task.dataset_name == 'weather_clients'",
        "result.metrics['eval/accuracy'][-1] > 0.75",
        "len(accuracy) == 12",
    ),
    "fairness_and_attacks": (
        "honest['fedavg'].metrics['eval/accuracy'][-1] > 0.5",
        "attacked['fedavg'].metrics['eval/accuracy'][-1] < 0.25",
        "attacked['fedmgda_plus'].metrics['eval/accuracy'][-1] > 0.4",
    ),
    "personalization": (
        "personalized.mean() > initial.mean() + 0.05",
        "after > before",
    ),
}


def _cells(name):
    notebook = json.loads((_FOLDER / f"{name}.ipynb").read_text())
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def _outputs(name):
    return [output for cell in _cells(name) for output in cell["outputs"]]


def test_every_notebook_makes_claims():
    assert {path.stem for path in _FOLDER.glob("*.ipynb")} == _CLAIMS.keys()


def _project(folder):
    """Returns a folder with the project's packages, where runs may be left."""
    for name in ("tff_algos", "tasks", "requirements.txt"):
        (folder / name).symlink_to(_ROOT / name)
    (folder / "notebooks").mkdir()
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("start", ["notebooks", "."])
@pytest.mark.parametrize("name", _CLAIMS)
def test_it_runs_where_jupyter_starts_it(name, start, tmp_path):
    done = subprocess.run(
        [sys.executable, "-P", _RUNNER, _FOLDER / f"{name}.ipynb", *_CLAIMS[name]],
        cwd=_project(tmp_path) / start,
        env={**os.environ, "MPLBACKEND": "agg"},
        capture_output=True,
        check=False,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    held = json.loads(done.stdout.splitlines()[-1])
    assert dict(zip(_CLAIMS[name], held, strict=True)) == dict.fromkeys(
        _CLAIMS[name], True
    )
    # No log lines of TensorFlow's C++ code or of its saves.
    assert "0000 00:00" not in done.stderr and "Assets written" not in done.stderr


@pytest.mark.parametrize("name", _CLAIMS)
def test_its_plots_are_stored_and_no_logs(name):
    # All cells ran, in order, since the kernel started.
    counts = [cell["execution_count"] for cell in _cells(name)]
    assert counts == list(range(1, len(counts) + 1))
    outputs = _outputs(name)
    images = [
        base64.b64decode(output["data"]["image/png"])
        for output in outputs
        if "image/png" in output.get("data", {})
    ]
    assert images and all(image.startswith(b"\x89PNG") for image in images)
    assert (_FOLDER / f"{name}.ipynb").stat().st_size < 300_000
    kinds = {output["output_type"] for output in outputs}
    assert kinds <= {"display_data", "execute_result", "stream"}
    text = json.dumps([o for o in outputs if "image/png" not in o.get("data", {})])
    assert "INFO:" not in text and "<Figure" not in text and "WARNING" not in text


def test_all_begin_with_the_same_set_up_cell():
    assert len({"".join(_cells(name)[0]["source"]) for name in _CLAIMS}) == 1


@pytest.fixture
def colab():
    return runpy.run_path(str(_FOLDER / "colab.py"))


def test_colab_is_told_what_is_replaced(colab, tmp_path, monkeypatch, capsys):
    called = []
    monkeypatch.setattr(
        subprocess, "run", lambda command, **options: called.append(command)
    )
    path = tmp_path / "requirements.txt"
    numpy = importlib.metadata.version("numpy")
    path.write_text("# Pins.\nnumpy==0.1.2\nno-such-package==3.4\nattrs==9.9\n")
    with pytest.raises(SystemExit, match="restart the session"):
        colab["install"](path)
    out = capsys.readouterr().out
    assert out.splitlines()[:2] == [
        "Packages to install: 1; to replace: 2",
        f"  numpy {numpy} by 0.1.2",
    ]
    ((*_, option, file),) = called
    assert (option, file) == ("-r", str(path))


def test_colab_has_nothing_to_do_the_second_time(colab, tmp_path, capsys):
    path = tmp_path / "requirements.txt"
    path.write_text(f"numpy=={importlib.metadata.version('numpy')}\n")
    colab["install"](path)
    assert capsys.readouterr().out == "The packages are installed.\n"
