"""Answers, their history and the progress of one learner, kept in plain files that survive crashes.

Layout of a desk (usually `my/`):

    01_attention.ipynb …              the learner's copies
    answers/<exercise>.py             the latest answer
    answers/history/<exercise>/0001.py …   every answer, with a header line saying how it did
    predictions.txt                   every guess, one line each: when, which prediction, the guess
    .course/progress.json             a summary; it can always be rebuilt from the history
    .course/base/                     the editions the copies came from
    .course/backup/                   notebooks as they were before an update, a reset or a rescue

The history is the truth and is written first; the summary only saves reading it.
"""

import contextlib
import errno
import json
import os
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from course_lib.files import write_atomic
from course_lib.reading import Unreadable, check_shape, read_bytes, read_json

MARKER = ".course"
RIGHT = "right"
UNCHECKED = "unchecked"  # kept by a reset or a rescue, never judged: it does not count as an attempt
LOCK_SECONDS = 10.0
_ID = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


class DeskError(Exception):
    """A desk cannot be found or used; the message is one clear line for the learner."""


class Desk:
    """One learner's folder; every method may be called from several kernels at once.

    Saving never raises on a full disk or a folder that cannot be written: it prints one line instead, so that a check
    goes on. An exercise id that is not a Python name raises ValueError.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder).absolute()
        self.private = self.folder / MARKER
        self.answers = self.folder / "answers"

    # -- saving ----------------------------------------------------------------------------------------------------

    def save_answer(self, exercise_id: str, source: str, verdict: str, edition: str) -> None:
        """Keep `source` as the latest answer and in the history; `verdict` is "right", "wrong" or "unchecked".

        `edition` is the hash of the exercise as it was when it was answered. The same answer with the same verdict
        against the same edition is kept once, so running a whole notebook again does not count as more attempts.
        """
        _require_id(exercise_id)
        if not isinstance(source, str):
            raise TypeError(f"source must be the text of the answer, got {type(source).__name__}")
        with _told(f"Your answer to {exercise_id} could not be saved in {self.folder}", _CHECKED), self.lock():
            self.keep_answer(exercise_id, source, verdict, edition)

    def keep_answer(self, exercise_id: str, source: str, verdict: str, edition: str) -> None:
        """Do what `save_answer` does, for a caller that holds the lock and wants the OSError when it fails."""
        data, entry = self._load_entry(exercise_id)
        previous = self._entries(exercise_id)
        header = {
            "exercise": exercise_id,
            "verdict": _word(verdict),
            "edition": _word(edition),
            "hints": str(entry["hints"]),
            "saved": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        latest = self.answers / f"{exercise_id}.py"
        payload = (_header_line(header) + _body(source)).encode("utf-8", "backslashreplace")
        if previous and _repeats(previous[-1], header, _body(source)):
            if not latest.exists() or content(latest) != content(previous[-1]):  # a crash in between
                write_atomic(latest, content(previous[-1]))
            if self._load().get(exercise_id) != entry:
                self._write_progress(data)
            return
        number = int(previous[-1].stem) + 1 if previous else 1
        write_atomic(self.answers / "history" / exercise_id / f"{number:04d}.py", payload)
        write_atomic(latest, payload)
        _count(entry, header)
        entry["files"] = len(previous) + 1
        self._write_progress(data)

    def record_hint(self, exercise_id: str) -> None:
        """Count one more hint read for this exercise."""
        _require_id(exercise_id)
        with _told(f"The hint could not be counted in {self.folder}", _CHECKED), self.lock():
            data, entry = self._load_entry(exercise_id)
            entry["hints"] += 1
            self._write_progress(data)

    def save_prediction(self, name: str, guess: str) -> bool:
        """Keep a guess of one line, unless it is the latest already; whether it is kept now."""
        kept = False
        with _told(f"Your guess could not be saved in {self.folder}"), self.lock():
            if self.predictions().get(name) != guess:
                path = self._predictions
                old = content(path) if path.exists() else b""
                line = f"{datetime.now(UTC).isoformat(timespec='seconds')} | {name} | {guess}\n"
                broken = b"\n" if old and not old.endswith(b"\n") else b""
                write_atomic(path, old + broken + line.encode("utf-8", "backslashreplace"))
            kept = True
        return kept

    # -- reading ---------------------------------------------------------------------------------------------------

    def attempts(self, exercise_id: str) -> int:
        """Return how many different answers to this exercise were checked."""
        _require_id(exercise_id)
        return self._load_entry(exercise_id)[1]["attempts"]

    def progress(self) -> dict[str, dict[str, Any]]:
        """Return, by exercise id: attempts, hints, verdict, solved, edition, solved_edition and saved (a time).

        `verdict` and `edition` are the latest answer's; `solved` stays true once a right answer was given and
        `solved_edition` is the edition that the latest right answer solved.
        """
        data = self._load()
        for exercise_id in self._answered_ids():
            self._refresh(data, exercise_id)
        return {key: {k: v for k, v in entry.items() if k != "files"} for key, entry in sorted(data.items())}

    def latest_answer(self, exercise_id: str, *, right: bool = False) -> str | None:
        """Return the latest answer's source without its header (with `right`, the latest right one), or None."""
        _require_id(exercise_id)
        candidates = [] if right else [self.answers / f"{exercise_id}.py"]
        candidates += reversed(self._entries(exercise_id))
        for path in candidates:
            with contextlib.suppress(OSError):
                header, body = _read_answer(path)
                if not right or header.get("verdict") == RIGHT:
                    return body
        return None

    def history(self, exercise_id: str) -> list[tuple[dict[str, str], str]]:
        """Return every kept answer, oldest first, as (header, source)."""
        _require_id(exercise_id)
        found = []
        for path in self._entries(exercise_id):
            with contextlib.suppress(OSError):
                found.append(_read_answer(path))
        return found

    def predictions(self) -> dict[str, str]:
        """Return the latest guess of each prediction, in the order of the first ones; what is no guess is skipped."""
        found: dict[str, str] = {}
        with contextlib.suppress(OSError):
            for line in content(self._predictions).split(b"\n"):
                parts = line.decode("utf-8", "replace").strip("\r").split(" | ", 2)
                if len(parts) == 3 and _ID.match(parts[1]):
                    found[parts[1]] = parts[2]
        return found

    # -- files -----------------------------------------------------------------------------------------------------

    def lock(self, seconds: float = LOCK_SECONDS) -> contextlib.AbstractContextManager[Any]:
        """Return the lock under which anything in the desk is changed; it is free again when its process dies."""
        from filelock import FileLock

        return FileLock(str(self.private / "lock"), timeout=seconds)

    @property
    def _predictions(self) -> Path:
        return self.folder / "predictions.txt"

    def _entries(self, exercise_id: str) -> list[Path]:
        folder = self.answers / "history" / exercise_id
        try:
            found = [path for path in folder.iterdir() if path.suffix == ".py" and path.stem.isdecimal()]
        except OSError:
            found = []
        return sorted(found, key=lambda path: int(path.stem))

    def _answered_ids(self) -> list[str]:
        try:
            names = [path.name for path in (self.answers / "history").iterdir() if path.is_dir()]
        except OSError:
            names = []
        return sorted(name for name in names if _ID.match(name))

    def _load_entry(self, exercise_id: str) -> tuple[dict[str, dict[str, Any]], dict[str, Any]]:
        data = self._load()
        self._refresh(data, exercise_id)
        return data, data.setdefault(exercise_id, _empty())

    def _refresh(self, data: dict[str, dict[str, Any]], exercise_id: str) -> None:
        """Count again from the history if the summary has missed an answer (a crash between the two writes)."""
        paths = self._entries(exercise_id)
        if len(paths) == data.get(exercise_id, _empty())["files"]:
            return
        entry = _empty()
        for path in paths:
            with contextlib.suppress(OSError):
                _count(entry, _read_answer(path)[0])
        entry["files"] = len(paths)
        entry["hints"] = max(entry["hints"], data.get(exercise_id, _empty())["hints"])
        data[exercise_id] = entry

    def _load(self) -> dict[str, dict[str, Any]]:
        path = self.private / "progress.json"
        try:
            return _checked(path, read_json(path, {"exercises": {str: _ANY_ENTRY}}, "your progress"))
        except FileNotFoundError:
            return {}
        except Unreadable:
            return self._set_aside(path)
        except OSError as problem:
            print(f"{path} cannot be read ({reason(problem)}); counting from the answers instead.")
            return {}

    def _set_aside(self, path: Path) -> dict[str, dict[str, Any]]:
        """Move a damaged summary away, so that nothing of it is lost, and go on from the answers."""
        number = 1
        while (aside := path.with_name(f"progress.damaged-{number}.json")).exists():
            number += 1
        try:
            path.replace(aside)
            print(
                f"{path.name} was damaged: it is kept as {aside.name}, and your progress was rebuilt from your answers."
            )
        except FileNotFoundError:  # another kernel was faster
            pass
        except OSError as problem:
            print(f"{path} is damaged and cannot be moved ({reason(problem)}); counting from the answers instead.")
        return {}

    def _write_progress(self, data: dict[str, dict[str, Any]]) -> None:
        for exercise_id in self._answered_ids():  # after damage the others are counted again here, once
            self._refresh(data, exercise_id)
        document = {"version": 1, "exercises": data}
        write_atomic(self.private / "progress.json", json.dumps(document, indent=1, sort_keys=True) + "\n")


