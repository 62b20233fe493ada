"""What the process of an answer does: it runs the cell, then each call that the judge asks for. See `answering`."""

from __future__ import annotations

import contextlib
import inspect
import io
import logging
import os
import pickle
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import psutil

from coursework.desk import frames, running, sandbox, wire
from coursework.desk.store import DeskError
from coursework.exercises import modules, registry, watched  # noqa: F401
from coursework.exercises.engine import guard
from coursework.exercises.engine.compare import kind_of
from coursework.exercises.engine.guard import Guard
from coursework.exercises.engine.run import Outcome, bind, observe
from coursework.exercises.handle import ExerciseHandle
from coursework.exercises.spec import Case

FILE_BYTES = 64 << 20
"""The largest file that an answer may write."""

PRINTED = 8000
"""Characters of what an answer prints that are sent."""

registry.places()  # once, while the bank's folder can be seen


def answer(from_judge: IO[bytes], to_judge: IO[bytes], head: dict[str, Any], confined: bool) -> None:
    """Run one answer: first its cell, then each call that the judge asks for."""
    _confine(head["memory"], confined)
    for name in ("HOME", "USERPROFILE"):
        os.environ.setdefault(name, head["room"])
    os.environ["TMPDIR"], tempfile.tempdir = head["room"], None
    if confined:  # nobody's home can be written to
        os.environ["MPLCONFIGDIR"] = head["room"]
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # it would say where it keeps its fonts
    if not head["trusted"]:
        sys.meta_path.insert(0, _NoBank())
    guard.expendable = True
    frames.send(to_judge, frames.dumps({"ready": True}))
    received = frames.receive(from_judge)
    if received is None:
        return
    request = pickle.loads(received)

    speaking = threading.Lock()

    def say(said: dict[str, Any]) -> None:
        with speaking:
            frames.send(to_judge, frames.dumps(said))

    with (
        running.working_in(Path(head["folder"])),
        contextlib.redirect_stdout(_Printed(say)) as printed,
        contextlib.redirect_stderr(printed),
    ):
        try:
            asked = request["exercise"], request["asks_for"], request["parts"]
            made = running.namespace(request["answer"], *asked)[request["asks_for"]]
        except Exception as problem:
            text = str(problem) if isinstance(problem, DeskError) else f"it could not be run ({kind_of(problem)})."
            say({"problem": text[:2000]})
            return
        if head["trusted"]:
            _advise(request["exercise"], made, say)
        else:
            _act(request, made, say, lambda: frames.receive(from_judge))


def _act(
    request: dict[str, Any], made: Any, say: Callable[[dict[str, Any]], None], receive: Callable[[], bytes | None]
) -> None:
    """Say what the cell made; then observe each call that is asked for."""
    terms = request["terms"]
    if terms is None:
        say({"value": wire.pack(made)})
        return
    say({"callable": callable(made), "class": inspect.isclass(made), "kind": kind_of(made)})
    call = bind(terms, made)
    with Guard() as guard:
        while (received := receive()) is not None:
            asked = pickle.loads(received)
            case = Case("", lambda: pickle.loads(asked["arguments"]))  # noqa: B023
            say(_observed(lambda: observe(terms, call, case, guard, asked["seed"], again=False)))  # noqa: B023


def _observed(observe: Callable[[], Outcome]) -> dict[str, Any]:
    """What a call did, as it is said; of what cannot be looked at, that it cannot."""
    try:
        said = wire.pack_outcome(observe())
        if len(frames.dumps(said)) <= frames.LARGEST:
            return said
        trouble = "is too large"
    except Exception as problem:
        trouble = f"cannot be looked at ({type(problem).__name__})"
    return wire.pack_outcome(Outcome(error=modules.Unfit(f"What it returns {trouble}.")))


def _advise(exercise: str, made: Any, say: Callable[[dict[str, Any]], None]) -> None:
    """Say all that the check would, more each time, for any step may be the last."""
    handle = running.handle(exercise, None)
    if isinstance(handle, ExerciseHandle):
        handle.report_on(made, False, say)


class _NoBank:
    """Finds no module of the bank."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name.startswith("coursework.exercises.bank."):
            raise ImportError("the course's own answers are not to be had where an answer is judged", name=name)


class _Printed(io.StringIO):
    """Sends the beginning of what is printed, at once: the process may end at any time."""

    def __init__(self, say: Callable[[dict[str, Any]], None]) -> None:
        super().__init__()
        self._say, self._left = say, PRINTED

    def write(self, text: str) -> int:
        if self._left > 0 and text:
            self._say({"prints": text[: self._left]})
            self._left -= len(text)
        return len(text)


def _confine(memory: int, confined: bool) -> None:
    """Hard limits, where the system has them."""
    try:
        import resource
    except ImportError:  # Windows
        return
    limits = {resource.RLIMIT_FSIZE: FILE_BYTES, resource.RLIMIT_CORE: 0}
    with contextlib.suppress(AttributeError):  # Linux only
        limits[resource.RLIMIT_DATA] = psutil.Process().memory_info().data + memory
    if confined:
        limits[resource.RLIMIT_NPROC] = sandbox.PROCESSES
    for limit, value in limits.items():
        hard = resource.getrlimit(limit)[1]
        most = value if hard == resource.RLIM_INFINITY else min(value, hard)
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(limit, (most, most))
