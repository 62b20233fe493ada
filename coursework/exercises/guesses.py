"""Predictions: what a learner expected before a cell showed it. They are kept, never judged."""

from __future__ import annotations

import re

from coursework.exercises.learner import Progress

LONGEST = 50  # of what a table shows of a guess
_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}\Z")
_EMPTY = "Write your guess between the quotes and run the cell again, then go on."
_KEPT = "Your guess is kept. Go on, and compare."
_NOTED = "Your guess is noted until this session ends. Go on, and compare."


def predict(progress: Progress, name: str, guess: str) -> None:
    """Keep a guess and say so in one line; an empty one is asked for."""
    if not isinstance(name, str):
        raise TypeError(f"name: expected a text such as 'rotary_moved', got {type(name).__name__}")
    if not _NAME.match(name):
        raise ValueError(f"name: expected small letters, digits and _, such as 'rotary_moved', got {name!r}")
    if not isinstance(guess, str):
        raise TypeError(f"guess: expected a text between quotes, got {type(guess).__name__}")
    guess = " ".join(guess.split())
    if not guess:
        print(_EMPTY)
        return
    print(_KEPT if progress.predict(name, guess) else _NOTED)


def print_predictions(progress: Progress) -> None:
    """Print one line for each prediction, the latest guess of each, in the order of the first ones."""
    guesses = progress.predictions()
    if not guesses:
        print("No predictions yet.")
        return
    width = max(len("prediction"), *map(len, guesses))
    print(f"{'prediction'.ljust(width)}  your guess")
    for name, guess in guesses.items():
        print(f"{name.ljust(width)}  {guess if len(guess) <= LONGEST else guess[: LONGEST - 1] + '…'}")
