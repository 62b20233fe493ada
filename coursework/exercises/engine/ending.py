"""Processes that end with the one that started them."""

import ctypes
import os
import signal
import sys

_PARENT_DEATH_SIGNAL = 1


def end_with_parent(parent: int, seen: int | None = None) -> None:
    """Have the system end this process as soon as its parent has ended, however that may be (Linux).

    `parent` is the id that the parent must have, or `seen` from here: it may have ended before.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PARENT_DEATH_SIGNAL, signal.SIGKILL, 0, 0, 0)
        if os.getppid() not in (parent, seen):
            os._exit(1)