def _empty() -> dict[str, Any]:
    return {
        "attempts": 0,
        "hints": 0,
        "verdict": None,
        "solved": False,
        "edition": None,
        "solved_edition": None,
        "saved": None,
        "files": 0,
    }


def _count(entry: dict[str, Any], header: Mapping[str, str]) -> None:
    verdict = header.get("verdict", UNCHECKED)
    entry["hints"] = max(entry["hints"], hints_of(header))
    if verdict == UNCHECKED:
        return
    entry["attempts"] += 1
    entry["verdict"] = verdict
    entry["edition"] = header.get("edition")
    entry["saved"] = header.get("saved")
    if verdict == RIGHT:
        entry["solved"] = True
        entry["solved_edition"] = header.get("edition")


_ANY_ENTRY = {str: int | bool | str | None}
_ENTRY: dict[str, Any] = {"attempts": int, "hints": int, "files": int, "solved": bool}
_ENTRY |= dict.fromkeys(("verdict", "edition", "solved_edition", "saved"), str | None)


def hints_of(header: Mapping[str, str]) -> int:
    """Return how many hints had been taken when an answer was kept; 0 where its header was spoilt."""
    hints = header.get("hints", "")
    return int(hints) if hints.isdecimal() and len(hints) < 7 else 0


def _checked(path: Path, document: Any) -> dict[str, dict[str, Any]]:
    """Return the entries of a parsed progress file. Raises Unreadable if it is not what we wrote."""
    entries = {}
    for key, value in document["exercises"].items():
        entries[key] = _empty() | value
        check_shape(entries[key], path, _ENTRY, "your progress")
        if not _ID.match(key) or min(entries[key][name] for name in ("attempts", "hints", "files")) < 0:
            raise Unreadable(path, "your progress", f"a malformed entry {key}")
    return entries


