"""The process that those which judge are forked from (Linux): it has loaded torch and the exercises, once."""

import contextlib
import json
import os
import signal
import sys
from pathlib import Path

import psutil

from coursework.desk import judge
from coursework.exercises import registry

with contextlib.suppress(ImportError):  # Windows has none, and forks nothing
    import resource

FILE_BYTES = 64 << 20
"""The largest file that an answer may write."""


def serve() -> None:
    """For each request on standard input fork a process that judges it; print its id, and how it ended."""
    registry.all_exercises()
    for line in sys.stdin:
        message = json.loads(line)
        pid = os.fork()
        if pid == 0:
            try:
                _confine(message["memory"])
                judge.main(message["request"], Path(message["report"]))
            finally:
                os._exit(0)
        print(pid, flush=True)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)  # what the answer itself has started
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


def _confine(memory: int) -> None:
    """Put this process into a group of its own, without input and output, under hard limits."""
    os.setsid()
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)
    data = psutil.Process().memory_info().data + memory
    for limit, value in ((resource.RLIMIT_DATA, data), (resource.RLIMIT_FSIZE, FILE_BYTES), (resource.RLIMIT_CORE, 0)):
        hard = resource.getrlimit(limit)[1]
        most = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(limit, (most, most))


if __name__ == "__main__":
    serve()
