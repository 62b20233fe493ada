"""Checks the notebooks of this folder: `pytest --nbval` runs each cell again and compares its outputs.

Needs only pytest, nbval 0.11, numpy, Pillow and what the notebooks import; copy it with the notebooks. An exercise's
cell runs as it is shipped and then, as the item ID-answered, with the solution, which its check must call right: so the
cells below it run on from an answer, and come out as they were stored from the stub. Comparison is strict: text, HTML
and drawings to the character, pictures by what they say, which they keep, and then to less than a pixel, a display that
is updated by its last state. What a cell may do differently, its tags say:

    tol:0.001           numbers with a decimal point or an exponent may differ by this share of their size
    atol:0.001          ... or by this much, but by no more than a quarter of the largest number of their column
    atol:3              ... the same for whole numbers and percentages, and for nothing else
    picture:10          what its pictures plot may lie 10 pixels from where it is stored, and pixels differ where it does:
                        for what training drew; arithmetic and records need no tag
    raises-exception    the cell must fail, with the stored error
    not-compared:why    run, but not compared; counted at the end, with its reason

No tolerance lets a number fall below zero or rise above all, nor the numbers of a line or column change their order, or
their distance by more than it. Refused whatever the outputs are: cells not run before storing, text on stderr, images
without alternative text, PNGs that hold more than pixels and text, paths of one machine, oversized outputs, tracebacks,
text that a carriage return or a backspace hides, saved widget state, and nbval's own marks for skipping. Tables at the
end say what was compared, and how far each cell with a tolerance was from what is stored; a run of all notebooks fails
if less than 95 % of their outputs were compared. Cells run with the environment variable CI set.
"""

import base64
import hashlib
import io
import json
import math
import os
import re
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_output
from nbval.plugin import IPyNbCell, IPyNbFile, coalesce_streams
from PIL import Image, ImageDraw, ImageFilter

collect_ignore = ["build.py", "sources"]

CELL_TIMEOUT = 600  # seconds; nbval's own 2000 is longer than anyone waits
MAX_OUTPUT = 200_000  # bytes
MAX_NOTEBOOK = 2_000_000  # bytes
MIN_ALT = 40  # characters: fewer cannot say what a figure shows
MIN_COMPARED = 0.95  # to the digit or within a tolerance, of the outputs of all notebooks together
KINDS = ("to the digit", "tolerance", "not compared")
NBVAL_DEFAULT_TIMEOUT = 2000

# Tags ---------------------------------------------------------------------------------------------------------------


class Allowance(NamedTuple):
    """What a cell's tags allow."""

    rtol: float = 0.0
    atol: float = 0.0
    counts: float = 0.0
    picture: float = 1.0
    not_compared: str = ""
    raises: bool = False

    @property
    def numbers(self) -> bool:
        """Whether any number may differ."""
        return bool(self.rtol or self.atol or self.counts)


LIMITS = {"tol": (0.0, 0.25), "atol": (0.0, math.inf), "picture": (1.0, 100.0)}
OUR_TAGS = re.compile(r"\s*(a?tol|pictures?|not[-_ ]?compared?)\b", re.IGNORECASE)
NBVAL_TAG = re.compile(r"nbval-|pytest-validate-|skip", re.IGNORECASE)
NBVAL_COMMENT = re.compile(r"^\s*#\s*(NBVAL_\w+|PYTEST_VALIDATE_\w+)", re.MULTILINE)
FOLDED = "hide-input"  # plumbing: the reader sees its first line, a label, and its output
OTHER_TAGS = {"raises-exception", FOLDED}


def read_tags(tags: Sequence[str], only_known: bool = False) -> Allowance:
    """Return what these tags allow; ValueError for a malformed one, one that skips, or (only_known) a foreign one."""
    found: dict[str, Any] = {}
    for tag in tags:
        kind, _, value = tag.partition(":")
        if kind in LIMITS:
            low, high = LIMITS[kind]
            number = float(value) if re.fullmatch(r"\d+(\.\d+)?(e-?\d+)?", value) else math.nan
            if not low < number <= high:
                raise ValueError(f"tag {tag!r}: expected {kind}: and a number above {low:g}, at most {high:g}")
            found["rtol" if kind == "tol" else "counts" if kind == "atol" and number >= 1 else kind] = number
        elif kind == "not-compared":
            if not re.search(r"\w{3}", value):
                raise ValueError(f"tag {tag!r}: expected not-compared: and the reason")
            found["not_compared"] = value.strip()
        elif OUR_TAGS.match(tag) or (only_known and tag not in OTHER_TAGS):
            raise ValueError(
                f"tag {tag!r}: expected tol:0.001, atol:0.001, picture:10, not-compared:why or another known"
            )
        elif NBVAL_TAG.match(tag):
            raise ValueError(f"tag {tag!r}: nothing may be skipped in silence; say not-compared: and the reason")
    return Allowance(**found, raises="raises-exception" in tags)


# What a stored notebook must obey -----------------------------------------------------------------------------------

Problem = tuple[str, str]  # where, what
TEXT_TYPES = ("text/plain", "text/html", "text/markdown", "text/latex", "image/svg+xml")
DATA_URI = re.compile(r"data:([a-z]+/[a-z0-9.+-]+);base64,([A-Za-z0-9+/=\s]+)")
MACHINE_PATH = re.compile(
    r"(?<![\w./~-])/(?:home|root|Users|tmp|private|var|opt|usr|mnt|workspace|workspaces|content)/[\w.-]+"
    r"|\b[A-Za-z]:\\\\?(?:Users|Windows|Program|Temp|a\\)|file:///"
)


def cell_name(cell: NotebookNode, number: int) -> str:
    return str(cell.get("id") or f"cell-{number}")


def notebook_problems(notebook: NotebookNode, size: int) -> list[Problem]:
    """Return what is wrong with a stored notebook of `size` bytes, cells included; empty if nothing."""
    problems = file_problems(notebook, size)
    for number, cell in enumerate(notebook.cells):
        problems += [(f"cell {cell_name(cell, number)!r}", what) for what in cell_problems(cell)]
    return problems


