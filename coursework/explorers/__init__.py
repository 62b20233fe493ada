"""Explorers: pictures of the library's formulas that a reader can take hold of. They take tensors and plain values.

Every class with a `script` in a module of this folder is one; nothing else lists it. The modules are imported when the
first one is used.
"""

from functools import cache
from typing import TYPE_CHECKING

from coursework.pictures.registry import defined_in

if TYPE_CHECKING:
    from coursework.explorers.explorer import Explorer


@cache
def every() -> dict[str, type["Explorer"]]:
    """Return all explorers by name."""
    return defined_in(__name__, lambda thing: isinstance(thing, type) and "script" in vars(thing))


def __getattr__(name: str) -> type["Explorer"]:
    if name.startswith("_") or name not in every():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return every()[name]


def __dir__() -> list[str]:
    return sorted(every())
