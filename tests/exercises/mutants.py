"""Machine mutants of a function: each is the source with one small change, as careless fingers would make it."""

import ast
import copy
import inspect
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from coursework.exercises.engine.edits import places, slips


def mutants(function: Callable[..., Any]) -> Iterator[tuple[str, str]]:
    """Each mutant as (label, source). The label shows the changed expression before and after."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    parameters = [argument.arg for argument in ast.walk(tree) if isinstance(argument, ast.arg)]
    seen: Counter[str] = Counter()
    for place in places(tree):
        for change in slips(place.node, parameters):
            new = change(copy.deepcopy(place.node))
            before, after = ast.unparse(place.node), ast.unparse(new) if new is not None else "nothing"
            label = f"{_short(before)} -> {_short(after)}"
            seen[label] += 1
            label = label if seen[label] == 1 else f"{label} ({seen[label]})"
            with place.holding(new):
                source = ast.unparse(tree)
            yield label, source


def _short(text: str) -> str:
    return " ".join(text.split())[:90]