_FIELDS = ("exercise", "verdict", "edition", "hints", "saved")


def _header_line(header: Mapping[str, str]) -> str:
    return "# " + " | ".join(f"{field}: {header[field]}" for field in _FIELDS) + "\n"


def _read_answer(path: Path) -> tuple[dict[str, str], str]:
    text = content(path).decode(errors="replace")
    first, _, rest = text.partition("\n")
    if not first.startswith("# exercise: "):
        return {}, text  # written or edited by hand
    pairs = (part.partition(": ") for part in first[2:].split(" | "))
    return {key: value for key, _, value in pairs}, rest


def _body(source: str) -> str:
    return source.replace("\r\n", "\n").rstrip() + "\n"


def _repeats(path: Path, header: Mapping[str, str], body: str) -> bool:
    last_header, last_body = _read_answer(path)
    return last_body == body and all(last_header.get(key) == header[key] for key in ("verdict", "edition"))


def _word(text: object) -> str:
    return " ".join(str(text).replace("|", "/").split())


def _require_id(exercise_id: object) -> None:
    if not isinstance(exercise_id, str) or not _ID.match(exercise_id):
        raise ValueError(f"exercise_id must be an exercise's name such as causal_mask, got {exercise_id!r}")


class NoFile(OSError):
    """In place of a file stands a pipe, a device, or more than any file of the course."""

    def __str__(self) -> str:
        """Return the name of the file and what stands there."""
        return f"{Path(self.filename).name}: {self.strerror}"


def content(path: Path) -> bytes:
    """Read a file of the learner's whole. Raises OSError: NoFile for what is none, and would be waited for."""
    try:
        return read_bytes(path, patience=0)
    except Unreadable as problem:
        raise NoFile(errno.EINVAL, str(problem).removeprefix(f"{path}: "), str(path)) from None


def reason(problem: BaseException) -> str:
    """Return why a file operation failed, in a few words."""
    if isinstance(problem, TimeoutError):
        return "another program has been writing there for too long"
    return getattr(problem, "strerror", None) or str(problem) or type(problem).__name__


_CHECKED = " The check itself is not affected."


@contextlib.contextmanager
def _told(what: str, comfort: str = "") -> Iterator[None]:
    try:
        yield
    except (OSError, NotImplementedError) as problem:
        print(f"{what}: {reason(problem)}.{comfort}")
