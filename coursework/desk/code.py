"""The Python in a learner's cells: what an answer needs to run alone, and imports of what the course moved."""

import ast
import builtins
import io
import itertools
import re
import tokenize
from collections.abc import Iterable, Sequence, Set
from typing import NamedTuple

from course_lib.forwarding import MOVED, new_name
from coursework.desk.names import UNREADABLE, bound_names, free_names, statements
from coursework.desk.notebooks import Cell, Notebook, exercise_of
from coursework.exercises import registry

_CHECK = re.compile(r"\bex\.(\w+)\.(?:check|part)\(")
_PART = re.compile(r"ex\.(\w+)\.part\(\)")

_SHELL = re.compile(r"^\s*[%!?]|\?\s*$")


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


class Needs(NamedTuple):
    """What an answer needs of the cells above it.

    Args:
        imports: all of these cells.
        definitions: what it uses, in order, as text.
        stand_ins: those of them that are the course's own version of another exercise -> its id.
        missing: names that only running other cells would give -> the id of the cell.
        handed: names that `ex.<id>.part()` gives -> that id.
        exercises: those whose answers are among the definitions; what they are given, this answer needs too.
    """

    imports: str
    definitions: list[str]
    stand_ins: dict[str, str]
    missing: dict[str, str]
    handed: dict[str, str]
    exercises: list[str]

    @property
    def text(self) -> str:
        """What to run before the answer."""
        return "\n".join([self.imports, *self.definitions]) + "\n"


def needs(above: Iterable[Cell], answer: str, *, whole: bool = False) -> Needs:
    """Return what an answer needs of the cells above it, and the names that only running other cells would give.

    Needed are the imports there, and the functions, classes and literal constants that the answer uses, directly or
    through one another. With `whole`, also every statement that sets such a name, and the answer to another exercise is
    replaced by the course's own, so that an answer is not wrong by the mistake of another.
    """
    imports: list[str] = []
    definitions: dict[str, list[str]] = {}
    elsewhere: dict[str, str] = {}
    stand_ins: dict[str, str] = {}
    handed: dict[str, str] = {}
    answered: dict[str, str] = {}  # a definition -> the exercise that it answers
    for cell in above:
        if cell["cell_type"] != "code":
            continue
        for node in statements(runnable(cell["source"])):
            text = ast.unparse(node)
            if isinstance(node, ast.Import | ast.ImportFrom):
                imports.append(text)
                continue
            simple = isinstance(node, ast.FunctionDef | ast.ClassDef | ast.AsyncFunctionDef) or _is_constant(node)
            if simple and (exercise := exercise_of(cell)):
                answered[text] = exercise
            parts = _parts(node)
            for name in bound_names(node):
                if simple:
                    definitions[name] = [text]
                    elsewhere.pop(name, None)
                    handed.pop(name, None)
                elif whole and (checked := parts.get(name) or _checked(text)):
                    definitions[name] = [_solution(checked, name)]
                    stand_ins[definitions[name][0]] = checked
                elif not whole and name in parts:
                    definitions.pop(name, None)
                    elsewhere.pop(name, None)
                    handed[name] = parts[name]
                elif whole:
                    definitions.setdefault(name, []).append(text)
                elif name not in definitions or not _is_check(node):
                    definitions.pop(name, None)
                    handed.pop(name, None)
                    elsewhere[name] = cell["id"]
    head = "\n".join(dict.fromkeys(imports))
    known = {name for node in statements(head) for name in bound_names(node)} | set(dir(builtins))
    chosen: list[str] = []
    todo, seen = [answer], set(known)
    while todo:
        for name in sorted(free_names(todo.pop()) - seen):
            seen.add(name)
            if name in definitions:
                chosen += definitions[name]
                todo += definitions[name]
    own = {name for node in statements(answer) for name in bound_names(node)}
    missing = {name: elsewhere[name] for name in sorted((seen - known - own) & set(elsewhere))}
    ordered = [text for text in dict.fromkeys(itertools.chain(*definitions.values())) if text in chosen]
    asked = {name: one for name, one in handed.items() if name in seen - known - own}
    exercises = list(dict.fromkeys(answered[text] for text in ordered if text in answered))
    return Needs(head, ordered, stand_ins, missing, asked, exercises)


def _checked(text: str) -> str | None:
    found = _CHECK.search(text)
    return found[1] if found else None


def _parts(node: ast.stmt) -> dict[str, str]:
    """Name -> exercise, of `a, b = ex.one.part(), ex.other.part()`; empty for another statement."""
    if not isinstance(node, ast.Assign) or len(node.targets) != 1:
        return {}
    pair = node.targets[0], node.value
    names, values = (one.elts if isinstance(one, ast.Tuple) else [one] for one in pair)
    if len(names) != len(values):
        return {}
    found = (
        (ast.unparse(name), _PART.fullmatch(ast.unparse(value))) for name, value in zip(names, values, strict=True)
    )
    return {name: part[1] for name, part in found if part}


