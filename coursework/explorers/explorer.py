"""The base of the explorers: pictures that a reader can take hold of, and that still say everything when nobody can.

An explorer is static first. Its output is one piece of HTML with a figure, alternative text, a caption that states the
conclusion and a table of the numbers; that is what a code host, a printed page or an untrusted notebook shows. Where
scripts run, a small one without any import hides the image and draws native controls in its place.
"""

import hashlib
import html
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from coursework.pictures.arrays import Array
from coursework.pictures.display import check_text, figure_tag, render

MAX_OUTPUT = 100_000  # bytes of HTML: a notebook with several explorers must stay quick to open
MAX_IMAGE = 34_000  # bytes of the PNG inside it
_HERE = Path(__file__).parent


@dataclass(frozen=True)
class Table:
    """The numbers behind an explorer, as text: a corner, column heads, and rows that begin with their head."""

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]


class Explorer:
    """A static figure that becomes interactive where scripts run; the last expression of a cell shows it.

    A subclass sets `script`, the file beside this one whose `render({ model, el })` draws the controls, and defines
    `state`, `figure`, `table`, `default_alt` and `default_caption`. The script finds the state by `model.get(name)`.
    The same data give the same bytes.

    Args:
        alt: text for readers who cannot see the figure, at least 40 characters; computed from the data unless given.
        caption: the conclusion, stated; computed from the data unless given.

    Raises:
        ValueError: when shown, if the output would take more than 100 kB: fewer tokens or a narrower head are needed.
    """

    script: ClassVar[str]

    def __init__(self, *, alt: str | None = None, caption: str | None = None) -> None:
        self.alt = self.default_alt() if alt is None else alt
        self.caption = self.default_caption() if caption is None else caption
        check_text(self.alt, self.caption)

    def state(self) -> dict[str, Any]:
        """Return what the script starts from, as values that JSON can hold; numbers by `floats`."""
        raise NotImplementedError

    def figure(self) -> Figure:
        """Draw the static figure, which shows the same as the script does at first."""
        raise NotImplementedError

    def table(self) -> Table:
        """Return the numbers of the figure."""
        raise NotImplementedError

    def default_alt(self) -> str:
        """Return what a reader who cannot see the figure needs to know."""
        raise NotImplementedError

    def default_caption(self) -> str:
        """Return the conclusion, with the numbers it rests on."""
        raise NotImplementedError

    def __repr__(self) -> str:
        """Return the alternative text: all that a terminal can show."""
        return self.alt

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/html": self._html(), "text/plain": self.alt}

    def _html(self) -> str:
        figure = self.figure()
        try:
            picture = render(figure, alt=self.alt, caption=self.caption, limit=MAX_IMAGE)
        finally:
            plt.close(figure)
        code = _code(self.script)
        # The name holds a hash of the code, so that no script ever takes over the output of another version of it.
        name = f"{self.script}-{hashlib.sha256(code.encode()).hexdigest()[:10]}"
        state = json.dumps(self.state(), separators=(",", ":"), ensure_ascii=False)
        document = (
            f'<div data-explorer="{name}" data-state="{html.escape(state, quote=True)}">'
            f"{figure_tag(picture)}{table_tag(self.table())}</div>"
            f'<script>(()=>{{"use strict";\n{code}\nmount("{name}",render);}})()</script>'
        )
        if len(document.encode()) > MAX_OUTPUT:
            raise ValueError(
                f"expected data for an output of at most {MAX_OUTPUT // 1000} kB, "
                f"got {len(document.encode()) // 1000} kB; show fewer tokens or a narrower head"
            )
        return document


def floats(array: Array) -> list[list[float]]:
    """Return a matrix as the shortest decimal numbers that give back the same float32 values."""
    return [[float(str(number)) for number in row] for row in array.astype(np.float32)]


def table_tag(table: Table) -> str:
    """Return a folded HTML table whose rows and columns are named."""
    head = "".join(f'<th scope="col">{html.escape(name)}</th>' for name in table.head)
    body = "".join(
        f'<tr><th scope="row">{html.escape(row[0])}</th>'
        + "".join(f"<td>{html.escape(cell)}</td>" for cell in row[1:])
        + "</tr>"
        for row in table.rows
    )
    return (
        f'<details><summary>Table: {html.escape(table.caption)}</summary><div style="overflow-x:auto" tabindex="0" '
        f'role="region" aria-label="{html.escape(table.caption, quote=True)}" data-lm-suppress-shortcuts="true">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div></details>"
    )


@cache
def _code(script: str) -> str:
    """The helpers all explorers share, then the script of one, without comments and indentation."""
    parts = [_HERE / "explorer.js", _HERE / f"{script}.js"]
    lines = [line.strip() for part in parts for line in part.read_text(encoding="utf-8").splitlines()]
    return "\n".join(line for line in lines if line and not line.startswith("//"))
