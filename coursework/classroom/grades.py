"""Grades as CSV files that Canvas and Moodle import: one column for each chapter or lab.

Canvas wants the columns Student, ID and Section first, whatever else follows, and takes a row "Points Possible". Moodle
lets the instructor say which column names the person and which are grades. Both are sure of a person only by what they
export themselves, so the export can be given as a roster, whose columns about the person are kept.
"""

import csv
import io
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from course_lib.reading import read_text
from coursework.classroom.judging import PASS
from coursework.desk.store import DeskError

Row = dict[str, str]

CANVAS = ("Student", "ID", "SIS User ID", "SIS Login ID", "Section")
_PERSON = re.compile(
    r"(?i)(student|id|sis user id|sis login id|integration id|root account|section|id number|username|user name|"
    r"e-?mail( address)?|first ?name|last ?name|surname|full ?name|institution|department|name)\Z"
)


def read_roster(path: Path) -> list[Row]:
    """Read the gradebook that Canvas or Moodle exports; DeskError if it is no CSV file with a header."""
    text = read_text(path)
    first = text.partition("\n")[0]
    try:
        rows = list(csv.DictReader(io.StringIO(text), delimiter=";" if first.count(";") > first.count(",") else ","))
    except csv.Error as problem:
        raise DeskError(f"--roster {path} is no CSV file ({problem}).") from None
    kept = [{key: value or "" for key, value in row.items() if key and _PERSON.match(key.strip())} for row in rows]
    kept = [row for row in kept if any(row.values()) and "points possible" not in " ".join(row.values()).lower()]
    if not kept:
        raise DeskError(f"--roster must be a gradebook exported from Canvas or Moodle, got no person in {path}.")
    return kept


def canvas(report: Mapping[str, Any], roster: Sequence[Row] = ()) -> str:
    """The text of a file for Canvas: points for each chapter or lab."""
    columns = _columns(report)
    people = [
        (found or {"Student": _name(who), "ID": who["id"]}, points) for who, found, points in _graded(report, roster)
    ]
    # Canvas reads the columns about a person by their places, so all five are there or as in its own export.
    header = list(dict.fromkeys([*CANVAS, *(key for row, _ in people for key in row if key in roster_keys(roster))]))
    table = [[*header, *columns], ["    Points Possible", *[""] * (len(header) - 1), *map(str, columns.values())]]
    table += [[*(row.get(key, "") for key in header), *(str(points[one]) for one in columns)] for row, points in people]
    return _csv(table)


def roster_keys(roster: Sequence[Row]) -> list[str]:
    """The columns of a roster that Canvas knows."""
    return [key for key in (roster[0] if roster else ()) if key in (*CANVAS, "Integration ID", "Root Account")]


def moodle(report: Mapping[str, Any], roster: Sequence[Row] = ()) -> str:
    """The text of a file for Moodle: per cent for each chapter or lab."""
    columns = _columns(report)
    header = list(roster[0]) if roster else ["Learner"]
    table = [[*header, *(f"{one} (percent)" for one in columns)]]
    for who, found, points in _graded(report, roster):
        if found is None and roster:
            continue  # Moodle stops at a person whom it does not know
        person = found or {"Learner": _name(who)}
        percent = (f"{100 * points[one] / columns[one]:.2f}" for one in columns)
        table.append([*(person.get(key, "") for key in header), *percent])
    return _csv(table)


def unknown(report: Mapping[str, Any], roster: Sequence[Row]) -> list[str]:
    """The learners whom the roster does not know, or not surely."""
    return [_name(who) for who, found, _ in _graded(report, roster) if found is None]


def _columns(report: Mapping[str, Any]) -> dict[str, int]:
    """Chapter or lab -> how many exercises count."""
    columns: dict[str, int] = {}
    for one in report["exercises"]:
        columns[one["notebook"]] = columns.get(one["notebook"], 0) + 1
    return columns


def _graded(
    report: Mapping[str, Any], roster: Sequence[Row]
) -> list[tuple[Mapping[str, Any], Row | None, dict[str, int]]]:
    homes = {one["id"]: one["notebook"] for one in report["exercises"]}
    rows = []
    for who in report["learners"]:
        points: dict[str, int] = dict.fromkeys(homes.values(), 0)
        for result in who["results"]:
            points[homes[result["exercise"]]] += result["outcome"] == PASS
        rows.append((who, _person(who, roster), points))
    return rows


def _person(who: Mapping[str, Any], roster: Sequence[Row]) -> Row | None:
    """The one row of the roster with this number or, else, with this name."""
    for wanted in (who["id"], who["name"]):
        fits = [row for row in roster if _plain(wanted) and _plain(wanted) in {_plain(one) for one in _names(row)}]
        if len(fits) == 1:
            return fits[0]
    return None


def _names(row: Row) -> list[str]:
    low = {key.lower().replace(" ", ""): value for key, value in row.items()}
    whole = [f"{low.get('firstname', '')} {low.get('lastname', low.get('surname', ''))}"]
    turned = [" ".join(reversed(value.split(", ", 1))) for value in row.values() if ", " in value]
    return [*row.values(), *whole, *turned]


def _plain(text: str) -> str:
    return "".join(letter for letter in text.casefold() if letter.isalnum())


def _name(who: Mapping[str, Any]) -> str:
    return str(who["name"])


def _csv(table: Sequence[Sequence[str]]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\r\n")
    for row in table:  # a name that a spreadsheet would take for a formula is made a text
        writer.writerow([f"'{cell}" if cell[:1] in ("=", "+", "-", "@", "\t") else cell for cell in row])
    return text.getvalue()
