"""Check one answer in a process of its own, which is ended at its limit: whatever the answer does ends with it.

The process counts only by the report that it leaves after the verdict, never by its exit code. The report carries a
secret of the request, so that none which the answer writes itself is taken for it.
"""

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import IO, Any, cast

from coursework.desk.store import Desk, DeskError

SECONDS = 60.0
SHOWN = 2000
"""Characters of what an answer prints that are passed on."""


class Ended(DeskError):
    """The answer ended its process, or was ended at its limit, before there was a verdict."""


def check(exercise_id: str, desk: Desk | None, file: Path | None, seconds: float = SECONDS) -> bool:
    """Check the answer in the desk's notebook, or in `file`; print what is to be said, and return whether it is right.

    Raises DeskError with one line if the answer cannot be run, ends the process or is not done in time.
    """
    said, printed = judged(exercise_id, desk, file, seconds)
    if printed:
        print(printed.rstrip())
    if said["problem"]:
        raise DeskError(said["problem"])
    print(said["text"].rstrip())
    return bool(said["right"])


def judged(
    exercise_id: str, desk: Desk | None, file: Path | None, seconds: float = SECONDS
) -> tuple[dict[str, Any], str]:
    """Return the report of `judge.main` on the answer, and the beginning of what the answer printed.

    Raises Ended if the process ended without a report.
    """
    with tempfile.TemporaryDirectory(prefix="course-check-") as folder:
        report = Path(folder) / "report.json"
        request = {"exercise": exercise_id, "desk": desk and str(desk.folder), "file": file and str(file)}
        request["secret"] = secrets.token_hex(16)
        command = [sys.executable, "-P", "-m", "coursework.desk.judge", str(report)]
        ended, printed = run(command, seconds, json.dumps(request).encode())
        try:
            said = json.loads(report.read_text(encoding="utf-8"))
            if said.pop("secret") == request["secret"]:
                return said, printed
        except (OSError, ValueError, KeyError, TypeError, AttributeError):  # none, or one that the answer wrote
            pass
        if printed:
            print(printed.rstrip())
        raise Ended(without_verdict(ended, seconds))


def run(command: list[str], seconds: float, given: bytes = b"", **options: Any) -> tuple[int | None, str]:
    """Run the command with `given` as its input, at most a few kilobytes, and `options` of `subprocess.Popen`.

    Returns its exit code, None if it was stopped, and the beginning of what it printed.
    """
    child = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=os.name == "posix",
        **options,
    )
    with contextlib.suppress(OSError), cast(IO[bytes], child.stdin) as stream:
        stream.write(given)
    beginning = bytearray()
    reader = threading.Thread(target=_read, args=(cast(IO[bytes], child.stdout), beginning), daemon=True)
    reader.start()
    try:
        ended = child.wait(seconds)
    except subprocess.TimeoutExpired:
        ended = None
    finally:  # also when the learner stops it; and what the answer itself has started ends with it
        _kill(child)
    reader.join(5)
    text = beginning.decode("utf-8", errors="replace")
    return ended, text if len(text) <= SHOWN else f"{text[:SHOWN]} …\n(the rest of what the answer printed is cut)"


def _read(stream: IO[bytes], beginning: bytearray) -> None:
    while chunk := stream.read1(1 << 16):  # type: ignore[attr-defined]
        beginning += chunk[: max(0, 4 * SHOWN - len(beginning))]


def _kill(child: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        if os.name == "posix":
            os.killpg(child.pid, signal.SIGKILL)
        else:
            child.kill()
    child.wait()


def without_verdict(ended: int | None, seconds: float) -> str:
    """What to say of a process that ended with this code, None if it was stopped, and left no report."""
    if ended is None:
        return (
            f"the answer was stopped after {seconds:g} s without an end. Is there a loop that never ends, or a "
            "computation far larger than the small cases need? (--seconds gives it more time.)"
        )
    how = f"by signal {signal.Signals(-ended).name}" if ended < 0 else f"with exit code {ended}"
    return f"the answer ended the whole process ({how}) before it could be judged, so it counts as not checked."
