"""Machine mutants of a function: each is the source with one small change, as careless fingers would make it."""

import ast
import copy
import inspect
import textwrap
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from typing import Any

from coursework.exercises.engine.edits import places, slips


def mutants(function: Callable[..., Any], methods: Collection[str] = ()) -> Iterator[tuple[str, str]]:
    """Each mutant as (label, source). The label shows the changed expression before and after.

    Of a class only its `methods` are changed, those that a learner writes.
    """
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    body = tree.body[0]
    written = [node for node in body.body if getattr(node, "name", "") in methods] if methods else [tree]
    parameters = [argument.arg for node in written for argument in ast.walk(node) if isinstance(argument, ast.arg)]
    parameters = [name for name in parameters if name != "self"]
    seen: Counter[str] = Counter()
    for place in (place for node in written for place in places(node)):
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
