"""Printing what a check says: in notebooks and terminals the verdict has a colour as well as its words."""

from __future__ import annotations

import html
import os
import sys
from typing import IO

from coursework.exercises.engine.finding import RIGHT, WRONG

COLOURS = {RIGHT: ("32", "var(--jp-success-color1, #2e7d32)"), WRONG: ("33", "var(--jp-warn-color1, #b45309)")}
"""Verdict -> (code of a terminal, colour of a page)."""


def say(text: str, verdict: str) -> None:
    """Print the text. A verdict of right or wrong is coloured where that can be shown; the text stays the same.

    In a notebook the plain text is stored beside the coloured one. NO_COLOR turns colours off in a terminal.
    """
    if verdict not in COLOURS:
        print(text)
    elif _in_a_notebook():
        from IPython.display import display

        display({"text/plain": text, "text/html": _page(text, COLOURS[verdict][1])}, raw=True)
    elif _can_colour(sys.stdout):
        word, colon, rest = text.partition(":")
        print(f"\033[1;{COLOURS[verdict][0]}m{word}\033[0m{colon}{rest}")
    else:
        print(text)


def _page(text: str, colour: str) -> str:
    word, colon, rest = html.escape(text).partition(":")
    return (
        f'<pre style="border-left: 4px solid {colour}; padding-left: 8px; white-space: pre-wrap; word-break: normal">'
        f'<b style="color: {colour}">{word}</b>{colon}{rest}</pre>'
    )


def _in_a_notebook() -> bool:
    """Whether a kernel shows what is printed here, and nobody catches it or compares it, as tests do."""
    if "IPython" not in sys.modules or os.environ.get("CI"):
        return False
    from IPython.core.getipython import get_ipython

    shell = get_ipython()
    return hasattr(shell, "kernel") and type(sys.stdout).__module__.startswith("ipykernel")


def _can_colour(stream: IO[str]) -> bool:
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb" and stream.isatty()
