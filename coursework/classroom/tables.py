"""What `course verify` and `course misconceptions` print."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from rich.table import Table
from rich.text import Text

from coursework.classroom.judging import OUTCOMES
from coursework.classroom.summary import again, summarise
from coursework.desk.tables import console, plural


def print_class(report: Mapping[str, Any]) -> None:
    """Print one row a learner: how many answers had which outcome, and what is wrong with the files."""
    table = Table("learner", title="The class")
    for name in OUTCOMES:
        table.add_column(name, justify="right")
    table.add_column("trouble")
    for who in report["learners"]:
        counts = Counter(row["outcome"] for row in who["results"])
        name = "".join(letter for letter in who["name"] if letter.isprintable())
        table.add_row(Text(name), *(str(counts[one]) for one in OUTCOMES), Text("; ".join(who["problems"])))
    here = console()
    here.print(table)
    learners, exercises = plural(len(report["learners"]), "learner"), plural(len(report["exercises"]), "exercise")
    here.print(f"{learners}, {exercises}, {report['seconds']} seconds.")


def print_misconceptions(report: Mapping[str, Any]) -> None:
    """Print one row a misconception, and one a section to teach again."""
    here, summaries = console(), summarise(report)
    if not summaries:
        here.print(f"No answer of {plural(len(report['learners']), 'learner')} was attempted.")
        return
    table = Table("exercise", "passed", "misconception", "learners", "the answer behaves like one that")
    for one in summaries:
        wrong = [(mistake.name, str(mistake.learners), mistake.statement) for mistake in one.mistakes]
        wrong += [("no known mistake", str(one.unnamed), "")] if one.unnamed else []
        wrong += [("could not be run", str(one.broken), "")] if one.broken else []
        for number, row in enumerate(wrong or [("", "", "")]):
            first = ("", "") if number else (one.exercise, f"{one.passed} of {one.tried}")
            table.add_row(*first, *map(Text, row))
    here.print(table)
    if not (rows := again(summaries)):
        here.print("Nothing to teach again: every answer passed.")
        return
    sections = Table("notebook", "section", "not passed", "why", title="Sections to teach again")
    for notebook, section, failed, tried, found in rows:
        why = "; ".join(f"{one.exercise}: {one.cause}" for one in found)
        sections.add_row(notebook, section or "not known here", f"{failed} of {tried}", Text(why))
    here.print(sections)
