"""Child processes that learn of this process's death."""

import os
import signal
import sys
from collections.abc import Sequence

# Runs in a separate Python process: requests the signal at the parent's death, checks
# that the parent has not died before that, and becomes the command, which the signal
# reaches even if the parent ignores it. It avoids `preexec_fn` of `subprocess`, which is
# unsafe in a process with threads.
_LAUNCHER = """
import ctypes, os, signal, sys
PR_SET_PDEATHSIG = 1
number = int(sys.argv[1])
if signal.getsignal(number) is signal.SIG_IGN:
    signal.signal(number, signal.SIG_DFL)
ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number, 0, 0, 0)
if os.getppid() != int(sys.argv[2]):
    sys.exit(1)
os.execv(sys.argv[3], sys.argv[3:])
"""


def signalled_at_death(
    command: Sequence[str | os.PathLike], number: signal.Signals
) -> tuple[str | os.PathLike, ...]:
    """Returns `command` such that it gets a signal when the process that starts it dies.

    That is so for any cause of death, `kill -9` and `os._exit` included. The kernel sends
    the signal when the *thread* that started the command ends, so that thread must live
    until the command has exited. If all threads of a process die at once, it may send the
    signal several times.

    Args:
      command: The absolute path of a program and its arguments.
      number: The signal.

    Returns:
      What this process is to start; on systems other than Linux, `command` itself.
    """
    if sys.platform != "linux":
        return tuple(command)
    arguments = (str(int(number)), str(os.getpid()))
    return (sys.executable, "-I", "-S", "-c", _LAUNCHER, *arguments, *command)
