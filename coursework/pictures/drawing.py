"""A pen for drawings: boxes are modules, lines are tensors, the residual stream is one thick line.

A drawing is SVG inside an `<img>`, the one carrier that JupyterLab, code hosts and exported pages all show. It lies on
a white card of its own, because nothing inside an `<img>` follows the theme of the page.
"""

import math
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from typing import Any

from IPython.display import display

from coursework.pictures.display import Picture, check_text
from coursework.pictures.style import palette

__all__ = ["Drawing", "tip"]

INK = "#222222"
FAINT = "#F3F3F3"
FONT = "Helvetica, Arial, 'DejaVu Sans', sans-serif"
LEAST_TYPE = 15  # of 600: still nine pixels on a page that is 360 wide

Point = tuple[float, float]


def tip(at: Point, length: float, degrees: float) -> Point:
    """Where the hand of a clock ends: its middle is `at`, and it has turned by so much from twelve."""
    angle = math.radians(degrees)
    return at[0] + length * math.sin(angle), at[1] - length * math.cos(angle)


class Drawing:
    """A picture under the hand of its author: each method adds one thing, `show` displays the whole.

    Args:
        height: of the card; its width is always 600, so that type has one size in all drawings.
        alt: what a reader who cannot see the drawing needs to know, at least 40 characters.
        caption: what the drawing is for, one sentence or two.
    """

    WIDTH = 600

    def __init__(self, height: float, *, alt: str, caption: str) -> None:
        check_text(alt, caption)
        self.height, self.alt, self.caption = height, alt.strip(), caption.strip()
        self.root = ET.Element(
            "svg",
            {
                "xmlns": "http://www.w3.org/2000/svg",
                "viewBox": f"0 0 {self.WIDTH} {height:g}",
                "font-family": FONT,
                "role": "img",
            },
        )
        ET.SubElement(self.root, "title").text = self.alt
        self._add("rect", x=0, y=0, width=self.WIDTH, height=height, fill="#FFFFFF")

    def text(
        self,
        at: Point,
        words: str,
        *,
        size: float = 17,
        colour: str = INK,
        anchor: str = "middle",
        bold: bool = False,
    ) -> None:
        """Write one line around `at`; `anchor` is "start", "middle" or "end"."""
        if size < LEAST_TYPE:
            raise ValueError(f"size: expected at least {LEAST_TYPE}, so that a small screen can show it, got {size}")
        weight = {"font_weight": "bold"} if bold else {}
        x, y = at
        self._add("text", words, x=x, y=y + 0.35 * size, fill=colour, font_size=size, text_anchor=anchor, **weight)

    def upright(self, at: Point, words: str, *, size: float = 15, colour: str = INK) -> None:
        """Write one line upwards from `at`, for columns that are narrower than their names."""
        x, y = at
        turn = f"rotate(-90 {x:g} {y:g})"
        self._add("text", words, x=x, y=y + 0.35 * size, fill=colour, font_size=size, transform=turn)

    def box(
        self, at: Point, size: Point, words: str | Sequence[str] = (), *, colour: str = INK, filled: bool = False
    ) -> None:
        """A module: a rounded box whose middle is `at`, with one line of text or several."""
        (x, y), (width, height) = at, size
        lines = [words] if isinstance(words, str) else list(words)
        fill = colour if filled else "#FFFFFF"
        self._add(
            "rect", x=x - width / 2, y=y - height / 2, width=width, height=height, rx=8,
            fill=fill, stroke=colour, stroke_width=2,
        )  # fmt: skip
        for number, line in enumerate(lines):
            self.text((x, y + 20 * (number - (len(lines) - 1) / 2)), line, colour="#FFFFFF" if filled else INK)

    def bar(self, start: Point, size: Point, *, colour: str) -> None:
        """A faint bar that begins at `start` and grows to the right: a share, as a length."""
        (x, y), (width, height) = start, size
        self._add("rect", x=x, y=y - height / 2, width=width, height=height, rx=4, fill=colour, opacity=0.3)

    def cell(self, at: Point, side: float, *, allowed: bool) -> None:
        """A cell of a mask: filled where one may look, hatched where not."""
        (x, y), half = at, side / 2
        fill, edge = (palette.query, palette.query) if allowed else ("#FFFFFF", "#9A9A9A")
        self._add("rect", x=x - half, y=y - half, width=side, height=side, rx=5, fill=fill, stroke=edge)
        for share in () if allowed else (0.3, 0.6):
            for a, b in ((-half, share * side - half), (half - share * side, half)):  # two lines, at both corners
                self.line([(x + a, y + b), (x + b, y + a)], colour="#9A9A9A", width=1, arrow=False)

    def numbers(
        self,
        corner: Point,
        rows: Sequence[Sequence[str]],
        *,
        cell: Point = (44, 28),
        colour: str = INK,
        lit: Sequence[int] | None = None,
    ) -> None:
        """A tensor with its numbers: a grid with its upper left corner at `corner`; rows not `lit` are faint."""
        width, height = cell
        for i, row in enumerate(rows):
            seen = lit is None or i in lit
            for j, words in enumerate(row):
                x, y = corner[0] + j * width, corner[1] + i * height
                fill = "#FFFFFF" if seen else FAINT
                self._add("rect", x=x, y=y, width=width, height=height, fill=fill, stroke=colour, stroke_width=1.5)
                if words:
                    self.text((x + width / 2, y + height / 2), words, size=15, colour=INK if seen else "#767676")

    def frame(self, corner: Point, size: Point, *, colour: str = palette.residual, dashed: bool = False) -> None:
        """A field that holds what belongs together; `corner` is its upper left one."""
        style = {"stroke_dasharray": "7 5"} if dashed else {}
        x, y, width, height = (*corner, *size)
        self._add("rect", x=x, y=y, width=width, height=height, rx=12, fill=FAINT, stroke=colour, **style)

    def line(self, points: Sequence[Point], *, colour: str = INK, width: float = 2, arrow: bool = True) -> None:
        """A tensor on its way: straight lines through the points, with a head at the end unless arrow=False."""
        path = "M" + " L".join(f"{x:g} {y:g}" for x, y in points)
        self._add("path", d=path, fill="none", stroke=colour, stroke_width=width, stroke_linejoin="round")
        if arrow:
            self._head(points[-2], points[-1], colour, 5 + 1.5 * width)

    def curve(self, start: Point, end: Point, *, lift: float, colour: str = INK, width: float = 2) -> None:
        """An arc from `start` to `end` that rises by `lift`, with a head at its end."""
        middle = ((start[0] + end[0]) / 2, min(start[1], end[1]) - 2 * lift)
        path = f"M{start[0]:g} {start[1]:g} Q{middle[0]:g} {middle[1]:g} {end[0]:g} {end[1]:g}"
        self._add("path", d=path, fill="none", stroke=colour, stroke_width=round(width, 2))
        self._head(middle, end, colour, 5 + 1.2 * width)

    def fall(self, start: Point, end: Point, *, lift: float, colour: str = INK, width: float = 2) -> None:
        """An arc from `start` that rises by `lift` and falls on `end` from above, where several stand side by side."""
        top, head = min(start[1], end[1]) - 1.3 * lift, 5 + 1.2 * width
        bend = (start[0] + 0.3 * (end[0] - start[0]), top)
        path = (
            f"M{start[0]:g} {start[1]:g} C{bend[0]:g} {bend[1]:g} {end[0]:g} {top:g} {end[0]:g} {end[1] - head + 1:g}"
        )
        self._add("path", d=path, fill="none", stroke=colour, stroke_width=round(width, 2))
        self._head((end[0], top), end, colour, head)

    def circle(self, at: Point, radius: float, *, colour: str = INK, width: float = 2, filled: bool = False) -> None:
        """A circle around `at`; filled, a dot."""
        x, y = at
        self._add(
            "circle", cx=x, cy=y, r=radius, fill=colour if filled else "#FFFFFF", stroke=colour, stroke_width=width
        )

    def arc(self, at: Point, radius: float, degrees: Point, *, colour: str = INK, width: float = 2) -> None:
        """A part of a circle around `at`, between two angles; they run like a clock, from twelve."""
        first, last = sorted(degrees)
        ends = [tip(at, radius, angle) for angle in (first, last)]
        bend = f"A{radius:g} {radius:g} 0 {int(last - first > 180)} 1"
        path = f"M{ends[0][0]:.1f} {ends[0][1]:.1f} {bend} {ends[1][0]:.1f} {ends[1][1]:.1f}"
        self._add("path", d=path, fill="none", stroke=colour, stroke_width=width)

    def stream(self, start: Point, end: Point) -> None:
        """The residual stream: one thick grey line."""
        self.line([start, end], colour=palette.residual, width=7, arrow=False)

    def plus(self, at: Point) -> None:
        """Where something is added to the stream."""
        x, y = at
        self._add("circle", cx=x, cy=y, r=12, fill="#FFFFFF", stroke=palette.residual, stroke_width=3)
        for dx, dy in ((6, 0), (0, 6)):
            self.line([(x - dx, y - dy), (x + dx, y + dy)], arrow=False, width=2.5)

    def badge(self, at: Point, words: str, *, lit: bool = True) -> None:
        """A small disc with the number of a chapter; faint unless `lit`."""
        x, y = at
        self._add("circle", cx=x, cy=y, r=14, fill=INK if lit else "#FFFFFF", stroke=INK, stroke_width=1.5)
        self.text(at, words, size=15, colour="#FFFFFF" if lit else INK, bold=True)

    def svg(self) -> str:
        """The drawing as text; equal drawings give equal text."""
        return ET.tostring(self.root, encoding="unicode")

    def show(self) -> None:
        """Display the drawing in a notebook."""
        display(self)

    def __repr__(self) -> str:
        """Return the alternative text: all that a terminal can show."""
        return self.alt

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        picture = Picture(self.svg().encode(), self.WIDTH, self.alt, self.caption, kind="svg+xml")
        return picture._repr_mimebundle_(include, exclude)

    def _head(self, before: Point, tip: Point, colour: str, size: float) -> None:
        """A triangle at `tip` that points away from `before`."""
        dx, dy = tip[0] - before[0], tip[1] - before[1]
        length = (dx * dx + dy * dy) ** 0.5
        dx, dy = dx / length * size, dy / length * size
        corners = [tip, (tip[0] - dx - dy / 2, tip[1] - dy + dx / 2), (tip[0] - dx + dy / 2, tip[1] - dy - dx / 2)]
        self._add("polygon", points=" ".join(f"{x:.1f},{y:.1f}" for x, y in corners), fill=colour)

    def _add(self, tag: str, text: str | None = None, **attributes: Any) -> None:
        values = {
            name.replace("_", "-"): f"{value:g}" if isinstance(value, float | int) else value
            for name, value in attributes.items()
        }
        ET.SubElement(self.root, tag, values).text = text
