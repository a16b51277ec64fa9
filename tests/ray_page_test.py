"""The commands of docs/ray.md for clusters, on one machine.

They run in namespaces of their own, where `ray stop` finds no Ray of somebody else's.
"""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

import pytest

from tests.testing.command_line import SMALL

_ROOT = pathlib.Path(__file__).parents[1]
_NAMESPACES = (
    *("unshare", "--map-root-user", "--net"),
    *("--pid", "--fork", "--mount-proc", "--kill-child"),
)
# The loopback interface of a new namespace is down.
_LOOPBACK_UP = """
import fcntl, socket, struct
request = struct.pack("16sH22x", b"lo", 1)
with socket.socket() as any_socket:
    fcntl.ioctl(any_socket, 0x8914, request)
"""
# What the page's scripts call besides Ray, as on a cluster of this machine alone.
_PROGRAMS = {
    "ssh": 'shift; exec sh -c "$*"',
    "scontrol": "echo 127.0.0.1",
    "srun": 'exec "$@"',
}
_SLURM = {
    "SLURM_JOB_NODELIST": "localhost",
    "SLURM_NNODES": "1",
    "SLURM_CPUS_PER_TASK": "2",
}


def _script(first_line: str) -> str:
    """Returns the page's block that begins with a line."""
    page = (_ROOT / "docs" / "ray.md").read_text()
    blocks = re.findall(r"^```\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    (found,) = (block for block in blocks if block.startswith(first_line))
    return found


def _checkout(folder: pathlib.Path) -> pathlib.Path:
    """Makes a folder with what the page expects in the current one."""
    checkout = folder / "checkout"
    checkout.mkdir()
    (checkout / "main.py").symlink_to(_ROOT / "main.py")
    (checkout / ".venv").symlink_to(sys.prefix)
    programs = folder / "programs"
    programs.mkdir()
    for name, text in _PROGRAMS.items():
        (programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (programs / name).chmod(0o755)
    return checkout


def _run(script: str, folder: pathlib.Path) -> subprocess.CompletedProcess:
    checkout = _checkout(folder)
    flags = [*SMALL, "--only_digits", "--ray_workers=2", f"--output_dir={folder}/run"]
    short = script.replace("--task=emnist", " ".join(["--task=emnist", *flags]))
    start = [
        "set -e",
        f"{sys.executable} -c '{_LOOPBACK_UP}'",
        "mkdir -p /tmp/ray && mount -t tmpfs tmpfs /tmp/ray",
        short.replace("HEAD", "127.0.0.1"),
    ]
    return subprocess.run(
        [*_NAMESPACES, "bash", "-c", "\n".join(start)],
        capture_output=True,
        text=True,
        check=False,
        cwd=checkout,
        env={
            **_SLURM,
            "HOME": str(folder),
            "PATH": os.pathsep.join([str(folder / "programs"), "/usr/bin", "/bin"]),
        },
    )


@pytest.fixture
def _namespaces():
    pytest.importorskip("ray", reason="ray is not installed (requirements-ray.txt)")
    if shutil.which("unshare") is None:
        pytest.skip("the program unshare is missing")
    if subprocess.run([*_NAMESPACES, "true"], check=False).returncode:
        pytest.skip("this machine permits no user namespaces")


@pytest.mark.slow
@pytest.mark.usefixtures("_namespaces")
@pytest.mark.parametrize(
    ("first_line", "num_starts"),
    [("export RAY_AUTH_MODE", 2), ("#!/bin/bash\n#SBATCH", 0)],
    ids=["ssh", "slurm"],
)
def test_a_run_uses_the_cluster_that_the_page_starts(tmp_path, first_line, num_starts):
    done = _run(_script(first_line), tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (done.stdout + done.stderr).count("Ray runtime started.") == num_starts
    assert "sent to workers and received per round" in done.stdout
    assert json.loads((tmp_path / "run/config.json").read_text())["runtime"] == "ray"
    assert (tmp_path / ".ray/auth_token").stat().st_mode & 0o777 == 0o600
