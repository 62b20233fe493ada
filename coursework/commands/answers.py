"""The learner's answers: `course check`, `hint`, `solution` and `reset`."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from coursework.desk import answers, isolated, tutor
from coursework.desk.finding import desk_or_none, the_desk
from coursework.desk.store import Desk, DeskError
from coursework.desk.tables import plural

ExerciseId = Annotated[str, typer.Argument(help="The exercise, for example causal_mask.", metavar="ID")]


def check(
    context: typer.Context,
    exercise_id: ExerciseId,
    file: Annotated[Path | None, typer.Option(help="Check this file instead.", show_default=False)] = None,
    seconds: Annotated[float, typer.Option(min=1, help="End it after so long.")] = isolated.SECONDS,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON for a tutor or an editor; nothing of the solution is in it.")
    ] = False,
) -> None:
    """Check the answer in your notebook, or in a file, and say which mistake it makes, as in the notebook.

    Only the imports and definitions that the answer uses are run with it, not the whole notebook, in a process of its
    own. Save the notebook first. Exit code 0: right, 1: not right, 2: it could not be run.

    Examples: `course check causal_mask` · `course check causal_mask --file answer.py`
    """
    desk = the_desk(context.obj) if file is None else desk_or_none(context.obj)
    if as_json:
        raise typer.Exit(_check_as_json(exercise_id.replace("-", "_"), desk, file, seconds))
    typer.echo(f"Checking {exercise_id} …", err=True)
    raise typer.Exit(0 if isolated.check(exercise_id, desk, file, seconds) else 1)


def _check_as_json(exercise_id: str, desk: Desk | None, file: Path | None, seconds: float) -> int:
    """Print what `desk.judge.facts` says; return the exit code."""
    try:
        said = isolated.judged(exercise_id, desk, file, seconds)[0]
        if (facts := said["facts"]) is None:
            raise DeskError(said["problem"])
    except isolated.Ended as problem:
        facts = tutor.not_run(exercise_id, str(problem))
    typer.echo(json.dumps(facts, ensure_ascii=False, indent=1))
    return {"right": 0, "not run": 2}.get(facts["verdict"], 1)


def hint(context: typer.Context, exercise_id: ExerciseId) -> None:
    """Give the next hint: a question, then a pointer, then a skeleton with one gap.

    Example: `course hint causal_mask`
    """
    from coursework.desk import running

    desk = the_desk(context.obj)
    handle = running.handle(exercise_id, desk)
    running.recall(handle, desk)
    handle.hint()


def solution(
    context: typer.Context,
    exercise_id: ExerciseId,
    reveal: Annotated[bool, typer.Option(help="Show it before the first attempt, too.")] = False,
) -> None:
    """Show the course's solution, once you have tried; after success also the other right ways.

    Examples: `course solution causal_mask` · `course solution causal_mask --reveal`
    """
    from coursework.desk import running

    running.handle(exercise_id, the_desk(context.obj)).solution(reveal=reveal)


def reset(
    context: typer.Context,
    exercise_ids: Annotated[list[str] | None, typer.Argument(help="The exercises.", metavar="[ID]…")] = None,
    everything: Annotated[bool, typer.Option("--all", help="All exercises of all chapters; asks first.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Empty an exercise's cell again; the answer stays in answers/history.

    Examples: `course reset causal_mask` · `course reset --all`
    """
    from coursework.desk import running

    desk = the_desk(context.obj)
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
                running.spec_of(name)  # says so if there is no such exercise
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
        raise typer.Exit(1)
