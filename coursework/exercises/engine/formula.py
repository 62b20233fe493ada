"""What follows from the formula of a right number if somebody slips: a term left out, two quantities exchanged.

A formula is a text in Python: lines `name = value` for quantities and parts of the sum, whose names are what a learner
reads, and at the end the expression that is the answer. Quantities that it does not use are those that a learner may
take in another's place.
"""

from __future__ import annotations

import ast
import contextlib
import copy
import functools
import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from coursework.exercises.engine.edits import Place, places

FUNCTIONS = {name: getattr(math, name) for name in ("log", "log2", "log10", "exp", "sqrt", "ceil", "floor", "pi")}
FUNCTIONS |= {"sum": sum, "min": min, "max": max, "range": range, "round": round}


class Slip(NamedTuple):
    """One slip or two: what they make of the answer, and the rest of "That is what comes out if …"."""

    value: float
    words: str
    places: int


def value_of(formula: str) -> float:
    """The number that a formula gives."""
    return _evaluated(ast.parse(formula.strip()))


@functools.cache
def slips(formula: str) -> list[Slip]:
    """What comes out after each slip, and after that, in a short formula, where two things are missing."""
    tree = ast.parse(formula.strip())
    changes = list(_changes(tree))
    missing = [one for one in changes if MISSING in one[2]]
    two = itertools.combinations(missing if len(missing) <= SHORT else [], 2)
    # Of two, what lies inside the other is changed first.
    return [slip for made in (*((one,) for one in changes), *((b, a) for a, b in two)) for slip in _tried(tree, *made)]


OTHER_FUNCTIONS = {
    "log": ("log2", "log10"),
    "floor": ("ceil", "round"),
    "ceil": ("floor", "round"),
    "round": ("floor", "ceil"),
    "sqrt": (),
}

Change = tuple[list[Place], Callable[[Any], ast.expr], str]
"""Where, from what stands there to what comes in its place, and what is said of it."""

MISSING = "is missing: "

SHORT = 20
"""So many terms and factors, each two of which may be missing, has a short formula."""


def _tried(tree: ast.Module, *changes: Change) -> Iterator[Slip]:
    with contextlib.ExitStack() as stack:
        for where, change, _ in changes:
            for place in where:
                stack.enter_context(place.holding(change(copy.deepcopy(place.node))))
        try:
            value = _evaluated(tree)
        except (ArithmeticError, ValueError, TypeError):
            return
    if isinstance(value, int | float) and math.isfinite(value):
        yield Slip(value, " and ".join(words for _, _, words in reversed(changes)), len(changes))


def _evaluated(tree: ast.Module) -> float:
    """The value of the last line."""
    names: dict[str, Any] = {}
    *lines, last = tree.body
    assert isinstance(last, ast.Expr)
    exec(compile(ast.Module(list(lines), []), "<formula>", "exec"), FUNCTIONS | {}, names)
    names = FUNCTIONS | names
    value: float = eval(compile(ast.Expression(last.value), "<formula>", "eval"), names)
    return value


def _becomes(other: ast.expr) -> Callable[[Any], ast.expr]:
    return lambda node: copy.deepcopy(other)


def _calls(function: str, node: Any) -> ast.expr:
    return ast.Call(ast.Name(function, ast.Load()), node.args, [])


