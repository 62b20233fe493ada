"""The command `course`: make a desk, open JupyterLab, see where you stand, check answers, take in new editions."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from course_lib.commands import register
from course_lib.desk.store import DeskError, locate_desk, reason, state_of
from course_lib.desk.tables import plural

if TYPE_CHECKING:
    from course_lib.desk.store import Desk

WRONG, USAGE, INTERRUPTED = 1, 2, 130


class _Group(TyperGroup):
    """Turns what goes wrong in any command into one line and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except DeskError as problem:
            typer.echo(f"course: {problem}", err=True)
            raise typer.Exit(USAGE) from None
        except KeyboardInterrupt:
            typer.echo("\ncourse: stopped by you. Nothing was lost; run the command again to go on.", err=True)
            raise typer.Exit(INTERRUPTED) from None
        except BrokenPipeError:  # `course status | head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(0) from None
        except OSError as problem:
            where = f" ({problem.filename})" if problem.filename else ""
            typer.echo(f"course: {reason(problem)}{where}. Nothing was lost.", err=True)
            raise typer.Exit(WRONG) from None


app = typer.Typer(
    cls=_Group,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)
_desk_option: list[Path] = []  # what --desk named, for this run of the command

ExerciseId = Annotated[str, typer.Argument(help="The exercise, for example causal_mask.", metavar="ID")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


@app.callback()
def main(
    desk: Annotated[Path | None, typer.Option(help="Use the desk in this folder.", show_default=False)] = None,
) -> None:
    """Learn the Transformer by rebuilding it.

    Start with `course start` and `course lab`. Your copies of the notebooks, your answers and your progress lie in one
    folder, the desk (usually `my/`); it is found from the working directory upwards, or through COURSE_DESK.
    """
    _desk_option[:] = [desk] if desk is not None else []


def _desk() -> "Desk":
    """Return the desk in use; DeskError says how to make one."""
    from course_lib.desk.copies import default_folder, is_desk
    from course_lib.desk.store import Desk

    if _desk_option:
        if not is_desk(_desk_option[0].expanduser()):
            raise DeskError(f"{_desk_option[0]} is no desk; `course start --folder {_desk_option[0]}` makes it one.")
        return Desk(_desk_option[0].expanduser())
    found = locate_desk()
    if found is not None:
        return found
    if named := os.environ.get("COURSE_DESK"):
        raise DeskError(f"COURSE_DESK names {named}, which is no desk; `course start --folder {named}` makes it one.")
    folder = default_folder()
    if is_desk(folder):
        return Desk(folder)
    raise DeskError("there is no desk here yet. Run `course start` first (or name one: `course --desk FOLDER …`).")


def _entry(exercise_id: str) -> Any:
    from course_lib.exercises import registry

    try:
        return registry.get(exercise_id.replace("-", "_"))
    except KeyError as problem:
        raise DeskError(str(problem.args[0])) from None


# -- beginning ---------------------------------------------------------------------------------------------------------


@app.command()
def start(
    folder: Annotated[
        Path | None,
        typer.Option(help="Where; otherwise my/ of the repository, or ./my elsewhere.", show_default=False),
    ] = None,
) -> None:
    """Make your desk: your own copies of the notebooks, without outputs, so that you predict before you run.

    Run it again at any time: it adds what is missing and never changes what is there.

    Examples: `course start` · `course start --folder ~/transformer`
    """
    _start(folder)


def _start(folder: Path | None) -> "Desk":
    from course_lib.desk.copies import create, default_folder

    if folder is None:
        found = locate_desk()
        named = os.environ.get("COURSE_DESK")
        chosen = _desk_option[0] if _desk_option else Path(named) if named else None
        folder = chosen or (found.folder if found else default_folder())
    report = create(folder.expanduser().absolute())
    where = report.desk.folder
    if report.added:
        typer.echo(f"Added to {where}: {', '.join(report.added)}")
    if report.replaced:
        typer.echo(f"Put back, fresh: {', '.join(report.replaced)}. `course rescue` puts your saved answers into them.")
    if report.present and not report.added and not report.replaced:
        typer.echo(f"Your desk is ready in {where}.")
    if report.older:
        typer.echo(f"From an older edition: {', '.join(report.older)}. `course update` brings in the new one.")
    for problem in report.problems:
        typer.echo(f"course: {problem}", err=True)
    if report.problems:
        raise typer.Exit(WRONG)
    return report.desk


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def lab(
    context: typer.Context,
    chapter: Annotated[int | None, typer.Option(help="Open this chapter.", min=1, max=99, show_default=False)] = None,
) -> None:
    """Open JupyterLab at your desk, on the chapter you worked on last (at first, chapter 1).

    Everything else you write is passed on to JupyterLab.

    Examples: `course lab` · `course lab --chapter 2` · `course lab --no-browser --port 8899`
    """
    from course_lib.desk import launch

    desk = _start(_desk().folder if _has_desk() else None)
    command = launch.jupyterlab(desk, chapter, context.args)
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # idle threads of one kernel must not slow another
    sys.stdout.flush()
    raise typer.Exit(launch.become(command, desk.folder))


def _has_desk() -> bool:
    try:
        _desk()
    except DeskError:
        return False
    return True


# -- where you stand ---------------------------------------------------------------------------------------------------


@app.command()
def status(
    chapter: Annotated[int | None, typer.Option(help="Only this chapter.", show_default=False)] = None,
) -> None:
    """Show every exercise with its kind, difficulty, minutes, state, attempts and hints.

    Examples: `course status` · `course status --chapter 1`
    """
    from course_lib.desk.tables import print_status
    from course_lib.exercises import registry

    entries = [entry for entry in registry.all_exercises() if chapter in (None, entry.chapter)]
    print_status(entries, _desk().progress())


@app.command("next")
def next_exercise() -> None:
    """Name the next exercise that you have not solved, and where it is.

    Example: `course next`
    """
    from course_lib.desk.answers import places
    from course_lib.exercises import registry

    desk = _desk()
    progress, entries = desk.progress(), registry.all_exercises()
    states = [(entry, state_of(progress.get(entry.id), entry.edition)) for entry in entries]
    for wanted in (("not tried", "tried"), ("solved against an older edition",)):
        for entry, state in states:
            if state in wanted:
                place = places(desk).get(entry.id)
                where = (
                    f"{place.path.name}, cell {place.notebook['cells'][place.numbers[0]]['id']}"
                    if place
                    else "in no notebook of yours; `course update` adds what is new"
                )
                typer.echo(f"{entry.id}: {entry.title}")
                typer.echo(
                    f"Chapter {entry.chapter}, {entry.kind}, difficulty {entry.difficulty} of 5, "
                    f"about {entry.minutes} minutes; {state}."
                )
                typer.echo(f"Where: {where}. Open it with `course lab --chapter {entry.chapter}`.")
                return
    typer.echo(f"All {plural(len(entries), 'exercise')} are solved.")


# -- exercises ---------------------------------------------------------------------------------------------------------


@app.command()
def check(
    exercise_id: ExerciseId,
    file: Annotated[Path | None, typer.Option(help="Check this file instead.", show_default=False)] = None,
) -> None:
    """Check the answer in your notebook, or in a file, and say which mistake it makes, as in the notebook.

    Only the imports and definitions that the answer uses are run with it, not the whole notebook. Save the notebook
    first. Exit code 0: right, 1: not right, 2: it could not be run.

    Examples: `course check causal_mask` · `course check causal_mask --file answer.py`
    """
    from course_lib.desk import running

    entry = _entry(exercise_id)
    if file is not None:
        answer, folder = running.from_file(file), Path.cwd()
        if desk := (_desk() if _has_desk() else None):
            os.environ["COURSE_DESK"] = str(desk.folder)
    else:
        desk = _desk()
        os.environ["COURSE_DESK"] = str(desk.folder)
        answer, folder = running.from_notebook(desk, entry.id), desk.folder
    right = running.check(entry, answer, folder)
    if not right and answer.missing:
        typer.echo(running.explain_missing(answer.missing))
    raise typer.Exit(0 if right else WRONG)


@app.command()
def hint(exercise_id: ExerciseId) -> None:
    """Give the next hint: a question, then a pointer, then a skeleton with one gap.

    Example: `course hint causal_mask`
    """
    from course_lib.desk import running

    entry, desk = _entry(exercise_id), _desk()
    os.environ["COURSE_DESK"] = str(desk.folder)
    running.recall(entry, desk)
    entry.hint()


@app.command()
def solution(
    exercise_id: ExerciseId,
    reveal: Annotated[bool, typer.Option(help="Show it before the first attempt, too.")] = False,
) -> None:
    """Show the course's solution, once you have tried; after success also the other right ways.

    Examples: `course solution causal_mask` · `course solution causal_mask --reveal`
    """
    entry = _entry(exercise_id)
    os.environ["COURSE_DESK"] = str(_desk().folder)
    entry.solution(reveal=reveal)


@app.command()
def reset(
    exercise_ids: Annotated[list[str] | None, typer.Argument(help="The exercises.", metavar="[ID]…")] = None,
    everything: Annotated[bool, typer.Option("--all", help="All exercises of all chapters; asks first.")] = False,
    yes: Yes = False,
) -> None:
    """Empty an exercise's cell again; the answer stays in answers/history.

    Examples: `course reset causal_mask` · `course reset --all`
    """
    from course_lib.desk import answers

    desk = _desk()
    if everything == bool(exercise_ids):
        raise DeskError("name the exercises to reset, or --all; see `course reset --help`.")
    there = answers.places(desk)
    if everything:
        names = list(there)
        _confirm(f"Empty {plural(len(names), 'exercise cell')} in {desk.folder}? The answers are kept.", yes)
    else:
        names = [name.replace("-", "_") for name in exercise_ids or ()]
        for name in names:
            if name not in there:
                _entry(name)  # says so if there is no such exercise
    changed = answers.reset(desk, names)
    for name in changed:
        typer.echo(f"{name}: empty again; the answer is kept in {desk.answers / 'history' / name}.")
    if not changed:
        typer.echo("Nothing to reset: no answer there.")
    else:
        typer.echo("If the notebook is open: File > Reload Notebook from Disk.")


def _confirm(question: str, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise DeskError(f"{question} Nobody can be asked here: add --yes.")
    if not typer.confirm(question):
        raise typer.Exit(WRONG)


# -- new editions and repairs ------------------------------------------------------------------------------------------


@app.command()
def update() -> None:
    """Bring the present edition of the course into your copies; nothing of yours is lost.

    Cells you did not touch follow the course. Cells you changed or added stay; where both changed, yours stays and the
    new text is put below it. Every notebook is backed up first.

    Example: `git pull` and then `course update`
    """
    from course_lib.desk import copies
    from course_lib.desk.tables import describe

    reports = copies.update(_desk())
    for report in reports:
        for line in describe(report):
            typer.echo(line)
    if any(report.outcome == copies.UPDATED for report in reports):
        typer.echo("If a notebook is open: File > Reload Notebook from Disk.")
    if any(report.outcome == "failed" for report in reports):
        raise typer.Exit(WRONG)


@app.command()
def rescue(yes: Yes = False) -> None:
    """Bring work back: edits made in notebooks/ by mistake, damaged notebooks, answers from the history.

    Everything is copied to your desk; only then, and only if you agree, are the course's own notebooks put back to
    what they were.

    Examples: `course rescue` · `course rescue --yes`
    """
    from course_lib.desk import rescue as rescuing

    desk = _desk() if _has_desk() else _start(None)
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
        typer.echo("Nothing to rescue: no edits in the course's notebooks, and your desk is readable.")
    for problem in report.problems:
        typer.echo(f"course: {problem}", err=True)
    if report.problems:
        raise typer.Exit(WRONG)


@app.command()
def doctor() -> None:
    """Examine this machine and say what to do about each thing that is missing.

    The exit code is 1 if something is missing that the course needs, and 0 if only comforts are.

    Example: `course doctor`
    """
    from course_lib.desk.doctor import examine
    from course_lib.desk.tables import print_findings

    if print_findings(examine(_desk() if _has_desk() else None)):
        raise typer.Exit(WRONG)


register(app)

if __name__ == "__main__":
    app()
