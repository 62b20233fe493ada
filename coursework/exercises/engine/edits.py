"""Small changes of a function's text: as careless fingers would make them, and as they would be undone."""

# mypy: disable-error-code=misc
# (mypy infers no type for a lambda whose default arguments bind the variables of a loop)

from __future__ import annotations

import ast
import contextlib
import copy
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

OPERATORS: dict[type[ast.AST], list[type[ast.AST]]] = {
    ast.Add: [ast.Sub],
    ast.Sub: [ast.Add],
    ast.Mult: [ast.Div, ast.Add],
    ast.Div: [ast.Mult],
    ast.FloorDiv: [ast.Mult],
    ast.Pow: [ast.Mult],
    ast.BitAnd: [ast.BitOr],
    ast.BitOr: [ast.BitAnd],
    ast.Lt: [ast.LtE, ast.Gt],
    ast.LtE: [ast.Lt, ast.GtE],
    ast.Gt: [ast.GtE, ast.Lt],
    ast.GtE: [ast.Gt, ast.LtE],
    ast.Eq: [ast.NotEq],
    ast.NotEq: [ast.Eq],
    ast.Is: [ast.IsNot],
    ast.IsNot: [ast.Is],
    ast.And: [ast.Or],
    ast.Or: [ast.And],
}

_EITHER = "any all, sum mean, softmax log_softmax, exp log, sin cos, tril triu, zeros ones, zeros_like ones_like"
NAMES = {"amax": "amin", "max": "min", "sqrt": "exp", "argmax": "argmin", "repeat_interleave": "repeat"}
for one, other in (names.split() for names in f"{_EITHER}, logical_and logical_or".split(",")):
    NAMES |= {one: other, other: one}

SYMMETRIC = {"transpose", "swapaxes", "maximum", "minimum", "equal", "logical_and", "logical_or"}

UNCHANGED = {"contiguous", "clone", "detach", "cpu", "item", "tolist"}
"""Methods whose call is not removed: without them the same value often comes out."""

MODULES = ("torch", "math", "F", "nn", "np")

ONE_SIDE = "One term or factor is too many"
ORDER = "Things are done in the wrong order"
OTHER_FUNCTION = "One function is another than it should be"

SMALL = 8
"""Nodes of the largest expression that stands for another one."""

Change = Callable[[Any], Any]
"""From a copy of a node to what stands in its place; None removes a statement."""


class Place(NamedTuple):
    """Where a node stands: a field of its parent, and the index there if it is a list."""

    node: Any
    parent: Any
    field: str
    at: int | None

    @contextlib.contextmanager
    def holding(self, new: ast.AST | None) -> Iterator[ast.AST]:
        """The tree with another node (or `pass`) here, as long as the context lasts."""
        new = ast.copy_location(ast.Pass() if new is None else new, self.node)
        self._put(ast.fix_missing_locations(new))
        try:
            yield new
        finally:
            self._put(self.node)

    def _put(self, node: Any) -> None:
        if self.at is None:
            setattr(self.parent, self.field, node)
        else:
            getattr(self.parent, self.field)[self.at] = node


@dataclass(frozen=True)
class Edit:
    """One change of a text: where, into what, and what was wrong before, as a learner reads it.

    The first place is the one to show; it is made at all of them.
    """

    places: tuple[Place, ...]
    change: Change
    words: str

    @contextlib.contextmanager
    def made(self) -> Iterator[None]:
        """The tree with the change, as long as the context lasts."""
        with contextlib.ExitStack() as stack:
            for place in self.places:
                stack.enter_context(place.holding(self.change(copy.deepcopy(place.node))))
            yield


def places(tree: ast.AST) -> Iterator[Place]:
    """Every node below a tree, in the order of `ast.walk`."""
    todo = deque([tree])
    while todo:
        parent = todo.popleft()
        for name, value in ast.iter_fields(parent):
            for index, node in enumerate(value) if isinstance(value, list) else [(None, value)]:
                if isinstance(node, ast.AST):
                    todo.append(node)
                    yield Place(node, parent, name, index)


# As careless fingers would make them ---------------------------------------------------------------------------------


def slips(node: ast.AST, parameters: Sequence[str]) -> Iterator[Change]:
    """Changes of one node that make a mistake of what is right, and now and then the other way round."""
    yield from (change for change, _ in _changes(node))
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in parameters and len(parameters) > 1:
        other = parameters[(parameters.index(node.id) + 1) % len(parameters)]
        yield lambda n: _with(n, id=other)


