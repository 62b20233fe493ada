"""Rows of texts in files of one's own: read, with what is wrong named by its line, and split for good.

A row belongs to one split by a checksum of its first text and a seed: more rows, or another order, move none of them,
and the same text never stands in two splits.
"""

import csv
import hashlib
import itertools
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from course_lib.reading import MOST_TEXT, read_bytes, shown

__all__ = ["SPLITS", "Rows", "is_own", "read_rows", "read_splits"]

SPLITS = ("train", "validation", "test")
KINDS = (".tsv", ".csv", ".jsonl")
_SHOWN = 5  # bad rows that a message names

Fields = dict[str, str] | list[str] | str  # by name, in order, or what is wrong with them


@dataclass
class Rows:
    """Rows of texts with the place that each stands at, and what was wrong with the others, each by its place."""

    rows: list[tuple[str, ...]] = field(default_factory=list)
    places: list[str] = field(default_factory=list)
    bad: list[str] = field(default_factory=list)

    def add(self, fields: Sequence[str], place: str, names: Sequence[str]) -> None:
        """Take in a row, or what is wrong with it, as a text in its place."""
        if not isinstance(fields, str):
            row = tuple(text.strip() for text in fields)
            if len(row) != len(names):
                fields = f"expected {len(names)} columns, got {len(row)}"
            elif "" in row:
                fields = f"empty {names[row.index('')]}"
            elif any("\ud800" <= one <= "\udfff" for text in row for one in text):
                fields = "bytes that are not UTF-8"
            else:
                self.rows.append(row)
                self.places.append(place)
                return
        self.bad.append(f"{place}: {fields}")

    def refuse(self, *, skip_bad: bool) -> None:
        """Raise ValueError that names the bad rows, if there are any and they are not to be skipped."""
        if self.bad and not skip_bad:
            raise ValueError(f"{self.first()}. --skip-bad leaves such rows out and counts them")

    def first(self) -> str:
        """The first bad rows, one of each kind before others, and how many more there are."""
        kinds = {one.rpartition(": ")[2]: one for one in reversed(self.bad)}  # what is wrong -> its first row
        chosen = sorted(self.bad, key=lambda one: kinds[one.rpartition(": ")[2]] is not one)[:_SHOWN]
        more = f"; and {len(self.bad) - _SHOWN:,} more" if len(self.bad) > _SHOWN else ""
        return "; ".join(one for one in self.bad if one in chosen) + more

    def without(self, numbers: set[int], why: str) -> "Rows":
        """Return them with the rows of these numbers among the bad ones."""
        kept = [number for number in range(len(self.rows)) if number not in numbers]
        bad = [f"{self.places[number]}: {why}" for number in sorted(numbers)]
        return Rows([self.rows[i] for i in kept], [self.places[i] for i in kept], self.bad + bad)


def is_own(name: str) -> bool:
    """Whether a name is that of a file or a folder."""
    return os.path.exists(name)  # unlike Path.exists, of a name of any length


def lacks_header(name: str, columns: Sequence[str]) -> bool:
    """Whether a .tsv, or the one to train on of a folder, begins without the names of these columns."""
    path = Path(name, "train.tsv") if os.path.isdir(name) else Path(name)
    if path.suffix != ".tsv" or not path.is_file():
        return False
    with path.open(encoding="utf-8-sig", errors="surrogateescape") as lines:
        return not set(columns) <= {one.strip() for one in lines.readline().split("\t")}


def read_rows(path: str | Path, wanted: Sequence[str], columns: Sequence[str] | None = None) -> Rows:
    """Read what is wanted of each row, such as ("text", "label"), out of a file or a folder.

    Args:
        path: a .tsv with the texts in order, apart by tabs; a .csv with quotes and a header; a .jsonl, an object a
            line; a folder of .txt, one text each, whose label is the name of the folder that it lies in.
        wanted: what a row is made of, and the names of the columns, unless `columns` says others.
        columns: names in the header or in the objects, in the order of `wanted`.

    Raises ValueError where there is no such file, or a column is not there.
    """
    path, named = Path(path), tuple(columns or wanted)
    if len(named) != len(wanted):
        raise ValueError(f"columns: expected {len(wanted)}, for {' and '.join(wanted)}, got {', '.join(named)}")
    if not is_own(str(path)):
        raise ValueError(f"data: there is no file or folder {shown(str(path))}")
    if path.is_dir():
        if columns is not None:
            raise ValueError(f"columns: expected none with a folder of .txt, got {', '.join(columns)}")
        return _texts(path, wanted)
    if path.suffix not in KINDS:
        raise ValueError(f"data: expected a file {', '.join(KINDS)} or a folder of .txt, got {path}")
    found, strangers, keys = Rows(), 0, list[str]()
    for line, fields in _fields(path, named, headed=columns is not None):
        place = f"line {line} of {path}"
        if isinstance(fields, dict):
            lacking = next((name for name in named if name not in fields), None)
            strangers, keys = strangers + set(named).isdisjoint(fields), list(fields)
            fields = [fields[name] for name in named] if lacking is None else f"no {lacking}"
        found.add(fields, place, named)
    if strangers and not found.rows:
        raise _other_columns(named, f"the objects of {path}", keys)
    return found


