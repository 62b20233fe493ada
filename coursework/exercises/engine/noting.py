"""Running a function or class so that every value on its way is noted, and may be exchanged for another."""

from __future__ import annotations
import __future__

import ast
import builtins
import copy
import inspect
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coursework.exercises.engine.edits import MODULES
from coursework.exercises.engine.source import definition

LARGEST, MOST, VALUES = 4096, 200, 20_000
"""Elements of a tensor that is noted; values of one expression that are; values of one run."""

NOTE = "_note_value"

_SKIPPED = ast.Constant | ast.Starred | ast.Slice | ast.Lambda | ast.Yield | ast.YieldFrom | ast.NamedExpr | ast.Await


@dataclass
class Recorder:
    """What one run came by: for each expression, by its number, its values in turn.

    Args:
        exchanged: values, in turn, that take the place of those of one expression.
        count: how many values were noted.
        flows: from which expression's value another one's was read by name.
        times: for each expression, when it had each of its values.
    """

    values: dict[int, list[Any]] = field(default_factory=lambda: defaultdict(list))
    times: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    exchanged: dict[int, list[Any]] = field(default_factory=dict)
    flows: set[tuple[int, int]] = field(default_factory=set)
    _stored: dict[str, int] = field(default_factory=dict)
    count: int = 0

    def note(self, number: int, value: Any, targets: tuple[str, ...] = (), read: str = "") -> Any:
        """Note a value; `targets` are the names that it is given, `read` the name that it was read by."""
        taken = self.values[number]
        if number in self.exchanged and len(taken) < len(self.exchanged[number]):
            value = kept(self.exchanged[number][len(taken)])
        if read in self._stored:
            self.flows.add((self._stored[read], number))
        for name in targets:
            self._stored[name] = number
        if len(taken) < MOST and self.count < VALUES:
            self.count += 1
            taken.append(kept(value))
            self.times[number].append(self.count)
        return value


def kept(value: Any, depth: int = 0) -> Any:
    """A copy of a value that later changes do not reach; None for what cannot be compared or is too large."""
    if isinstance(value, Tensor):
        strange = value.is_sparse or value.is_complex() or value.device.type == "meta"
        return None if strange or value.numel() > LARGEST else value.detach().clone()
    if isinstance(value, np.ndarray | np.generic):
        return np.array(value) if value.size <= LARGEST and value.dtype.kind in "bif" else None
    if isinstance(value, bool | int | float | str | torch.Size):
        return value
    if isinstance(value, list | tuple | set | frozenset) and depth < 4 and len(value) <= MOST:
        parts = sorted(value, key=repr) if isinstance(value, set | frozenset) else value
        return (list if isinstance(value, list) else tuple)(kept(part, depth + 1) for part in parts)
    if isinstance(value, dict) and depth < 4 and len(value) <= MOST:
        return {key: kept(part, depth + 1) for key, part in value.items()}
    return None


@dataclass
class Noted:
    """A function or class that notes what its expressions are worth.

    Args:
        candidate: the function or class itself.
        recorder: that of the latest run, alone in a list.
        nodes: the expressions and changing statements, by their numbers, in the order in which they are computed.
        parts: the numbers of the expressions that each is made of.
        owner: the name of the definition in whose text each stands.
        results: the numbers of what the functions of a name return.
        definitions: the text of each definition, and how many lines of its file or cell come before it.
    """

    candidate: Any
    recorder: list[Recorder]
    nodes: list[Any]
    parts: list[list[int]]
    owner: list[str]
    results: dict[str, list[int]]
    definitions: dict[str, tuple[str, int]]

    def run(self, call: Callable[[Any], Any], exchanged: dict[int, list[Any]] | None = None) -> tuple[Any, Recorder]:
        """What `call` of the candidate gives, and what was noted; an error comes as the value."""
        self.recorder[0] = Recorder(exchanged=exchanged or {})
        try:
            value = call(self.candidate)
        except KeyboardInterrupt:
            raise
        except BaseException as problem:  # an answer may leave by exit()
            value = problem
        return value, self.recorder[0]


