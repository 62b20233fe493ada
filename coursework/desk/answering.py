"""The process in which an answer runs: it does what the judge asks, one call after another, and says what came out.

It knows neither what is right nor how closely: it has no bank, and of an exercise only what the request brings. With
"trusted" in its head it has, and says what `Handle.check` would say; that is advice, for the verdict is made before.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from coursework.desk import sandbox
from coursework.exercises.engine.ending import adopt, end_all, end_with_parent


def serve(control: socket.socket, start: dict[str, Any]) -> None:
    """Fork a process for each answer that the judge sends a socket for, and end it when the judge says so."""
    room = Path(start["room"])
    needed = [room, *([Path(start["needed"])] if "needed" in start else [])]
    hidden = sandbox.secret_folders(needed, [Path(path) for path in start["hidden"]])
    end_with_parent(start["judge"])
    confined = sandbox.usable(room, hidden)
    if confined:
        sandbox.enter(hidden)
    if not confined:
        sandbox.forbid_tracing()
    adopt()
    answer = _acting()
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
                if not confined:
                    sandbox.forbid_tracing(False)
                else:
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
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    end_all()
    return code


def _acting() -> Callable[[IO[bytes], IO[bytes], dict[str, Any], bool], None]:
    from coursework.desk.acting import answer  # loads torch: a namespace is entered before there are threads

    return answer


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
        _acting()(os.fdopen(streams[0], "rb"), os.fdopen(streams[1], "wb"), start, False)
    finally:
        os._exit(0)  # whatever threads it has left


if __name__ == "__main__":
    main()
