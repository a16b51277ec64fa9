"""Virtual environments of other projects' engines."""

import pathlib
import subprocess
import sys
import zlib

_REQUIREMENTS = pathlib.Path(__file__).parents[1] / "requirements"
_SETUP_SECONDS = 3600  # Long enough for gigabytes over a slow connection.

# The requirements files of an environment, installed one by one.
_FILES = {
    "fedjax": ("fedjax",),
    "flower": ("torch", "pytorch", "flower"),
    "jax": ("jax",),
    "pfl": ("torch", "pytorch", "pfl"),
    "torch": ("torch", "pytorch"),
}


class EnvironmentSetupError(Exception):
    """An environment could not be created; the message is one line."""


def python_of(name: str, root: pathlib.Path) -> pathlib.Path:
    """Returns the Python of an environment, which is created if necessary.

    Args:
      name: A key of `_FILES`.
      root: The folder of the environment `.venv-bench-<name>`.

    Raises:
      EnvironmentSetupError: If a package cannot be installed.
    """
    folder = root / f".venv-bench-{name}"
    python = folder / "bin" / "python"
    stamp = folder / f".stamp-{_fingerprint(name):08x}"
    if not stamp.exists():
        print(f"Making {folder.name} (once).", file=sys.stderr, flush=True)
        _run([sys.executable, "-m", "venv", "--clear", folder])
        for file in _requirements(name):
            # All are pinned with their dependencies, except PyTorch: its builds differ.
            options = [] if file.stem == "pytorch" else ["--no-deps"]
            _run([python, "-m", "pip", "install", "-q", *options, "-r", file])
        stamp.touch()
    return python


def _requirements(name: str) -> list[pathlib.Path]:
    return [_REQUIREMENTS / f"{file}.txt" for file in _FILES[name]]


def _fingerprint(name: str) -> int:
    """Returns a number that changes with the requirements and the Python version."""
    files = (file.read_bytes() for file in _requirements(name))
    return zlib.crc32(sys.version.encode() + b"".join(files))


def _run(command: list) -> None:
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=_SETUP_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise EnvironmentSetupError(
            f"installation took over {_SETUP_SECONDS} s"
        ) from None
    except OSError as error:
        raise EnvironmentSetupError(f"installation failed: {error}") from None
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()
        errors = [line for line in lines if line.startswith("ERROR")] or lines
        reason = errors[0] if errors else f"exit status {done.returncode}"
        raise EnvironmentSetupError(f"installation failed: {reason}")
