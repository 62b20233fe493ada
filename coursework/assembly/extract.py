"""What one answer needs to stand in a module of its own: its function, its helpers and its imports, and no more."""

import ast
import builtins
import re
import sys
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from coursework.desk.code import runnable
from coursework.desk.names import free_names

GIVEN = {
    "math": "import math",
    "torch": "import torch",
    "F": "import torch.nn.functional as F",
    "Tensor": "from torch import Tensor",
    "nn": "from torch import nn",
}
"""What every notebook has imported before the first exercise, and the assembled module too."""


class Unusable(Exception):
    """An answer cannot stand in a module of its own; the message says why in one line."""


@dataclass
class Extract:
    """The text of a function with its helpers, the imports it needs by name, the helpers' names."""

    source: str
    imports: dict[str, str] = field(default_factory=dict)
    helpers: list[str] = field(default_factory=list)


def extract(answer: str, function: str, exercise_id: str, parts: Collection[str], before: str = "") -> Extract:
    """Cut the function out of an answer with all that it uses.

    Args:
        answer: the kept text, usually a whole cell.
        function: the name that the exercise asks for.
        exercise_id: whose check is left out.
        parts: names of functions that the module has anyway.
        before: imports and definitions of the notebook that the answer may use.

    Raises Unusable if it is not Python, lacks the function, uses names that it does not define, or imports what is
    neither torch nor of the standard library.
    """
    own, around = _Text(answer, exercise_id), _Text(before, exercise_id)
    if function not in own.bound:
        raise Unusable(f"it defines no `{function}`")
    found = Extract("")
    chosen: set[tuple[bool, int]] = set()
    todo, seen = [function], {function}
    while todo:
        name = todo.pop()
        text = own if name in own.bound else around
        for number in text.bound.get(name, ()):
            node = text.body[number]
            if isinstance(node, ast.Import | ast.ImportFrom):
                found.imports[name] = _one_import(node, name)
                continue
            if (text is own, number) in chosen:
                continue
            chosen.add((text is own, number))
            _refuse_foreign(node)
            found.helpers += [bound for bound in _bound(node) if bound != function]
            segment = text.segment(number)
            for used in sorted((free_names(segment) | _later(segment)) - seen):
                if used in own.bound or (used not in parts and used in around.bound):
                    seen.add(used)
                    todo.append(used)
                elif used in GIVEN:
                    found.imports.setdefault(used, GIVEN[used])
                elif used not in parts and not hasattr(builtins, used) and not used.startswith("__"):
                    raise Unusable(f"it uses `{used}`, which it does not define")
    segments = [around.segment(n) for _, n in sorted(c for c in chosen if not c[0])]
    segments += [own.segment(n) for _, n in sorted(c for c in chosen if c[0])]
    found.source = "\n\n\n".join(segments) + "\n"
    found.helpers = list(dict.fromkeys(found.helpers))
    return found


def renamed(source: str, names: Mapping[str, str]) -> str:
    """Rename global functions, classes and constants of a text; local variables and attributes of the name stay."""
    edits = sorted(set(_places(ast.parse(source), names, [])), reverse=True)
    lines = [line.encode() for line in source.split("\n")]
    for line, column, name in edits:
        text = lines[line - 1]
        start = text.index(name.encode(), column)
        lines[line - 1] = text[:start] + names[name].encode() + text[start + len(name.encode()) :]
    return b"\n".join(lines).decode()


# -- reading -----------------------------------------------------------------------------------------------------------


class _Text:
    """The statements of a text, what each binds, and their lines."""

    def __init__(self, source: str, exercise_id: str) -> None:
        self.source = runnable(source)
        try:
            tree = ast.parse(self.source)
        except SyntaxError as problem:
            raise Unusable(f"line {problem.lineno} is not Python ({problem.msg})") from None
        except (ValueError, RecursionError, MemoryError) as problem:
            raise Unusable(f"Python cannot read it ({type(problem).__name__})") from None
        self.body = [node for node in tree.body if not _calls_check(node)]
        self.lines = self.source.split("\n")
        self.bound: dict[str, list[int]] = {}
        for number, node in enumerate(self.body):
            for name in _bound(node):
                self.bound.setdefault(name, []).append(number)

    def segment(self, number: int) -> str:
        """The lines of a statement, with decorators and the comments directly above it."""
        node = self.body[number]
        first = min([node.lineno, *(one.lineno for one in getattr(node, "decorator_list", []))]) - 1
        while first and self.lines[first - 1].startswith("#"):
            first -= 1
        lines = self.lines[first : node.end_lineno]
        return "\n".join(line.rstrip() if not _in_string(node) else line for line in lines)