def _changes(tree: ast.Module) -> Iterator[Change]:
    """Every slip in one place, and what it is called."""
    lines = [line for line in tree.body if isinstance(line, ast.Assign)]
    numbers = [ast.unparse(line.targets[0]) for line in lines if isinstance(line.value, ast.Constant)]
    every = list(places(tree))
    read = {one.node.id for one in every if isinstance(one.node, ast.Name) and isinstance(one.node.ctx, ast.Load)}
    for place in every:
        node = place.node
        if isinstance(node, ast.BinOp):
            yield from (([place], change, words) for words, change in _of_operation(node))
        elif isinstance(node, ast.Constant) and "bytes" in _target(place.parent):
            for size in (1, 2, 4, 8):
                if size != node.value:
                    yield [place], _becomes(ast.Constant(size)), f"a number takes {size} bytes"
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in numbers:
            for other in numbers:
                if other != node.id and (other not in read or set(other.split("_")) & set(node.id.split("_"))):
                    taken = f"this is taken for the {_words(node)}: {other.replace('_', ' ')}"
                    yield [place], _becomes(ast.Name(other, ast.Load())), taken
        elif isinstance(node, ast.Expr):
            for term in _terms(node.value):
                if term is not node.value:
                    only = next(one for one in every if one.node is node.value)
                    yield [only], _becomes(term), f"this alone is counted: {_words(term)}"
    for name, others in OTHER_FUNCTIONS.items():
        where = [one for one in every if isinstance(one.node, ast.Call) and ast.unparse(one.node.func) == name]
        for other in others if where else ():
            yield where, functools.partial(_calls, other), f"{other} stands for {name}"
        for place in where:
            yield [place], lambda n: n.args[0], f"this is not taken: the {name} of {_words(place.node.args[0])}"


def _of_operation(node: ast.BinOp) -> Iterator[tuple[str, Callable[[Any], ast.expr]]]:
    """What slips make of one operation."""
    left, right = _words(node.left), _words(node.right)
    if isinstance(node.op, ast.Add):
        yield f"this term {MISSING}{left}", lambda n: n.right
        yield f"this term {MISSING}{right}", lambda n: n.left
        yield f"this is counted twice: {left}", lambda n: ast.BinOp(n, ast.Add(), n.left)
        yield f"this is counted twice: {right}", lambda n: ast.BinOp(n, ast.Add(), n.right)
    elif isinstance(node.op, ast.Sub):
        yield f"this is not taken away: {right}", lambda n: n.left
        yield f"this is added, not taken away: {right}", lambda n: ast.BinOp(n.left, ast.Add(), n.right)
    elif isinstance(node.op, ast.Mult):
        yield f"this factor {MISSING}{left}", lambda n: n.right
        yield f"this factor {MISSING}{right}", lambda n: n.left
        yield f"this factor is taken twice: {left}", lambda n: ast.BinOp(n, ast.Mult(), n.left)
        yield f"this factor is taken twice: {right}", lambda n: ast.BinOp(n, ast.Mult(), n.right)
    elif isinstance(node.op, ast.Div):
        yield f"nothing is divided by this: {right}", lambda n: n.left
        yield f"this is multiplied by, not divided by: {right}", lambda n: ast.BinOp(n.left, ast.Mult(), n.right)
    elif isinstance(node.op, ast.Pow):
        yield f"this power is not taken: {_words(node)}", lambda n: n.left
        yield f"this is a product, not a power: {_words(node)}", lambda n: ast.BinOp(n.left, ast.Mult(), n.right)


def _target(node: ast.AST) -> str:
    return ast.unparse(node.targets[0]) if isinstance(node, ast.Assign) else ""


def _terms(node: ast.expr) -> list[ast.expr]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return [*_terms(node.left), *_terms(node.right)]
    return [node]


def _words(node: ast.AST) -> str:
    """An expression as one writes it by hand."""
    text = ast.unparse(node).replace("_", " ").replace(" ** ", "^")
    return text.replace("**", "^").replace("*", "·").replace("/", "÷")


def follows(formula: str, fits: Callable[[float], bool]) -> str:
    """What may have slipped where a wrong number comes out, in words; "" if nothing, or too much to choose from."""
    found: dict[int, dict[str, None]] = {1: {}, 2: {}}
    for slip in slips(formula):
        if slip.places == 2 and found[1]:
            break  # one slip explains it
        if fits(slip.value):
            found[slip.places][slip.words] = None
    words = found[1] or found[2]
    return ", or if ".join(words) if 0 < len(words) <= (2 if found[1] else 1) else ""
