"""The process in which an answer runs: it does what the judge asks, one call after another, and says what came out.

It knows neither what is right nor how closely: it has no bank, and of an exercise only what the request brings. With
"trusted" in its head it has, and says what `Handle.check` would say; that is advice, for the verdict is made before.
"""

# What loads torch is imported where it is used: a namespace is entered before there are threads.

from __future__ import annotations

import contextlib
import io
import json
import os
import socket
import struct
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from coursework.desk import sandbox
from coursework.exercises.engine.ending import adopt, end_all, end_with_parent

FILE_BYTES = 64 << 20
"""The largest file that an answer may write."""

PRINTED = 8000
"""Characters of what an answer prints that are sent."""


def serve(control: socket.socket, start: dict[str, Any]) -> None:
    """Fork a process for each answer that the judge sends a socket for, and end it when the judge says so."""
    room = Path(start["room"])
    needed = [room, *([Path(start["needed"])] if "needed" in start else [])]
    hidden = sandbox.secret_folders(needed, [Path(path) for path in start["hidden"]])
    end_with_parent(start["judge"])
    confined = sandbox.usable(room, hidden)
    if confined:
        sandbox.enter(hidden)
    adopt()
    _load()
    me = os.getpid()
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, 1 << 16, 1)
        if not message or not descriptors:
            return
        child = os.fork()
        if child == 0:
            try:
                control.close()
                end_with_parent(me)
                os.setsid()
                stream = socket.socket(fileno=descriptors[0])
                head = json.loads(message)
                if confined:
                    sandbox.make_room(Path(head["room"]), () if head["trusted"] else (sandbox.BANK,))
                    sandbox.give_up_rights()
                answer(stream.makefile("rb"), stream.makefile("wb"), head, confined)
            finally:
                os._exit(0)
        os.close(descriptors[0])
        order = control.recv(1)
        control.sendall(struct.pack("!i", _end(child))) if order else None
        if not order:
            return


def _end(child: int) -> int:
    """End the process and what it has started; return how it had ended by then."""
    import signal

    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    end_all()
    return code


def _load() -> None:
    """Import what every answer needs, and know where exercises stand, which the bank's folder says."""
    from coursework.desk import running, wire  # noqa: F401
    from coursework.exercises import handle, modules, registry, watched  # noqa: F401

    registry.places()


def answer(from_judge: IO[bytes], to_judge: IO[bytes], head: dict[str, Any], confined: bool) -> None:
    """Run one answer: first its cell, then each call that the judge asks for."""
    import pickle

    from coursework.desk import running, wire
    from coursework.desk.store import DeskError
    from coursework.exercises.engine import guard

    _confine(head["memory"], confined)
    _load()
    for name in ("HOME", "USERPROFILE"):
        os.environ.setdefault(name, head["room"])
    os.environ["TMPDIR"], tempfile.tempdir = head["room"], None
    if not head["trusted"]:
        sys.meta_path.insert(0, _NoBank())
    guard.expendable = True
    wire.send(to_judge, wire.dumps({"ready": True}))
    received = wire.receive(from_judge)
    if received is None:
        return
    request = pickle.loads(received)

    speaking = threading.Lock()

    def say(said: dict[str, Any]) -> None:
        with speaking:
            wire.send(to_judge, wire.dumps(said))

    with (
        running.working_in(Path(head["folder"])),
        contextlib.redirect_stdout(_Printed(say)) as printed,
        contextlib.redirect_stderr(printed),
    ):
        try:
            asked = request["exercise"], request["asks_for"], request["parts"]
            made = running.namespace(request["answer"], *asked)[request["asks_for"]]
        except DeskError as problem:
            say({"problem": str(problem)[:2000]})
            return
        if head["trusted"]:
            _advise(request["exercise"], made, say)
        else:
            _act(request, made, say, lambda: wire.receive(from_judge))


def _act(
    request: dict[str, Any], made: Any, say: Callable[[dict[str, Any]], None], receive: Callable[[], bytes | None]
) -> None:
    """Say what the cell made; then observe each call that is asked for."""
    import inspect
    import pickle

    from coursework.desk import wire
    from coursework.exercises.engine.compare import kind_of
    from coursework.exercises.engine.guard import Guard
    from coursework.exercises.engine.run import bind, observe
    from coursework.exercises.spec import Case

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
            outcome = observe(terms, call, case, guard, asked["seed"], again=False)
            say(wire.pack_outcome(outcome))


def _advise(exercise: str, made: Any, say: Callable[[dict[str, Any]], None]) -> None:
    """Say all that the check would, more each time, for any step may be the last."""
    from coursework.desk import running

    running.handle(exercise, None).report_on(made, False, say)


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
    import psutil

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


def main() -> None:
    """Serve the judge that started this process: over a socket, or as a fresh process over its own streams."""
    where, start = sys.argv[1], json.loads(sys.argv[2])
    if where != "-":
        serve(socket.socket(fileno=int(where)), start)
        return
    streams = os.dup(0), os.dup(1)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1):
        os.dup2(nowhere, descriptor)
    end_with_parent(start["judge"])
    try:
        answer(os.fdopen(streams[0], "rb"), os.fdopen(streams[1], "wb"), start, confined=False)
    finally:
        os._exit(0)  # whatever threads it has left


if __name__ == "__main__":
    main()
