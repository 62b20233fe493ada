"""Run a command under a limit, and check one answer of the learner's: whatever the answer does ends with it."""

import contextlib
import os
import subprocess
import threading
from pathlib import Path
from typing import IO, Any, cast

from coursework.desk.pen import SECONDS, SHOWN, Limits, Pen, end_tree
from coursework.desk.store import Desk, DeskError


def check(exercise_id: str, desk: Desk | None, file: Path | None, seconds: float = SECONDS) -> bool:
    """Check the answer in the desk's notebook, or in `file`; print what is to be said, and return whether it is right.

    Raises DeskError with one line if the answer cannot be run, ends its process or is not done in time.
    """
    said = judged(exercise_id, desk, file, seconds)
    if said["printed"]:
        print(shown(said["printed"]).rstrip())
    if said["problem"]:
        raise DeskError(said["problem"])
    print(said["text"].rstrip())
    return bool(said["right"])


def judged(exercise_id: str, desk: Desk | None, file: Path | None, seconds: float = SECONDS) -> dict[str, Any]:
    """Return the report of `judge.judge` on the answer."""
    with pen(desk, file, seconds) as answering:
        return report(exercise_id, desk, file, answering)


def report(exercise_id: str, desk: Desk | None, file: Path | None, answering: Pen) -> dict[str, Any]:
    """Return the report of `judge.judge` on the answer, which runs in the given pen."""
    from coursework.desk import judge  # loads torch

    request = {"exercise": exercise_id, "desk": desk and str(desk.folder.resolve()), "file": file and str(file)}
    return judge.judge(request, answering)


def pen(desk: Desk | None, file: Path | None, seconds: float = SECONDS) -> Pen:
    """For answers of the learner's own: they see the environment, and run where their notebooks do."""
    folder = desk.folder.resolve() if desk is not None and file is None else Path.cwd()
    return Pen(Limits(seconds, 4 << 30), folder=folder)


def run(command: list[str], seconds: float, **options: Any) -> tuple[int | None, str]:
    """Run the command with `options` of `subprocess.Popen`, and end it with all that it has started.

    Returns its exit code, None if it was stopped, and the beginning of what it printed.
    """
    child = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=hasattr(os, "setsid"),
        **options,
    )
    beginning = bytearray()
    reader = threading.Thread(target=_read, args=(cast(IO[bytes], child.stdout), beginning), daemon=True)
    reader.start()
    try:
        ended = child.wait(seconds)
    except subprocess.TimeoutExpired:
        ended = None
    finally:  # also when the learner stops it
        end_tree(child)
    reader.join(5)
    return ended, shown(beginning.decode("utf-8", errors="replace"))


def shown(text: str) -> str:
    """The beginning of what was printed."""
    return text if len(text) <= SHOWN else f"{text[:SHOWN]} …\n(the rest of what the answer printed is cut)"


def _read(stream: IO[bytes], beginning: bytearray) -> None:
    with contextlib.suppress(OSError, ValueError):
        while chunk := stream.read1(1 << 16):  # type: ignore[attr-defined]
            beginning += chunk[: max(0, 4 * SHOWN - len(beginning))]