class _Notes(ast.NodeTransformer):
    """Puts a call of the recorder around every expression that is read."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.parts: list[list[int]] = []
        self.owner: list[str] = []
        self.results: dict[str, list[int]] = defaultdict(list)
        self.scope = self.function = ""
        self.local: set[str] = set()
        self._open: list[list[int]] = [[]]

    def call(
        self, original: ast.AST, value: ast.expr, parts: list[int], targets: list[str], read: str = ""
    ) -> ast.Call:
        """The call that notes `value`."""
        self._open[-1].append(len(self.nodes))
        self.nodes.append(original)
        self.parts.append(parts)
        self.owner.append(self.scope)
        names = ast.Tuple([ast.Constant(name) for name in targets], ast.Load())
        arguments: list[ast.expr] = [ast.Constant(len(self.nodes) - 1), value, names, ast.Constant(read)]
        return ast.Call(ast.Name(NOTE, ast.Load()), arguments, [])

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        """The body alone: no defaults, types or decorators."""
        outer = self.scope, self.function, self.local
        self.scope, self.function = self.scope or node.name, node.name
        arguments = {one.arg for one in ast.walk(node.args) if isinstance(one, ast.arg)}
        self.local = arguments | {name for one in node.body for name in _names([one])} - self._shared(node)
        node.body = self._all(node.body)
        self.scope, self.function, self.local = outer
        return node

    def _shared(self, node: ast.FunctionDef) -> set[str]:
        shared = (one for one in ast.walk(node) if isinstance(one, ast.Global | ast.Nonlocal))
        inner = (one for one in ast.walk(node) if isinstance(one, ast.FunctionDef) and one is not node)
        return {name for one in shared for name in one.names} | {name for one in inner for name in _names(one.body)}

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        """Its methods."""
        outer, self.scope = self.scope, node.name
        node.body = [self.visit(one) if isinstance(one, ast.FunctionDef | ast.ClassDef) else one for one in node.body]
        self.scope = outer
        return node

    def _all(self, body: list[ast.stmt]) -> list[ast.stmt]:
        made: list[ast.stmt] = []
        for one in body:
            new = self.visit(one)
            made += new if isinstance(new, list) else [new]
        return made

    def visit(self, node: Any) -> Any:
        """One node."""
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            return super().visit(node)
        if isinstance(node, ast.JoinedStr | ast.FormattedValue | ast.AsyncFunctionDef | ast.Global | ast.Nonlocal):
            return node
        if isinstance(node, ast.AnnAssign):
            if node.value is not None:
                node.value = self._noted(node.value, _names([node.target]))
            return node
        if isinstance(node, ast.Assign):
            return self._with_changes(node, node.targets, lambda: self._assigned(node))
        if isinstance(node, ast.AugAssign):
            return self._with_changes(node, [node.target], lambda: self.generic_visit(node), augmented=True)
        if isinstance(node, ast.Expr):
            function = node.value.func if isinstance(node.value, ast.Call) else None
            base = [function.value] if isinstance(function, ast.Attribute) else []
            changed = [ast.Subscript(one, one) for one in base if isinstance(one, ast.Name | ast.Subscript)]
            return self._with_changes(node, changed, lambda: self.generic_visit(node))
        if isinstance(node, ast.For):
            node.iter = self._noted(node.iter, _names([node.target]))
            node.body, node.orelse = self._all(node.body), self._all(node.orelse)
            return node
        if isinstance(node, ast.comprehension):
            node.iter = self._noted(node.iter, _names([node.target]))
            node.ifs = [self.visit(one) for one in node.ifs]
            return node
        if isinstance(node, ast.Return) and node.value is not None:
            node.value = self._noted(node.value, [])
            self.results[self.function].append(len(self.nodes) - 1)
            return node
        if isinstance(node, ast.expr) and not isinstance(node, _SKIPPED) and _is_read(node):
            return self._noted(node, [])
        return self.generic_visit(node)

    def _assigned(self, node: ast.Assign) -> ast.AST:
        value = self._noted(node.value, _names(node.targets))
        node.targets = [self.visit(target) for target in node.targets]
        node.value = value
        return node

    def _with_changes(
        self, node: Any, targets: list[Any], visit: Callable[[], Any], augmented: bool = False
    ) -> list[Any]:
        """A statement, and after it a note of each name in whose value it has put something."""
        original = copy.deepcopy(node)
        bases = [_base(target) for target in targets if augmented or isinstance(target, ast.Subscript)]
        self._open.append([])
        made = [visit()]
        parts = self._open.pop()
        for base in filter(None, bases):
            call = self.call(original, ast.Name(base, ast.Load()), parts, [base], base)
            own = base in self.local  # so that another value can take its place
            new = ast.Assign([ast.Name(base, ast.Store())], call) if own else ast.Expr(call)
            made.append(ast.copy_location(new, node))
        return made

    def _noted(self, node: Any, targets: list[str]) -> Any:
        if isinstance(node, _SKIPPED) or not _is_read(node) or _is_constant(node):
            return self.generic_visit(node)
        original = copy.deepcopy(node)
        self._open.append([])
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name | ast.Attribute):
            if isinstance(node.func, ast.Attribute):
                node.func.value = self.visit(node.func.value)
            node.args = [self.visit(one) for one in node.args]
            node.keywords = [self.visit(one) for one in node.keywords]
        else:
            node = self.generic_visit(node)
        parts = self._open.pop()
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "super":
            return node
        read = node.id if isinstance(node, ast.Name) else ""
        return ast.copy_location(self.call(original, node, parts, targets, read), node)


def _base(target: Any) -> str:
    while isinstance(target, ast.Subscript | ast.Attribute):
        target = target.value
    return target.id if isinstance(target, ast.Name) and target.id != "self" else ""


def _names(targets: list[Any]) -> list[str]:
    """The names that an assignment gives."""
    return [one.id for target in targets for one in ast.walk(target)
            if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)]  # fmt: skip


def _is_read(node: Any) -> bool:
    return not isinstance(getattr(node, "ctx", None), ast.Store | ast.Del)


def _is_constant(node: ast.AST) -> bool:
    """Whether it depends on nothing that the function gets."""
    names = [one.id for one in ast.walk(node) if isinstance(one, ast.Name)]
    return all(name in MODULES or hasattr(builtins, name) for name in names)


def noted(candidate: Any, is_own: Callable[[Any], bool]) -> Noted | None:
    """A copy of a function or class that notes its values, and those of what it calls of its own; None without text.

    Args:
        candidate: the function or class.
        is_own: whether a function or class that it calls by name is to note its values, too.
    """
    todo, found = [candidate], {}
    names: dict[str, Any] = {}
    while todo:
        one = todo.pop()
        own = definition(one)
        if own is None:
            if one is candidate:
                return None
            continue
        if one.__name__ in found:
            continue
        found[one.__name__] = one, own
        plain = one if not inspect.isclass(one) else next(iter(_methods(one)), None)
        if plain is None:
            continue
        closed = {
            name: cell.cell_contents
            for name, cell in zip(plain.__code__.co_freevars, plain.__closure__ or (), strict=True)
            if name != "__class__"
        }
        names = plain.__globals__ | closed | names
        for called in {node.id for node in ast.walk(own[1]) if isinstance(node, ast.Name)}:
            value = names.get(called)
            if (inspect.isfunction(value) or inspect.isclass(value)) and is_own(value):
                todo.append(value)
    notes = _Notes()
    definitions = {name: (own[0], _lines_before(one, own[1])) for name, (one, own) in found.items()}
    body = [notes.visit(copy.deepcopy(own[1])) for _, own in reversed(found.values())]
    for one in body:
        one.decorator_list = [] if isinstance(one, ast.FunctionDef) else one.decorator_list
    tree = ast.fix_missing_locations(ast.Module(body, []))
    recorder = [Recorder()]
    names = names | {NOTE: lambda *args: recorder[0].note(*args)}
    exec(compile(tree, "<noted>", "exec", __future__.annotations.compiler_flag), names)
    return Noted(names[candidate.__name__], recorder, notes.nodes, notes.parts, notes.owner, notes.results, definitions)


def _methods(one: type) -> list[Any]:
    return [member for member in vars(one).values() if inspect.isfunction(member)]


def _lines_before(one: Any, node: ast.AST) -> int:
    """How many lines of its file or cell come before a definition's text."""
    if not inspect.isclass(one):
        return one.__code__.co_firstlineno - 1
    method = next(iter(_methods(one)), None)
    inner: Any = next(
        (n for n in ast.walk(node) if method is not None and getattr(n, "name", "") == method.__name__), None
    )
    if method is None or inner is None:
        return 0
    first = min([inner.lineno, *(one.lineno for one in inner.decorator_list)])
    return method.__code__.co_firstlineno - first