def split_rows(rows: Sequence[tuple[str, ...]], seed: int, share: float = 0.1) -> dict[str, list[int]]:
    """Return the numbers of the rows of each split: a share each to validation and test, the rest to train."""
    found: dict[str, list[int]] = {split: [] for split in SPLITS}
    for number, row in enumerate(rows):
        digest = hashlib.sha256(f"{seed}\n{' '.join(row[0].split())}".encode()).digest()
        place = int.from_bytes(digest[:8]) / 2**64
        found["validation" if place < share else "test" if place < 2 * share else "train"].append(number)
    return found


def read_splits(
    path: str | Path, wanted: Sequence[str], columns: Sequence[str] | None = None, *, seed: int = 0, share: float = 0.1
) -> tuple[dict[str, Rows], bool]:
    """Return the rows of each split, and whether they were split here.

    A folder with train.tsv, validation.tsv and test.tsv, or the same as .csv or .jsonl, is taken as it is split; else
    see `read_rows` and `split_rows`.
    """
    folder = Path(path)
    files = {split: [f for kind in KINDS if (f := folder / f"{split}{kind}").is_file()] for split in SPLITS}
    if all(files.values()):
        return {split: read_rows(found[0], wanted, columns) for split, found in files.items()}, False
    if any(files.values()):
        lacking = next(split for split, found in files.items() if not found)
        raise ValueError(f"data: expected {lacking}.tsv beside the others in {folder}; or name one file, to be split")
    found = read_rows(path, wanted, columns)
    parts = {
        split: Rows([found.rows[i] for i in numbers], [found.places[i] for i in numbers])
        for split, numbers in split_rows(found.rows, seed, share).items()
    }
    parts["train"].bad = found.bad
    return parts, True


def _texts(folder: Path, wanted: Sequence[str]) -> Rows:
    paths = sorted(folder.rglob("*.txt"))
    if not paths or len(wanted) > 2:
        raise ValueError(f"data: expected a folder with .txt files, or with train.tsv and test.tsv, got {folder}")
    found = Rows()
    for path in paths:
        text = read_bytes(path, MOST_TEXT).decode("utf-8-sig", "surrogateescape").strip()
        found.add((text, path.parent.name)[: len(wanted)], str(path), wanted)
    return found


def _fields(path: Path, named: Sequence[str], *, headed: bool) -> Iterator[tuple[int, Fields]]:
    """Yield the number and the fields of each row that is not empty; `headed` says that there must be a header."""
    text = read_bytes(path, MOST_TEXT).decode("utf-8-sig", "surrogateescape")
    lines = text.split("\n")  # "\n" alone ends a line: texts may hold other separators
    if path.suffix == ".jsonl":
        yield from ((n, _object(line)) for n, line in enumerate(lines, 1) if line.strip())
        return
    if path.suffix == ".tsv":
        rows: Iterator[tuple[int, Fields]] = ((n, line.split("\t")) for n, line in enumerate(lines, 1) if line.strip())
    else:
        rows = _csv([f"{line}\n" for line in lines])
    first = next(rows, None)
    if first is None:
        raise ValueError(f"data: {path} is empty")
    header = [name.strip() for name in first[1]] if isinstance(first[1], list) else []
    if again := next((name for name in named if header.count(name) > 1), None):
        raise ValueError(f"columns: expected {again} once in the header of {path}, got {', '.join(header)}")
    if set(named) <= set(header):
        yield from ((n, _named(header, fields)) for n, fields in rows)
    elif headed or path.suffix == ".csv":
        raise _other_columns(named, f"the header of {path}", header)
    else:
        yield from itertools.chain([first], rows)


def _other_columns(named: Sequence[str], where: str, there: Sequence[str]) -> ValueError:
    expected = f"columns: expected {' and '.join(named)} in {where}"
    bare = ", or none for a .tsv without a header" if where.endswith(".tsv") else ""
    return ValueError(f"{expected}, got {', '.join(there)}; name yours by --columns{bare}")


def _named(header: list[str], fields: Fields) -> Fields:
    if not isinstance(fields, list):
        return fields
    if len(fields) != len(header):
        return f"expected {len(header)} columns, got {len(fields)}"
    return dict(zip(header, fields, strict=True))


def _object(line: str) -> Fields:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        return f"no JSON ({error})"
    if not isinstance(found, dict):
        return "no JSON object"
    plain = {name: value for name, value in found.items() if isinstance(value, str | int | float)}
    return {name: value if isinstance(value, str) else json.dumps(value) for name, value in plain.items()}


def _csv(lines: list[str]) -> Iterator[tuple[int, Fields]]:
    """Yield the rows of a CSV; where one cannot be read, only its first line is given up."""
    csv.field_size_limit(2**31 - 1)
    delimiter = max(",;\t", key=lines[0].count)
    at = 0
    while at < len(lines):
        reader = csv.reader(itertools.islice(lines, at, None), strict=True, delimiter=delimiter)
        begin = at
        try:
            for fields in reader:
                if any(one.strip() for one in fields):
                    yield begin + 1, fields
                begin = at + reader.line_num
            return
        except csv.Error as error:
            yield begin + 1, f"a row that CSV does not read ({error})"
            at = begin + 1
