"""Processes in which answers run, one an answer, seen from the judge: started, spoken with, ended.

On Linux they are forked from one that has loaded torch, once, and that stands in a `sandbox` where there can be one.
Elsewhere each is a fresh process. All end with the judge, whichever way it ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import IO, Any, cast

import psutil

from course_lib.files import temporary_folder
from coursework.desk import frames

FORKS = sys.platform == "linux" and hasattr(os, "fork")
SECONDS = 60.0
START = 300.0
"""Seconds that a process may take to load torch, on a machine that does much else."""

FOLDER = "course-answers-"
"""How the names of the folders begin in which answers run."""

ENDING = 20.0
"""Seconds that the process which forks answers has to end one: an answer may have stopped it."""

SHOWN = 2000
"""Characters of what an answer prints that are passed on."""


@dataclass(frozen=True)
class Limits:
    """For one answer: seconds on the clock, and bytes that its process may allocate."""

    seconds: float = SECONDS
    memory: int = 2 << 30


class Gone(Exception):
    """The answer's process has ended; `code` is how, None if it was stopped at its limit."""

    def __init__(self, code: int | None) -> None:
        super().__init__(f"ended with {code}")
        self.code = code


class Line:
    """One answer's process: what it is told and what it answers, until it is ended or its time is over."""

    def __init__(self, to: IO[bytes], back: IO[bytes], end: Any, seconds: float) -> None:
        self._to, self._back, self._end = to, back, end
        self._lock = threading.Lock()
        self._code: int | None = None
        self._ended = self._stopped = False
        self._said: SimpleQueue[bytes | None] = SimpleQueue()
        self.printed = ""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self._limit(START)
        if self._said.get() is None:  # else it has loaded torch
            self._said.put(None)
        self._timer.cancel()
        self._limit(seconds)

    def _limit(self, seconds: float) -> None:
        self._timer = threading.Timer(seconds, self._stop)
        self._timer.daemon = True
        self._timer.start()

    def tell(self, message: bytes) -> None:
        """Send a message; Gone if nobody is there."""
        try:
            frames.send(self._to, message)
        except (OSError, ValueError):
            raise Gone(self.end()) from None

    def hear(self) -> Any:
        """The next answer, as JSON; Gone if none comes any more, Malformed if it is something else."""
        while (said := self._said.get()) is not None:
            heard = frames.loads(said)
            if not isinstance(heard, dict):
                raise frames.Malformed("what came from the answer is no answer")
            if "prints" not in heard:
                return heard
            self.printed += str(heard["prints"])[: max(0, 2 * SHOWN - len(self.printed))]
        self._said.put(None)  # nor will anything come the next time
        raise Gone(self.end())

    def end(self) -> int | None:
        """End the process, if it has not ended; how it had ended, None if it was stopped at its limit."""
        with self._lock:
            if not self._ended:
                self._ended = True
                self._timer.cancel()
                self._code = self._end()
        return None if self._stopped else self._code

    def _stop(self) -> None:
        self._stopped = not self._ended
        self.end()

    def _read(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            while (message := frames.receive(self._back)) is not None:
                self._said.put(message)
        self._said.put(None)


class Pen:
    """Starts a process for one answer after another; a context, at whose end all that it started has ended.

    Args:
        limits: for each answer.
        environment: what answers see of it.
        folder: where they run; an empty one for each unless given.
        hidden: folders that they must not see, where there is a sandbox.
    """

    def __init__(
        self,
        limits: Limits,
        environment: Mapping[str, str] | None = None,
        folder: Path | None = None,
        hidden: Sequence[Path] = (),
    ) -> None:
        self.limits, self._hidden, self._given = limits, hidden, folder
        self._environment = environment
        self._parent: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    def __enter__(self) -> Pen:
        """Make the folder that answers may write in."""
        self._folders = contextlib.ExitStack()
        self._room = self._folders.enter_context(temporary_folder(FOLDER))
        return self

    def __exit__(self, *exc: object) -> None:
        """End what was started, and remove the folder."""
        self._close()
        self._folders.close()

    def line(self, request: bytes, *, trusted: bool = False) -> Line:
        """Start a process for an answer; `trusted` with the bank, for advice after the verdict."""
        own = self._room / secrets.token_hex(4)
        own.mkdir()
        head = {
            "memory": self.limits.memory,
            "room": str(own),
            "folder": str(self._given or own),
            "trusted": trusted,
            "judge": os.getpid(),
        }
        line = self._forked(head, own) if FORKS else self._fresh(head, own)
        line.tell(request)
        return line

    def _forked(self, head: dict[str, Any], own: Path) -> Line:
        if self._parent is None or self._parent.poll() is not None:
            self._open()
        control = cast(socket.socket, self._control)
        mine, its = socket.socketpair()

        def end() -> int | None:
            code = None
            with contextlib.suppress(OSError):
                control.settimeout(ENDING)
                control.sendall(b"e")
                said = control.recv(4)
                code = struct.unpack("!i", said)[0] if len(said) == 4 else None
            if code is None:  # the answer has ended or stopped even the process that it was forked from
                self._close()
            with contextlib.suppress(OSError):
                mine.shutdown(socket.SHUT_RDWR)
            mine.close()
            shutil.rmtree(own, ignore_errors=True)
            return -9 if code is None else code

        with its, contextlib.suppress(OSError):
            socket.send_fds(control, [json.dumps(head).encode()], [its.fileno()])
        return Line(mine.makefile("wb"), mine.makefile("rb"), end, self.limits.seconds)

    def _open(self) -> None:
        self._close()
        self._control, its = socket.socketpair()
        start = {"room": str(self._room), "hidden": [str(path) for path in self._hidden], "judge": os.getpid()}
        if self._given is not None:
            start["needed"] = str(self._given)
        with its:
            self._parent = subprocess.Popen(
                [*self._command(), str(its.fileno()), json.dumps(start)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[its.fileno()],
                start_new_session=True,
                env=self._variables(),
            )

    def _fresh(self, head: dict[str, Any], own: Path) -> Line:
        child = subprocess.Popen(
            [*self._command(), "-", json.dumps(head)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=hasattr(os, "setsid"),
            env=self._variables(),
        )

        def end() -> int | None:
            code = child.poll()
            end_tree(child)
            for stream in (child.stdin, child.stdout):
                with contextlib.suppress(OSError):
                    cast(IO[bytes], stream).close()
            shutil.rmtree(own, ignore_errors=True)
            return child.wait() if code is None else code

        return Line(cast(IO[bytes], child.stdin), cast(IO[bytes], child.stdout), end, self.limits.seconds)

    @staticmethod
    def _command() -> list[str]:
        return [sys.executable, "-P", "-m", "coursework.desk.answering"]

    def _variables(self) -> dict[str, str]:
        """The environment; what is written without a name for its place goes into the answers' folder."""
        given = os.environ if self._environment is None else self._environment
        root = str(Path(__file__).resolve().parents[2])
        path = os.pathsep.join(filter(None, (root, given.get("PYTHONPATH", ""))))
        quiet = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "MPLBACKEND": "agg"}
        return {**given, **quiet, "TMPDIR": str(self._room), "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}

    def _close(self) -> None:
        if self._control is not None:
            self._control.close()
        if self._parent is not None:
            end_tree(self._parent)
        self._parent, self._control = None, None


def how(code: int) -> str:
    """How a process has ended, in words."""
    return f"by signal {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"


def end_tree(child: subprocess.Popen[bytes]) -> None:
    """End a process that leads a session of its own, with all that it has started."""
    below = []
    with contextlib.suppress(psutil.Error):
        below = psutil.Process(child.pid).children(recursive=True)
    child.kill()
    if hasattr(os, "killpg"):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
    for one in below:
        with contextlib.suppress(psutil.Error):
            one.kill()
    child.wait()
