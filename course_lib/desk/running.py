"""Run one answer outside its notebook: the imports and definitions it needs, the answer itself, then its check."""

import ast
import contextlib
import io
import linecache
import os
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from course_lib.desk import answers
from course_lib.desk.store import Desk, DeskError


@dataclass(frozen=True)
class Answer:
    """The text to check, what must run before it, and where it stands (for messages and tracebacks)."""

    source: str
    before: str
    where: str
    missing: dict[str, str]


def from_notebook(desk: Desk, exercise_id: str) -> Answer:
    """Take the answer out of the learner's notebook."""
    place = answers.find(desk, exercise_id)
    source = answers.runnable(place.source)
    before, missing = answers.prelude(place, source)
    cell_id = place.notebook["cells"][place.numbers[0]]["id"]
    return Answer(source, before, f"{place.path.name}, cell {cell_id}", missing)


def from_file(path: Path) -> Answer:
    """Take the answer out of a Python file; the imports that every chapter makes run before it."""
    try:
        source = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        raise DeskError(f"{path} cannot be read: {getattr(problem, 'strerror', None) or problem}.") from None
    from course_lib.exercises.engine.cells import PRELUDE

    return Answer(answers.runnable(source), PRELUDE, str(path), {})


def check(entry: Any, answer: Answer, folder: Path) -> bool:
    """Run the answer and let the exercise judge it, which prints; return whether it is right.

    Raises DeskError with one line if the answer cannot be run.
    """
    with _working_in(folder):
        given = evaluate(entry, answer)
        if hasattr(entry, "check"):
            return entry.check(given) is given
        from course_lib.exercises.engine.bench import RIGHT
        from course_lib.exercises.engine.question import judge

        entry.answer(given)
        return judge(entry, given)[0] == RIGHT


def evaluate(entry: Any, answer: Answer) -> Any:
    """Run the answer without its check; return the function, or for a question the value, that it gives."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    statements = _without_check(answer, entry.id)
    _run(answer.before, f"what runs before {answer.where}", namespace, {})
    _run(answer.source, answer.where, namespace, answer.missing, statements)
    name = getattr(entry, "function_name", "answer")
    if name not in namespace:
        raise DeskError(f"{answer.where} defines no `{name}`, which is what {entry.id} asks for.")
    return namespace[name]


def recall(entry: Any, desk: Desk) -> None:
    """Let the hints of this process go on where the learner's last ones ended, as they would in one notebook."""
    from course_lib.exercises.engine import session

    counts, history = desk.progress().get(entry.id), desk.history(entry.id)
    if counts is None:
        return
    header, body = history[-1] if history else ({}, "")
    since = counts["hints"] - int(header.get("hints", "0")) if header else counts["hints"]
    mistakes = _mistakes(entry, desk, body) if header.get("verdict") == "wrong" else []
    state = session.state(entry)
    state.mistakes = mistakes
    state.asked = {mistake.question for mistake in mistakes[:since]}
    state.next_hint = max(0, counts["hints"] - min(since, len(mistakes)))


def _mistakes(entry: Any, desk: Desk, body: str) -> list[Any]:
    """Return the mistakes that the kept answer makes; none if it cannot be run any more."""
    from course_lib.exercises.engine.check import examine
    from course_lib.exercises.engine.question import judge

    try:
        before, _ = answers.prelude(answers.find(desk, entry.id), body)
        with contextlib.redirect_stdout(io.StringIO()), _working_in(desk.folder):
            given = evaluate(entry, Answer(body, before, "the latest answer", {}))
            if hasattr(entry, "check"):
                return list(examine(entry, given).mistakes)
            wrong = judge(entry, given)[1]
            return [] if wrong is None else [wrong]
    except DeskError:
        return []


def _without_check(answer: Answer, exercise_id: str) -> ast.Module:
    """Return the answer's statements without its own call of the check, which is made afterwards, once."""
    try:
        tree = ast.parse(answer.source)
    except SyntaxError as problem:
        raise DeskError(f"{answer.where}, line {problem.lineno}: this is not Python yet ({problem.msg}).") from None
    calls = tuple(f"ex.{exercise_id}.{method}(" for method in ("check", "answer", "hint", "solution", "cases"))
    tree.body = [node for node in tree.body if not _mentions(node, calls)]
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
    except (Exception, SystemExit) as problem:
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
def _working_in(folder: Path) -> Any:
    before = Path.cwd()
    os.environ.setdefault("MPLBACKEND", "agg")
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
