"""Exercise cells in the learner's notebooks: find an answer, run it alone, put the stub or a kept answer back."""

import ast
import builtins
import itertools
import re
import symtable
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from course_lib.files import write_atomic
from coursework.desk.copies import base_for, new_backup
from coursework.desk.finding import name_in, notebooks
from coursework.desk.notebooks import Cell, DamagedNotebook, Notebook, exercise_of, read_notebook, write_notebook
from coursework.desk.store import UNCHECKED, Desk, DeskError

_CHECK = re.compile(r"\bex\.(\w+)\.check\(")
_SHELL = re.compile(r"^\s*[%!?]|\?\s*$")


@dataclass
class Place:
    """Where an exercise is answered: a notebook, and the numbers of the cells (several if the learner split it)."""

    path: Path
    name: str
    notebook: Notebook
    numbers: list[int]

    @property
    def source(self) -> str:
        """The answer as it stands in the notebook."""
        return "\n\n".join(self.notebook["cells"][number]["source"] for number in self.numbers)


def places(desk: Desk) -> dict[str, Place]:
    """Return the exercise cells of all readable notebooks of the desk, by exercise id, in order."""
    found: dict[str, Place] = {}
    for exercise_id, place in all_places(desk):
        found.setdefault(exercise_id, place)
    return found


def all_places(desk: Desk) -> Iterator[tuple[str, Place]]:
    """Yield every place of every exercise: the learner may have copied one to another notebook."""
    for path in notebooks(desk.folder):
        try:
            notebook = read_notebook(path)
        except (OSError, DamagedNotebook):
            continue
        numbers: dict[str, list[int]] = {}
        for number, cell in enumerate(notebook["cells"]):
            if (name := exercise_of(cell)) is not None:
                numbers.setdefault(name, []).append(number)
        for name, found in numbers.items():
            whole = [n for n in found if is_whole(notebook["cells"][n], name)]
            # A copied cell beside the answer is no part of it.
            yield name, Place(path, name_in(desk.folder, path), notebook, whole[:1] or found)


def find(desk: Desk, exercise_id: str) -> Place:
    """Return where the exercise is answered; DeskError says what to do if it is nowhere."""
    place = places(desk).get(exercise_id)
    if place is not None:
        return place
    damaged = []
    for path in notebooks(desk.folder):
        try:
            read_notebook(path)
        except (DamagedNotebook, OSError) as problem:
            damaged.append(str(problem))
    hint = f" ({damaged[0]}; `course rescue` repairs it)" if damaged else ""
    raise DeskError(
        f"No cell in {desk.folder} answers {exercise_id}{hint}. `course solution {exercise_id}` and "
        f"`course check {exercise_id} --file answer.py` work without one; `course update` adds new chapters."
    )


def stub(desk: Desk, place: Place, exercise_id: str) -> str:
    """Return the exercise's cell as the course wrote it, in the edition that the copy came from."""
    base = base_for(desk, place.name, place.notebook)
    for cell in base["cells"] if base else ():
        if exercise_of(cell) == exercise_id:
            return cell["source"]
    from coursework.exercises import registry
    from coursework.exercises.engine import cells

    return cells.cell_source(registry.get(exercise_id))


def reset(desk: Desk, exercise_ids: Iterable[str]) -> list[str]:
    """Put the stubs back, after keeping the answers in the history; return the ids that had an answer."""
    with desk.lock():
        backup = new_backup(desk, "reset")
        changed = []
        for exercise_id in exercise_ids:
            place = find(desk, exercise_id)
            blank = stub(desk, place, exercise_id)
            if place.source.strip() == blank.strip():
                continue
            keep(desk, exercise_id, place.source)
            _rewrite(place, exercise_id, blank, backup)
            changed.append(exercise_id)
    return changed


def fill(desk: Desk) -> list[str]:
    """Put kept answers into exercise cells that hold only the stub; return the ids. The lock must be held."""
    backup = new_backup(desk, "rescue-answers")
    filled = []
    for exercise_id in places(desk):
        place = find(desk, exercise_id)  # read again: the cell before may be in the same notebook
        try:
            blank = stub(desk, place, exercise_id)
        except KeyError:  # of another edition, or a cell whose metadata somebody wrote
            continue
        answer = desk.latest_answer(exercise_id, right=True) or desk.latest_answer(exercise_id)
        if answer is None or place.source.strip() != blank.strip():
            continue
        source = with_check(answer, blank, exercise_id)
        if source.strip() != blank.strip():
            _rewrite(place, exercise_id, source, backup)
            filled.append(exercise_id)
    return filled


def keep(desk: Desk, exercise_id: str, source: str) -> None:
    """Keep an answer that was perhaps never checked; OSError if it cannot be kept. The lock must be held."""
    if all(source.strip() != body.strip() for _, body in desk.history(exercise_id)):
        desk.keep_answer(exercise_id, source, UNCHECKED, "")


def with_check(answer: str, blank: str, exercise_id: str) -> str:
    """Return a whole cell: the answer and, if it lacks it, the line of the stub that checks it."""
    call = f"ex.{exercise_id}."
    if call in answer:
        return answer.rstrip()
    lines = blank.rstrip().split("\n")
    first = next((n for n, line in enumerate(lines) if call in line), None)
    return answer.rstrip() if first is None else answer.rstrip() + "\n\n\n" + "\n".join(lines[first:])


