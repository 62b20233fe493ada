"""For instructors: `course verify` and `course misconceptions`."""

import os
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from course_lib.checks import MOST, Within
from course_lib.files import write_atomic
from coursework import classroom
from coursework.desk import isolated, sandbox
from coursework.desk.store import DeskError

Chapters = Annotated[
    list[str] | None, typer.Option("--chapter", help="Only this chapter or lab; may be repeated.", show_default=False)
]
Jobs = Annotated[
    int | None, Within(1, 1000), typer.Option(help="Answers judged at once; else one a processor.", show_default=False)
]
Seconds = Annotated[float, Within(1, MOST), typer.Option(help="End an answer after so long.")]
Megabytes = Annotated[int, Within(256, 2**24), typer.Option(help="Memory that an answer may take, in MiB.")]


def verify(
    folder: Annotated[Path, typer.Argument(help="One folder or notebook for each learner.", metavar="FOLDER")],
    out: Annotated[Path, typer.Option(help="Where the report goes.")] = Path("verified"),
    chapter: Chapters = None,
    exercise: Annotated[
        list[str] | None, typer.Option(help="Only this exercise; may be repeated.", show_default=False)
    ] = None,
    roster: Annotated[
        Path | None, typer.Option(help="A gradebook exported from Canvas or Moodle.", show_default=False)
    ] = None,
    strict: Annotated[bool, typer.Option(help="Exit code 1 unless every answer passes.")] = False,
    jobs: Jobs = None,
    seconds: Seconds = isolated.SECONDS,
    memory: Megabytes = 2048,
) -> None:
    """Judge the notebooks of a class: each answer in a process of its own, and one bad notebook never stops the rest.

    FOLDER holds one folder or notebook for each learner, or an unpacked download of all submissions from Moodle or
    Canvas. Written are report.json, report.html, and grades for Canvas and Moodle as CSV.

    Examples: `course verify submissions --chapter 1` · `course verify submissions --roster gradebook.csv --out week3`
    """
    people = classroom.read_roster(roster) if roster else []
    if not sandbox.usable(Path(tempfile.gettempdir())):
        typer.echo(
            "No sandbox can be had here: an answer can read and write what you can (docs/classroom.md).", err=True
        )
    _prepare(out, folder)
    report = _verified(folder, chapter, exercise, jobs, seconds, memory)
    classroom.print_class(report)
    files = classroom.files(report, people)
    for name, text in files.items():
        write_atomic(out / name, text.encode("utf-8", "backslashreplace"))
    typer.echo(f"Written to {out}: {', '.join(files)}.")
    if people and (strangers := classroom.unknown(report, people)):
        typer.echo(f"Not in the roster, or not surely: {', '.join(strangers)}.")
    if report["not_judged"]:
        unjudged = f"{report['not_judged']} of the answers were NOT judged"
        typer.echo(
            f"{unjudged}: the process that judges ended. {out / 'report.html'} says which; run it again.", err=True
        )
        raise typer.Exit(2)
    if strict and any(row["outcome"] != "pass" for who in report["learners"] for row in who["results"]):
        raise typer.Exit(1)


def misconceptions(
    source: Annotated[Path, typer.Argument(help="The folder of a class, or a report.json.", metavar="SOURCE")],
    chapter: Chapters = None,
    jobs: Jobs = None,
    seconds: Seconds = isolated.SECONDS,
    memory: Megabytes = 2048,
) -> None:
    """Sum up a class: which misconceptions how often, and which sections to teach again.

    Examples: `course misconceptions verified/report.json` · `course misconceptions submissions --chapter 2`
    """
    if source.is_dir() or source.suffix == ".ipynb":
        report = _verified(source, chapter, None, jobs, seconds, memory)
    else:
        report = classroom.load(source)
    classroom.print_misconceptions(report)


def _prepare(out: Path, submissions: Path) -> None:
    """Make sure, before the hours of judging, that the report can be written, and only where it is meant to go."""
    real = Path(os.path.realpath(out))
    inside = Path(os.path.abspath(out)).is_relative_to(os.path.abspath(submissions))
    if inside and not real.is_relative_to(os.path.realpath(submissions)):  # what lies there is the learners'
        raise DeskError(f"--out must be a folder, got {out}, a link in FOLDER that leads to {real}.")
    out.mkdir(parents=True, exist_ok=True)
    for name in classroom.FILES:
        if (out / name).is_dir():
            raise DeskError(f"--out must be a folder in which {name} can be written, got {out} with a folder {name}.")
    with tempfile.TemporaryFile(dir=out):
        pass


def _verified(
    folder: Path,
    chapters: list[str] | None,
    exercises: list[str] | None,
    jobs: int | None,
    seconds: float,
    memory: int,
) -> dict[str, Any]:
    def shown(done: int, of: int) -> None:
        if sys.stderr.isatty():
            typer.echo(f"\r{done} of {of} answers judged", err=True, nl=done == of)

    named = [one.replace("-", "_") for one in exercises or ()]
    limits = classroom.Limits(seconds, memory << 20)
    return classroom.judge_class(
        folder, chapters=chapters or (), exercises=named, jobs=jobs, limits=limits, shown=shown
    )
