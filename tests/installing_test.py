"""The commands that install the project and build its site, run in a copy of it."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest
from packaging import utils

from tests.testing import package_index
from tests.testing.command_line import ROOT, SMALL

_HIDDEN = shutil.ignore_patterns(
    ".git", ".venv*", ".*_cache", ".hypothesis", "__pycache__"
)
_MADE = {"build", "dist", "runs", "site"}
# Variables that the run of these tests, perhaps by `make`, has and a user has not.
_OF_THIS_RUN = {
    "PYTHONPATH",
    "GPU",
    "RAY",
    "PYTHON",
    "MAKEFLAGS",
    "MAKEOVERRIDES",
    "MAKELEVEL",
}
_PYTHON_3 = pathlib.Path(sys.base_prefix, "bin", "python3")


def _not_in_a_clone(folder: str, names: list[str]) -> set[str]:
    made = _MADE if pathlib.Path(folder) == ROOT else set()
    return _HIDDEN(folder, names) | made.intersection(names)


def _page() -> str:
    return (ROOT / "docs" / "runs.md").read_text()


def _block(first_words: str) -> list[str]:
    """Returns the commands of the page's block that begins with these words."""
    blocks = re.findall(r"^```\n(.*?)^```$", _page(), re.DOTALL | re.MULTILINE)
    (found,) = (block for block in blocks if block.startswith(first_words))
    return found.splitlines()


def _finished(
    command: str, folder: pathlib.Path, stdin: str = "", **variables: str
) -> subprocess.CompletedProcess:
    """Runs a command as a user would, without what this environment adds."""
    environment = {k: v for k, v in os.environ.items() if k not in _OF_THIS_RUN}
    environment["PATH"] = f"{_PYTHON_3.parent}{os.pathsep}{environment['PATH']}"
    return subprocess.run(
        ["bash", "-c", command],
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env=environment | variables,
    )


def _run(command: str, folder: pathlib.Path, **variables: str) -> str:
    """Runs a command that must succeed; returns what it printed."""
    done = _finished(command, folder, **variables)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    """A clone in which the page's commands without `make` ran; yields its folder."""
    folder = tmp_path_factory.mktemp("installing") / "clone"
    shutil.copytree(ROOT, folder, ignore=_not_in_a_clone)
    create, install, run = _block("python3 -m venv")
    _run(create, folder)
    package_index.require(folder / ".venv/bin/python")
    _run(install, folder)
    printed = _run(f"{run} {' '.join(SMALL)} --output_dir=runs/first", folder)
    assert "held-out accuracy" in printed
    yield folder
    # A notebook server that was killed may still write into it.
    shutil.rmtree(folder, ignore_errors=True)


def _versions(pins: list[str]) -> set[tuple[str, str]]:
    split = (pin.split("==") for pin in pins if "==" in pin)
    return {(utils.canonicalize_name(name), version) for name, version in split}


def _installed(clone: pathlib.Path) -> set[tuple[str, str]]:
    return _versions(_run(".venv/bin/pip freeze --all", clone).split())


@pytest.mark.slow
def test_the_environment_has_the_pinned_versions_and_pip(clone):
    pinned = _versions((clone / "requirements.txt").read_text().split())
    others = {name for name, _ in _installed(clone) - pinned}
    assert pinned <= _installed(clone)
    assert others <= {"pip", "setuptools"}


@pytest.mark.slow
def test_the_installed_command_needs_no_checkout(clone, tmp_path):
    install = ".venv/bin/pip install --no-deps ."
    assert f"`{install}`" in _page()
    _run(install, clone)
    command = clone / ".venv/bin/tff-algos"
    run = f"{command} --algo=fedavg --task=adult {' '.join(SMALL)} --output_dir=run"
    assert "held-out accuracy" in _run(run, tmp_path)
    assert (tmp_path / "run" / "summary.json").exists()
    where = "import tff_algos, tasks; print(tff_algos.__file__, tasks.__file__)"
    files = _run(f"{clone}/.venv/bin/python -c '{where}'", tmp_path).split()
    assert all("site-packages" in file for file in files)


@pytest.mark.slow
def test_jupyter_opens_the_notebook_and_leaves_all_versions(clone):
    install, start = _block(".venv/bin/pip install -c")
    before = _installed(clone)
    _run(install, clone)
    assert before <= _installed(clone)

    # Without a browser, and as root where tests run as root.
    server = subprocess.Popen(
        [*start.split(), "--no-browser", "--allow-root"],
        stderr=subprocess.PIPE,
        text=True,
        cwd=clone,
        env={**os.environ, "HOME": str(clone)},
    )
    try:
        address = next(
            found[0]
            for found in (re.search(r"http://\S+", line) for line in server.stderr)
            if found
        )
        notebook = "/api/contents/quickstart.ipynb?content=0&"
        assert b"quickstart.ipynb" in _fetched(address.replace("/tree?", notebook))
    finally:
        server.kill()
        server.wait()


