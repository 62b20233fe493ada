"""What a figure says, as text: its words and everything that is drawn, where and in which colour.

`show` keeps it inside the PNG, as the text chunk `CONTENT`, and a digest of the pixels beside it, as `PIXELS`; the
checks of the notebooks compare them.
"""

import json
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from matplotlib.backend_bases import RendererBase
from matplotlib.backends.backend_agg import RendererAgg
from matplotlib.figure import Figure
from matplotlib.transforms import Affine2D

from coursework.pictures.arrays import Array

CONTENT, PIXELS = "Content", "Pixels"
MOST_CORNERS = 200  # of one line; of a longer one, the boxes around 100 pieces
MOST_MARKS = 200
MOST_CELLS = 16  # rows or columns of an image or a mesh; of a larger one, means
MOST_PARTS = 12  # of a collection that are told one by one, not as marks
OUTSIDE = 8  # pixels: what is cut off farther from the edge is not seen


def content(fig: Figure, dpi: float) -> str:
    """Return, as JSON, a list of what is drawn, bottom first: [kind, words, width, places, colours].

    The kind is "text", "path", "marks" or "cells"; words are those of a text, else empty; the width is that of the
    stroke, or of the largest of the marks, in pixels. Places are x, y, x, y, … in pixels of a picture of `dpi`, from
    its upper left corner: the box of a text or of cells, the corners of a path, the middles of marks. Colours are r, g,
    b, a, … from 0 to 255: of a text; of a path's stroke and its inside; of marks, one or each; of cells, row by row.
    Lines of axes and grids are left out: the labels of the ticks say where they are.
    """
    before = fig.dpi
    fig.dpi = dpi
    try:
        width, height = fig.canvas.get_width_height()
        recorder = _Recorder(width, height, dpi)
        fig.draw(recorder)
    finally:
        fig.dpi = before
    return json.dumps(recorder.drawn, ensure_ascii=False, separators=(",", ":"))


