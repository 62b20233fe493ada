"""A process that judges the answers of a class, with its own process for answers: `desk.judge` and `desk.answering`."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, cast

import psutil

from coursework.desk import sandbox
from coursework.desk.pen import ENDING, START, Limits, end_tree, how

_KEPT = (
    "PATH",
    "LANG",
    "LC_ALL",
    "PYTHONPATH",
    "VIRTUAL_ENV",
    "LD_LIBRARY_PATH",
    "SYSTEMROOT",
    "COMSPEC",
    "PATHEXT",
    "COURSE_SANDBOX",
)
_ROOT = str(Path(__file__).resolve().parents[2])


class Worker:
    """Judges one answer at a time; a context, at whose end all that it started has ended.

    Answers see nothing of the environment, and where there is a sandbox not the `hidden` folders. Nothing is saved.
    """

    def __init__(self, limits: Limits, hidden: Sequence[Path] = ()) -> None:
        self.limits, self._hidden = limits, hidden
        self._judge: subprocess.Popen[bytes] | None = None
        self._starting, self._closed = threading.Lock(), False

    def __enter__(self) -> Worker:
        """Nothing is started before it is needed."""
        sandbox.forbid_tracing()
        return self

    def __exit__(self, *exc: object) -> None:
        """End the judge, and with it the answers."""
        with self._starting:
            self._closed = True
        sandbox.forbid_tracing(False)
        if self._judge is not None:
            with contextlib.suppress(OSError):
                cast(IO[bytes], self._judge.stdin).close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._judge.wait(5)
            cast(IO[bytes], self._judge.stdout).close()
            end_tree(self._judge)
        self._judge = None

    def judge(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the report of `judge.judge` on the request.

        Where the judge ends, it is started anew once; then there is no verdict, only a `problem`.
        """
        problem = ""
        for _ in range(2):
            with self._starting:
                if self._closed:
                    break
                if self._judge is None or self._judge.poll() is not None:
                    self._start()
            judge = cast("subprocess.Popen[bytes]", self._judge)
            told = threading.Event()
            threading.Thread(target=self._watch, args=(judge, told), daemon=True).start()
            try:
                cast(IO[bytes], judge.stdin).write(json.dumps(request).encode() + b"\n")
                cast(IO[bytes], judge.stdin).flush()
                return cast(dict[str, Any], json.loads(cast(IO[bytes], judge.stdout).readline()))
            except (OSError, ValueError):
                end_tree(judge)
                problem = f"not judged: the process that judges has ended ({how(judge.wait())}), twice."
            finally:
                told.set()
        return {"problem": problem}

    def _watch(self, judge: subprocess.Popen[bytes], told: threading.Event) -> None:
        """End a judge that an answer has stopped, or that takes longer than all its limits together."""
        end = time.monotonic() + 2 * (START + self.limits.seconds + ENDING) + START
        while not told.wait(1):
            stopped = False
            with contextlib.suppress(psutil.Error):
                stopped = psutil.Process(judge.pid).status() in (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP)
            if stopped or time.monotonic() > end:
                judge.kill()
                return

    def _start(self) -> None:
        start = {
            "parent": os.getpid(),
            "seconds": self.limits.seconds,
            "memory": self.limits.memory,
            "hidden": [str(path) for path in self._hidden],
            "environment": {name: os.environ[name] for name in _KEPT if name in os.environ} | {"CI": "1"},
        }
        path = os.pathsep.join(filter(None, (_ROOT, os.environ.get("PYTHONPATH", ""))))
        quiet = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "MPLBACKEND": "agg"}
        self._judge = subprocess.Popen(
            [sys.executable, "-P", "-m", "coursework.desk.judge", json.dumps(start)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=hasattr(os, "setsid"),
            env={**os.environ, **quiet, "PYTHONPATH": path},
        )
