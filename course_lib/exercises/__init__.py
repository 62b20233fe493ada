"""Exercises that check an answer and say which mistake it makes.

`from course_lib import exercises as ex`, then `ex.causal_mask.check(...)`, `.hint()`, `.solution()`, `.cases()`;
`ex.progress()` prints where you stand. An exercise is loaded when it is first used.
"""

from __future__ import annotations

import importlib
from typing import Any


def progress() -> None:
    """Print a table of all exercises: tried, solved, attempts and hints."""
    from course_lib.exercises.engine.progress import print_progress

    print_progress()


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(name)
    registry = importlib.import_module("course_lib.exercises.registry")  # `from … import` would come back here
    if name not in registry.chapters():
        raise AttributeError(registry.unknown(name))
    return registry.get(name)


def __dir__() -> list[str]:
    registry = importlib.import_module("course_lib.exercises.registry")  # `from … import` would come back here
    return [*registry.chapters(), "progress"]