def _changes(node: ast.AST) -> Iterator[tuple[Change, str]]:
    """Changes of a node by itself, each with what was wrong if it mends something."""
    if isinstance(node, ast.BinOp):
        for operator in OPERATORS.get(type(node.op), []):
            yield lambda n, o=operator: _with(n, op=o()), "One operation is another than it should be"
        if not isinstance(node.op, ast.Add | ast.Mult | ast.BitAnd | ast.BitOr):
            yield lambda n: _with(n, left=n.right, right=n.left), "The two sides of one operation are exchanged"
    elif isinstance(node, ast.BoolOp):
        for operator in OPERATORS[type(node.op)]:
            yield lambda n, o=operator: _with(n, op=o()), "One condition is joined in the wrong way"
    elif isinstance(node, ast.Compare):
        for operator in OPERATORS.get(type(node.ops[0]), []):
            yield lambda n, o=operator: _with(n, ops=[o(), *n.ops[1:]]), "One comparison is another than it should be"
    elif isinstance(node, ast.UnaryOp) and not isinstance(node.operand, ast.Constant):
        yield lambda n: n.operand, "One sign or negation is too many"
    elif isinstance(node, ast.Constant) and type(node.value) in (int, float):
        yield lambda n: _with(n, value=n.value + 1), "One number is wrong"
        yield lambda n: _with(n, value=n.value - 1), "One number is wrong"
    elif isinstance(node, ast.Constant) and type(node.value) is bool:
        yield lambda n: _with(n, value=not n.value), "One setting is the opposite of what it should be"
    elif isinstance(node, ast.Call):
        if isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Call | ast.Name | ast.BinOp):
            receiver = node.func.value
            module = isinstance(receiver, ast.Name) and receiver.id in MODULES
            if not module and node.func.attr not in UNCHANGED:
                yield lambda n: n.func.value, "One call is too many"
        for index in range(len(node.keywords)):
            without = lambda n, i=index: _with(n, keywords=n.keywords[:i] + n.keywords[i + 1 :])  # noqa: E731
            yield without, "One call has a setting too many"
        if len(node.args) == 2 and not (isinstance(node.func, ast.Attribute) and node.func.attr in SYMMETRIC):
            yield lambda n: _with(n, args=n.args[::-1]), "The arguments of one call are exchanged"
    elif isinstance(node, ast.Attribute) and node.attr in NAMES:
        yield lambda n: _with(n, attr=NAMES[n.attr]), OTHER_FUNCTION
    elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Tuple):
        for index in range(len(node.slice.elts) - 1):
            if ast.dump(node.slice.elts[index]) != ast.dump(node.slice.elts[index + 1]):
                yield lambda n, i=index: _with(n, slice=_swapped(n.slice, i)), "One index stands at the wrong axis"
        for index in range(1, len(node.slice.elts)):
            if ast.unparse(node.slice.elts[index]) == ":":
                continue  # at the end it says nothing
            yield lambda n, i=index: _with(n, slice=_without(n.slice, i)), "One index is too many"
    elif isinstance(node, ast.If | ast.For | ast.AugAssign):
        yield lambda n: None, "One statement is too many"


# As they would be undone ---------------------------------------------------------------------------------------------


def repairs(tree: ast.AST, model: ast.AST) -> Iterator[Edit]:
    """Changes of an answer that undo one mistake, the most usual ones first, each at one place and then at all alike.

    Numbers, functions and small expressions of the parameters are those of `model`, a right way to write it.
    """
    own = [place for place in places(tree) if _is_code(place)]
    slips = [(place, change, words) for place in own for change, words in _changes(place.node)]
    # What is too many comes first: to change it until it does nothing may mend the answer as well.
    others = [*_other_parts(own, model), *_other_functions(own, model), *_other_values(own, model)]
    changes = [*_one_less(own), *slips, *others, *_one_more(own)]
    yield from (Edit((place,), change, words) for place, change, words in changes)
    alike: dict[str, list[Place]] = {}
    for place in own:
        alike.setdefault(_kind(place), []).append(place)
    for place, change, words in changes:
        group = alike[_kind(place)]
        if _kind(place) and len(group) > 1 and place is group[0]:
            yield Edit(tuple(group), change, f"{words}, and so everywhere")


Proposal = tuple[Place, Change, str]


def _kind(place: Place) -> str:
    """What is written in the same way at several places: calls of one function, one number; "" for all else."""
    node = place.node
    if isinstance(node, ast.Call):
        return f"{ast.unparse(node.func) if isinstance(node.func, ast.Name) else getattr(node.func, 'attr', '')}()"
    return repr(node.value) if isinstance(node, ast.Constant) else ""


def _is_code(place: Place) -> bool:
    """Whether it is computed when the function runs: no type, default or docstring."""
    return not isinstance(place.parent, ast.arguments | ast.arg) and place.field not in ("returns", "decorator_list")


