"""Run one answer outside its notebook: the imports and definitions it needs, the answer itself, then its check."""

import ast
import builtins
import contextlib
import io
import linecache
import os
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from course_lib.reading import Unreadable, read_text
from coursework.desk import answers, code
from coursework.desk.finding import saving_is_off
from coursework.desk.names import UNREADABLE, free_names
from coursework.desk.store import RIGHT, Desk, DeskError, hints_of, reason
from coursework.exercises import registry
from coursework.exercises.engine.cells import PRELUDE, edition
from coursework.exercises.engine.finding import WRONG
from coursework.exercises.handle import Handle
from coursework.exercises.handle import handle as handle_of
from coursework.exercises.learner import Named, Progress
from coursework.exercises.spec import Exercise, Question


@dataclass(frozen=True)
class Answer:
    """The text to check, what must run before it, and where it stands (for messages and tracebacks).

    `handed` and `exercises` are those of `code.Needs`.
    """

    source: str
    before: str
    where: str
    missing: dict[str, str]
    handed: Mapping[str, str] = field(default_factory=dict)
    exercises: Sequence[str] = ()


def from_notebook(desk: Desk, exercise_id: str) -> Answer:
    """Take the answer out of the learner's notebook."""
    return from_place(answers.find(desk, exercise_id))


def from_place(place: answers.Place, *, whole: bool = False) -> Answer:
    """Take the answer out of its cells; with `whole` all that it uses is run before it, see `code.needs`."""
    source = code.runnable(place.source)
    found = code.needs(place.above, source, whole=whole)
    before = PRELUDE + found.text if whole else found.text  # the cell with the imports may be deleted
    cell_id = place.notebook["cells"][place.numbers[0]]["id"]
    where = f"{place.name}.ipynb, cell {cell_id}"
    answer = Answer(source, before, where, found.missing, found.handed, found.exercises)
    given = parts(place.exercise, answer)
    return replace(answer, missing={name: cell for name, cell in found.missing.items() if name not in given})


def from_file(path: Path) -> Answer:
    """Take the answer out of a Python file; the imports that every chapter makes run before it."""
    try:
        source = read_text(path, "Python")
    except Unreadable as problem:
        raise DeskError(f"{problem}.") from None
    except OSError as problem:
        raise DeskError(f"{path} cannot be read: {reason(problem)}.") from None
    return Answer(code.runnable(source), PRELUDE, str(path), {})


def spec_of(exercise_id: str) -> Exercise | Question:
    """Return the exercise that a learner names on the command line; DeskError, naming the closest, if there is none."""
    try:
        return registry.get(exercise_id.replace("-", "_"))
    except KeyError as problem:
        raise DeskError(str(problem.args[0])) from None


def handle(exercise_id: str, desk: Desk | None) -> Handle:
    """Return the exercise's handle; what is done with it is kept at the desk, if there is one and saving is not off."""
    keeper = None if saving_is_off() else desk
    return handle_of(spec_of(exercise_id), Progress(lambda: keeper))


def evaluate(handle: Handle, answer: Answer) -> Any:
    """Run the answer without its check; return the function, or for a question the value, that it gives."""
    return namespace(answer, handle.spec.id, handle.asks_for, parts(handle.spec.id, answer))[handle.asks_for]


def parts(exercise_id: str, answer: Answer | None = None) -> dict[str, Any]:
    """What the notebook has before the cell: a file of its own has nothing of it.

    That is what the exercise is given, what those are given whose answers this answer uses, and the course's own for
    what `ex.<id>.part()` gives.
    """
    found: dict[str, Any] = {}
    for name in (*(answer.exercises if answer else ()), exercise_id):
        spec = _known(name)
        found |= spec.parts if isinstance(spec, Exercise) else {}
    for name, exercise in (answer.handed if answer else {}).items():
        spec = _known(exercise)
        found |= {name: spec.reference} if isinstance(spec, Exercise) else {}
    return found


def _known(exercise_id: str) -> Exercise | Question | None:
    try:
        return registry.get(exercise_id)
    except KeyError:  # of another edition
        return None


def namespace(answer: Answer, exercise_id: str, asks_for: str, parts: Mapping[str, Any]) -> dict[str, Any]:
    """Run the answer without its check; return the names that it sets, `asks_for` among them."""
    names: dict[str, Any] = {"__name__": "__main__", **parts}
    statements = _without_check(answer, exercise_id)
    _run(answer.before, f"what runs before {answer.where}", names, {})
    _run(answer.source, answer.where, names, answer.missing, statements)
    if asks_for not in names:
        raise DeskError(f"{answer.where} defines no `{asks_for}`, which is what {exercise_id} asks for.")
    return names


