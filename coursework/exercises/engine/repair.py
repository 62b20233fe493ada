"""The one place where an answer is wrong, found by changing its text there until it is right everywhere.

What is said then is true whatever the learner thought: all but this place is right. What stands there in the right
version is never said.
"""

from __future__ import annotations

import ast
import copy
import inspect
import textwrap
from collections.abc import Callable
from typing import Any

from coursework.exercises.engine.edits import ONE_SIDE, OTHER_FUNCTION, Edit, repairs
from coursework.exercises.engine.guard import OutOfMemory, RanAway

TRIED = 1500
"""So many changes are tried."""

WIDER, CODE = 6, 90
"""So many characters more are shown around a place; longest piece of code that is shown."""


def only_place(candidate: Any, model: Callable[..., Any], is_right: Callable[[Any], bool]) -> str:
    """Where a function is wrong, in words; "" if no change in one place makes it right.

    Args:
        candidate: the answer: a plain function whose text is to be had.
        model: a right function, from whose text numbers, functions and small expressions are taken.
        is_right: whether a changed answer is right on all inputs; may raise anything.
    """
    if not inspect.isfunction(candidate) or candidate.__closure__:
        return ""
    try:
        source = textwrap.dedent(inspect.getsource(candidate))
        tree = ast.parse(source)
        right = ast.parse(textwrap.dedent(inspect.getsource(model)))
    except (OSError, TypeError, IndexError, SyntaxError):
        return ""
    if not (len(tree.body) == 1 and isinstance(tree.body[0], ast.FunctionDef)) or tree.body[0].decorator_list:
        return ""
    for number, edit in enumerate(repairs(tree, right)):
        if number == TRIED:
            break
        names = dict(candidate.__globals__)
        try:
            with edit.made():
                exec(compile(tree, "<changed answer>", "exec"), names)
            mended = is_right(names[candidate.__name__])
        except (RanAway, OutOfMemory):  # it costs too much to go on
            return ""
        except KeyboardInterrupt:
            raise
        except BaseException:  # no program any more, or one that fails
            continue
        if mended:
            return _sentence(source, tree, edit)
    return ""


def _sentence(source: str, tree: ast.AST, edit: Edit) -> str:
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
    return f"{edit.words}: `{textwrap.shorten(piece, CODE)}`{where}. Everything else in the function is right."


def _text(source: str, node: ast.AST) -> str:
    return " ".join((ast.get_source_segment(source, node) or ast.unparse(node)).split())