def file_problems(notebook: NotebookNode, size: int) -> list[Problem]:
    """Return what is wrong with a stored notebook as a whole and with its prose."""
    problems = []
    if size > MAX_NOTEBOOK:
        problems.append(("notebook", f"is {size:,} bytes long; at most {MAX_NOTEBOOK:,}"))
    if "widgets" in notebook.metadata:
        problems.append(("notebook", "holds saved widget state (metadata.widgets), which code hosts refuse to render"))
    for number, cell in enumerate(notebook.cells):
        if cell.cell_type == "markdown":
            problems += [(f"cell {cell_name(cell, number)!r}", what) for what in prose_problems(cell.source)]
    return problems


def prose_problems(text: str) -> list[str]:
    alts = [*image_alts(text), *re.findall(r"!\[([^\]]*)\]\(", text)]
    return alt_problems(alts) + path_problems(text)


def cell_problems(cell: NotebookNode) -> list[str]:
    """Return what is wrong with a stored code cell, without running it."""
    if cell.cell_type != "code":
        return []
    problems = []
    try:
        allowance = read_tags(cell.metadata.get("tags", []))
    except ValueError as error:
        return [str(error)]
    if comment := NBVAL_COMMENT.search(cell.source):
        problems.append(f"{comment[1]}: nothing may be skipped in silence; tag the cell not-compared: and the reason")
    if cell.source.strip() and cell.execution_count is None:
        problems.append("was not executed before the notebook was stored: there is nothing to compare with")
    failed = any(output.output_type == "error" for output in cell.outputs)
    if any(output.get("execution_count", cell.execution_count) != cell.execution_count for output in cell.outputs):
        problems.append("stores a result of another run than that of the cell")
    if failed and not allowance.raises:
        problems.append("stores an exception without the tag raises-exception")
    if allowance.raises and not failed:
        problems.append("has the tag raises-exception, but stores no exception")
    for output in cell.outputs:
        # The frames above it name the folders of one machine, and nothing compares them.
        if output.output_type == "error" and "\n".join(output.traceback) != f"{output.ename}: {output.evalue}":
            problems.append("stores more of a traceback than the exception and its text")
    if any(output.output_type == "stream" and re.search(r"\r(?!\n)|\x08", output.text) for output in cell.outputs):
        problems.append("stores text that a carriage return or a backspace hides: some viewers show it")
    return problems + output_problems(cell.outputs)


def output_problems(outputs: Iterable[NotebookNode]) -> list[str]:
    """Return what is wrong with outputs, stored or new."""
    problems = []
    for number, output in enumerate(outputs, start=1):
        texts = dict(output_texts(output))
        size = sum(len(value.encode()) for value in texts.values())
        if size > MAX_OUTPUT:
            problems.append(f"output {number} is {size:,} bytes long; at most {MAX_OUTPUT:,}")
        if output.output_type == "stream" and output.name == "stderr":
            problems.append(f"wrote to stderr: {output.text.strip()[:300]}")
        for kind, text in texts.items():
            if not kind.startswith("image/") or kind in TEXT_TYPES:
                problems += path_problems(DATA_URI.sub("", text))
        problems += alt_problems(image_alts(texts.get("text/html", "")))
        for data in pictures_of(output):
            problems += container_problems(data) or [REPAINTED] * painted(data)
    return problems


def output_texts(output: NotebookNode) -> Iterator[tuple[str, str]]:
    """Yield (kind, text) for every part of an output; kind is a media type or the name of a stream."""
    if output.output_type == "stream":
        yield output.name, output.text
    elif output.output_type == "error":
        yield "error", "\n".join([output.ename, output.evalue, *output.traceback])
    else:
        for kind, value in output.data.items():
            yield kind, value if isinstance(value, str) else "".join(value) if isinstance(value, list) else repr(value)


def path_problems(text: str) -> list[str]:
    """Return a complaint if the text names a folder of one machine: well-known ones, and those of this one."""
    here = {str(Path.home()), sys.prefix, tempfile.gettempdir(), str(Path(__file__).resolve().parent.parent)}
    found = MACHINE_PATH.search(text)
    path = found[0] if found else next((folder for folder in here if len(folder) > 4 and folder + os.sep in text), "")
    return [f"names a path of one machine: {path}"] if path else []


