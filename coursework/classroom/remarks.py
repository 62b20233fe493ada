"""What somebody should look at in an answer before its pass is believed: nothing of it decides.

An answer to an exercise needs few words: those of Python's numbers and containers, of torch, and of the exercise. So
what is looked for is no list of tricks, but every word, in the code that the answer rests on, that no answer needs.
"""

from __future__ import annotations

import ast
import builtins
import functools
import importlib
import inspect
import re
import sys
import types
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from coursework.classroom.submissions import Found
from coursework.desk.code import needs, runnable
from coursework.desk.names import UNREADABLE, free_names, global_names
from coursework.exercises import bank, registry
from coursework.exercises.engine import cells
from coursework.exercises.spec import Exercise, Question

_OWN = "course_lib", "coursework"

_MODULES = re.findall(
    r"[\w.]+",
    """
    torch torch.nn torch.nn.functional torch.nn.init torch.nn.utils torch.nn.utils.rnn torch.nn.parameter torch.optim
    torch.linalg torch.special torch.fft torch.autograd torch.autograd.functional torch.func torch.distributions
    torch.utils.checkpoint torch.testing math cmath numpy numpy.linalg numpy.random functools itertools collections
    collections.abc dataclasses einops typing random heapq bisect fractions decimal numbers statistics operator copy
    contextlib enum abc string warnings time __future__
    """,
)
"""Modules that answers import. None of them runs or imports what a text names, but for `_BY_TEXT`."""

_BY_TEXT = {
    "attrgetter", "methodcaller", "get_type_hints", "ForwardRef", "evaluate_forward_ref", "import_ir_module",
    "load", "loadtxt", "genfromtxt", "fromfile", "from_file", "fromregex", "memmap", "compile",
}  # fmt: skip

_BUILTINS = re.findall(
    r"\w+",
    """
    abs all any ascii bin bool callable complex dict divmod enumerate filter float format frozenset hasattr hash hex id
    int isinstance issubclass iter len list map max min next object oct ord pow print property range repr reversed round
    set slice sorted staticmethod classmethod str sum super tuple type zip Ellipsis NotImplemented __name__
    """,
)
_CONTAINERS = str, bool, list, tuple, dict, set, frozenset
_SPECIAL = re.compile(r"__(?:init|call|len|getitem|setitem|iter|next|name|add|mul|post_init|enter|exit)__\Z")
_LONG = 40
"""Characters of a text that says more than a pattern or a name."""


class Binding(NamedTuple):
    """What an import gives: `name` of `module` ("" for the module itself), and what it is called."""

    module: str
    name: str
    bound: str


_EX = Binding("coursework", "exercises", "ex")
_CALLS = "check", "answer", "part", "hint", "solution", "cases", "predict"
_SO_FAR = Binding("coursework.assembly.thread", "so_far", "so_far")


class Remarks(NamedTuple):
    """On one answer: what to say at once, and the exercises whose answers are the course's own in it."""

    texts: list[str]
    stand_ins: set[str]


def remarks(one: Found) -> Remarks:
    """Read the answer with all that it rests on, wherever that stands in the notebook."""
    source = runnable(one.source)
    try:
        found = needs(one.notebook["cells"][: one.numbers[0]], source, whole=True)
        texts = [source, *(text for text in found.definitions if text not in found.stand_ins)]
        trees = [ast.parse(text) for text in texts]
        used = set().union(*map(global_names, texts))
        bindings = [bound for bound in _imports(ast.parse(found.imports)) if bound.bound in used]
        bindings += [bound for tree in trees for bound in _imports(tree)]
        strange = _strange(one.exercise, trees, bindings, used)
    except UNREADABLE:  # what Python cannot read passes nothing
        return Remarks([], set())
    said = []
    if strange:
        said.append(f"look at the code, it speaks of: {', '.join(strange)}")
    borrowed = {
        bound.name or bound.module
        for bound in bindings
        if bound.module.partition(".")[0] in _OWN and not _is_given(bound, one.exercise, texts)
    }
    if borrowed:
        said.append(f"it uses the course's own code: {', '.join(sorted(borrowed))}")
    return Remarks(said, {found.stand_ins[text] for text in found.definitions if text in found.stand_ins})


