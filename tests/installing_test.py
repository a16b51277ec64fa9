"""The commands that install the project and build its site, run in a copy of it."""

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

from tests.testing.command_line import ROOT, SMALL

_HIDDEN = shutil.ignore_patterns(
    ".git", ".venv*", ".*_cache", ".hypothesis", "__pycache__"
)
_MADE = {"build", "dist", "runs", "site"}


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


def _run(command: str, folder: pathlib.Path) -> str:
    """Runs a command as a user would, without what this environment adds."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(
        ["bash", "-c", command],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env=environment,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    """A clone in which the page's commands without `make` ran; yields its folder."""
    folder = tmp_path_factory.mktemp("installing") / "clone"
    shutil.copytree(ROOT, folder, ignore=_not_in_a_clone)
    create, install, run = _block("python3 -m venv")
    python = pathlib.Path(sys.base_prefix, "bin", "python3")
    _run(create.replace("python3", str(python), 1), folder)
    found = subprocess.run(
        [folder / ".venv/bin/python", "-m", "pip", "index", "versions", "absl-py"],
        capture_output=True,
        check=False,
    )
    if found.returncode:
        pytest.skip("pip reaches no package index")
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
def test_the_site_is_built_without_broken_links(clone):
    """It is strict: a link or reference that leads nowhere is an error."""
    python = pathlib.Path(sys.base_prefix, "bin", "python3")
    _run(f"make site PYTHON={python}", clone)
    assert "Reptile" in (clone / "site" / "algorithms.html").read_text()
