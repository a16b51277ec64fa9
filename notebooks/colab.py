"""Installs the project's packages in Colab, where other versions are installed."""

import importlib.metadata
import pathlib
import subprocess
import sys
from collections.abc import Mapping


def pinned(requirements: str) -> dict[str, str]:
    """Returns the version of each package in the text of a requirements file."""
    lines = (line.partition("#")[0].strip() for line in requirements.splitlines())
    return dict(line.split("==") for line in lines if line)


def replaced(
    pins: Mapping[str, str], installed: Mapping[str, str | None]
) -> dict[str, tuple[str, str]]:
    """Returns the installed and the new version of each package that is replaced."""
    return {
        name: (installed[name], version)
        for name, version in pins.items()
        if installed.get(name) not in (None, version)
    }


def _installed(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def install(requirements: pathlib.Path) -> None:
    """Installs what is missing and says what it replaces.

    Raises:
      SystemExit: If packages were installed: a session that has imported other versions
        of them must be restarted.
      subprocess.CalledProcessError: If pip fails.
    """
    pins = pinned(requirements.read_text())
    installed = {name: _installed(name) for name in pins}
    if installed == pins:
        print("The packages are installed.")
        return
    changed = replaced(pins, installed)
    missing = sum(version is None for version in installed.values())
    print(f"Packages to install: {missing}; to replace: {len(changed)}")
    for name, (old, new) in changed.items():
        print(f"  {name} {old} by {new}")
    # TFF's metadata is outdated: its dependencies and its limit on Python do not apply.
    options = ["--quiet", "--no-deps", "--ignore-requires-python"]
    pip = [sys.executable, "-m", "pip", "install", *options]
    subprocess.run([*pip, "-r", str(requirements)], check=True)
    raise SystemExit(
        "Installed. Now restart the session (Runtime > Restart session) and run this "
        "cell again."
    )
