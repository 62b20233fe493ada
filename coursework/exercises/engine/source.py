"""Finding the text of an answer: a cell of a notebook, a function or class in a file, or nothing."""

from __future__ import annotations

import ast
import functools
import inspect
import linecache
import textwrap
import traceback
from types import CodeType
from typing import Any


def source_of(candidate: Any) -> str:
    """The source of a function or class, "" if there is none (typed at a prompt, made by exec).

    In a notebook it is the whole cell, so that what the function calls is kept with it.
    """
    while isinstance(candidate, functools.partial):
        candidate = candidate.func
    code = code_of(candidate)
    if code is not None and _is_notebook_cell(code.co_filename):
        return "".join(linecache.getlines(code.co_filename))
    if not (inspect.isfunction(candidate) or inspect.ismethod(candidate) or inspect.isclass(candidate)):
        candidate = type(candidate)
        if candidate.__module__ == "builtins":
            return ""
    try:
        return textwrap.dedent(inspect.getsource(candidate))
    except Exception:  # there may be none, and an object may answer in its own way
        return ""


def definition(candidate: Any) -> tuple[str, ast.FunctionDef | ast.ClassDef] | None:
    """The text of a plain function or a class, and what it defines; None if they are not to be had.

    Python finds no text of a class that a notebook defines: it is looked for in the cell of its first method.
    """
    code = code_of(candidate)
    try:
        if inspect.isclass(candidate) and code is not None:
            whole = "".join(linecache.getlines(code.co_filename))
            found = [
                node
                for node in ast.walk(ast.parse(whole))
                if isinstance(node, ast.ClassDef)
                and node.name == candidate.__name__
                and node.lineno < code.co_firstlineno <= (node.end_lineno or 0)
            ]
            if not found:
                return None
            lines = whole.splitlines(keepends=True)[found[-1].lineno - 1 : found[-1].end_lineno]
            text = textwrap.dedent("".join(lines))
        else:
            text = textwrap.dedent(inspect.getsource(candidate))
        tree = ast.parse(text)
    except Exception:  # there may be none, and an object may answer in its own way
        return None
    only = tree.body[0] if len(tree.body) == 1 else None
    return (text, only) if isinstance(only, ast.FunctionDef | ast.ClassDef) else None


def same_code(a: Any, b: Any) -> bool:
    """Whether two functions or classes have the same body, whatever file they come from; False if either has none.

    Their text decides where there is one: the compiler treats names that the same file imports in another way.
    """
    texts = definition(a), definition(b)
    if texts[0] is not None and texts[1] is not None:
        return ast.dump(texts[0][1]) == ast.dump(texts[1][1])
    one, other = code_of(a), code_of(b)
    return one is not None and other is not None and not inspect.isclass(a) and _same(one, other)


def _same(a: CodeType, b: CodeType) -> bool:
    if (a.co_code, a.co_names, a.co_varnames) != (b.co_code, b.co_names, b.co_varnames):
        return False
    if len(a.co_consts) != len(b.co_consts):
        return False
    for one, other in zip(a.co_consts, b.co_consts, strict=True):
        if isinstance(one, CodeType) and isinstance(other, CodeType):
            if not _same(one, other):
                return False
        elif type(one) is not type(other) or one != other:
            return False
    return True


def failing_line(error: BaseException, candidate: Any) -> str:
    """The learner's own line in which the error arose, "" if unknown."""
    code = code_of(candidate)
    frames = traceback.extract_tb(error.__traceback__) if code is not None else []
    own = [frame for frame in frames if code is not None and frame.filename == code.co_filename]
    return (own[-1].line or "") if own else ""


def code_of(candidate: Any) -> CodeType | None:
    """The code object of a function, or of the first method of a class."""
    try:
        return _code_of(candidate)
    except Exception:  # an object may answer to any name, in its own way
        return None


def _code_of(candidate: Any) -> CodeType | None:
    candidate = inspect.unwrap(candidate) if callable(candidate) else candidate
    code = getattr(candidate, "__code__", None) or getattr(getattr(candidate, "__func__", None), "__code__", None)
    if code is None and inspect.isclass(candidate):
        methods = [member for member in vars(candidate).values() if inspect.isfunction(member)]
        code = methods[0].__code__ if methods else None
    if code is None and not inspect.isclass(candidate) and type(candidate).__module__ != "builtins":
        code = code_of(type(candidate)) if not isinstance(candidate, type) else None
    return code if isinstance(code, CodeType) else None


def _is_notebook_cell(filename: str) -> bool:
    if filename not in linecache.cache:
        return False
    return filename.startswith("<ipython-input-") or "ipykernel_" in filename