class _Recorder(RendererBase):
    """Draws nothing: writes down what it is told to draw."""

    def __init__(self, width: int, height: int, dpi: float) -> None:
        super().__init__()
        self.ruler = RendererAgg(width, height, dpi)
        self.size = np.array([width, height])
        self.drawn: list[list[Any]] = []
        self.groups: list[str] = []
        self.parts: list[tuple[Array, float, list[int]]] | None = None  # of the collection that is being drawn

    def get_canvas_width_height(self) -> tuple[float, float]:
        return self.ruler.get_canvas_width_height()

    def get_text_width_height_descent(self, s: str, prop: Any, ismath: Any) -> tuple[float, float, float]:
        return self.ruler.get_text_width_height_descent(s, prop, ismath)

    def points_to_pixels(self, points: Any) -> Any:
        return self.ruler.points_to_pixels(points)

    def open_group(self, s: str, gid: str | None = None) -> None:
        self.groups.append(s)

    def close_group(self, s: str) -> None:
        self.groups.pop()

    def draw_text(
        self,
        gc: Any,
        x: float,
        y: float,
        s: str,
        prop: Any,
        angle: float,
        ismath: Any = False,
        mtext: Any = None,
    ) -> None:
        if not s.strip():
            return
        width, height, descent = self.get_text_width_height_descent(s, prop, ismath)
        corners = np.array([(0, descent), (width, descent), (0, descent - height), (width, descent - height)])
        corners = Affine2D().rotate_deg(-angle).translate(x, y).transform(corners)
        box = [*np.floor(corners.min(axis=0)), *np.ceil(corners.max(axis=0))]
        self._note("text", s, 0.0, np.array(box), _colour(gc.get_rgb()))

    def draw_path(self, gc: Any, path: Any, transform: Any, rgbFace: Any = None) -> None:
        if "matplotlib.axis" in self.groups:
            return
        corners = self._seen(gc, transform.transform(path.vertices))
        stroke = self.points_to_pixels(gc.get_linewidth()) if gc.get_rgb()[3] else 0.0
        colours = _colour(gc.get_rgb() if stroke else None) + _colour(rgbFace)
        if not len(corners) or not any(colours[3::4]):
            return
        if self.parts is not None:
            self.parts.append((corners, stroke, colours))
        else:
            self._path(corners, stroke, colours)

    def draw_markers(
        self,
        gc: Any,
        marker_path: Any,
        marker_trans: Any,
        path: Any,
        trans: Any,
        rgbFace: Any = None,
    ) -> None:
        if "matplotlib.axis" not in self.groups:
            self._together(super().draw_markers, gc, marker_path, marker_trans, path, trans, rgbFace)

    def draw_path_collection(self, *args: Any, **options: Any) -> None:
        self._together(super().draw_path_collection, *args, **options)

    def draw_quad_mesh(self, gc: Any, *args: Any, **options: Any) -> None:
        transform, width, height, coordinates, _, _, colours = args[:7]
        corners = self._seen(gc, transform.transform(np.asarray(coordinates).reshape(-1, 2)))
        self._cells(corners, np.asarray(colours).reshape(height, width, -1))

    def draw_image(self, gc: Any, x: float, y: float, im: Any, transform: Any = None) -> None:
        rows, columns = np.asarray(im).shape[:2]
        corners = self._seen(gc, np.array([(x, y), (x + columns, y + rows)]))
        self._cells(corners, np.asarray(im) / 255)

    def _seen(self, gc: Any, corners: Array) -> Array:
        """Return the corners that are numbers, y downwards, those far outside of what is shown drawn to its edge."""
        clip = gc.get_clip_rectangle()
        low, high = (clip.min, clip.max) if clip is not None else (np.zeros(2), self.size)
        corners = np.clip(corners[np.isfinite(corners).all(axis=-1)], low - OUTSIDE, high + OUTSIDE)
        return np.column_stack([corners[:, 0], self.size[1] - corners[:, 1]])

    def _together(self, draw: Callable[..., None], *args: Any, **options: Any) -> None:
        self.parts = []
        draw(*args, **options)
        parts, self.parts = self.parts, None
        if len(parts) <= MOST_PARTS:
            for part in parts:
                self._path(*part)
            return
        low, high = (np.array([edge(corners, axis=0) for corners, _, _ in parts]) for edge in (np.min, np.max))
        colours = np.array([colours for _, _, colours in parts])
        seen = np.where(colours[:, 7:] > 0, colours[:, 4:], colours[:, :4])
        pieces = [_mean(values, MOST_MARKS) for values in ((low + high) / 2, seen)]
        same = (seen == seen[0]).all()
        self._note("marks", "", float((high - low).max()), pieces[0], pieces[1][:1] if same else pieces[1])

    def _path(self, corners: Array, stroke: float, colours: list[int]) -> None:
        if len(corners) > MOST_CORNERS:
            pieces = list(_pieces(corners, MOST_CORNERS // 2))
            corners = np.array([edge(piece, axis=0) for piece in pieces for edge in (np.min, np.max)])
        self._note("path", "", stroke, corners, colours)

    def _cells(self, corners: Array, colours: Array) -> None:
        for axis in (0, 1):
            colours = np.swapaxes(_mean(np.swapaxes(colours, 0, axis), MOST_CELLS), 0, axis)
        box = np.array([corners.min(axis=0), corners.max(axis=0)])
        self._note("cells", "", 0.0, box, 255 * colours)

    def _note(self, kind: str, words: str, width: float, places: Array, colours: Any) -> None:
        numbers = [np.rint(np.asarray(values)).astype(int).ravel().tolist() for values in (places, colours)]
        self.drawn.append([kind, words, int(np.ceil(width)), *numbers])


def _colour(colour: Any) -> list[int]:
    """Return r, g, b, a from 0 to 255; all 0 for no colour."""
    if colour is None:
        return [0, 0, 0, 0]
    values = [*colour, 1.0][:4]
    return [round(255 * float(value)) for value in values] if values[3] else [0, 0, 0, 0]


def _pieces(values: Array, most: int) -> Iterator[Array]:
    """Cut an array along its first axis into at most so many pieces of nearly one length."""
    yield from np.array_split(values, min(most, len(values)))


def _mean(values: Array, most: int) -> Array:
    """Return an array of at most so many rows, the means of pieces of the given one."""
    return np.array([piece.mean(axis=0) for piece in _pieces(values, most)])