def _other_values(own: Sequence[Place], model: ast.AST) -> Iterator[Proposal]:
    """Other names, numbers and small expressions."""
    parameters = list(dict.fromkeys(one.node.arg for one in places(model) if isinstance(one.node, ast.arg)))
    known = {one.node.id for one in own if isinstance(one.node, ast.Name) and isinstance(one.node.ctx, ast.Store)}
    names = [*parameters, *sorted(known - set(parameters))]
    reads = _values(own)
    for place in reads:
        if isinstance(place.node, ast.Name) and place.node.id in names:
            for name in names:
                if name != place.node.id:
                    yield place, lambda n, name=name: _with(n, id=name), "One name stands where another should"
    donors = {ast.unparse(one.node): one.node for one in places(model) if _is_donor(one, parameters)}
    donors |= {name: ast.Name(id=name, ctx=ast.Load()) for name in parameters}
    for place in reads:
        if not isinstance(place.node, VALUES) or _nodes(place.node) > SMALL:
            continue
        words = "One number is wrong" if isinstance(place.node, ast.Constant) else "One expression is wrong"
        for text, donor in donors.items():
            if (
                text != ast.unparse(place.node)
                and _may_stand_for(donor, place.node)
                and not (isinstance(place.node, ast.Name) and isinstance(donor, ast.Name))
            ):
                yield place, lambda n, d=donor: copy.deepcopy(d), words


def _may_stand_for(new: ast.AST, old: ast.AST) -> bool:
    """Whether both may be of one kind: no condition for a number, no size for what a function makes."""
    conditions = ast.Compare | ast.Invert | ast.BitAnd | ast.BitOr
    if any(isinstance(one, conditions) for one in ast.walk(new)) and isinstance(old, ast.Constant | ast.UnaryOp):
        return False
    return not (_is_size(new) and isinstance(old, ast.Call) and not _is_size(old))


def _is_size(node: ast.AST) -> bool:
    function = node.func if isinstance(node, ast.Call) else None
    return getattr(function, "id", getattr(function, "attr", "")) in ("len", "size", "dim", "numel")


VALUES = ast.Constant | ast.BinOp | ast.Call | ast.Name | ast.Subscript | ast.Attribute | ast.UnaryOp


def _values(own: Sequence[Place]) -> list[Place]:
    """The expressions that are read, without those that only choose a branch."""
    tests = {id(one) for place in own if place.field == "test" for one in ast.walk(place.node)}
    return [one for one in own if isinstance(one.node, ast.expr) and _is_read(one) and id(one.node) not in tests]


def _is_read(place: Place) -> bool:
    if isinstance(getattr(place.node, "ctx", None), ast.Store | ast.Del):
        return False
    return not (place.field == "func" or (isinstance(place.node, ast.Name) and place.node.id in MODULES))


def _is_donor(place: Place, parameters: Sequence[str]) -> bool:
    """Whether it is a small expression of the parameters, or a number, that is more than a name."""
    node = place.node
    if not isinstance(node, VALUES) or isinstance(node, ast.Name | ast.Attribute) or _nodes(node) > SMALL:
        return False
    if isinstance(node, ast.Constant):
        return type(node.value) in (int, float)
    names = [one for one in ast.walk(node) if isinstance(one, ast.Name)]
    functions = {id(one.func) for one in ast.walk(node) if isinstance(one, ast.Call)}
    return _is_read(place) and all(one.id in (*parameters, *MODULES) or id(one) in functions for one in names)


def _part(node: ast.AST) -> str:
    """The name of what a module keeps: `norm` of `self.norm`; "" of all else."""
    of_itself = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"
    return node.attr if isinstance(node, ast.Attribute) and of_itself else ""


def _other_parts(own: Sequence[Place], model: ast.AST) -> Iterator[Proposal]:
    """Another part of the same module, or the call of a part around an expression."""
    parts = list(dict.fromkeys(_part(one.node) for one in places(model)))
    calls = [one.node for one in places(model) if isinstance(one.node, ast.Call) and len(one.node.args) == 1]
    around = list(dict.fromkeys(_part(call.func) for call in calls))
    for place in own:
        for part in parts:
            if part and _part(place.node) not in ("", part):
                yield place, lambda n, part=part: _with(n, attr=part), "One part stands where another should"
    for place in _values(own) if any(parts) else ():
        if isinstance(place.node, ast.Constant) or (isinstance(place.node, ast.Name) and place.node.id == "self"):
            continue
        for part in filter(None, around):
            call = lambda n, part=part: ast.Call(  # noqa: E731
                func=ast.Attribute(value=ast.Name(id="self", ctx=ast.Load()), attr=part, ctx=ast.Load()),
                args=[n],
                keywords=[],
            )
            yield place, call, "A part is left out"