class _Images(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.alts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "img":
            self.alts.append(dict(attrs).get("alt") or "")


def image_alts(html: str) -> list[str]:
    """Return the alternative text of each <img>, empty where there is none."""
    parser = _Images()
    parser.feed(html)
    parser.close()
    return parser.alts


def alt_problems(alts: Iterable[str]) -> list[str]:
    return [
        f"shows an image with the alternative text {alt!r}; say in {MIN_ALT} characters or more what it shows"
        for alt in alts
        if len(alt.strip()) < MIN_ALT
    ]


# Numbers ------------------------------------------------------------------------------------------------------------

# With a decimal point or an exponent, or whole, and the blanks beside it (a minus sign moves the columns of a table). A
# point at the end is a part of the number in a printed tensor, and the end of a sentence elsewhere.
_KINDS = r"\d+\.\d+|\d+\.(?=[eE,\])]|[ \t]+-?\d+\.)|\.\d+|\d{1,3}(?:,\d{3})+(?!\d)|\d+"
NUMBER = re.compile(rf"([ \t]*(?<![\w.])[-+]?(?:{_KINDS})(?:[eE][-+]?\d+)?(?![\w.]\d)[ \t]*)")
LARGEST_ATOL = 0.25  # of the largest number beside it: a tolerance as large as what it is for would let a lie pass
ORDERED = 0.25  # of the tolerance: numbers that lie further apart keep their order
MOST_BESIDE = 50  # numbers: nobody compares the numbers of a longer line or column, it is data


class Number(NamedTuple):
    """A number as it is written, its value, its kind, and the digits after its point, None beside an exponent."""

    text: str
    value: float
    kind: str  # "whole", "%", "decimal", or "name": a whole number that is a part of a word, as in pass@1
    places: int | None


def read_number(before: str, text: str, after: str) -> Number:
    digits = text.strip().replace(",", "")
    whole = digits.lstrip("+-").isdigit()
    kind = "%" if after.startswith("%") else "whole" if whole else "decimal"
    if kind == "whole" and re.search(r"[^\s(\[]$", before + text[: -len(text.lstrip())]):
        kind = "name"
    places = re.fullmatch(r"[-+]?\d*(?:\.(\d+))?", digits)  # not of 1e-5, nor of 1., whose zeros are cut off
    return Number(text, float(digits), kind, len(places[1] or "") if places else None)


def snap_numbers(stored: str, new: str, allowance: Allowance) -> tuple[str, float, str]:
    """Return `new` with each number that is near the stored one in its place written as it is stored.

    And the largest deviation, as a share of what was allowed: infinite where the texts differ in more than numbers; and
    what a tolerance does not cover, if that is why. Compared are texts, in which one number stands beside others:
    training moves them all a little, and leaves which is the larger one, what is a count, and what is below zero.
    """
    if stored == new or not allowance.numbers:
        return new, 0.0 if stored == new else math.inf, ""
    a, b = NUMBER.split(stored), NUMBER.split(new)
    if a[::2] != b[::2]:
        return new, math.inf, ""
    before, now = ([read_number(*side[i : i + 3]) for i in range(0, len(side) - 2, 2)] for side in (a, b))
    lines = np.cumsum([words.count("\n") for words in a[:-1:2]])
    columns, rows = _beside(before, lines)
    allowed = _allowed(before, columns, allowance)
    shares = [_share(*three) for three in zip(before, now, allowed, strict=True)]
    why = next((what for what in _uncovered(before, now, [*columns, *rows], allowed) if what), "")
    for i, share in enumerate(shares):
        if share <= 1 and not why:
            b[2 * i + 1] = a[2 * i + 1]
    return "".join(b), math.inf if why else max(shares, default=0.0), why


def _beside(numbers: Sequence[Number], lines: np.ndarray) -> Iterator[list[list[int]]]:
    """Yield the places of the numbers that stand beside each other: of each column, then of each line, by kind."""
    rows: defaultdict[Any, list[int]] = defaultdict(list)
    columns: defaultdict[Any, list[int]] = defaultdict(list)
    for place, (number, line) in enumerate(zip(numbers, lines, strict=True)):
        rows[line, number.kind].append(place)
    for (_, kind), row in rows.items():
        for i, place in enumerate(row):
            columns[kind, len(row), i].append(place)
    for groups in (columns, rows):
        yield [group for group in groups.values() if 1 < len(group) <= MOST_BESIDE]


def _allowed(numbers: Sequence[Number], columns: list[list[int]], allowance: Allowance) -> list[float]:
    """Return by how much each number may differ."""
    sizes = [abs(number.value) if math.isfinite(number.value) else 0.0 for number in numbers]
    largest: defaultdict[str, float] = defaultdict(float)
    for number, size in zip(numbers, sizes, strict=True):
        largest[number.kind] = max(largest[number.kind], size)
    caps = [largest[number.kind] for number in numbers]
    for column in columns:
        for place in column if numbers[column[0]].kind != "whole" else ():  # counts in a column are of different things
            caps[place] = max(sizes[other] for other in column)
    absolute = {"name": 0.0, "whole": allowance.counts, "%": allowance.counts or allowance.atol}
    return [
        max(
            allowance.rtol * size * (number.kind == "decimal" or number.places != 0),
            min(absolute.get(number.kind, allowance.atol), LARGEST_ATOL * cap),
        )
        for number, size, cap in zip(numbers, sizes, caps, strict=True)
    ]


def _share(stored: Number, new: Number, allowed: float) -> float:
    if stored.value == new.value:
        return 0.0
    return abs(stored.value - new.value) / allowed if allowed else math.inf


def _uncovered(
    stored: Sequence[Number], new: Sequence[Number], beside: list[list[int]], allowed: Sequence[float]
) -> Iterator[str]:
    """Yield what is false in the stored numbers though each may be near enough to the new one."""
    signed = {number.kind for number in new if number.value < 0 or number.text.strip().startswith("+")}
    most = {kind: max(number.value for number in new if number.kind == kind) for _, _, kind, _ in new}
    for a, b, near in zip(stored, new, allowed, strict=True):
        was, now = a.text.strip(), b.text.strip()
        if a.value < 0 <= b.value and a.value != b.value and b.kind not in signed:
            yield f"{was} is stored, where none of the numbers is below zero now"
        if (a.kind == "%" and a.value > max(100, most["%"])) or (a.kind == "decimal" and a.value > most[a.kind] == 1):
            yield f"{was} is stored, more than all: now it is {now}"
        if a.kind != b.kind or (None not in (a.places, b.places) and _fewer(a, b) > near):
            yield f"{was} is stored, and {now} is written now: a tolerance does not change the form of a number"
    x, y, reach = (np.array(values) for values in ([a.value for a in stored], [b.value for b in new], allowed))
    for group in beside:
        apart, now_apart = (v[group][:, None] - v[group] for v in (x, y))
        near = np.maximum.outer(reach[group], reach[group])
        turned = (apart * now_apart < 0) & (np.minimum(abs(apart), abs(now_apart)) > ORDERED * near)
        moved = abs(apart - now_apart) > near * (1 + 1e-6)
        for i, j in np.argwhere(turned | moved)[:1]:
            pair = [" and ".join(side[group[k]].text.strip() for k in sorted((i, j))) for side in (stored, new)]
            yield f"{pair[0]} are stored side by side, where now {pair[1]} are printed: their order or distance is another"


def _fewer(a: Number, b: Number) -> float:
    """Return the unit of the last place of the number with fewer places, 0 if both have as many."""
    places = a.places or 0, b.places or 0
    return 0.0 if places[0] == places[1] else 10.0 ** -min(places)


# Pictures -----------------------------------------------------------------------------------------------------------
#
# Measured on bars, curves, points and a 5x6 heat map in the course's style (1267 pixels wide), shares of all pixels:
#
#                                            FINE outside   COARSE changed
#   curve moved by 0.01 %, 0.1 %             0.0000, 0.0000 %
#   the same data, matplotlib 3.9 and 3.10   0.02 - 0.22 %  0.000 - 0.009 %
#   the same data, other font hinting        0.00 - 0.97 %  0.000 - 0.031 %
#   curve changed by 1, 2, 5 %               0.0013 - 1.9 % 0.000, 0.000, 1.4 %
#   bar changed by 1, 2, 5 %                 0.03 - 0.24 %  0.24 - 0.48 %
#   point changed by 1, 2, 5 %               0.11 - 0.29 %  0.12 - 0.74 %
#   word of the title changed                0.19 %         0.14 %
#   heat map cell changed by 0.01, 0.05      0.006, 0.012 % 0.000, 0.004 %
#   "1.95" in the figure becomes "1.93"      0.0037 %       0.000 %
#
# No limit lets other fonts pass and catches a digit. So FINE is used where the same library draws, and sees all of
# these but the first line; COARSE where another matplotlib or FreeType draws: it sees bars, points, words, large moves.

FINE = 0.00001  # share of pixels that may lie outside the range of colours of the 3x3 pixels in the same place
COARSE = 0.0005  # share of pixels that may change after blurring over 1/75 of the width
FINE_STEP, COARSE_STEP = 16, 32  # of 255: a smaller difference is no difference

PICTURES = ("image/png", "image/jpeg")  # of these only the first may be shown


def drawing_library() -> str:
    """Return what decides how letters look in a picture: the versions of matplotlib and FreeType."""
    try:
        from matplotlib import __version__, ft2font
    except ImportError:
        return "no matplotlib"
    return f"matplotlib {__version__}, FreeType {ft2font.__freetype_version__}"


# The same table tells why pixels alone are not enough: what training drew wobbles from processor to processor by more
# than a digit takes. So `coursework.pictures.show` keeps in a PNG what it says: its words and everything that is drawn,
# each with its place. That is compared first, words to the character, places up to what the cell's tags allow. And it
# tells where pixels may differ and how far: nothing moved, nothing differs; where a line moved by 3 pixels, colours are
# looked for 3 pixels around; a word has its letters, wherever it went.

CONTENT, PIXELS = "Content", "Pixels"  # the text chunks of a PNG
WORD_STEP = 64  # of 255, in a word's box: few colours change the soft edges of letters
WORD_PIXELS = 2  # more than so many of another colour are another letter
COLOUR_ALLOWED, COLOUR_ROUNDED = 16, 2  # of 255: for colours that stand for numbers, from training and from arithmetic

Drawn = list[Any]  # [kind, words, width, places, colours], see coursework/pictures/content.py


def open_picture(data: bytes) -> Image.Image:
    return Image.open(io.BytesIO(data))


def content_of(image: Image.Image) -> list[Drawn] | None:
    """Return what the picture says, None if it does not keep it."""
    text = image.info.get(CONTENT)  # type: ignore[no-untyped-call]
    return json.loads(text) if text else None


# What a PNG may hold: its pixels, text that no viewer shows, and, for those that `show` did not draw, dots for each inch.
# Whatever else it holds can change what a viewer shows of the same pixels: other frames, colours, transparency, turns.
CHUNKS = {b"IHDR", b"PLTE", b"IDAT", b"IEND", b"tEXt", b"zTXt", b"iTXt", b"pHYs"}
REPAINTED = "shows a picture whose pixels are not those that were drawn"


def container_problems(data: bytes) -> list[str]:
    """Return what a picture holds besides pixels and text."""
    if not data.startswith(b"\x89PNG\r\n\x1a\n"):
        return ["shows a picture that is no PNG; pictures are drawn as PNG or SVG"]
    kinds: list[bytes] = []
    place = 8
    while place < len(data) and kinds[-1:] != [b"IEND"]:
        kinds.append(data[place + 4 : place + 8])
        place += 12 + int.from_bytes(data[place : place + 4], "big")
    foreign = dict.fromkeys(kind.decode("latin-1") for kind in kinds if kind not in CHUNKS)
    if foreign or place != len(data) or kinds[-1:] != [b"IEND"]:
        found = ", ".join(map(repr, foreign)) or "bytes after its end, or no end"
        return [f"shows a PNG that holds more than pixels and text, which viewers show differently: {found}"]
    return []


def painted(data: bytes) -> bool:
    """Whether the pixels of a picture are others than those that were drawn."""
    image = open_picture(data)
    kept = image.info.get(PIXELS)
    return kept is not None and kept != hashlib.sha256(image.convert("RGB").tobytes()).hexdigest()[: len(kept)]


class Moved(NamedTuple):
    """One thing as it was drawn before and now, by how many pixels it moved, by how much its colour changed."""

    stored: Drawn
    new: Drawn
    distance: int
    colour: int


def compare_pictures(
    stored: bytes, new: bytes, allowance: Allowance, fine: bool, keeps_content: bool = True
) -> tuple[float, list[str]]:
    """Return the share of what is allowed that two pictures differ by, and what is wrong with the stored one.

    fine: the same library draws. keeps_content: what says nothing was not built before pictures kept what they say.
    """
    said, says = (content_of(open_picture(data)) for data in (stored, new))
    moved: list[Moved] = []
    problems: list[str] = []
    allowed = allowance.picture
    if said is not None and says is not None:
        moved, problems = compare_content(said, says, allowance, fine)
        allowed = 1.0 if fine else allowed
    elif says is not None and keeps_content:
        problems = ["it does not keep what it says; build it again"]
    difference = picture_difference(stored, new, fine, moved)
    if difference > allowed:
        size = "another size" if math.isinf(difference) else f"{difference:.1f} times the default tolerance"
        problems.append(f"{size}, allowed {allowed:g} ({'fine' if fine else 'coarse'} comparison)")
    return max([difference / allowed, *(one.distance / allowance.picture for one in moved if fine)]), problems


def compare_content(
    stored: list[Drawn], new: list[Drawn], allowance: Allowance, fine: bool
) -> tuple[list[Moved], list[str]]:
    """Return each thing that both pictures show, as stored and as new, and what is wrong with the stored ones.

    Another drawing library puts things elsewhere; then words alone are compared.
    """
    if not fine:
        stored, new = ([drawn for drawn in side if drawn[0] == "text"] for side in (stored, new))
    forms = [[(kind, len(places), len(colours)) for kind, _, _, places, colours in side] for side in (stored, new)]
    for a, b, before, now in zip(stored, new, *forms, strict=False):
        if before != now:
            return [], [f"it shows {_short(a)}, where now {_short(b)} is drawn"]
    if len(stored) != len(new):
        return [], [f"it shows {len(stored)} things, where now {len(new)} are drawn"]
    moved, problems = [], []
    for a, b in zip(stored, new, strict=True):
        if snap_numbers(a[1], b[1], allowance)[0] != a[1]:
            problems.append(f"it says {a[1]!r}, where now {b[1]!r} is written")
        distance, colour = (max((abs(x - y) for x, y in zip(a[i], b[i], strict=True)), default=0) for i in (3, 4))
        distance = max(distance, abs(a[2] - b[2]))
        if fine and distance > allowance.picture:
            problems.append(f"{_short(a)} is {distance} pixels from where it is now drawn")
        if fine and colour > (COLOUR_ALLOWED if allowance.picture > 1 else COLOUR_ROUNDED):
            problems.append(f"{_short(a)} has another colour than it has now")
        moved.append(Moved(a, b, distance, colour))
    return moved, problems


def _short(drawn: Drawn) -> str:
    kind, words, _, places, _ = drawn
    return f"{words!r}" if words else f"a {kind} at {', '.join(map(str, places[:4]))} …"


def picture_difference(stored: bytes, new: bytes, fine: bool, moved: Sequence[Moved] = ()) -> float:
    """Return how different the pixels of two pictures are: 1 is as much as is allowed, infinite for another size."""
    if stored == new:
        return 0.0
    a, b = (_on_white(open_picture(data)) for data in (stored, new))
    if a.size != b.size:
        return math.inf
    if fine:
        reach, steps, lines = _reach(a.size, moved)
        words = max((_other_letters(a, b, one, lines) / WORD_PIXELS for one in moved if one.stored[1]), default=0.0)
        return max(words, *(_outside(*pair, reach, steps) / FINE for pair in ((a, b), (b, a))))
    blur = ImageFilter.BoxBlur(max(a.width / 150, 2))
    change = np.abs(_pixels(a.filter(blur)) - _pixels(b.filter(blur))).max(axis=-1)
    return float((change > COARSE_STEP).mean()) / COARSE


def _reach(size: tuple[int, int], moved: Sequence[Moved]) -> list[np.ndarray]:
    """Return for each pixel how far around it its colour may be found, how near it must be, and whether a line is there."""
    # With the labels of an axis move its grid and ticks, which are nowhere said.
    everywhere = 1 + min(max((one.distance for one in moved if one.stored[1]), default=0), 254)
    reach, steps, lines = (Image.new("L", size, value) for value in (everywhere, FINE_STEP, 0))
    for one in sorted(moved, key=lambda one: one.distance):
        for kind, _, width, places, _ in (one.stored, one.new):
            around = width + 2 * one.distance + 5  # the tips of sharp corners, too
            if one.distance >= everywhere:
                _cover(reach, kind, places, around, min(one.distance + 1, 255))
            if one.colour:
                _cover(steps, kind, places, around, min(FINE_STEP + one.colour, 255), inside=True)
            if kind in ("path", "marks"):
                _cover(lines, kind, places, around, 1)
        for left, top, right, bottom in _other_digits(one):
            _cover(reach, "text", (left, top, right, bottom), 1, min(bottom - top, 255))
            _cover(lines, "text", (left, top, right, bottom), 1, 1)
    return [np.asarray(image) for image in (reach, steps, lines)]


def _other_digits(word: Moved) -> list[tuple[int, int, int, int]]:
    """Return the boxes of the digits that differ, in a word whose numbers differ by what is allowed."""
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import text_to_path

    before, now = word.stored[1], word.new[1]
    if before == now:
        return []
    left, top, right, bottom = word.stored[3]
    forms = [re.sub(r"\d", "0", words) for words in (before, now)]
    if forms[0] != forms[1] or bottom - top > right - left or "$" in before:
        return [(left, top, right, bottom)]
    wide = [
        text_to_path.get_text_width_height_descent(before[:i], FontProperties(), False)[0]
        for i in range(len(before) + 1)
    ]
    at = [left + (right - left) * width / wide[-1] for width in wide]  # digits are equally wide
    return [(math.floor(at[i]), top, math.ceil(at[i + 1]), bottom) for i in range(len(before)) if before[i] != now[i]]


def _cover(image: Image.Image, kind: str, places: Sequence[int], width: int, value: int, inside: bool = False) -> None:
    """Paint where a thing is drawn: around its outline, and its inside, too, on demand."""
    pen, corners, half = ImageDraw.Draw(image), list(zip(places[::2], places[1::2], strict=True)), width // 2 + 1
    if kind in ("text", "cells"):
        (left, top), (right, bottom) = corners
        pen.rectangle((left - half, top - half, right + half, bottom + half), fill=value)
    elif kind == "path":
        if inside and len(corners) > 2:
            pen.polygon(corners, fill=value)
        pen.line(corners, fill=value, width=width, joint="curve")
    else:
        for x, y in corners:
            pen.ellipse((x - half, y - half, x + half, y + half), fill=value)


def _other_letters(a: Image.Image, b: Image.Image, word: Moved, lines: np.ndarray) -> int:
    """Return how many pixels of a word differ, wherever it moved to; where lines cross it does not count."""
    left, top, right, bottom = word.stored[3]
    x, y = word.new[3][0] - left, word.new[3][1] - top
    stored = _pixels(a.crop((left, top, right, bottom)))
    free = np.asarray(Image.fromarray(lines).crop((left, top, right, bottom))) == 0
    around = b.crop((left + x - 2, top + y - 2, right + x + 2, bottom + y + 2))
    low = high = around
    if "$" in word.stored[1]:  # in a formula each letter has a place of its own, a pixel or two up or down
        size = 5 if word.distance else 3
        low, high = around.filter(ImageFilter.MinFilter(size)), around.filter(ImageFilter.MaxFilter(size))
    counts = []
    for i, j in np.ndindex(3, 3):
        here = (1 + i, 1 + j, 1 + i + right - left, 1 + j + bottom - top)
        near = (_pixels(low.crop(here)) - WORD_STEP <= stored) & (stored <= _pixels(high.crop(here)) + WORD_STEP)
        counts.append(int((free & ~near.all(axis=-1)).sum()))
    return min(counts)


def _outside(a: Image.Image, b: Image.Image, reach: np.ndarray, steps: np.ndarray) -> float:
    """Return the share of pixels of `a` that have a colour which `b` has nowhere within reach."""
    low = high = b
    pixels, near, left = _pixels(a), steps[..., None], np.ones(reach.shape, dtype=bool)
    outside = 0
    for distance in range(1, int(reach.max()) + 1):
        low, high = low.filter(ImageFilter.MinFilter(3)), high.filter(ImageFilter.MaxFilter(3))
        found = pixels[left]
        far = (found < _pixels(low)[left] - near[left]) | (found > _pixels(high)[left] + near[left])
        left[left] = far.any(axis=-1)
        outside += int((left & (reach == distance)).sum())
        left &= reach > distance
        if not left.any():
            break
    return outside / reach.size


def _on_white(image: Image.Image) -> Image.Image:
    image = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")


def _pixels(image: Image.Image) -> np.ndarray:
    return np.asarray(image, dtype=np.int16)


# Running and comparing ----------------------------------------------------------------------------------------------


def kernel_environment() -> dict[str, str]:
    """Return the environment for a kernel: this one, but with CI set, so that exercises save nothing for a learner."""
    environment = {name: value for name, value in os.environ.items() if name != "COURSE_DESK"}
    return environment | {"CI": "true"}


class Cell(IPyNbCell):
    """A code cell: run by nbval, compared after near numbers and pictures have been replaced by the stored ones."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        file: Any = self.parent
        self.notebook: NotebookNode = file.nb
        self.problems = cell_problems(self.cell)
        try:
            self.allowance = read_tags(self.cell.metadata.get("tags", []))
        except ValueError:  # already among the problems
            self.allowance = Allowance()
        self.options = {
            "check": not self.allowance.not_compared,
            "check_exception": self.allowance.raises,
            "skip": False,
        }
        self.account = self._account()
        self.user_properties.append(("nbval-cell", self.account))

    def _account(self) -> dict[str, Any]:
        """Return what the table at the end needs, as plain values: it may travel between processes."""
        outputs = coalesce_streams([NotebookNode(output) for output in self.cell.outputs])
        kinds: Counter[str] = Counter()
        pictures: list[bytes] = []
        for output in outputs:
            found = pictures_of(output)
            pictures += found
            if self.allowance.not_compared:
                kinds["not compared"] += 1
            elif self.allowance.numbers or (found and self.allowance.picture > 1):
                kinds["tolerance"] += 1
            else:
                kinds["to the digit"] += 1
        return {
            "cells": sum(cell.cell_type == "code" for cell in self.notebook.cells),
            "kinds": dict(kinds),
            "pictures": 0 if self.allowance.not_compared else len(pictures),
            "said": 0
            if self.allowance.not_compared
            else sum(content_of(open_picture(data)) is not None for data in pictures),
            "reason": self.allowance.not_compared if outputs else "",
            "allowed": ", ".join(tag for tag in self.cell.metadata.get("tags", []) if tag.partition(":")[0] in LIMITS),
            "used": 0.0,
            "drawn_with": "" if self.parent.fine else self.notebook.metadata["drawn_with"],  # type: ignore[union-attr]
        }

    def runtest(self) -> None:
        problems = list(self.problems)
        if problems:  # fails whatever it gives, but runs, for the cells after it need what it defines
            self.options["check"] = False
        self.parent.running = self  # type: ignore[union-attr]
        super().runtest()
        # Outputs that are not compared have to obey too; only tracebacks name folders, and those are of this machine.
        shown = [output for output in self.test_outputs if output.output_type != "error"]
        problems += output_problems(shown)
        if self.allowance.raises and len(shown) == len(self.test_outputs):
            problems.append("has the tag raises-exception, but nothing was raised")
        if problems:
            self.raise_cell_error("; ".join(dict.fromkeys(problems)))

    def reportinfo(self) -> tuple[Path, int, str]:
        return self.path, 0, f"{self.path.name}::{self.name}"

    def raise_cell_error(self, message: str, *args: Any, **kwargs: Any) -> None:
        super().raise_cell_error(f"{self.name}: {message}", *args, **kwargs)

    def compare_outputs(self, test: list[Any], ref: list[Any], skip_compare: Any = None) -> bool:
        """Compare new outputs with the stored ones, as nbval does, once the allowed differences are gone."""
        notes: list[str] = []
        if len(test) == len(ref):
            for new, stored in zip(test, ref, strict=True):
                if "text" in new and "text" in stored:
                    new["text"] = self._snap("stream", stored["text"], new["text"], notes)
                for kind in set(new.get("data", {})) & set(stored.get("data", {})):
                    new["data"][kind] = self._snap(kind, stored["data"][kind], new["data"][kind], notes)
        equal = super().compare_outputs(test, ref, skip_compare)
        order = [[one.get("name", one["output_type"]) for one in outputs] for outputs in (ref, test)]
        if equal and order[0] != order[1]:
            equal = False
            notes.append(f"the outputs come in another order: stored {', '.join(order[0])}; now {', '.join(order[1])}")
        self.comparison_traceback[:0] = notes  # before the texts, which may be long
        return equal

    def _snap(self, kind: str, stored: Any, new: Any, notes: list[str]) -> Any:
        if not isinstance(stored, str) or not isinstance(new, str):
            return new
        if kind in PICTURES:
            return stored if self._near(stored, new, notes) else new
        pictures = pictures_in(kind, stored), pictures_in(kind, new)
        if len(pictures[0]) == len(pictures[1]):
            for a, b in zip(*pictures, strict=True):
                if a != b and self._near(a, b, notes):
                    new = new.replace(b, a, 1)
        data = DATA_URI.findall(stored)
        if data != DATA_URI.findall(new):
            return new
        # Base64 is no place to look for numbers.
        a, b = DATA_URI.sub("", stored), DATA_URI.sub("", new)
        text, used, why = snap_numbers(a, b, self.allowance)
        self.account["used"] = max(self.account["used"], used)
        notes += [why] * bool(why)
        return stored if text == a else new

    def _near(self, stored: str, new: str, notes: list[str]) -> bool:
        if stored.strip() == new.strip():
            return True
        before, now = base64.b64decode(stored), base64.b64decode(new)
        used, problems = compare_pictures(before, now, self.allowance, self.parent.fine, self.parent.keeps_content)  # type: ignore[union-attr]
        self.account["used"] = max(self.account["used"], used)
        notes += [f"a picture differs: {what}" for what in problems]
        return not problems


def solved(exercise: str) -> NotebookNode:
    """Return the cell of an exercise with its solution, and with what its check says of it."""
    from coursework.exercises import registry
    from coursework.exercises.engine import cells
    from coursework.exercises.engine.diagnose import examiner
    from coursework.exercises.engine.messages import message
    from coursework.exercises.engine.question import judge
    from coursework.exercises.spec import Question

    entry = registry.get(exercise)
    if isinstance(entry, Question):
        text = judge(entry, entry.right)[2]
    else:
        text = message(entry, examiner(entry).examine(entry.reference), entry.reference, keep=False)
    output = new_output("stream", name="stdout", text=text + "\n")
    return new_code_cell(cells.solved_cell_source(entry).rstrip("\n"), execution_count=1, outputs=[output])


class Answered(Cell):
    """An exercise's cell once more, with the solution in its place, which stays there for the cells below."""

    cell: NotebookNode

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.user_properties.clear()  # the table counts what is stored

    def runtest(self) -> None:
        answer = solved(self.cell.metadata["exercise"])
        self.cell = NotebookNode(self.cell | {"source": answer.source, "outputs": answer.outputs})
        super().runtest()


def pictures_in(kind: str, text: str) -> list[str]:
    """Return the base64 of each picture in one part of an output."""
    if kind in PICTURES:
        return [text]
    if kind != "text/html":
        return []
    return [match[2] for match in DATA_URI.finditer(text) if match[1] in PICTURES]


def pictures_of(output: NotebookNode) -> list[bytes]:
    """Return the pictures of an output."""
    return [base64.b64decode(data) for kind, text in output_texts(output) for data in pictures_in(kind, text)]


class Whole(pytest.Item):
    """The stored notebook as a whole, before any of its cells runs."""

    problems: Sequence[Problem] = ()

    def runtest(self) -> None:
        if self.problems:
            pytest.fail("\n".join(f"{where} {what}" for where, what in self.problems), pytrace=False)


class File(IPyNbFile):
    """A notebook, whose items are its rules as a whole and its code cells by their ids."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Compared too; what nbval skips besides (metadata, tracebacks, random widget ids) stays skipped.
        self.skip_compare: tuple[str, ...] = tuple(kind for kind in self.skip_compare if kind not in PICTURES)
        if self.config.option.nbval_cell_timeout == NBVAL_DEFAULT_TIMEOUT:
            self.config.option.nbval_cell_timeout = CELL_TIMEOUT

    def collect(self) -> Iterator[pytest.Item]:
        items = list(super().collect())  # reads the notebook into self.nb
        self.fine = self.nb.metadata.get("drawn_with") in (None, drawing_library())
        # A notebook without any was built before pictures kept what they say.
        outputs = [output for item in items for output in item.cell.outputs]
        self.keeps_content = any(
            content_of(open_picture(data)) is not None for one in outputs for data in pictures_of(one)
        )
        whole = Whole.from_parent(self, name="notebook-as-a-whole")
        whole.problems = file_problems(self.nb, self.path.stat().st_size)
        yield whole
        for item in items:
            name = cell_name(item.cell, item.cell_num)
            yield Cell.from_parent(self, name=name, cell_num=item.cell_num, cell=item.cell, options={})
            if "exercise" in item.cell.metadata:
                name = f"{name}-answered"
                yield Answered.from_parent(self, name=name, cell_num=item.cell_num, cell=item.cell, options={})

    def get_kernel_message(self, *args: Any, **kwargs: Any) -> Any:
        """Return the kernel's next message; what clears an output or updates a display is carried out, as viewers do."""
        while True:
            message = super().get_kernel_message(*args, **kwargs)
            kind, content = message["msg_type"], message["content"]
            shown = self.running.test_outputs if self.running is not None else None
            if shown is None:  # the kernel is starting
                return message
            display = content.get("transient", {}).get("display_id")
            if kind == "clear_output":
                self.clear_at_next = content["wait"]
                if not content["wait"]:
                    self._clear(shown)
            elif kind == "update_display_data":
                for outputs, index in self.displays[display]:
                    outputs[index]["data"] = content["data"]
            else:
                if self.clear_at_next and kind in ("display_data", "execute_result", "stream", "error"):
                    self.clear_at_next = False
                    self._clear(shown)
                if display and kind in ("display_data", "execute_result"):
                    self.displays[display].append((shown, len(shown)))  # where nbval puts it next
                return message

    def _clear(self, shown: list[Any]) -> None:
        shown.clear()
        for display, places in self.displays.items():
            self.displays[display] = [place for place in places if place[0] is not shown]

    def setup(self) -> None:
        self.running: Cell | None = None
        self.clear_at_next = False
        self.displays: defaultdict[str, list[tuple[list[Any], int]]] = defaultdict(list)
        with pytest.MonkeyPatch.context() as patch:
            patch.delenv("COURSE_DESK", raising=False)
            patch.setenv("CI", "true")
            super().setup()


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> Any:
    """Take the notebooks that nbval found, from it."""
    found = yield
    return [File.from_parent(parent, path=item.path) if isinstance(item, IPyNbFile) else item for item in found]


# The table ----------------------------------------------------------------------------------------------------------


class Tally:
    """What was compared in one notebook."""

    def __init__(self) -> None:
        self.kinds: Counter[str] = Counter()
        self.reasons: Counter[str] = Counter()
        self.allowed: list[tuple[str, str, float]] = []
        self.cells = self.run = self.failed = self.pictures = self.said = 0
        self.seconds = 0.0
        self.drawn_with = ""  # another library than here

    def add(self, name: str, account: dict[str, Any], failed: bool) -> None:
        self.cells, self.run = account["cells"], self.run + 1
        self.failed += failed
        self.kinds.update(account["kinds"])
        self.pictures += account["pictures"]
        self.said += account["said"]
        self.drawn_with = account["drawn_with"]
        self.reasons[account["reason"]] += bool(account["reason"])
        if account["allowed"]:
            self.allowed.append((name, account["allowed"], account["used"]))


def tallies(reports: Iterable[Any]) -> dict[str, Tally]:
    """Return what was compared, by notebook, from pytest's reports (of this process or of xdist's workers)."""
    found: dict[str, Tally] = defaultdict(Tally)
    seconds: defaultdict[str, float] = defaultdict(float)
    for report in reports:
        name = report.nodeid.split("::")[0]
        seconds[name] += getattr(report, "duration", 0.0)
        account = dict(getattr(report, "user_properties", ())).get("nbval-cell")
        if account and report.when == "call":
            found[name].add(report.nodeid.split("::")[-1], account, report.failed)
    for name, tally in found.items():
        tally.seconds = seconds[name]
    return dict(sorted(found.items()))


def _all_reports(reporter: Any) -> list[Any]:
    return [report for reports in reporter.stats.values() for report in reports if hasattr(report, "nodeid")]


def whole_course(found: dict[str, Tally], root: Path) -> bool:
    """Whether these are all notebooks beside this file, and all cells of each ran."""
    here = Path(__file__).resolve().parent
    beside = {path for path in here.rglob("*.ipynb") if "/." not in path.relative_to(here.parent).as_posix()}
    ran = {(root / name).resolve() for name, tally in found.items() if tally.run == tally.cells}
    return beside <= ran


def shares(found: dict[str, Tally]) -> dict[str, float]:
    """Return the shares of the outputs that were compared to the digit, within a tolerance, and not."""
    kinds = sum((tally.kinds for tally in found.values()), Counter())
    return {kind: kinds[kind] / max(kinds.total(), 1) for kind in KINDS}


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail a run of all notebooks in which too little was compared."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None:  # a worker of xdist
        return
    found = tallies(_all_reports(reporter))
    too_few = bool(found) and shares(found)["not compared"] > 1 - MIN_COMPARED
    if too_few and whole_course(found, session.config.rootpath) and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print what was compared."""
    found = tallies(_all_reports(terminalreporter))
    if not found:
        return
    width = max(len(name) for name in found) + 2
    columns = ("cells", "failed", "outputs", *KINDS, "seconds")
    terminalreporter.section("notebook outputs compared with the stored ones")
    terminalreporter.write_line("".ljust(width) + "".join(column.rjust(len(column) + 2) for column in columns))
    for name, tally in found.items():
        counts = [tally.run, tally.failed, tally.kinds.total(), *(tally.kinds[kind] for kind in KINDS)]
        values = [*map(str, counts), f"{tally.seconds:.1f}"]
        row = "".join(value.rjust(len(column) + 2) for column, value in zip(columns, values, strict=True))
        terminalreporter.write_line(name.ljust(width) + row)
        for reason, count in tally.reasons.items():
            if count:
                terminalreporter.write_line(f"  not compared, {reason}: {count} cell{'s' * (count > 1)}")
        if tally.drawn_with:
            terminalreporter.write_line(
                f"  drawn with {tally.drawn_with}, here is {drawing_library()}: pictures were compared coarsely"
            )
    terminalreporter.section("how much of its tolerance each cell used")
    for name, tally in found.items():
        for cell, allowed, used in tally.allowed:
            terminalreporter.write_line(f"{f'{name}::{cell}':<70} {allowed:<28} {used:>7.0%}")
    pictures, said = (sum(getattr(tally, name) for tally in found.values()) for name in ("pictures", "said"))
    share = shares(found)
    parts = [f"{share['to the digit']:.1%} of the outputs compared to the digit, {share['tolerance']:.1%} within the"]
    parts.append(f"tolerance of their cell, {share['not compared']:.1%} not;")
    parts.append(f"{pictures} pictures among them, {said} by what they say")
    terminalreporter.write_line(" ".join(parts))
    if share["not compared"] > 1 - MIN_COMPARED:
        whole = whole_course(found, terminalreporter.config.rootpath)
        asked = f"at least {MIN_COMPARED:.0%} of all notebooks' outputs must be compared"
        terminalreporter.write_line(
            f"FAILED: {asked}" if whole else f"{asked}; these are a part, so this fails nothing"
        )
