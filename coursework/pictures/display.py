"""Showing a figure so that everyone gets it: sighted or not, live, on a code host, or in an exported page.

Importing this module turns the course's style sheet on, for it is what a notebook imports before its first figure.
"""

import base64
import hashlib
import html
import io
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from IPython.display import display
from matplotlib.figure import Figure
from matplotlib.layout_engine import PlaceHolderLayoutEngine
from matplotlib.text import Text
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from coursework.pictures.content import CONTENT, PIXELS, content
from coursework.pictures.style import palette, use_style

use_style()

MIN_ALT = 40  # characters: less cannot say what a figure shows
MAX_PNG = 60 * 1024  # bytes: a notebook stays small enough to read on a code host
MIN_TYPE = 8.0  # points, as shown
SHOWN_WIDTH = 720  # pixels a notebook's output leaves for a picture, at 96 an inch
_QUALITIES = ((192, 256), (192, 64), (144, 128), (96, 256), (96, 32))  # dots an inch, colours; the best that is small


class Picture:
    """A figure ready to be displayed: an image with alternative text and a caption, and plain text.

    `kind` is that of the image: "png" or "svg+xml".
    """

    def __init__(self, data: bytes, width: int, alt: str, caption: str, *, kind: str = "png") -> None:
        self.data, self.width, self.alt, self.caption, self.kind = data, width, alt, caption, kind

    def __repr__(self) -> str:
        """Return the alternative text: all that a terminal can show."""
        return self.alt

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return {"text/html": figure_tag(self), "text/plain": self.alt}


def show(fig: Figure, *, alt: str, caption: str) -> None:
    """Display a matplotlib figure with alternative text and a caption, and close it.

    The output is `text/html`, a PNG of at most 60 KB inside a figure element, and `text/plain`, the alternative text.
    The same figure gives the same bytes. In them is what it says, as text: its words and all that is drawn.

    Args:
        fig: the figure. Its type must be at least 8 points when shown at 96 pixels an inch, at most 720 pixels wide.
        alt: what a reader who cannot see the figure needs to know, at least 40 characters.
        caption: the conclusion that the figure supports, one sentence or two.

    Raises:
        TypeError: `fig` is not a figure; `alt` or `caption` is not text.
        ValueError: `alt` too short, `caption` empty, type too small, or a picture that does not fit into 60 KB.
    """
    try:
        picture = render(fig, alt=alt, caption=caption)
    finally:
        if isinstance(fig, Figure):
            plt.close(fig)
    display(picture)


def render(fig: Figure, *, alt: str, caption: str, limit: int = MAX_PNG) -> Picture:
    """Turn a figure into a `Picture` of at most `limit` bytes without displaying or closing it; else as `show`."""
    check_text(alt, caption)
    if not isinstance(fig, Figure):
        raise TypeError(f"fig: expected a matplotlib figure, got {type(fig).__name__}")
    width = round(fig.get_figwidth() * 96)
    _check_type_size(fig, width)
    return Picture(_png(fig, limit), width, alt.strip(), caption.strip())


def check_text(alt: str, caption: str) -> None:
    """Refuse alternative text and captions that cannot do their work; errors as `show`."""
    for name, text in (("alt", alt), ("caption", caption)):
        if not isinstance(text, str):
            raise TypeError(f"{name}: expected text, got {type(text).__name__}")
    if len(alt.strip()) < MIN_ALT:
        raise ValueError(f"alt: expected at least {MIN_ALT} characters that say what the figure shows, got {alt!r}")
    if not caption.strip():
        raise ValueError("caption: expected a sentence with the conclusion of the figure, got an empty text")


def figure_tag(picture: Picture) -> str:
    """Return the HTML of the image with its caption."""
    return f'<figure style="margin:0">{image_tag(picture)}{caption_tag(picture.caption)}</figure>'


def image_tag(picture: Picture) -> str:
    """Return the HTML of the image alone: its alternative text, its width as shown, its bytes."""
    data = base64.b64encode(picture.data).decode("ascii")
    alt = html.escape(picture.alt, quote=True)
    style = "max-width:100%;height:auto;background:#fff"
    return f'<img alt="{alt}" width="{picture.width}" style="{style}" src="data:image/{picture.kind};base64,{data}">'


def caption_tag(caption: str) -> str:
    """Return the HTML of the caption."""
    return f'<figcaption style="max-width:45em;margin:4px 0 6px">{html.escape(caption)}</figcaption>'


def _check_type_size(fig: Figure, width: int) -> None:
    fig.canvas.draw()  # tick labels exist only after drawing
    shrink = min(1.0, SHOWN_WIDTH / width)
    for text in (artist for artist in fig.findobj(Text) if isinstance(artist, Text)):
        size = float(text.get_fontsize()) * shrink
        if text.get_visible() and text.get_text().strip() and size < MIN_TYPE - 0.01:
            raise ValueError(
                f"fig: expected type of at least {MIN_TYPE:g} pt as shown (figures wider than {SHOWN_WIDTH / 96:g} "
                f"inches are shown smaller), got {size:.1f} pt for {text.get_text()!r}"
            )


def _png(fig: Figure, limit: int) -> bytes:
    size = 0
    pixels: dict[int, Image.Image] = {}
    said: dict[int, str] = {}
    if fig.get_layout_engine() is None:  # savefig would put the style sheet's layout in the place of none
        fig.set_layout_engine(PlaceHolderLayoutEngine(adjust_compatible=True, colorbar_gridspec=True))
    for dpi, colours in _QUALITIES:
        if dpi not in pixels:
            raw = io.BytesIO()
            fig.savefig(raw, format="png", dpi=dpi, facecolor="white", transparent=False)
            pixels[dpi], said[dpi] = Image.open(raw).convert("RGB"), content(fig, dpi)
        reduced, out = _reduce(pixels[dpi], colours), io.BytesIO()
        chunks = PngInfo()
        chunks.add_text(CONTENT, said[dpi], zip=True)
        chunks.add_text(PIXELS, hashlib.sha256(reduced.convert("RGB").tobytes()).hexdigest()[:16])
        reduced.save(out, format="png", optimize=True, pnginfo=chunks)
        size = out.tell()
        if size <= limit:
            return out.getvalue()
    raise ValueError(
        f"fig: expected a picture of at most {limit // 1024} KB, got {size // 1024} KB; "
        "draw fewer points or make it smaller"
    )


def _reduce(image: Image.Image, colours: int) -> Image.Image:
    """Paint with few colours, which makes files three times smaller; those of the palette stay exactly as they are."""
    kept = [bytes.fromhex(colour[1:]) for colour in (*palette.series, "#FFFFFF")]
    free = colours - len(kept)
    rough = image.quantize(free, dither=Image.Dither.NONE)
    table = (rough.getpalette() or [])[: 3 * free]
    indices, pixels = np.array(rough), np.array(image)
    for number, colour in enumerate(kept):
        indices[(pixels == list(colour)).all(axis=-1)] = len(table) // 3 + number
    exact = Image.frombytes("P", image.size, indices.tobytes())
    exact.putpalette(table + [channel for colour in kept for channel in colour])
    return exact