def _in_string(node: ast.stmt) -> bool:
    return any(isinstance(n, ast.Constant) and isinstance(n.value, str) and "\n" in n.value for n in ast.walk(node))


def _calls_check(node: ast.stmt) -> bool:
    return isinstance(node, ast.Assign | ast.Expr) and bool(re.search(r"\bex\.\w+\.\w+\(", ast.unparse(node)))


def _bound(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.Import | ast.ImportFrom):
        return [alias.asname or alias.name.partition(".")[0] for alias in node.names]
    if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return [one.id for target in targets for one in ast.walk(target) if isinstance(one, ast.Name)]
    return []


def _later(segment: str) -> set[str]:
    """Names that an assignment changes and so reads too: `x += 1`."""
    return {
        node.target.id
        for node in ast.parse(segment).body
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name)
    }


def _one_import(node: ast.Import | ast.ImportFrom, name: str) -> str:
    """The import of this one name alone."""
    for alias in node.names:
        if (alias.asname or alias.name.partition(".")[0]) == name:
            other = f" as {alias.asname}" if alias.asname and alias.asname != alias.name else ""
            statement = f"import {alias.name}{other}"
            if isinstance(node, ast.ImportFrom):
                statement = f"from {'.' * node.level}{node.module or ''} {statement}"
                if (node.module, alias.name) == ("torch.nn", "functional"):
                    statement = f"import torch.nn.functional as {name}"
            _refuse_foreign(ast.parse(statement).body[0])
            return statement
    return ""  # _bound found the name here


def _refuse_foreign(statement: ast.stmt) -> None:
    for node in ast.walk(statement):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            modules = ["." * node.level + (node.module or "")]
        else:
            continue
        for module in modules:
            top = module.partition(".")[0]
            if top != "torch" and top not in sys.stdlib_module_names:
                raise Unusable(f"it imports {module}; the module uses torch and the standard library only")


_WORDS: dict[type[ast.stmt], str] = {
    ast.FunctionDef: "def ",
    ast.AsyncFunctionDef: "async def ",
    ast.ClassDef: "class ",
}


class _Class(set[str]):
    """The scope of a class: its methods do not see its names."""


def _places(node: ast.AST, names: Mapping[str, str], scopes: list[set[str]]) -> Iterator[tuple[int, int, str]]:
    """Line, column and name of each place where a name is the global one."""
    inner, outside = scopes, list[ast.AST]()
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and not scopes and node.name in names:
        yield node.lineno, node.col_offset + len(_WORDS[type(node)]), node.name
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
        inner = [*scopes, _locals(node)]
        outside = [*node.args.defaults, *(one for one in node.args.kw_defaults if one)]
        outside += getattr(node, "decorator_list", [])
    elif isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
        stored = (n for one in node.generators for n in ast.walk(one.target) if isinstance(n, ast.Name))
        inner = [*scopes, {one.id for one in stored}]
    elif isinstance(node, ast.ClassDef):
        inner = [*scopes, _Class()]
    if isinstance(node, ast.Name) and node.id in names and not any(node.id in scope for scope in scopes):
        attribute = bool(scopes) and isinstance(scopes[-1], _Class) and isinstance(node.ctx, ast.Store)
        if not attribute:
            yield node.lineno, node.col_offset, node.id
    for child in ast.iter_child_nodes(node):
        yield from _places(child, names, scopes if child in outside else inner)


def _locals(function: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> set[str]:
    arguments = function.args
    found = {one.arg for one in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}
    found |= {one.arg for one in (arguments.vararg, arguments.kwarg) if one}
    globals_: set[str] = set()
    todo: list[ast.AST] = list(function.body) if isinstance(function.body, list) else [function.body]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
            continue
        if isinstance(node, ast.Import | ast.ImportFrom):
            found |= set(_bound(node))
        if isinstance(node, ast.Lambda | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
            continue
        if isinstance(node, ast.Global):
            globals_ |= set(node.names)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        todo += ast.iter_child_nodes(node)
    return found - globals_
