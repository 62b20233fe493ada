"""The learner's notebooks: `course start`, `lab`, `status`, `next`, `update`, `rescue` and `doctor`."""

import contextlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coursework.desk import chapters, copies, launch, updates
from coursework.desk import rescue as rescuing
from coursework.desk.answers import places
from coursework.desk.finding import desk_or_none, folder_to_start, is_called, is_desk, the_desk
from coursework.desk.finding import notebooks as notebook_files
from coursework.desk.notebooks import headings
from coursework.desk.store import Desk, DeskError
from coursework.desk.tables import describe, plural, print_chapters, print_findings, print_status
from coursework.exercises import registry

if TYPE_CHECKING:
    from coursework.desk.answers import Place
    from coursework.exercises.learner import Standing

CAPSTONE_LAB = "labs/06_capstones"
FEW = 3  # notebooks that are named and not counted


def start(
    context: typer.Context,
    folder: Annotated[
        Path | None,
        typer.Option(help="Where; otherwise my/ of the repository, or ./my elsewhere.", show_default=False),
    ] = None,
) -> None:
    """Make your folder `my/`: your own copies of the notebooks, without outputs, so that you predict before you run.

    Run it again at any time: it adds what is missing and never changes what is there.

    Examples: `course start` · `course start --folder ~/transformer`
    """
    _start(folder or folder_to_start(context.obj))


def _start(folder: Path) -> Desk:
    desk, problems = _made(folder)
    _tell(problems)
    return desk


def _made(folder: Path) -> tuple[Desk, list[str]]:
    """Make the folder and say what was added; return it, and the problems that are still to be told."""
    report = copies.create(folder.expanduser().absolute())
    where = report.desk.folder
    if len(report.added) > FEW:
        typer.echo(f"Your folder is {where}: {plural(len(report.added), 'notebook')} of the course, copied for you to")
        typer.echo("write in. Your answers and your progress are kept there, too. `course lab` opens it.")
    elif report.added:
        typer.echo(f"Added to {where}: {', '.join(report.added)}")
    if report.replaced:
        typer.echo(f"Put back, fresh: {', '.join(report.replaced)}. `course rescue` puts your saved answers into them.")
    if report.present and not report.added and not report.replaced:
        typer.echo(f"Your folder is ready: {where}.")
    if report.older:
        typer.echo(f"From an older edition: {', '.join(report.older)}. `course update` brings in the new one.")
    return report.desk, report.problems


def _tell(problems: list[str]) -> None:
    """Print problems and end with exit code 1 if there are any."""
    for problem in problems:
        typer.echo(f"course: {problem}", err=True)
    if problems:
        raise typer.Exit(1)


def lab(
    context: typer.Context,
    chapter: Annotated[str | None, typer.Option(help="Open this chapter or lab.", show_default=False)] = None,
) -> None:
    """Open JupyterLab in your folder, on the chapter you worked on last (at first, the overview).

    Everything else you write is passed on to JupyterLab.

    Examples: `course lab` · `course lab --chapter 2` · `course lab --chapter labs/05` · `course lab --no-browser`
    """
    folder = folder_to_start(context.obj)
    try:
        desk, problems = _made(folder)
    except DeskError as problem:  # nothing could be added; what is there can still be opened
        if not is_desk(folder) or not notebook_files(folder):
            raise
        desk, problems = Desk(folder), [str(problem)]
    for line in problems:
        typer.echo(f"course: {line}", err=True)
    command = launch.jupyterlab(desk, chapter, context.args)
    sys.stdout.flush()
    raise typer.Exit(launch.become(command, desk.folder, launch.environment(desk)))


def status(
    context: typer.Context,
    chapter: Annotated[
        str | None, typer.Option(help="The exercises of this chapter or lab.", show_default=False)
    ] = None,
) -> None:
    """Show where you are: for each chapter what is solved and what time it still takes; or the exercises of one.

    The time is that of reading at 180 words a minute, and of the exercises that you have not solved.

    Examples: `course status` · `course status --chapter 1` · `course status --chapter labs/05`
    """
    desk = the_desk(context.obj)
    if chapter is None:
        print_chapters(chapters.standings(desk))
    elif found := _standings(desk, chapter):
        print_status(found)
    elif not is_called(CAPSTONE_LAB, chapter):
        raise DeskError(f"--chapter: expected the number or name of a chapter or lab with exercises, got {chapter!r}.")
    if chapter is None or is_called(CAPSTONE_LAB, chapter):
        progress = desk.progress()
        held = [name for name in registry.CAPSTONES if progress.get(f"capstone_{name}", {}).get("solved")]
        names = f": {', '.join(held)}" if held else ""
        typer.echo(f"Capstones ({CAPSTONE_LAB}.ipynb): {len(held)} of {len(registry.CAPSTONES)} hold{names}.")
    with contextlib.suppress(DeskError):  # where only the package is installed, nothing is known of its notebooks
        if kept := copies.left_over(desk):
            typer.echo(f"No longer in the course, kept as you left them: {', '.join(f'{name}.ipynb' for name in kept)}")


