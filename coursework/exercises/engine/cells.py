"""The notebook's side of an exercise: prompt, stub, solved cell, edition. All of it comes from the specification."""

from __future__ import annotations

import ast
import functools
import hashlib
import inspect
import textwrap
from collections.abc import Callable
from typing import Any

from torch import Tensor

from coursework.exercises.engine import rules
from coursework.exercises.spec import Exercise, Question

PRELUDE = """\
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from coursework import exercises as ex
"""
"""What every notebook with exercises has imported before the first one."""

BLANK = "____"
STUB = "raise NotImplementedError  # your code here"
KIND = {"build": "Build", "debug": "Debug", "predict": "Predict", "measure": "Measure"}


def prompt_markdown(entry: Exercise | Question, tested: str = "") -> str:
    """The Markdown above the code cell; `tested` is a line on what the check tests, which only the edition counts."""
    minutes = f"{entry.minutes} minute{'s' if entry.minutes > 1 else ''}"
    lines = [
        f"### Exercise: {entry.title}",
        "",
        f"*{KIND[entry.kind]} · difficulty {entry.difficulty} of 5 · about {minutes}*",
        "",
        entry.what.strip(),
        "",
    ]
    if isinstance(entry, Question) and entry.choices is not None:
        lines += [*(f"- **{key}**: {text}" for key, text in entry.choices.items()), ""]
    if tested:
        lines += [tested, ""]
    lines += [f"*Why:* {entry.why.strip()}", "", f"*Help:* `ex.{entry.id}.hint()`"]
    if not isinstance(entry, Question):
        lines[-1] += f", `ex.{entry.id}.cases()`"
    lines[-1] += f", `ex.{entry.id}.solution()`"
    return "\n".join(lines) + "\n"


def cell_source(entry: Exercise | Question) -> str:
    """The code cell with the stub, or with the broken function of a debug exercise."""
    if isinstance(entry, Question):
        return f"answer = None  # your answer here: {form(entry)}\n{last_line(entry)}\n"
    return _cell(entry, _source(entry.given) if entry.given is not None else stub(entry))


def solved_cell_source(entry: Exercise | Question) -> str:
    """The code cell with the solution."""
    if isinstance(entry, Question):
        return f"answer = {entry.right!r}\n{last_line(entry)}\n"
    return _cell(entry, _source(entry.reference))


def solution_source(entry: Exercise | Question) -> str:
    """The solution with its helpers, without the call of the check."""
    return solved_cell_source(entry).replace(last_line(entry), "")


def last_line(entry: Exercise | Question) -> str:
    """The line of the cell that calls the check."""
    if isinstance(entry, Exercise):
        return f"{entry.function_name} = ex.{entry.id}.check({entry.function_name})"
    return f"ex.{entry.id}.answer(answer)"


def _cell(exercise: Exercise, body: str) -> str:
    parts = [*(_source(helper) for helper in exercise.helpers), body, last_line(exercise)]
    return "\n\n\n".join(part.strip("\n") for part in parts) + "\n"


def stub(exercise: Exercise) -> str:
    """The solution's signature and docstring, with nothing done."""
    source = _source(exercise.reference)
    tree = ast.parse(source).body[0]
    nodes = tree.body if isinstance(tree, ast.ClassDef) else [tree]
    wanted = exercise.blank if isinstance(tree, ast.ClassDef) else (exercise.function_name,)
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef) and node.name in wanted]
    lines = source.splitlines()
    for function in sorted(functions, key=lambda node: node.lineno, reverse=True):
        first = function.body[0]
        documented = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
        start = (first.end_lineno or first.lineno) if documented else first.lineno - 1
        indent = " " * first.col_offset
        lines[start : function.end_lineno] = [indent + STUB]
    return "\n".join(lines) + "\n"


def solution_text(entry: Exercise | Question, *, alternatives: bool) -> str:
    """The solution as text, with the other right ways if asked."""
    if isinstance(entry, Question):
        return f"The answer is {entry.right!r}.\n{entry.explanation.strip()}"
    parts = [_source(entry.reference).rstrip()]
    if alternatives:
        for other in entry.alternatives:
            parts.append(f"# Another right way: {other.name}.\n{_source(other.function).rstrip()}")
    elif entry.alternatives:
        parts.append("# After a right answer of your own, this also shows other right ways.")
    return "\n\n\n".join(parts)


def form(question: Question) -> str:
    """What kind of value a question expects, in words."""
    right = question.right
    if question.form:
        return question.form
    if question.choices is not None:
        return "one of " + ", ".join(repr(key) for key in question.choices)
    if isinstance(right, bool):
        return "True or False"
    if isinstance(right, tuple):
        return "a tuple"
    return "a whole number" if isinstance(right, int) else "a number"


@functools.lru_cache(maxsize=128)
def edition(entry: Exercise | Question) -> str:
    """Eight hexadecimal digits that change with the prompt, the stub, the cases and the misconceptions."""
    digest = hashlib.sha256()
    tested = rules.line(entry) if isinstance(entry, Exercise) else ""
    digest.update(f"{entry.id}\n{prompt_markdown(entry, tested)}\n{cell_source(entry)}".encode())
    if isinstance(entry, Question):
        digest.update(repr((entry.right, entry.choices, entry.tolerance, list(entry.wrong))).encode())
        return digest.hexdigest()[:8]
    for case in entry.cases:
        digest.update(f"{case.name}\n".encode())
        digest.update(fingerprint(case.make()))
    for one in entry.misconceptions:
        digest.update(f"{one.name} {dict(one.knobs)!r} {one.statement} {one.question}".encode())
    return digest.hexdigest()[:8]


def fingerprint(value: Any) -> bytes:
    """Bytes that differ for different values, but not by rounding in the last digits, which differs between systems."""
    parts: list[str] = []
    _describe(value, parts)
    return "\n".join(parts).encode()


def _describe(value: Any, parts: list[str]) -> None:
    if isinstance(value, Tensor):
        parts.append(f"{value.dtype} {tuple(value.shape)} {value.stride()} {value.requires_grad}")
        numbers = value.detach().double().nan_to_num(nan=1e30).flatten().tolist()
        parts.append(" ".join(f"{number:.5g}" for number in numbers))
    elif isinstance(value, tuple | list):
        parts.append(f"{type(value).__name__} of {len(value)}")
        for part in value:
            _describe(part, parts)
    elif isinstance(value, dict):
        for key, part in value.items():
            parts.append(str(key))
            _describe(part, parts)
    elif value is None or isinstance(value, bool | int | float | str):
        parts.append(repr(value))
    else:
        parts.append(type(value).__name__)


def _source(function: Callable[..., Any]) -> str:
    return textwrap.dedent(inspect.getsource(function))
