"""Ends processes and deletes a folder when this process ends, however it ends.

Ray's processes follow a killed driver, but some of them only after a minute, and its
files stay. A process of its own waits for the driver's end and does the rest at once.
"""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator

# Marks the processes that belong to a folder; Ray's processes rename themselves.
_MARK = "TFF_ALGOS_RAY_FOLDER"
_END_SECONDS = 10.0

# Its standard input ends with the driver. A process that is being started when the
# others are killed is found in a later turn. A new title may overwrite the environment
# of a process, which is then found as a child of another one or, if that one has ended
# already, by its log in the folder. The driver has files there as well, and may go on.
_SCRIPT = """
import os, shutil, signal, sys, time
mark, folder = sys.argv[1:]
spared = {os.getpid(), os.getppid()}
sys.stdin.read()
wanted = f"{mark}={folder}".encode()
quiet = 0
while quiet < 2:
    found, parents = set(), {}
    for name in os.listdir("/proc") if os.path.isdir("/proc") else ():
        try:
            if not name.isdecimal() or int(name) in spared:
                continue
            with open(f"/proc/{name}/stat", "rb") as file:
                parents[int(name)] = int(file.read().rpartition(b")")[2].split()[1])
            with open(f"/proc/{name}/environ", "rb") as file:
                if wanted in file.read().split(b"\\0"):
                    found.add(int(name))
            for fd in os.listdir(f"/proc/{name}/fd"):
                if os.readlink(f"/proc/{name}/fd/{fd}").startswith(folder + "/"):
                    found.add(int(name))
        except OSError:
            pass
    while more := {p for p, parent in parents.items() if parent in found} - found:
        found |= more
    for pid in found:
        try:
            os.kill(pid, signal.SIGKILL)
        except OSError:
            pass
    quiet = 0 if found else quiet + 1
    time.sleep(0.05)
shutil.rmtree(folder, ignore_errors=True)
"""


class Janitor:
    """Waits, in a process of its own, to clean up after this one."""

    def __init__(self, folder: str):
        """Starts the process.

        Args:
          folder: The folder to delete. The processes to kill are those started within
            `marking` and their descendants.
        """
        self._folder = folder
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _SCRIPT, _MARK, folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            # Signals to this process's group are not for it.
            start_new_session=True,
        )

    @contextlib.contextmanager
    def marking(self) -> Iterator[None]:
        """Marks the processes that are started in the body."""
        os.environ[_MARK] = self._folder
        try:
            yield
        finally:
            del os.environ[_MARK]

    def end(self) -> None:
        """Cleans up now, and waits for it."""
        self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_SECONDS)
