"""What the command `course` prints about progress, updates and the machine, at a terminal and without one."""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from course_lib.desk import merge

if TYPE_CHECKING:
    from rich.console import Console

    from course_lib.desk.doctor import Finding
    from course_lib.desk.updates import Updated
    from course_lib.exercises.learner import Standing

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
    """Print one row an exercise, and what is left."""
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
    here.print(f"{sum(one.solved for one in standings)} of {len(standings)} solved; about {minutes} minutes to go.")


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
    here = console()
    here.print(table)
    here.print(f"{plural(missing, 'thing')} to repair." if missing else "Everything the course needs is here.")
    return missing


def describe(report: "Updated") -> Iterator[str]:
    """Yield the lines on what an update did to one notebook."""
    yield f"{report.name}: {report.outcome}" + (f" ({report.note})" if report.note else "")
    if report.merge is None:
        return
    summed = (merge.FOLLOWED, merge.ADDED, merge.REMOVED)
    for event in summed:
        if number := report.merge.count(event):
            yield f"  {plural(number, 'cell')}: {event}"
    for cell_id, event in report.merge.events:
        if event not in summed:
            yield f"  {cell_id}: {event}"
    yield f"  as it was before: {report.backup}"