def _standings(desk: Desk, chapter: str = "") -> "list[Standing]":
    """How far the learner is with the exercises of a chapter or lab, or with all."""
    from coursework.exercises.learner import Progress

    wanted = [name for name, place in registry.places().items() if not chapter or is_called(place, chapter)]
    return Progress(lambda: desk).standings(map(registry.get, wanted))


def next_exercise(context: typer.Context) -> None:
    """Name the next exercise that you have not solved, and where it stands in JupyterLab.

    Example: `course next`
    """
    desk = the_desk(context.obj)
    name = unsolved(desk)
    if name is None:
        typer.echo(f"All {plural(len(registry.places()), 'exercise')} are solved.")
        return
    card, kept = registry.card(name), desk.progress().get(name)
    tried = "not tried" if kept is None or not kept["attempts"] else "tried"
    tried = "solved against an older edition" if kept is not None and kept["solved"] else tried
    part = registry.label(name)
    number = str(int(part)) if part.isdecimal() else ""
    called = f"Chapter {number}" if number else part.replace("labs/", "Lab ", 1) or "In no notebook yet"
    typer.echo(f"{card.id}: {card.title}")
    typer.echo(f"{called}, {card.kind}, difficulty {card.difficulty} of 5, about {card.minutes} minutes; {tried}.")
    if place := places(desk).get(name):
        _tell_where(place, f"Exercise: {card.title}")
    elif part:
        typer.echo("Where: in no notebook of yours; `course update` adds what is new.")
    else:
        typer.echo(f"Where: nowhere; `course check {name} --file answer.py` works without a notebook.")


def unsolved(desk: Desk) -> str | None:
    """The first exercise, in course order, that the learner has not solved."""
    progress = desk.progress()
    name = next((name for name in registry.places() if name not in progress or not progress[name]["solved"]), None)
    if name is None:  # against an older edition, which only the exercises themselves can tell
        name = next((one.entry.id for one in _standings(desk) if one.state != "solved"), None)
    return name


def _tell_where(place: "Place", heading: str) -> None:
    title, section = headings(place.notebook["cells"][: place.numbers[0]])
    where = f"Where: {place.name}.ipynb" + (f", “{title}”" if title else "")
    typer.echo(where + (f", section “{section}”" if section else "") + f", under the heading “{heading}”.")
    chapter = place.name.partition("_")[0].lstrip("0") if "/" not in place.name else place.name
    typer.echo(f"Open it with `course lab --chapter {chapter or '0'}`.")


def update(context: typer.Context) -> None:
    """Bring the present edition of the course into your copies; nothing of yours is lost.

    Cells you did not touch follow the course. Cells you changed or added stay; where both changed, yours stays and the
    new text is put below it. An answer goes where its exercise went, and your own cells below it go along. Every
    notebook is backed up first.

    Example: `git pull` and then `course update`
    """
    reports = updates.update(the_desk(context.obj))
    for report in reports:
        for line in describe(report):
            typer.echo(line)
    if any(report.outcome == updates.UPDATED for report in reports):
        typer.echo("If a notebook is open: File > Reload Notebook from Disk.")
    if any(report.outcome == "failed" for report in reports):
        raise typer.Exit(1)


def rescue(
    context: typer.Context,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Bring work back: edits made in notebooks/ by mistake, damaged notebooks, answers from the history.

    Everything is copied to your folder; only then, and only if you agree, are the course's own notebooks put back to
    what they were.

    Examples: `course rescue` · `course rescue --yes`
    """
    desk = desk_or_none(context.obj) or _start(folder_to_start(context.obj))
    report = rescuing.rescue(desk)
    for line in (*report.remarks, *report.lines):
        typer.echo(line)
    if report.filled:
        typer.echo(f"Answers put back into their cells: {', '.join(report.filled)}.")
    if report.restorable:
        names = ", ".join(path.name for path in report.restorable)
        if yes or (sys.stdin.isatty() and typer.confirm(f"Put {names} in notebooks/ back to the course's version?")):
            backup = rescuing.restore_tracked(desk, report.restorable)
            typer.echo(f"Restored: {names}. As they were: {backup}")
        else:
            typer.echo(f"Changed in notebooks/ and left as they are: {names}. `course rescue --yes` restores them.")
    elif not (report.lines or report.filled or report.problems):
        typer.echo("Nothing to rescue: no edits in the course's notebooks, and your folder is readable.")
    _tell(report.problems)


def doctor(context: typer.Context) -> None:
    """Examine this machine and say what to do about each thing that is missing.

    The exit code is 1 if something is missing that the course needs, and 0 if only comforts are.

    Example: `course doctor`
    """
    from coursework.desk.doctor import examine

    if print_findings(examine(desk_or_none(context.obj))):
        raise typer.Exit(1)
