"""Machine mutants of a function: each is the source with one small change, as careless fingers would make it."""

import ast
import copy
import inspect
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

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

NAMES = {
    "any": "all",
    "all": "any",
    "amax": "amin",
    "max": "min",
    "sum": "mean",
    "mean": "sum",
    "softmax": "log_softmax",
    "log_softmax": "softmax",
    "exp": "log",
    "log": "exp",
    "sqrt": "exp",
    "sin": "cos",
    "cos": "sin",
    "tril": "triu",
    "triu": "tril",
    "argmax": "argmin",
    "zeros": "ones",
    "ones": "zeros",
    "zeros_like": "ones_like",
    "ones_like": "zeros_like",
    "logical_and": "logical_or",
    "logical_or": "logical_and",
    "repeat_interleave": "repeat",
}

SYMMETRIC = {"transpose", "swapaxes", "maximum", "minimum", "equal", "logical_and", "logical_or"}

UNCHANGED = {"contiguous", "clone", "detach", "cpu", "item", "tolist"}
"""Methods whose call is not removed: without them the same value often comes out."""


def mutants(function: Callable[..., Any]) -> Iterator[tuple[str, str]]:
    """Each mutant as (label, source). The label shows the changed expression before and after."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    parameters = [argument.arg for argument in ast.walk(tree) if isinstance(argument, ast.arg)]
    seen: Counter[str] = Counter()
    for number, node in enumerate(ast.walk(tree)):
        for change in [*_changes(node), *_other_names(node, parameters)]:
            mutant = copy.deepcopy(tree)
            target = list(ast.walk(mutant))[number]
            before = ast.unparse(node)
            after_node = change(target)
            if after_node is not target:
                mutant = _Replace(target, after_node).visit(mutant)
            after = ast.unparse(ast.fix_missing_locations(after_node)) if after_node is not None else "nothing"
            label = f"{_short(before)} -> {_short(after)}"
            seen[label] += 1
            label = label if seen[label] == 1 else f"{label} ({seen[label]})"
            yield label, ast.unparse(ast.fix_missing_locations(mutant))


def _changes(node: ast.AST) -> Iterator[Callable[[Any], Any]]:
    """Functions that change a copy of the node and return what stands in its place; None removes a statement."""
    if isinstance(node, ast.BinOp):
        for operator in OPERATORS.get(type(node.op), []):
            yield lambda n, o=operator: _with(n, op=o())
        if not isinstance(node.op, ast.Add | ast.Mult | ast.BitAnd | ast.BitOr):
            yield lambda n: _with(n, left=n.right, right=n.left)
    elif isinstance(node, ast.BoolOp):
        for operator in OPERATORS[type(node.op)]:
            yield lambda n, o=operator: _with(n, op=o())
    elif isinstance(node, ast.Compare):
        for operator in OPERATORS.get(type(node.ops[0]), []):
            yield lambda n, o=operator: _with(n, ops=[o(), *n.ops[1:]])
    elif isinstance(node, ast.UnaryOp) and not isinstance(node.operand, ast.Constant):
        yield lambda n: n.operand
    elif isinstance(node, ast.Constant) and type(node.value) in (int, float):
        yield lambda n: _with(n, value=n.value + 1)
        yield lambda n: _with(n, value=n.value - 1)
    elif isinstance(node, ast.Constant) and type(node.value) is bool:
        yield lambda n: _with(n, value=not n.value)
    elif isinstance(node, ast.Call):
        if isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Call | ast.Name | ast.BinOp):
            receiver = node.func.value
            module = isinstance(receiver, ast.Name) and receiver.id in ("torch", "math", "F", "nn", "np")
            if not module and node.func.attr not in UNCHANGED:
                yield lambda n: n.func.value
        for index in range(len(node.keywords)):
            yield lambda n, i=index: _with(n, keywords=n.keywords[:i] + n.keywords[i + 1 :])
        if len(node.args) == 2 and not (isinstance(node.func, ast.Attribute) and node.func.attr in SYMMETRIC):
            yield lambda n: _with(n, args=n.args[::-1])
    elif isinstance(node, ast.Attribute) and node.attr in NAMES:
        yield lambda n: _with(n, attr=NAMES[n.attr])
    elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Tuple):
        for index in range(len(node.slice.elts) - 1):
            if ast.dump(node.slice.elts[index]) != ast.dump(node.slice.elts[index + 1]):
                yield lambda n, i=index: _with(n, slice=_swapped(n.slice, i))
        for index in range(1, len(node.slice.elts)):
            if ast.unparse(node.slice.elts[index]) == ":":
                continue  # at the end it says nothing
            yield lambda n, i=index: _with(n, slice=_without(n.slice, i))
    elif isinstance(node, ast.If | ast.For | ast.AugAssign):
        yield lambda n: None


def _other_names(node: ast.AST, parameters: list[str]) -> Iterator[Callable[[Any], Any]]:
    """The next parameter in place of this one."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in parameters and len(parameters) > 1:
        other = parameters[(parameters.index(node.id) + 1) % len(parameters)]
        yield lambda n: _with(n, id=other)


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


def _short(text: str) -> str:
    return " ".join(text.split())[:90]


class _Replace(ast.NodeTransformer):
    """Puts another node (or `pass`) in the place of one node."""

    def __init__(self, old: ast.AST, new: ast.AST | None) -> None:
        self.old, self.new = old, new

    def visit(self, node: ast.AST) -> Any:
        if node is self.old:
            return self.new if self.new is not None else ast.Pass()
        return super().generic_visit(node)
