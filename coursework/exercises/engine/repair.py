"""The one place where an answer is wrong, found by changing its text there until it is right everywhere.

What is said then is true whatever the learner thought: all but this place is right. What stands there in the right
version is never said.
"""

from __future__ import annotations

import ast
import copy
import inspect
import textwrap
from collections.abc import Callable, Collection, Iterator
from typing import Any

from coursework.exercises.engine.edits import ONE_SIDE, OTHER_FUNCTION, Edit, repairs
from coursework.exercises.engine.guard import OutOfMemory, RanAway
from coursework.exercises.engine.source import definition

TRIED = 1500
"""So many changes are tried."""

WIDER, CODE = 6, 90
"""So many characters more are shown around a place; longest piece of code that is shown."""


def only_place(
    candidate: Any, model: Callable[..., Any], is_right: Callable[[Any], bool], methods: Collection[str] = ()
) -> str:
    """Where a function or class is wrong, in words; "" if no change in one place makes it right.

    Args:
        candidate: the answer: a plain function, or a class, whose text is to be had.
        model: a right one, from whose text numbers, functions and small expressions are taken.
        is_right: whether a changed answer is right on all inputs; may raise anything.
        methods: of a class, those in which it is looked for.
    """
    own, right = definition(candidate), definition(model)
    if own is None or right is None or own[1].decorator_list or type(own[1]) is not type(right[1]):
        return ""
    functions = [vars(candidate).get(name) for name in methods] if inspect.isclass(candidate) else [candidate]
    plain = [one for one in functions if inspect.isfunction(one)]
    if not plain or any(set(one.__code__.co_freevars) - {"__class__"} for one in plain):
        return ""
    source, node = own
    tree = ast.Module(body=[node], type_ignores=[])
    for number, edit in enumerate(_edits(node, right[1], methods)):
        if number == TRIED:
            break
        names = dict(plain[0].__globals__)
        try:
            with edit.made():
                exec(compile(tree, "<changed answer>", "exec"), names)
            mended = is_right(names[node.name])
        except (RanAway, OutOfMemory):  # it costs too much to go on
            return ""
        except KeyboardInterrupt:
            raise
        except BaseException:  # no program any more, or one that fails
            continue
        if mended:
            return _sentence(source, tree, edit)
    return ""


def _edits(own: Any, right: Any, methods: Collection[str]) -> Iterator[Edit]:
    """The changes to try: of a class those of its methods, one after the other."""
    if isinstance(own, ast.FunctionDef):
        yield from repairs(own, right)
        return
    wanted, model = ({n.name: n for n in tree.body if isinstance(n, ast.FunctionDef)} for tree in (own, right))
    for name in methods:
        if name in wanted and name in model:
            yield from repairs(wanted[name], model[name])


def _sentence(source: str, tree: ast.Module, edit: Edit) -> str:
    """What is wrong there, with the learner's own code."""
    node = edit.places[0].node
    if isinstance(node, ast.BinOp) and edit.words.startswith(ONE_SIDE):
        kept = edit.change(copy.deepcopy(node))
        node = node.right if ast.dump(kept) == ast.dump(node.left) else node.left
    elif isinstance(node, ast.Call) and edit.words.startswith(OTHER_FUNCTION):
        node = node.func
    piece = _text(source, node)
    around = [_text(source, one) for one in ast.walk(tree) if isinstance(one, ast.expr) and node in ast.walk(one)]
    wider = min((one for one in around if len(piece) + WIDER <= len(one) <= CODE), key=len, default="")
    line = source.splitlines()[node.lineno - 1].strip() if isinstance(node, ast.expr) and not wider else wider
    where = f" in `{textwrap.shorten(line, CODE)}`" if line not in ("", piece) else ""
    thing = "class" if isinstance(tree.body[0], ast.ClassDef) else "function"
    return f"{edit.words}: `{textwrap.shorten(piece, CODE)}`{where}. Everything else in the {thing} is right."


def _text(source: str, node: ast.AST) -> str:
    return " ".join((ast.get_source_segment(source, node) or ast.unparse(node)).split())
