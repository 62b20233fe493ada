"""Processes that end with the one that started them, and with all that they have started."""

import contextlib
import ctypes
import os
import signal
import sys

import psutil

_PARENT_DEATH_SIGNAL, _SUBREAPER = 1, 36


def end_with_parent(parent: int, seen: int | None = None, by: int = 9) -> None:
    """Have the system end this process as soon as its parent has ended, however that may be (Linux).

    `parent` is the id that the parent must have, or `seen` from here: it may have ended before. `by` is the signal.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, by, 0, 0, 0)
        if os.getppid() not in (parent, seen):
            os._exit(1)


def adopt() -> None:
    """Have what descendants leave behind become children of this process (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)


def end_all() -> None:
    """End every descendant of this process."""
    if os.getpid() == 1:  # of a namespace
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)
    else:
        for _ in range(100):  # one that starts others while it is looked for is found in the next round
            below = psutil.Process().children(recursive=True)
            for one in below:
                with contextlib.suppress(psutil.Error):
                    one.kill()
            if not [one for one in psutil.wait_procs(below, 1)[1] if one.is_running()]:
                break
    with contextlib.suppress(ChildProcessError, AttributeError):
        while os.waitpid(-1, os.WNOHANG if os.getpid() != 1 else 0)[0]:
            pass