@functools.cache
def _given(exercise: str) -> frozenset[str]:
    """The names that the notebook has before the cell, and that the answer is meant to use."""
    entry = registry.get(exercise)
    parts = set(entry.parts) if isinstance(entry, Exercise) else set()
    return frozenset(parts | free_names(cells.cell_source(entry)))


def _is_given(bound: Binding, exercise: str, texts: Iterable[str]) -> bool:
    """Whether the notebook has it for this, under its own name."""
    if bound == _EX:
        return True
    if bound == _SO_FAR:  # what the chapters before this one have asked for
        home = registry.label(exercise)
        calls = {chapter for text in texts for chapter in re.findall(r"\bso_far\b(?:\(chapter=(\d+)\))?", text)}
        return home.isdecimal() and all(chapter and int(chapter) < int(home) for chapter in calls)
    own = getattr(registry.get(exercise), "function_name", "")
    return bound.bound in _given(exercise) and bound.name == bound.bound != own


def _imports(tree: ast.AST) -> Iterator[Binding]:
    """What the import statements anywhere in it bind; a star is all that it brings."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Binding(alias.name, "", alias.asname or alias.name.partition(".")[0])
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            for alias in node.names:
                names = _all_of(module) if alias.name == "*" else [alias.name]
                yield from (Binding(module, name, alias.asname or name) for name in names)


def _all_of(module: str) -> Iterable[str]:
    if module in _MODULES or module.partition(".")[0] in _OWN:
        try:
            loaded = importlib.import_module(module)
        except ImportError:
            return []
        return getattr(loaded, "__all__", None) or [name for name in vars(loaded) if not name.startswith("_")]
    return ["*"]


def _strange(exercise: str, trees: list[ast.Module], bindings: Iterable[Binding], used: set[str]) -> list[str]:
    """The words that no answer to the exercise needs, in order."""
    known, right = _vocabulary(exercise)
    made = {name for tree in trees for name in _made(tree)} - _foreign()
    found: list[str] = []
    for module, name, _ in bindings:
        whole = f"{module}.{name}" if name else module
        if module.partition(".")[0] in _OWN or whole in _MODULES:
            continue
        if module not in _MODULES and module not in right:
            found.append(module)
        elif name and (name not in known or isinstance(_value(module, name), types.ModuleType)):
            found.append(whole)
    found += [name for name in sorted(used - right) if _is_odd(name)]
    for tree in trees:
        quiet = _said_only(tree)
        for node in ast.walk(tree):
            names = [node.attr] if isinstance(node, ast.Attribute) else getattr(node, "kwd_attrs", [])
            found += [name for name in names if not (name in known or name in made or _SPECIAL.match(name))]
            if (
                isinstance(node, ast.Constant)
                and id(node) not in quiet
                and _is_long(node.value)
                and node.value not in known
            ):
                found.append("a long text")
        found += _uses_of_ex(tree)
    return list(dict.fromkeys(found))


def _value(module: str, name: str) -> object:
    return getattr(sys.modules.get(module), name, None)


def _is_odd(name: str) -> bool:
    """Whether it is one of Python's own names, and no answer needs it."""
    own = getattr(builtins, name, None)
    error = isinstance(own, type) and issubclass(own, Exception)
    return name not in _BUILTINS and not error and (hasattr(builtins, name) or name.startswith("__"))


def _is_long(value: object) -> bool:
    if isinstance(value, int):
        return value.bit_length() > 8 * _LONG
    return isinstance(value, bytes) or (isinstance(value, str) and (len(value) > _LONG or "__" in value))


