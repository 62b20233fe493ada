"""Running code in a copy of this process that can be ended from outside: a loop in C, a crash, `os._exit`.

The copy is forked, so it knows what the notebook knows; what it changes and prints stays with it. Only what it reports,
as JSON, comes back. There is one on Linux without a GPU: the drivers of GPUs do not survive a fork, nor do parts of
macOS, and Windows has none. There, and while a debugger follows, the code runs here, within the limits of `guard`.
"""

from __future__ import annotations

import builtins
import contextlib
import io
import json
import linecache
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from coursework.exercises.engine import guard
from coursework.exercises.engine.ending import adopt, end_all, end_with_parent

PATIENCE = 6
"""The copy is ended after so many times `guard.SECONDS` on the clock, whatever it does."""

REPORT = 16 << 20
"""Bytes of reports that are read."""

_DONE, _ENDED = b"done", b"ended "

Report = Callable[[Any], None]


@dataclass(frozen=True)
class Ended:
    """The copy has ended without its last report: the last one that came, or None, and the signal or exit code."""

    reported: Any
    code: int | None

    @property
    def reason(self) -> str:
        """What happened, as the end of a sentence about the answer."""
        if self.code is None or -self.code in guard.TIMERS:
            seconds = guard.SECONDS * (1 if self.code else PATIENCE)
            return f"was still running after {seconds:g} seconds and was stopped"
        how = f"signal {signal.Signals(-self.code).name}" if self.code < 0 else f"exit code {self.code}"
        return f"ended the whole process that ran it ({how})"


def can_fork() -> bool:
    """Whether a copy of this process can be made and works."""
    monitoring = getattr(sys, "monitoring", None)  # from Python 3.12 on
    followed = sys.gettrace() or sys.getprofile() or (monitoring and monitoring.get_tool(monitoring.DEBUGGER_ID))
    return sys.platform == "linux" and hasattr(os, "fork") and not followed and not torch.cuda.is_available()


def apart(function: Callable[[Report], None]) -> Any:
    """Call function(report) in a copy of this process; return what it reported last, or `Ended`.

    Raises OSError if no copy can be made, and whatever interrupts the waiting.
    """
    reader, writer = os.pipe()
    parent = os.getpid()
    try:
        child = os.fork()
    except OSError:
        os.close(reader)
        os.close(writer)
        raise
    if child == 0:
        code = 1
        try:
            _keep(parent, writer)
            _read_plain_files_only()
            _ask_and_compile_nothing()
            guard.expendable = True
            torch.set_num_threads(1)  # the threads of the original are not in the copy, and OpenMP would wait for them
            nowhere = io.StringIO()
            with (
                contextlib.redirect_stdout(nowhere),
                contextlib.redirect_stderr(nowhere),
                os.fdopen(writer, "wb") as to,
            ):

                def report(value: Any) -> None:
                    to.write(json.dumps(value).encode() + b"\n")
                    to.flush()

                function(report)
                to.write(_DONE + b"\n")
            code = 0
        finally:
            os._exit(code)  # nothing of what the original does at its end
    os.close(writer)
    try:
        lines = _lines(reader, time.monotonic() + PATIENCE * guard.SECONDS)
    finally:
        os.close(reader)
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGTERM)
        os.waitpid(child, 0)
    lines = [line for line in lines if line]
    ended: int | None = None
    if lines and lines[-1].startswith(_ENDED):
        ended = int(lines.pop()[len(_ENDED) :])
    done = lines[-1:] == [_DONE]
    try:
        reported = json.loads(lines[-2 if done else -1])
    except (ValueError, IndexError):
        reported = None
    return reported if done else Ended(reported, ended)


def _keep(parent: int, writer: int) -> None:
    """Return in a copy of this one, which keeps it: says how it ended, and ends with it whatever it has started."""

    def give_up(*_: object) -> None:
        end_all()
        os._exit(1)

    signal.signal(signal.SIGTERM, give_up)
    end_with_parent(parent, by=signal.SIGTERM)
    os.setsid()
    _let_go(writer)
    adopt()
    keeper = os.getpid()
    kept = os.fork()
    if kept == 0:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        end_with_parent(keeper)
        os.setsid()
        return
    code = os.waitstatus_to_exitcode(os.waitpid(kept, 0)[1])
    end_all()
    os.write(writer, b"\n%s%d\n" % (_ENDED, code))
    os._exit(0)


def _read_plain_files_only() -> None:
    """Let no text of code be looked for in a pipe or a device, which an answer may give as its file."""
    read = linecache.updatecache

    def update(filename: str, module_globals: dict[str, Any] | None = None) -> list[str]:
        strange = os.path.exists(filename) and not os.path.isfile(filename)
        return [] if strange else read(filename, module_globals)

    linecache.updatecache = update


def _ask_and_compile_nothing() -> None:
    """Let `input` say that nobody can be asked, and run as it is written what is to be compiled: both would last."""

    def ask(prompt: object = "") -> str:
        raise EOFError("a check can ask nobody: it has no input to give")

    builtins.input = ask
    os.environ["TORCHDYNAMO_DISABLE"] = "1"  # for what is decorated from here on
    if "torch._dynamo" in sys.modules:  # else nothing was yet, and this would load it
        torch.compiler.set_stance("force_eager")


def _let_go(kept: int) -> None:
    """Give up the files of the original, but the one: its sockets are those of the kernel."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)
    os.closerange(3, kept)
    os.closerange(kept + 1, os.sysconf("SC_OPEN_MAX"))


def _lines(stream: int, until: float) -> list[bytes]:
    """The whole lines that come until the stream ends, or the time."""
    text = b""
    while len(text) < REPORT and (left := until - time.monotonic()) > 0:
        if select.select([stream], [], [], left)[0]:
            if not (chunk := os.read(stream, 1 << 16)):
                break
            text += chunk
    return text.split(b"\n")[:-1]
