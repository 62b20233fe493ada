"""What a class got wrong: which misconception how often, and which section to teach again."""

import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from course_lib.reading import check_shape, read_json
from coursework.classroom.judging import BROKEN, FAIL, PASS, SCHEMA
from coursework.desk.finding import course_notebooks
from coursework.desk.notebooks import DamagedNotebook, exercise_of, read_notebook
from coursework.desk.store import DeskError

# What is summed up of a report; the rest of it is for other programs.
REPORT = {
    "exercises": [{"id": str, "notebook": str}],
    "learners": [{"results": [{"exercise": str, "outcome": str, "misconceptions": [{"name": str, "statement": str}]}]}],
}
_HEADING = re.compile(r"^(#{1,6})\s+(.+?)\s*#*$", re.MULTILINE)


class Mistake(NamedTuple):
    """A misconception, and how many learners have it."""

    name: str
    statement: str
    learners: int


class Summary(NamedTuple):
    """One exercise in a class: how many learners tried it and passed, what the others got wrong, where it is taught.

    `unnamed` counts the answers that failed without a recognised misconception, `broken` those that could not be run.
    `section` is the heading above the exercise in `notebook`, "" where the notebooks are not installed.
    """

    exercise: str
    notebook: str
    section: str
    tried: int
    passed: int
    mistakes: tuple[Mistake, ...]
    unnamed: int
    broken: int

    @property
    def cause(self) -> str:
        """What is behind the answers that did not pass, in a few words."""
        parts = [f"{mistake.learners} × {mistake.name}" for mistake in self.mistakes]
        parts += [f"{self.unnamed} × no known mistake"] if self.unnamed else []
        parts += [f"{self.broken} × could not be run"] if self.broken else []
        return ", ".join(parts)


def load(path: Path) -> dict[str, Any]:
    """Read a report that `course verify` wrote. Raises DeskError if it is none."""
    what = "the report.json of `course verify`"
    report = read_json(path, expected=what)
    version = report.get("schema")
    if version != SCHEMA:
        raise DeskError(f"{path} is no report: expected the schema {SCHEMA!r} of `course verify`, got {version!r}.")
    check_shape(report, path, REPORT, what)
    return report


def summarise(report: Mapping[str, Any]) -> list[Summary]:
    """Sum up each exercise that somebody tried, in the order of the course."""
    sections = _sections({one["notebook"] for one in report["exercises"]})
    found = []
    for one in report["exercises"]:
        results = [row for who in report["learners"] for row in who["results"] if row["exercise"] == one["id"]]
        outcomes = Counter(row["outcome"] for row in results)
        named: Counter[tuple[str, str]] = Counter()
        for row in results:
            named.update({(wrong["name"], wrong["statement"]) for wrong in row["misconceptions"]})
        mistakes = tuple(Mistake(*key, number) for key, number in sorted(named.items(), key=lambda pair: -pair[1]))
        tried = outcomes[PASS] + outcomes[FAIL] + outcomes[BROKEN]
        unnamed = sum(row["outcome"] == FAIL and not row["misconceptions"] for row in results)
        if tried:
            section = sections.get(one["id"], "")
            passed, broken = outcomes[PASS], outcomes[BROKEN]
            found.append(Summary(one["id"], one["notebook"], section, tried, passed, mistakes, unnamed, broken))
    return found


def again(summaries: list[Summary]) -> list[tuple[str, str, int, int, tuple[Summary, ...]]]:
    """Return the sections to teach again as (notebook, section, failed, tried, exercises), the most failed first."""
    sections: dict[tuple[str, str], list[Summary]] = {}
    for one in summaries:
        sections.setdefault((one.notebook, one.section), []).append(one)
    rows = []
    for (notebook, section), found in sections.items():
        failed, tried = sum(one.tried - one.passed for one in found), sum(one.tried for one in found)
        if failed:
            rows.append((notebook, section, failed, tried, tuple(one for one in found if one.passed < one.tried)))
    return sorted(rows, key=lambda row: (-row[2] / row[3], -row[2]))


def _sections(names: set[str]) -> dict[str, str]:
    """Exercise id -> the heading under which its notebook teaches it, which is not the heading of the exercise."""
    try:
        folder = course_notebooks()
    except DeskError:
        return {}
    found: dict[str, str] = {}
    for name in names:
        try:
            notebook = read_notebook(folder / f"{name}.ipynb")
        except (OSError, DamagedNotebook):
            continue
        heading = ""
        for cell in notebook["cells"]:
            if cell["cell_type"] == "markdown":
                levels = [(len(marks), text) for marks, text in _HEADING.findall(cell["source"])]
                heading = next((text for level, text in reversed(levels) if level == 2), heading)
            elif (exercise := exercise_of(cell)) is not None:
                found[exercise] = heading
    return found
