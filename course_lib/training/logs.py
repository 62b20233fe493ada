"""What a run writes down: a line of JSON for each record, and curves for TensorBoard on request."""

import contextlib
import json
from io import RawIOBase
from pathlib import Path
from typing import Any

from course_lib.files import write_atomic
from course_lib.reading import MOST_TEXT, Unreadable, parse_json, read_bytes
from course_lib.training.folder import RunFolder

__all__ = ["RunLog", "read_log", "shorten_log"]

Record = dict[str, Any]


def read_log(path: str | Path, last_step: int | None = None) -> list[Record]:
    """Return the records of a log up to a step; a line that a crash cut short is left out."""
    records = []
    path = Path(path)
    for line in read_bytes(path, MOST_TEXT).splitlines() if path.exists() else []:
        try:
            record = parse_json(line, path, {"step": int})
        except Unreadable:
            continue
        if last_step is None or record["step"] <= last_step:
            records.append(record)
    return records


def shorten_log(path: str | Path, last_step: int) -> list[Record]:
    """Drop the records after a step, which are about to be written again, and return the others."""
    records = read_log(path, last_step)
    write_atomic(path, "".join(json.dumps(record) + "\n" for record in records))
    return records


def _append(stream: RawIOBase, data: bytes) -> None:
    start = stream.tell()
    try:
        while data:
            data = data[stream.write(data) :]
    except OSError:
        with contextlib.suppress(OSError):
            stream.truncate(start)
        raise


class RunLog:
    """Writes records into a run's folder, and curves for TensorBoard if asked for; without a folder, nothing."""

    def __init__(self, folder: RunFolder | None, *, tensorboard: bool = False) -> None:
        self.path = None if folder is None else folder.log
        self.waiting: list[Record] = []  # for room on the disk
        self._writer: Any = None
        if tensorboard:
            if folder is None:
                raise ValueError("tensorboard: needs a folder to write to")
            try:
                from torch.utils.tensorboard import SummaryWriter
            except ImportError:
                raise ValueError("tensorboard: not installed; pip install tensorboard") from None
            self._writer = SummaryWriter(str(folder.tensorboard))  # type: ignore[no-untyped-call]

    def write(self, record: Record) -> None:
        """Add a record; its numbers become curves.

        Raises OSError if it cannot be written; the log is then as it was, and the next record brings this one along.
        """
        if self.path is not None:
            self.waiting.append(record)
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("ab", buffering=0) as stream:
                _append(stream, "".join(json.dumps(one) + "\n" for one in self.waiting).encode())
            self.waiting.clear()
        if self._writer is not None:
            for name, value in record.items():
                if name != "step" and isinstance(value, int | float):
                    self._writer.add_scalar(name, value, record["step"])

    def close(self) -> None:
        """Write what TensorBoard still holds back."""
        if self._writer is not None:
            self._writer.close()