def _fetched(address: str) -> bytes:
    """Returns a page of a server that may still be starting."""
    for _ in range(300):
        try:
            with urllib.request.urlopen(address) as page:
                return page.read()
        except urllib.error.HTTPError:
            raise
        except urllib.error.URLError:
            time.sleep(0.2)
    raise TimeoutError(address)


@pytest.mark.slow
def test_the_readmes_commands_set_up_run_and_activate(clone):
    readme = (ROOT / "README.md").read_text()
    activate = "source .venv/bin/activate"
    assert "\nmake run " in readme and f"`{activate}`" in readme
    shutil.rmtree(clone / ".venv")
    flags = f"--algo=personalized_fedavg --task=emnist {' '.join(SMALL)}"
    assert "personalized accuracy" in _run(f"make run RUN_FLAGS='{flags}'", clone)
    listed = _run(f"{activate} && python main.py --list", clone)
    assert "personalized_fedavg" in listed


@pytest.mark.slow
def test_the_site_is_built_without_broken_links(clone):
    """It is strict: a link or reference that leads nowhere is an error."""
    _run("make docs", clone)
    assert "Reptile" in (clone / "site" / "algorithms.html").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("variable", ["GPU", "RAY"])
def test_setup_adds_the_packages_of_a_variable(variable, clone, tmp_path):
    """In a dry run, since CUDA's packages take gigabytes."""
    assert f"`{variable}=1`" in _page() or f"`make setup {variable}=1`" in _page()
    report = tmp_path / "report.json"
    dry_run = {"PIP_DRY_RUN": "1", "PIP_REPORT": str(report)}
    _run(f"make setup {variable}=1", clone, **dry_run)
    added = [each["metadata"] for each in json.loads(report.read_text())["install"]]
    found = _versions([f"{each['name']}=={each['version']}" for each in added])
    pins = (clone / f"requirements-{variable.lower()}.txt").read_text().split()
    assert found == _versions(pins) - _installed(clone) != set()


@pytest.mark.slow
def test_commands_for_a_gpu(clone):
    """Without a GPU, a run uses the CPU, and the check says what is missing.

    Their setup is a dry run, since CUDA's packages take gigabytes.
    """
    no_gpu = {"PIP_DRY_RUN": "1", "CUDA_VISIBLE_DEVICES": ""}
    flags = f"--algo=fedavg --task=adult {' '.join(SMALL)}"
    printed = _run(f"make run GPU=1 RUN_FLAGS='{flags}'", clone, **no_gpu)
    assert "held-out accuracy" in printed
    check = _finished("make gpu-check GPU=1", clone, **no_gpu)
    assert check.returncode != 0
    (line, *_) = check.stderr.splitlines()
    assert line.startswith("TensorFlow sees no GPU") and "make setup GPU=1" in line


@pytest.fixture(scope="module")
def python_3_12():
    """Colab's version."""
    if subprocess.run(["bash", "-c", "python3.12 --version"], check=False).returncode:
        pytest.skip("there is no python3.12")


@pytest.mark.slow
@pytest.mark.usefixtures("python_3_12")
def test_make_uses_another_python(clone):
    command = "make setup PYTHON=python3.12"
    assert f"`{command}`" in _page()
    _run(command, clone)
    run = f"main.py --algo=fedavg --task=adult {' '.join(SMALL)}"
    assert "held-out accuracy" in _run(f".venv-python3.12/bin/python {run}", clone)


@pytest.mark.slow
@pytest.mark.usefixtures("python_3_12")
def test_colab_runs_a_notebook_after_its_first_cell(clone, tmp_path):
    """Colab has Python 3.12 and a TensorFlow, and opens a notebook without the rest."""
    _run("git init --quiet && git add --all", clone)
    author = "-c user.name=Author -c user.email=author@example.com"
    _run(f"git {author} commit --quiet --message=All", clone)
    _run("python3.12 -m venv colab", tmp_path)
    _run("colab/bin/pip install --quiet tensorflow==2.19.0", tmp_path)
    notebook = shutil.copy(clone / "notebooks" / "quickstart.ipynb", tmp_path)
    run = f"colab/bin/python {ROOT}/tests/testing/notebook_cells.py {notebook}"

    first = _finished(run, tmp_path, stdin=f"{clone}\n", MPLBACKEND="agg")
    assert "tensorflow 2.19.0 by 2.21.0" in first.stdout
    assert "Now restart the session" in first.stderr
    again = _run(f"{run} 'curve[-1] > curve[0] + 0.1'", tmp_path, MPLBACKEND="agg")
    assert "The packages are installed." in again
    assert again.splitlines()[-1] == "[true]"


@pytest.mark.slow
def test_debian_has_the_packages_that_readme_names(tmp_path):
    if not any(pathlib.Path("/var/lib/apt/lists").glob("*Packages*")):
        pytest.skip("apt has no lists of packages")
    readme = (ROOT / "README.md").read_text()
    (packages,) = re.findall(r"`apt install ([^`]*)`", readme)
    _run(f"apt-get install --simulate {packages}", tmp_path)