def _made(tree: ast.AST) -> Iterator[str]:
    """The names that the answer itself gives to attributes, methods, fields, functions and classes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.AnnAssign | ast.Assign):
            targets = [node.target] if isinstance(node, ast.AnnAssign) else node.targets
            yield from (one.id for one in targets if isinstance(one, ast.Name))


def _said_only(tree: ast.AST) -> set[int]:
    """The texts that only people read: docstrings, and what is raised, asserted or printed."""
    quiet: set[int] = set()
    for node in ast.walk(tree):
        printed = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
        alone = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if printed or alone or isinstance(node, ast.Raise | ast.Assert):
            quiet |= {id(inner) for inner in ast.walk(node)}
    return quiet


def _uses_of_ex(tree: ast.Module) -> Iterator[str]:
    """What is done with the course's `ex` but a check in a statement of its own."""
    fine = set()
    for node in tree.body:
        call = node.value if isinstance(node, ast.Assign | ast.Expr) else None
        called = call.func if isinstance(call, ast.Call) else None
        if isinstance(called, ast.Attribute) and called.attr in _CALLS:
            fine.add(id(called.value.value if isinstance(called.value, ast.Attribute) else called.value))
    for inner in ast.walk(tree):
        if isinstance(inner, ast.Name) and inner.id == _EX.bound and id(inner) not in fine:
            yield inner.id


@functools.cache
def _vocabulary(exercise: str) -> tuple[frozenset[str], frozenset[str]]:
    """The words of every answer with those of this exercise's texts and parts; and those of its right answers."""
    entry = registry.get(exercise)
    sources = [inspect.getsource(importlib.import_module(f"{bank.__name__}.{exercise}"))]
    for part in entry.parts.values() if isinstance(entry, Exercise) else ():
        home = sys.modules.get(str(getattr(part, "__module__", None) or type(part).__module__))
        if home is not None and home.__name__.partition(".")[0] in _OWN:
            sources.append(inspect.getsource(home))
    words = {word for source in sources for word in re.findall(r"[^\W_]\w*", source)} - _foreign()
    right = {word for text in _right(entry) for word in _said(ast.parse(text))}
    texts = {node.value for node in ast.walk(ast.parse(sources[0])) if isinstance(node, ast.Constant)}
    known = _common() | words | right | {exercise, *_CALLS}
    return frozenset(known | {text for text in texts if isinstance(text, str)}), frozenset(right)


def _right(entry: Exercise | Question) -> list[str]:
    texts = [cells.cell_source(entry)]
    return texts + ([cells.solution_text(entry, alternatives=True)] if isinstance(entry, Exercise) else [])


def _said(tree: ast.AST) -> Iterator[str]:
    """The names and attributes in it, and the modules that it imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name | ast.Attribute):
            yield node.id if isinstance(node, ast.Name) else node.attr
    for module, name, _ in _imports(tree):
        yield from (module, name)


@functools.cache
def _common() -> frozenset[str]:
    """What those modules hold, with what their classes have, and Python's numbers and containers."""
    words = {word for kind in (int, float, complex, *_CONTAINERS, range, slice, property) for word in dir(kind)}
    for module in map(importlib.import_module, _MODULES):
        for name, value in vars(module).items():
            if not isinstance(value, types.ModuleType) or value.__name__ in _MODULES:
                words |= {name, *(dir(value) if isinstance(value, type) else ())}
                words |= {*getattr(value, "__constants__", ()), *getattr(value, "__annotations__", ())}
    return frozenset(word for word in words - _inner() - _BY_TEXT if not word.startswith("_"))


@functools.cache
def _foreign() -> frozenset[str]:
    """The words that are not an answer's own even where its exercise's text says them, or it uses them itself."""
    return _inner() | _BY_TEXT | (sys.stdlib_module_names - _common()) | {"exec", "import_module"}


@functools.cache
def _inner() -> frozenset[str]:
    """What functions, frames and bytes have, and numbers and containers have not."""
    kinds = (types.FrameType, types.CodeType, types.FunctionType, types.TracebackType, types.GeneratorType, type)
    words = {word for kind in (*kinds, bytes, bytearray) for word in dir(kind)}
    return frozenset(words - {word for kind in (int, float, *_CONTAINERS) for word in dir(kind)})
