"""Processes that judge answers, one process an answer, under limits of time, memory, output and files.

What counts is the report that a process leaves: it carries a secret that only the request holds, so a report that the
answer writes is none. On Linux the processes are forked from one that has loaded torch and the exercises, which saves
seconds each; elsewhere each is a fresh one, and only Linux enforces the limit of memory.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from coursework.desk import isolated

FORKS = sys.platform == "linux"
_KEPT = ("PATH", "LANG", "LC_ALL", "PYTHONPATH", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "SYSTEMROOT", "COMSPEC", "PATHEXT")


@dataclass(frozen=True)
class Limits:
    """For one answer: seconds on the clock, and bytes that its process may allocate."""

    seconds: float = isolated.SECONDS
    memory: int = 2 << 30


class Worker:
    """Judges one answer at a time; a context, at whose end all that it started has ended.

    Answers see nothing of the environment, and nothing is saved, unless an `environment` is given.
    """

    def __init__(self, limits: Limits, environment: Mapping[str, str] | None = None) -> None:
        self.limits, self._given = limits, environment
        self._parent: subprocess.Popen[bytes] | None = None
        self._lines = b""

    def __enter__(self) -> Worker:
        """Make the folder that answers run in."""
        self._folder = tempfile.TemporaryDirectory(prefix="course-verify-", ignore_cleanup_errors=True)
        return self

    def __exit__(self, *exc: object) -> None:
        """End the process that is forked from, and remove the folder."""
        self._end_parent()
        self._folder.cleanup()

    def judge(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the report of `judge.main` on the request; `problem` says why where there is no verdict."""
        with tempfile.TemporaryDirectory(dir=self._folder.name, ignore_cleanup_errors=True) as place:
            work, report = Path(place) / "work", Path(place) / "report.json"
            work.mkdir()
            secret = secrets.token_hex(16)
            request = {**request, "folder": str(work), "secret": secret}
            ended = (self._forked if FORKS else self._fresh)(request, report)
            try:
                said = json.loads(report.read_text(encoding="utf-8"))
                if said["secret"] == secret:
                    return cast(dict[str, Any], said)
            except (OSError, ValueError, KeyError, TypeError):
                pass
        problem = isolated.without_verdict(ended, self.limits.seconds)
        return {"verdict": "not run", "misconceptions": [], "case": None, "problem": problem, "text": ""}

    def _fresh(self, request: dict[str, Any], report: Path) -> int | None:
        command = [sys.executable, "-P", "-m", "coursework.desk.judge", str(report)]
        options = {"env": self._environment(), "cwd": request["folder"]}
        return isolated.run(command, self.limits.seconds, json.dumps(request).encode(), **options)[0]

    def _forked(self, request: dict[str, Any], report: Path) -> int | None:
        if self._parent is None or self._parent.poll() is not None:
            self._start_parent()
        parent = cast("subprocess.Popen[bytes]", self._parent)
        message = {"request": request, "report": str(report), "memory": self.limits.memory}
        stream = cast(IO[bytes], parent.stdin)
        try:
            stream.write(json.dumps(message).encode() + b"\n")
            stream.flush()
        except BrokenPipeError:
            return parent.wait()
        pid = self._line(time.monotonic() + 120)  # the first one waits until torch is loaded
        ended = self._line(time.monotonic() + self.limits.seconds) if pid is not None else None
        if pid is not None and ended is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
            self._line(time.monotonic() + 10)
            return None
        if ended is None:  # the answer has ended even the process that it was forked from
            self._end_parent()
        return ended

    def _line(self, until: float) -> int | None:
        """The next number that the parent process says, None if it says none in time."""
        stream = cast(IO[bytes], cast("subprocess.Popen[bytes]", self._parent).stdout)
        while b"\n" not in self._lines:
            ready, _, _ = select.select([stream], [], [], max(0.0, until - time.monotonic()))
            chunk = os.read(stream.fileno(), 1 << 12) if ready else b""
            if not chunk:
                return None
            self._lines += chunk
        line, _, self._lines = self._lines.partition(b"\n")
        return int(line)

    def _start_parent(self) -> None:
        self._end_parent()
        self._parent = subprocess.Popen(
            [sys.executable, "-P", "-m", "coursework.classroom.forking"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env=self._environment(),
        )

    def _environment(self) -> dict[str, str]:
        return _environment(self._folder.name) if self._given is None else dict(self._given)

    def _end_parent(self) -> None:
        if self._parent is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._parent.pid, signal.SIGKILL)
            self._parent.wait()
            for stream in (self._parent.stdin, self._parent.stdout):
                with contextlib.suppress(BrokenPipeError):
                    cast(IO[bytes], stream).close()
        self._parent, self._lines = None, b""


def _environment(home: str) -> dict[str, str]:
    """What an answer may know of the environment: no keys and tokens, and a home and desk of its own."""
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    root = str(Path(__file__).resolve().parents[2])
    kept["PYTHONPATH"] = os.pathsep.join(filter(None, (root, kept.get("PYTHONPATH", ""))))
    quiet = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "MPLBACKEND": "agg", "CI": "1"}
    return kept | quiet | {"HOME": home, "USERPROFILE": home, "TMPDIR": home, "PYTHONDONTWRITEBYTECODE": "1"}