def _solution(exercise_id: str, name: str) -> str:
    """The course's own answer as text, under the name that the learner's notebook gives to it."""
    from coursework.exercises.engine import cells

    try:
        entry = registry.get(exercise_id)
    except KeyError:  # of another edition
        return ""
    text = cells.solution_source(entry)
    own = getattr(entry, "function_name", name)
    return text if own == name else f"{text}\n{name} = {own}"


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
    except UNREADABLE:
        return False
    return True


# -- imports of what the course moved ----------------------------------------------------------------------------------

_IMPORT = re.compile(r"^[ \t]*(?:from|import)[ \t]+course_lib\b")
_DOTTED = re.compile(r"(?<![\w.])course_lib(?:\.\w+)+")
_LINES = 60  # of one import, in a cell that is not Python as a whole
_WIDTH = 120


class Binding(NamedTuple):
    """One part of an import: `from module import name as bound`, or `import module as bound`, where name is None."""

    module: str
    name: str | None
    bound: str | None

    @property
    def now(self) -> "Binding":
        """The same where the course has it today."""
        if self.name is None:
            return self._replace(module=new_name(self.module) or self.module)
        home, _, name = (new_name(f"{self.module}.{self.name}") or "").rpartition(".")
        return Binding(home, name, self.bound) if home else self


def follow(sources: Sequence[str]) -> list[str]:
    """Return the code cells of one notebook with imports that name what moved by its present name.

    All else stays as it is, byte by byte; but where a cell says `import course_lib.viz`, uses of that name change with
    it, in all cells.
    """
    if not any("course_lib" in source for source in sources):
        return list(sources)
    whole = {binding for source in sources for node in _imports(source) for binding in _bindings(node)}
    modules = {one.now.module for one in whole if one.name is None and one.bound is None and one.now != one}
    followed = [_followed(source, modules, "") for source in sources]
    if modules and any(
        _uses_library(source) for source in followed
    ):  # a name that `import course_lib.viz` brought along
        followed = [_followed(source, modules, "course_lib, ") for source in sources]
    return followed


def followed(notebook: Notebook) -> Notebook:
    """Return the notebook with what moved under its present name, in every code cell."""
    code = [cell["source"] for cell in notebook["cells"] if cell["cell_type"] == "code"]
    if (new := follow(code)) == code:
        return notebook
    sources = iter(new)
    cells = [cell | {"source": next(sources)} if cell["cell_type"] == "code" else cell for cell in notebook["cells"]]
    return notebook | {"cells": cells}


def with_imports_of(mine: str, base: str, theirs: str) -> str | None:
    """Return `mine` with what `theirs` imports and `base` did not; None if they differ in more than imports."""
    was, now, own = (without_imports(source) for source in (base, theirs, mine))
    if was is None or now is None or own is None or was[0] != now[0]:
        return None
    gained = [binding for binding in now[1] if binding not in was[1] and binding not in own[1]]
    if not gained:
        return mine
    last = max((node.end_lineno or 0 for node in _imports(mine) if node.col_offset == 0), default=None)
    if last is None:
        return None
    lines = mine.split("\n")
    return "\n".join([*lines[:last], *_written(gained), *lines[last:]])


def without_imports(source: str) -> tuple[list[str], list[Binding]] | None:
    """Return the lines of a cell that are no imports, and what these bind; None for what is not Python."""
    if not _parses(text := runnable(source)):
        return None
    nodes = _imports(source)
    around = [part for node in nodes for part in _around(node, text.split("\n"))]
    if any(part.strip() and not part.lstrip().startswith("#") for part in around):
        return None  # something else stands in the line
    taken = {number for node in nodes for number in range(node.lineno, (node.end_lineno or 0) + 1)}
    rest = [line.rstrip() for number, line in enumerate(text.split("\n"), 1) if number not in taken and line.strip()]
    return rest, [binding for node in nodes for binding in _bindings(node)]


def _imports(source: str) -> list[ast.Import | ast.ImportFrom]:
    nodes = (node for statement in statements(runnable(source)) for node in ast.walk(statement))
    return [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]


def _bindings(node: ast.Import | ast.ImportFrom) -> list[Binding]:
    if isinstance(node, ast.Import):
        return [Binding(alias.name, None, alias.asname) for alias in node.names]
    module = "." * node.level + (node.module or "")
    return [Binding(module, alias.name, alias.asname or alias.name) for alias in node.names]


def _uses_library(source: str) -> bool:
    names = (node for statement in statements(runnable(source)) for node in ast.walk(statement))
    return any(isinstance(node, ast.Name) and node.id == "course_lib" for node in names)