def _rewrite(place: Place, exercise_id: str, source: str, backup: Path) -> None:
    target = backup / f"{place.name}.ipynb"
    if not target.exists():  # the first state is the one to keep
        write_atomic(target, place.path.read_bytes())
    cells = place.notebook["cells"]
    first, *rest = place.numbers
    cells[first] = {**cells[first], "source": source, "outputs": [], "execution_count": None}
    for number in reversed(rest):
        del cells[number]
    write_notebook(place.path, place.notebook)


def is_whole(cell: Cell, exercise_id: str) -> bool:
    """Whether a cell holds a definition or value and the call of its check: an answer by itself."""
    text = cell["source"]
    return f"ex.{exercise_id}." in text and ("def " in text or "class " in text or "answer" in text)


# -- running one answer alone ------------------------------------------------------------------------------------------


def runnable(source: str) -> str:
    """Return the source with notebook commands (`%time`, `!ls`, `name?`) commented out, line numbers unchanged."""
    if _parses(source):
        return source
    lines = source.split("\n")
    if lines and lines[0].lstrip().startswith("%%"):
        lines[0] = "# " + lines[0]
    for number, line in enumerate(lines):
        if _SHELL.search(line) and not _parses(line):
            indent = line[: len(line) - len(line.lstrip())]
            lines[number] = f"{indent}pass  # {line.strip()}"
    return "\n".join(lines)


def prelude(place: Place, answer: str, *, whole: bool = False) -> tuple[str, dict[str, str]]:
    """Return what to run before the answer, and the names it needs that only running other cells would give.

    Run are the imports of the earlier cells and the functions, classes and literal constants there that the answer
    uses, directly or through one another; a name given otherwise is returned with the id of the cell that sets it.
    With `whole` every statement that sets such a name is run too, and the answer to another exercise is replaced by the
    course's own, so that an answer is not wrong by the mistake of another.
    """
    imports: list[str] = []
    definitions: dict[str, list[str]] = {}
    elsewhere: dict[str, str] = {}
    for cell in place.notebook["cells"][: place.numbers[0]]:
        if cell["cell_type"] != "code":
            continue
        for node in _statements(runnable(cell["source"])):
            text = ast.unparse(node)
            if isinstance(node, ast.Import | ast.ImportFrom):
                imports.append(text)
                continue
            simple = isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef) or _is_constant(node)
            for name in _bound(node):
                if simple:
                    definitions[name] = [text]
                    elsewhere.pop(name, None)
                elif whole and (checked := _CHECK.search(text)):
                    solved = (
                        f"from coursework.exercises import registry\n{name} = registry.get({checked[1]!r}).reference"
                    )
                    definitions[name] = [solved]
                elif whole:
                    definitions.setdefault(name, []).append(text)
                elif name not in definitions or not _is_check(node):
                    definitions.pop(name, None)
                    elsewhere[name] = cell["id"]
    head = "\n".join(dict.fromkeys(imports))
    known = {name for node in _statements(head) for name in _bound(node)} | set(dir(builtins))
    chosen: list[str] = []
    todo, seen = [answer], set(known)
    while todo:
        for name in sorted(free_names(todo.pop()) - seen):
            seen.add(name)
            if name in definitions:
                chosen += definitions[name]
                todo += definitions[name]
    own = {name for node in _statements(answer) for name in _bound(node)}
    missing = {name: elsewhere[name] for name in sorted((seen - known - own) & set(elsewhere))}
    ordered = [text for text in dict.fromkeys(itertools.chain(*definitions.values())) if text in chosen]
    return "\n".join([head, *ordered]) + "\n", missing


def free_names(source: str) -> set[str]:
    """Return the global names that running this source, and calling what it defines, would look up."""
    try:
        top = _symbols(source)
    except SyntaxError:
        return set()
    used: set[str] = set()
    tables = [top]
    while tables:
        table = tables.pop()
        tables += table.get_children()
        used |= {s.get_name() for s in table.get_symbols() if s.is_referenced() and (s.is_global() or table is top)}
    return used - {s.get_name() for s in top.get_symbols() if s.is_assigned() or s.is_imported()}


def _statements(source: str) -> list[ast.stmt]:
    try:
        return ast.parse(source).body
    except (SyntaxError, ValueError):
        return []


def _bound(node: ast.stmt) -> set[str]:
    try:
        top = _symbols(ast.unparse(node))
    except SyntaxError:
        return set()
    return {s.get_name() for s in top.get_symbols() if s.is_assigned() or s.is_imported()}


def _symbols(source: str) -> symtable.SymbolTable:
    return symtable.symtable(ast.unparse(_Generators().visit(ast.parse(source))), "cell", "exec")


class _Generators(ast.NodeTransformer):
    """Makes comprehensions generators: from Python 3.12 on their variables count as those of the scope around them."""

    def visit_ListComp(self, node: ast.ListComp | ast.SetComp) -> ast.AST:
        self.generic_visit(node)
        return ast.GeneratorExp(node.elt, node.generators)

    visit_SetComp = visit_ListComp

    def visit_DictComp(self, node: ast.DictComp) -> ast.AST:
        self.generic_visit(node)
        return ast.GeneratorExp(ast.Tuple([node.key, node.value], ast.Load()), node.generators)


def _is_constant(node: ast.stmt) -> bool:
    if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
        return False
    try:
        ast.literal_eval(node.value)
    except (ValueError, TypeError, SyntaxError):
        return False
    return True


def _is_check(node: ast.stmt) -> bool:
    """`causal_mask = ex.causal_mask.check(causal_mask)` leaves the learner's definition in force."""
    return isinstance(node, ast.Assign) and bool(_CHECK.search(ast.unparse(node.value)))


def _parses(source: str) -> bool:
    try:
        ast.parse(source.strip())
    except (SyntaxError, ValueError):
        return False
    return True
