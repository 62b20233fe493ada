"""A process that judges the answers of a class, with its own process for answers: `desk.judge` and `desk.answering`."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, cast

from coursework.desk.pen import Limits, end_tree

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

    def __enter__(self) -> Worker:
        """Nothing is started before it is needed."""
        return self

    def __exit__(self, *exc: object) -> None:
        """End the judge, and with it the answers."""
        if self._judge is not None:
            with contextlib.suppress(OSError):
                cast(IO[bytes], self._judge.stdin).close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._judge.wait(5)
            cast(IO[bytes], self._judge.stdout).close()
            end_tree(self._judge)
        self._judge = None

    def judge(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the report of `judge.judge` on the request; `problem` says why where there is no verdict."""
        if self._judge is None or self._judge.poll() is not None:
            self._start()
        judge = cast("subprocess.Popen[bytes]", self._judge)
        try:
            cast(IO[bytes], judge.stdin).write(json.dumps(request).encode() + b"\n")
            cast(IO[bytes], judge.stdin).flush()
            return cast(dict[str, Any], json.loads(cast(IO[bytes], judge.stdout).readline()))
        except (OSError, ValueError):
            problem = f"the process that judges has ended (exit code {judge.wait()})."
            return {"verdict": "not run", "misconceptions": [], "case": None, "problem": problem, "text": ""}

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