def right_answer(handle: Handle, desk: Desk) -> tuple[Any, str]:
    """Run the latest right answer that is kept.

    Returns the function or class and when it was saved; or None and why: there is none, or it does not run or is not
    right today. What it prints is not shown.
    """
    kept = [(header, body) for header, body in desk.history(handle.spec.id) if header.get("verdict") == RIGHT]
    if not kept:
        return None, "you have not solved it yet"
    header, body = kept[-1]
    place = answers.place_of(desk, handle.spec.id)
    before = code.needs(place.above, body, whole=True).text if place else ""
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            kept_answer = Answer(code.runnable(body), PRELUDE + before, "your right answer", {})
            names = namespace(kept_answer, handle.spec.id, handle.asks_for, parts(handle.spec.id))
    except DeskError as problem:
        return None, str(problem)
    missing = sorted(free_names(body) - set(names) - set(dir(builtins)))
    if missing:  # it would fail when it is called
        return None, f"yours uses `{missing[0]}`, which it does not define"
    found = names[handle.asks_for]
    if header.get("edition") != edition(handle.spec) and handle.examine(found).verdict != RIGHT:
        return None, "yours was right in an older edition, and is not today"
    return found, f"saved {header.get('saved', '').replace('T', ' ')[:16] or 'at an unknown time'}"


def recall(handle: Handle, desk: Desk) -> None:
    """Let the hints of this process go on where the learner's last ones ended, as they would in one notebook."""
    counts, history = desk.progress().get(handle.spec.id), desk.history(handle.spec.id)
    if counts is None:
        return
    header, body = history[-1] if history else ({}, "")
    since = max(0, counts["hints"] - hints_of(header))
    misconceptions = _recognised(handle, desk, body) if header.get("verdict") == WRONG else []
    state = handle.progress.state(handle.spec.id)
    state.misconceptions = misconceptions
    state.asked = {one.question for one in misconceptions[:since]}
    state.next_hint = max(0, counts["hints"] - min(since, len(misconceptions)))


def _recognised(handle: Handle, desk: Desk, body: str) -> list[Named]:
    """Return the misconceptions that the kept answer shows; none if it cannot be run any more."""
    try:
        found = code.needs(answers.find(desk, handle.spec.id).above, body)
        answer = Answer(body, found.text, "the latest answer", {}, found.handed, found.exercises)
        with contextlib.redirect_stdout(io.StringIO()), working_in(desk.folder):
            return list(handle.recognise(evaluate(handle, answer)))
    except DeskError:
        return []


def _without_check(answer: Answer, exercise_id: str) -> ast.Module:
    """Return the answer's statements without its own call of the check, which is made afterwards, once."""
    try:
        tree = ast.parse(answer.source)
        calls = tuple(f"ex.{exercise_id}.{method}(" for method in ("check", "answer", "hint", "solution", "cases"))
        tree.body = [node for node in tree.body if not _mentions(node, calls)]
    except SyntaxError as problem:
        line = f", line {problem.lineno}" if problem.lineno else ""
        raise DeskError(f"{answer.where}{line}: this is not Python yet ({problem.msg}).") from None
    except UNREADABLE as problem:
        raise DeskError(f"{answer.where}: Python cannot read this ({type(problem).__name__}: {problem}).") from None
    return tree


def _mentions(node: ast.stmt, calls: tuple[str, ...]) -> bool:
    return isinstance(node, ast.Assign | ast.Expr) and any(call in ast.unparse(node) for call in calls)


def _run(
    source: str, where: str, namespace: dict[str, Any], missing: dict[str, str], tree: ast.Module | None = None
) -> None:
    filename = f"<ipython-input-{where}>"
    # As in a notebook: so that tracebacks find the text, and the whole cell is kept as the answer.
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    try:
        exec(compile(tree if tree is not None else source, filename, "exec"), namespace)
    except NameError as problem:
        raise DeskError(_explain_name(problem, where, missing)) from None
    except KeyboardInterrupt:
        raise
    except BaseException as problem:  # whatever an answer raises is said in one line
        lines = [frame.lineno for frame in traceback.extract_tb(problem.__traceback__) if frame.filename == filename]
        line = f", line {lines[-1]}" if lines else ""
        raise DeskError(f"{where}{line}: running it raised {type(problem).__name__}: {problem}") from None


def _explain_name(problem: NameError, where: str, missing: dict[str, str]) -> str:
    name = problem.name or ""
    if name in missing:
        return explain_missing({name: missing[name]})
    return f"{where}: {problem}, neither in the answer nor among the notebook's imports and definitions."


def explain_missing(missing: dict[str, str]) -> str:
    """Return one line on names that only running other cells of the notebook would set."""
    cells = ", ".join(f"`{name}` (set in cell {cell})" for name, cell in missing.items())
    return (
        f"The answer uses {cells}. Only imports, functions, classes and constants of other cells are run here: "
        "set it inside the answer, or run the check in the notebook."
    )


@contextlib.contextmanager
def working_in(folder: Path) -> Iterator[None]:
    """Work in the folder, as a notebook there does, and draw without a screen."""
    before = Path.cwd()
    os.environ.setdefault("MPLBACKEND", "agg")
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
