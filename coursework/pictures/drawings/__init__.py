"""The drawings of the course. Each function returns one, with its alternative text and caption beside it.

Every public function of a module in this folder is a drawing; nothing else lists it. A notebook calls it as
`drawings.name(...)`, and the modules are imported when the first one is called.
"""

import inspect
from collections.abc import Callable
from functools import cache

from coursework.pictures.drawing import Drawing
from coursework.pictures.registry import defined_in


@cache
def every() -> dict[str, Callable[..., Drawing]]:
    """Return all drawings by name."""
    return defined_in(__name__, inspect.isfunction)


def __getattr__(name: str) -> Callable[..., Drawing]:
    if name.startswith("_") or name not in every():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return every()[name]


def __dir__() -> list[str]:
    return sorted(every())
