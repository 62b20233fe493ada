"""The learner's answers: `course check`, `hint`, `solution` and `reset`."""

import contextlib
import io
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from course_lib.checks import MOST, Within
from coursework.commands.notebooks import unsolved
from coursework.desk import answers, isolated
from coursework.desk.finding import desk_or_none, is_called, the_desk
from coursework.desk.store import Desk, DeskError
from coursework.desk.tables import plural
from coursework.exercises import registry

AnyId = Annotated[
    str | None, typer.Argument(help="The exercise; else the one that `course next` names.", metavar="[ID]")
]
Chapter = Annotated[str | None, typer.Option(help="All of this chapter or lab.", show_default=False)]

_CALL = re.compile(r"(?:In a new cell, )?ex\.(\w+)\.(hint|solution)\((reveal=True)?\)(?: in a new cell)?")
_BELOW = re.compile(r" The course's own version stands in, so the cells below run\.|\n[^\n]* goes on below[^\n]*")


def in_a_terminal(text: str) -> str:
    """Say what a notebook would say in the words of a terminal: commands for calls, and nothing of cells below."""
    text = _CALL.sub(lambda call: f"`course {call[2]} {call[1]}{' --reveal' if call[3] else ''}`", text)
    return _BELOW.sub("", re.sub(r"ex\.(\w+)\.cases\(\)", r"in the notebook ex.\1.cases()", text))


def _say(speak: Callable[[], object]) -> None:
    """Print what a function prints, in the words of a terminal."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said):
            speak()
    finally:
        typer.echo(in_a_terminal(said.getvalue()), nl=False)


def _named(exercise_id: str | None, desk: Desk | None) -> str:
    """The exercise that was named, or the next; DeskError where there is none, or where it is a capstone alone."""
    if exercise_id in registry.CAPSTONES and exercise_id not in registry.places():
        raise DeskError(
            f"{exercise_id} is a capstone: labs/06_capstones.ipynb checks it, on your own models, by "
            f'ex.capstone("{exercise_id}", …); `course status` says which hold.'
        )
    if exercise_id is None:
        exercise_id = None if desk is None else unsolved(desk)
    if exercise_id is None:
        raise DeskError("name the exercise: there is none that is still open.")
    return exercise_id


def _of_chapter(chapter: str) -> list[str]:
    """The exercises of a chapter or lab; DeskError if there are none."""
    found = [name for name, place in registry.places().items() if is_called(place, chapter)]
    if not found:
        raise DeskError(f"--chapter: expected the number or name of a chapter or lab with exercises, got {chapter!r}.")
    return found


def check(
    context: typer.Context,
    exercise_id: AnyId = None,
    chapter: Chapter = None,
    file: Annotated[Path | None, typer.Option(help="Check this file instead.", show_default=False)] = None,
    seconds: Annotated[float, Within(1, MOST), typer.Option(help="End it after so long.")] = isolated.SECONDS,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON for a tutor or an editor; nothing of the solution is in it.")
    ] = False,
) -> None:
    """Check the answer in your notebook, or in a file, and say which mistake it makes, as in the notebook.

    Only the imports and definitions that the answer uses are run with it, not the whole notebook, in a process of its
    own. Save the notebook first. Exit code 0: right, 1: not right, 2: it could not be run.

    Examples: `course check` · `course check --chapter 1` · `course check causal_mask --file answer.py`
    """
    desk = the_desk(context.obj) if file is None else desk_or_none(context.obj)
    if chapter is not None:
        if exercise_id is not None or file is not None or as_json or desk is None:
            raise DeskError("--chapter checks what is in your notebooks: name no exercise and no file beside it.")
        raise typer.Exit(0 if _check_chapter(_of_chapter(chapter), desk, seconds) else 1)
    exercise_id = _named(exercise_id, desk)
    if as_json:
        raise typer.Exit(_check_as_json(exercise_id.replace("-", "_"), desk, file, seconds))
    typer.echo(f"Checking {exercise_id} …", err=True)
    right = False

    def speak() -> None:
        nonlocal right
        right = isolated.check(exercise_id, desk, file, seconds)

    _say(speak)
    raise typer.Exit(0 if right else 1)


def _check_chapter(names: list[str], desk: Desk, seconds: float) -> bool:
    """Check exercises one after the other, a line or two for each; return whether all are right.

    They are judged in processes that are forked from one, where that can be, so that torch is loaded once.
    """
    counts: dict[str, int] = {}
    with isolated.pen(desk, None, seconds) as answering:
        for name in names:
            said = isolated.report(name, desk, None, answering)
            counts[said["verdict"]] = counts.get(said["verdict"], 0) + 1
            why = said["problem"] or next((one["statement"] for one in said["misconceptions"]), "")
            typer.echo(f"{name}: {said['verdict']}" + (f" ({why})" if why else ""))
    typer.echo(", ".join(f"{number} {verdict}" for verdict, number in counts.items()) + ".")
    return set(counts) <= {"right"}


def _check_as_json(exercise_id: str, desk: Desk | None, file: Path | None, seconds: float) -> int:
    """Print what `desk.judge.facts` says; return the exit code."""
    said = isolated.judged(exercise_id, desk, file, seconds)
    if (facts := said["facts"]) is None:
        raise DeskError(said["problem"])
    typer.echo(json.dumps(facts, ensure_ascii=False, indent=1))
    return {"right": 0, "not run": 2}.get(facts["verdict"], 1)


def hint(context: typer.Context, exercise_id: AnyId = None) -> None:
    """Give the next hint: a question, then a pointer, then a skeleton with one gap.

    Examples: `course hint` · `course hint causal_mask`
    """
    from coursework.desk import running

    desk = the_desk(context.obj)
    handle = running.handle(_named(exercise_id, desk), desk)
    running.recall(handle, desk)
    _say(handle.hint)


def solution(
    context: typer.Context,
    exercise_id: Annotated[str | None, typer.Argument(help="The exercise.", metavar="[ID]")] = None,
    chapter: Chapter = None,
    reveal: Annotated[bool, typer.Option(help="Show it before the first attempt, too.")] = False,
) -> None:
    """Show the course's solution, once you have tried; after success also the other right ways.

    Examples: `course solution causal_mask` · `course solution causal_mask --reveal` · `course solution --chapter 1`
    """
    from coursework.desk import running

    desk = the_desk(context.obj)
    if (exercise_id is None) == (chapter is None):
        one = "" if chapter is None else f" alone, got {exercise_id} and --chapter {chapter}"
        raise DeskError(f"name an exercise, or its chapter by --chapter{one}.")
    for name in _of_chapter(chapter) if chapter is not None else [_named(exercise_id, desk)]:
        handle = running.handle(name, desk)
        _say(lambda handle=handle: handle.solution(reveal=reveal))  # type: ignore[misc]


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
        both = f" alone, got {', '.join(exercise_ids or ())} and --all" if everything else ""
        raise DeskError(f"name the exercises to reset, or --all{both}; see `course reset --help`.")
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