def _followed(source: str, modules: Set[str], beside: str) -> str:
    """One cell; `modules` are imported by their dotted names, and `beside` with them."""
    if "course_lib" not in source:
        return source
    body = statements(runnable(source))
    if not body:
        return _followed_by_line(source, modules, beside)
    lines, edits = source.split("\n"), []
    for node in (node for statement in body for node in ast.walk(statement)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            new = _import_now(node, lines, beside)
        elif isinstance(node, ast.Attribute):
            new = _dotted_now(_dotted(node), modules, whole=True)
        else:
            continue
        if new is not None:
            edits.append((*_extent(node), new))
    for first, start, last, end, new in sorted(edits, reverse=True):
        before, after = lines[first].encode()[:start], lines[last].encode()[end:]  # offsets count bytes
        lines[first : last + 1] = [before.decode() + new + after.decode()]
    return "\n".join(lines)


def _followed_by_line(source: str, modules: Set[str], beside: str) -> str:
    """A cell that is not Python as a whole: what stands in it as an import, and dotted names."""
    lines, found = source.split("\n"), []
    while lines:
        head = ["if 1:"] if lines[0][:1].isspace() else []
        lengths = range(1, min(_LINES, len(lines)) + 1) if _IMPORT.match(lines[0]) else ()
        length = next((n for n in lengths if statements("\n".join([*head, *lines[:n]]))), 0)
        if length:
            text = _followed("\n".join([*head, *lines[:length]]), modules, beside)
            found += text.split("\n")[len(head) :]
        else:
            found.append(_DOTTED.sub(lambda match: _dotted_now(match[0], modules) or match[0], lines[0]))
        del lines[: length or 1]
    return "\n".join(found)


def _extent(node: ast.stmt | ast.expr) -> tuple[int, int, int, int]:
    return node.lineno - 1, node.col_offset, (node.end_lineno or 0) - 1, node.end_col_offset or 0


def _around(node: ast.stmt, lines: Sequence[str]) -> tuple[str, str]:
    """What stands before and behind a statement in its lines."""
    first, start, last, end = _extent(node)
    return lines[first].encode()[:start].decode(), lines[last].encode()[end:].decode()


def _import_now(node: ast.Import | ast.ImportFrom, lines: Sequence[str], beside: str) -> str | None:
    """One statement with what moved under its present name; None if nothing in it moved."""
    was = _bindings(node)
    now = [binding.now for binding in was]
    if now == was:
        return None
    before, after = _around(node, lines)
    text = "\n".join(lines[node.lineno - 1 : node.end_lineno])
    text = text[len(before) : len(text) - len(after)]
    home = now[0].module
    if isinstance(node, ast.ImportFrom) and now == [one._replace(module=home) for one in was]:
        return re.sub(r"^from\s+[\w.]+", f"from {home}", text)
    comments = [
        one.string for one in tokenize.generate_tokens(io.StringIO(text).readline) if one.type == tokenize.COMMENT
    ]
    written = _written(now)
    if any(one.name is None and one.bound is None for one in was if one.now != one):
        written[0] = written[0].replace("import ", f"import {beside}", 1)
    if before.strip() or after.lstrip().startswith(";"):
        return text if comments else "; ".join(_written(now, width=None))
    return f"\n{before}".join([*comments, *written])


def _written(bindings: Iterable[Binding], width: int | None = _WIDTH) -> list[str]:
    """The lines of import statements that bind these."""
    parts: dict[str, list[str]] = {}
    for module, name, bound in bindings:
        shown = name or module
        part = shown if bound in (None, shown) else f"{shown} as {bound}"
        parts.setdefault(f"from {module} import " if name else "import ", []).append(part)
    lines: list[str] = []
    for head, names in sorted(parts.items()):
        line = head + ", ".join(names)
        fits = width is None or len(line) <= width or head == "import "
        lines += [line] if fits else [f"{head}(", *(f"    {name}," for name in names), ")"]
    return lines


def _dotted(node: ast.expr) -> str:
    """The name that an expression like `course_lib.viz` spells; "" for any other."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join([node.id, *reversed(parts)]) if isinstance(node, ast.Name) else ""


def _dotted_now(old: str, modules: Set[str], *, whole: bool = False) -> str | None:
    """The present form of a name that moved, or that begins so if not `whole`, where it is imported dotted."""
    there = {".".join(one.split(".")[:length]) for one in modules for length in range(2, one.count(".") + 2)}
    parts = old.split(".")
    for length in range(len(parts) if whole else 2, len(parts) + 1):
        new = MOVED.get(".".join(parts[:length]))
        if new is not None and {new, new.rpartition(".")[0]} & there:
            return ".".join([new, *parts[length:]])
    return None
