"""Run one answer outside its notebook: the imports and definitions it needs, the answer itself, then its check."""

import ast
import contextlib
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
    """Take the answer out of a Python file."""
    try:
        source = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        raise DeskError(f"{path} cannot be read: {getattr(problem, 'strerror', None) or problem}.") from None
    return Answer(source, "", str(path), {})


def check(entry: Any, answer: Answer, folder: Path) -> bool:
    """Run the answer and let the exercise judge it, which prints; return whether it is right.

    Raises DeskError with one line if the answer cannot be run.
    """
    namespace: dict[str, Any] = {"__name__": "__main__"}
    statements = _without_check(answer, entry.id)
    with _working_in(folder):
        _run(answer.before, "the notebook's imports", namespace, {})
        _run(answer.source, answer.where, namespace, answer.missing, statements)
        if not hasattr(entry, "check"):
            if "answer" not in namespace:
                raise DeskError(f"{answer.where} sets no `answer`.")
            return _answer(entry, namespace["answer"])
        name = entry.function_name
        if name not in namespace:
            raise DeskError(f"{answer.where} defines no `{name}`, which is what {entry.id} asks for.")
        return entry.check(namespace[name]) is namespace[name]


def _answer(question: Any, value: Any) -> bool:
    from course_lib.exercises.engine.bench import RIGHT
    from course_lib.exercises.engine.question import judge

    question.answer(value)
    return judge(question, value)[0] == RIGHT


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
