"""What the command `course` prints about progress, updates and the machine, at a terminal and without one."""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from coursework.desk import merge

if TYPE_CHECKING:
    from rich.console import Console

    from coursework.desk.chapters import Standing as ChapterStanding
    from coursework.desk.doctor import Finding
    from coursework.desk.updates import Updated
    from coursework.exercises.learner import Standing

_STYLES = {"solved": "green", "tried": "yellow", "solved against an older edition": "cyan"}


def plural(number: int, noun: str) -> str:
    """Return "1 cell" or "2 cells"."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def console() -> "Console":
    """Return a console as wide as the terminal, or wide enough for every column where there is none."""
    from rich.console import Console

    here = Console(highlight=False)
    return here if here.is_terminal else Console(width=160, highlight=False)


def print_status(standings: Sequence["Standing"]) -> None:
    """Print one row for each exercise, and what is left."""
    from rich.table import Table
    from rich.text import Text

    table = Table("chapter", "exercise", "kind", title="Your progress")
    for name in ("difficulty", "minutes"):
        table.add_column(name, justify="right")
    table.add_column("state")
    for name in ("attempts", "hints"):
        table.add_column(name, justify="right")
    for one in standings:
        entry, state = one.entry, Text(one.state, style=_STYLES.get(one.state, ""))
        row = (one.place, entry.id, entry.kind, str(entry.difficulty), str(entry.minutes))
        table.add_row(*row, state, str(one.attempts), str(one.hints))
    minutes = sum(one.entry.minutes for one in standings if not one.solved)
    here = console()
    here.print(table)
    here.print(f"{sum(one.solved for one in standings)} of {len(standings)} solved; about {duration(minutes)} to go.")


def duration(minutes: int) -> str:
    """Return "45 min", "1 h" or "1 h 20 min"."""
    hours, rest = divmod(minutes, 60)
    if not hours:
        return f"{rest} min"
    return f"{hours} h {rest} min" if rest else f"{hours} h"


def print_chapters(standings: Sequence["ChapterStanding"]) -> None:
    """Print one row for each chapter with its labs, and what is left."""
    from rich.table import Table

    table = Table("chapter", "solved", "time left", "its labs", "time left", "", title="Your progress")
    chapters = [one for one in standings if not one.is_lab]
    for chapter in chapters:
        number = chapter.name.partition("_")[0]
        labs = [one for one in standings if number and one.name.startswith(f"labs/{number}_")]
        row = [chapter.name.replace("_", " ") or "in no notebook yet"]
        for part in ([chapter], labs):
            row += [_solved(part), duration(sum(one.left for one in part)) if part else ""]
        here = next((one for one in (chapter, *labs) if one.here), None)
        table.add_row(*row, "" if here is None else "you are here" if here is chapter else f"you are in {here.name}")
    left = duration(sum(one.left for one in chapters))
    labs_left = duration(sum(one.left for one in standings if one.is_lab))
    screen = console()
    screen.print(table)
    screen.print(f"{_solved(standings)} solved; about {left} to go in the chapters, {labs_left} in the labs.")
    screen.print("The exercises of a chapter or a lab: course status --chapter 1, course status --chapter labs/01.")


def _solved(standings: Sequence["ChapterStanding"]) -> str:
    exercises = sum(one.exercises for one in standings)
    return f"{sum(one.solved for one in standings)} of {exercises}" if exercises else ""


def print_findings(findings: Iterable["Finding"]) -> int:
    """Print the doctor's table; return how many things that the course needs are missing."""
    from rich.table import Table
    from rich.text import Text

    table = Table("", "what", "found", "what to do")
    missing = 0
    for finding in findings:
        missing += finding.needed and not finding.ok
        style = "green" if finding.ok else "red" if finding.needed else "yellow"
        advice = "" if finding.ok else finding.advice
        table.add_row(Text("✓" if finding.ok else "✗", style=style), finding.what, Text(finding.value), Text(advice))
    screen = console()
    screen.print(table)
    screen.print(f"{plural(missing, 'thing')} to repair." if missing else "Everything the course needs is here.")
    return missing


def describe(report: "Updated") -> Iterator[str]:
    """Yield the lines on what an update did to one notebook."""
    yield f"{report.name}: {report.outcome}" + (f" ({report.note})" if report.note else "")
    if report.merge is None:
        return
    summed = (merge.FOLLOWED, merge.ADDED, merge.REMOVED, merge.IMPORTS)
    for event in summed:
        if number := report.merge.count(event):
            yield f"  {plural(number, 'cell')}: {event}"
    for cell_id, event in report.merge.events:
        if event not in summed:
            yield f"  {cell_id}: {event}"
    yield f"  as it was before: {report.backup}"
