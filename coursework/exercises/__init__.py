"""Exercises that check an answer and say which mistake it makes.

`from coursework import exercises as ex`, then `ex.causal_mask.check(...)`, `.hint()`, `.solution()`, `.cases()`;
`ex.causal_mask.part()` returns your right answer, to build on in a later chapter. `ex.progress()` prints where you
stand. `ex.predict("name", "your guess")` keeps what you expect before a cell shows it, and `ex.predictions()` lists it.
An exercise is loaded when it is first used.

This file is the door: what notebooks import. It stands above the rooms that it joins, the exercises and the desk where
answers are kept, and nothing in the package imports it.
"""

from __future__ import annotations

import functools
from importlib.util import find_spec
from typing import Any


def progress(*, by_chapter: bool = False) -> None:
    """Print a table of all exercises: tried, solved, attempts and hints; by_chapter=True only counts them."""
    from coursework.exercises import registry
    from coursework.exercises.learner import print_progress

    print_progress(_learner().standings(registry.all_exercises()), by_chapter=by_chapter)


def predict(name: str, guess: str = "") -> None:
    """Keep a guess, written before the cell that shows the answer; it is never judged."""
    from coursework.exercises.guesses import predict as keep

    keep(_learner(), name, guess)


def predictions() -> None:
    """Print a table of what you predicted."""
    from coursework.exercises.guesses import print_predictions

    print_predictions(_learner())


def capstone(name: str, *answers: Any) -> None:
    """Say which laws and numbers hold for your answer to a capstone, each beside a baseline, and keep the answer."""
    from coursework.exercises.capstones import check

    check(_learner(), name, *answers)


@functools.cache
def _learner() -> Any:
    from coursework.exercises.learner import Progress

    return Progress(_find_desk, _run_answer)


def _find_desk() -> Any:
    from coursework.desk.finding import find_desk

    return find_desk()


def _run_answer(handle: Any, desk: Any) -> Any:
    from coursework.desk.running import right_answer

    return right_answer(handle, desk)


@functools.cache
def _handle(exercise_id: str) -> Any:
    from coursework.exercises import registry
    from coursework.exercises.handle import handle

    return handle(registry.get(exercise_id), _learner())


def __getattr__(name: str) -> Any:
    if name.startswith("_") or find_spec(f"{__name__}.{name}") is not None:  # `from … import registry` asks here first
        raise AttributeError(name)
    from coursework.exercises import registry

    if name not in registry.places():
        raise AttributeError(registry.unknown(name))
    return _handle(name)


def __dir__() -> list[str]:
    from coursework.exercises import registry

    return [*registry.places(), "capstone", "predict", "predictions", "progress"]