def _other_functions(own: Sequence[Place], model: ast.AST) -> Iterator[Proposal]:
    """Another function or method of the same module or tensor, with all of the arguments or the first alone."""
    calls = [one.node for one in places(model) if isinstance(one.node, ast.Call)]
    methods = list(dict.fromkeys(call.func.attr for call in calls if isinstance(call.func, ast.Attribute)))
    for place in own:
        call = place.node
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
            continue
        for method in methods:
            if method == call.func.attr:
                continue
            yield place, lambda n, m=method: _with(n, func=_with(n.func, attr=m)), OTHER_FUNCTION
            if len(call.args) + len(call.keywords) > 1:
                first = lambda n, m=method: _with(n, func=_with(n.func, attr=m), args=n.args[:1], keywords=[])  # noqa: E731
                yield place, first, OTHER_FUNCTION


def _one_less(own: Sequence[Place]) -> Iterator[Proposal]:
    """One side of an operation or a condition alone, one statement less, operations in another order."""
    for place in own:
        node = place.node
        if isinstance(node, ast.BinOp):
            yield place, lambda n: n.left, ONE_SIDE
            yield place, lambda n: n.right, ONE_SIDE
            if isinstance(node.left, ast.BinOp):  # (a + b) / c -> a + b / c
                yield place, lambda n: _with(n.left, right=_with(n, left=n.left.right)), ORDER
            if isinstance(node.right, ast.BinOp):  # a / (b + c) -> a / b + c
                yield place, lambda n: _with(n.right, left=_with(n, right=n.right.left)), ORDER
        elif isinstance(node, ast.BoolOp):
            for index in range(len(node.values)):
                yield place, lambda n, i=index: n.values[i], "One condition is too many"
        elif isinstance(node, ast.Call) and len(node.args) == 1:
            if not node.keywords:
                yield place, lambda n: n.args[0], "One call is too many"
            if isinstance(node.args[0], ast.BinOp):  # f(a + b) -> f(a) + b
                yield place, lambda n: _with(n.args[0], left=_with(n, args=[n.args[0].left])), ORDER
        elif isinstance(node, ast.Assign | ast.AugAssign | ast.If):
            yield place, lambda n: None, "One statement is too many"


def _one_more(own: Sequence[Place]) -> Iterator[Proposal]:
    """A sign, a negation, a transpose or a setting more."""
    for place in own:
        if place.field == "test":
            yield (
                place,
                lambda n: ast.UnaryOp(op=ast.Not(), operand=n),
                "One condition is the wrong way round",
            )
    for place in _values(own):
        node = place.node
        if isinstance(node, ast.Constant | ast.Tuple):
            continue
        for operator in (ast.Invert, ast.USub):
            yield place, lambda n, o=operator: ast.UnaryOp(op=o(), operand=n), "A sign or a negation is missing"
        if isinstance(node, ast.Name):
            for sign in (ast.Add, ast.Sub):
                one = ast.Constant(value=1)
                yield place, lambda n, s=sign, one=one: ast.BinOp(left=n, op=s(), right=one), "This is off by one"
        if isinstance(node, ast.Name | ast.Call | ast.Attribute | ast.Subscript):
            yield place, lambda n: ast.Attribute(value=n, attr="mT", ctx=ast.Load()), "A transpose is missing"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            given = {keyword.arg for keyword in node.keywords}
            for name, value in (("keepdim", True), ("unbiased", False), ("dim", -1), ("dim", -2)):
                if name not in given:
                    more = ast.keyword(arg=name, value=ast.Constant(value=value))
                    yield place, lambda n, k=more: _with(n, keywords=[*n.keywords, k]), "One call lacks a setting"


def _nodes(node: ast.AST) -> int:
    return sum(not isinstance(one, ast.expr_context | ast.operator | ast.unaryop) for one in ast.walk(node))


def _with(node: Any, **fields: Any) -> Any:
    for name, value in fields.items():
        setattr(node, name, value)
    return node


def _without(elements: ast.Tuple, index: int) -> ast.Tuple:
    return ast.Tuple(elts=elements.elts[:index] + elements.elts[index + 1 :], ctx=ast.Load())


def _swapped(elements: ast.Tuple, index: int) -> ast.Tuple:
    changed = list(elements.elts)
    changed[index], changed[index + 1] = changed[index + 1], changed[index]
    return ast.Tuple(elts=changed, ctx=ast.Load())
