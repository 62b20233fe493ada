"""The drawings of the lab on long context: clocks and what they have seen, squeezed positions, caches that forget."""

import math
from collections.abc import Sequence

from coursework.pictures.drawing import INK, Drawing, Point
from coursework.pictures.style import palette

SEEN, NEW = palette.query, palette.key


def notes_and_question(text: str) -> Drawing:
    """A piece of text with digits and one question mark at its end: the answer is the latest digit.

    Args:
        text: at most 24 symbols, with at least two digits, the last symbol a question mark.
    """
    digits = [place for place, symbol in enumerate(text) if symbol.isdigit()]
    latest, older, last = digits[-1], digits[-2], len(text) - 1
    picture = Drawing(
        172,
        alt=f"The symbols {' '.join(text.replace(' ', '_'))}. An arrow runs from the latest digit, {text[latest]}, to "
        f"the question mark at the end. A dashed frame marks the older digit, {text[older]}, which is not the answer.",
        caption=f"The answer to “?” is the latest note before it, here {text[latest]}. The model has to go back to it, "
        f"however far that is, and must not take an older one, here {text[older]}.",
    )
    side = (Drawing.WIDTH - 24) / len(text)
    places = [12 + side * (number + 0.5) for number in range(len(text))]
    picture.frame((places[older] - side / 2, 88), (side, 40), colour=palette.residual, dashed=True)
    for place, (x, symbol) in enumerate(zip(places, text, strict=True)):
        colour = {latest: palette.value, last: palette.query, older: palette.residual}.get(place, INK)
        picture.text((x, 108), symbol, size=19, colour=colour, bold=place in (latest, older, last))
    picture.curve((places[latest], 90), (places[last], 90), lift=60, colour=palette.value, width=3)
    picture.text((places[older], 150), "older note", size=15, colour=palette.residual)
    picture.text((places[latest], 150), "latest note", size=15, colour=palette.value)
    picture.text((places[last], 150), "asks", size=15, colour=palette.query, anchor="end")
    return picture


def _arc(middle: Point, radius: float, start: float, end: float) -> list[Point]:
    """Points of an arc between two angles in radians, counted clockwise from twelve."""
    steps = max(2, math.ceil(abs(end - start) / 0.1))
    angles = [start + (end - start) * step / steps for step in range(steps + 1)]
    return [(round(middle[0] + radius * math.sin(a), 2), round(middle[1] - radius * math.cos(a), 2)) for a in angles]


def clock_arcs(speeds: Sequence[float], trained: int, longer: int) -> Drawing:
    """One clock for each pair of a head: the angles that it met in training, and those that a longer text adds.

    Args:
        speeds: radians for each position, at most eight numbers.
        trained, longer: how many positions the texts in training had, and those that are read now.
    """
    rows = [speeds[:4], speeds[4:]]
    turns = [(trained - 1) * speed / (2 * math.pi) for speed in speeds]
    short = [number for number, turn in enumerate(turns) if turn < 1]
    picture = Drawing(
        372,
        alt=f"{len(speeds)} clocks, one for each pair of dimensions. Turns within {trained} positions: "
        + ", ".join(f"pair {number} {turn:.2g}" for number, turn in enumerate(turns))
        + f". Pairs {short[0]} to {short[-1]} show only a part of the circle as seen; beyond it a part is new.",
        caption=f"Blue: angles that the pair met within {trained} positions. Orange: angles that first appear between "
        f"{trained} and {longer} positions. A clock that has gone round once knows them all.",
    )
    for row, some in enumerate(rows):
        for column, speed in enumerate(some):
            number = 4 * row + column
            middle = (84 + 144 * column, 74 + 180 * row)
            seen, reached = (trained - 1) * speed, (longer - 1) * speed
            picture.line(_arc(middle, 46, 0, 2 * math.pi), colour="#BBBBBB", width=1.5, arrow=False)
            picture.line(_arc(middle, 46, 0, min(seen, 2 * math.pi)), colour=SEEN, width=8, arrow=False)
            if seen < 2 * math.pi:
                end = min(reached, 2 * math.pi)
                picture.line(_arc(middle, 46, seen, end), colour=NEW, width=8, arrow=False)
            picture.line([middle, _arc(middle, 34, seen, seen)[0]], width=2.5)
            picture.text((middle[0], middle[1] + 68), f"pair {number}", size=15, bold=True)
            picture.text((middle[0], middle[1] + 88), f"{seen / (2 * math.pi):.2g} turns", size=15)
    return picture


def squeezed_places(trained: int, factor: int) -> Drawing:
    """A ruler of trained positions, a longer text that runs past its end, and the same text squeezed onto it."""
    longer = trained * factor
    left, unit = 20.0, 140.0  # of the trained length
    end = left + unit
    picture = Drawing(
        262,
        alt=f"Three rulers. The first has the positions 0 to {trained}, those of training. The second runs to "
        f"{longer}; all that lies beyond {trained} is marked as new. The third is the second one squeezed: the same "
        f"marks from 0 to {longer} stand within the first ruler's length, {factor} times as close.",
        caption=f"Squeezed {factor} times, a text of {longer} positions fits between 0 and {trained}. The hands turn "
        f"about as far as in training, but neighbours now stand only 1/{factor} of a position apart.",
    )
    step = 14.0
    for y, words in ((46, "in training"), (124, "a longer text, as it is"), (212, "the same text, squeezed")):
        picture.text((left, y - 28), words, size=16, anchor="start", bold=True)
    picture.bar((left, 46), (unit, 16), colour=SEEN)
    picture.bar((left, 124), (unit, 16), colour=SEEN)
    picture.bar((end, 124), (unit * (factor - 1), 16), colour=NEW)
    picture.bar((left, 212), (unit, 16), colour=SEEN)
    count = int(unit / step)
    for y, gap, marks in ((46, step, count), (124, step, count * factor), (212, step / factor, count * factor)):
        for mark in range(marks + 1):
            picture.line([(left + gap * mark, y - 8), (left + gap * mark, y + 8)], width=1, arrow=False)
    for x, y, words in (
        (left, 46, "0"), (end, 46, str(trained)), (left, 124, "0"), (end, 124, str(trained)),
        (left + unit * factor, 124, str(longer)), (left, 212, "0"), (end, 212, str(longer)),
    ):  # fmt: skip
        anchor = "start" if x == left else "end" if x > end else "middle"
        picture.text((x, y + 24), words, size=15, anchor=anchor)
    turn = (left + end + unit * (factor - 1)) / 2
    picture.line([(turn, 138), (turn, 212), (end + 30, 212)], colour=palette.residual)
    return picture


def streaming_cache(window: int = 6, first: int = 2, length: int = 13) -> Drawing:
    """What is kept of a stream: everything, the latest positions, or the first few and the latest."""
    rows = (
        ("keep all", set(range(length))),
        ("keep a window", set(range(length - window, length))),
        ("window, and the first", set(range(first)) | set(range(length - window, length))),
    )
    said = "; ".join(f"{words}: {', '.join(map(str, sorted(kept)))}" for words, kept in rows)
    picture = Drawing(
        262,
        alt=f"Which of {length} positions a cache still holds, in three ways. {said}. Positions that are gone are "
        "hatched.",
        caption="Three caches after the same stream. The second one forgets the first token, the third keeps it. Both "
        "stay of the same size for ever.",
    )
    side = (Drawing.WIDTH - 30) / length
    for row, (words, kept) in enumerate(rows):
        y = 60 + 84 * row
        picture.text((15, y - 36), words, size=16, anchor="start", bold=True)
        for place in range(length):
            x = 15 + side * (place + 0.5)
            picture.cell((x, y), side - 5, allowed=place in kept)
            if place in kept:
                picture.text((x, y), str(place), size=15, colour="#FFFFFF")
    return picture


def window_reach(layers: int, window: int, length: int = 13) -> Drawing:
    """How far the last position can look back through some layers that each see a few latest positions."""
    reach = min(layers * (window - 1), length - 1)
    gap, top = (Drawing.WIDTH - 110) / (length - 1), 34
    height = 66.0
    picture = Drawing(
        top + height * layers + 60,
        alt=f"{layers} layers above a row of {length} tokens. Each position reads the {window} latest positions of the "
        f"row below. From the last position at the top the lines fan out: one layer down {window - 1} positions back, "
        f"at the bottom {reach} positions back. Tokens further left are not reached.",
        caption=f"Each layer looks {window - 1} positions further back than the one above it. Through {layers} layers "
        f"the last position reaches {layers} × {window - 1} = {reach} positions back, and not one more.",
    )
    places = [85 + gap * number for number in range(length)]

    def y_of(row: int) -> float:
        return top + height * (layers - row)

    for layer in range(layers, 0, -1):
        lowest = length - 1 - (layers - layer) * (window - 1)
        for place in range(max(0, lowest), length):
            for back in range(window):
                if place - back >= 0:
                    picture.line(
                        [(places[place - back], y_of(layer - 1) - 7), (places[place], y_of(layer) + 7)],
                        colour=palette.value, width=1.6, arrow=False,
                    )  # fmt: skip
    for row in range(layers + 1):
        picture.text((8, y_of(row)), f"layer {row}" if row else "tokens", size=15, anchor="start")
        lowest = length - 1 - (layers - row) * (window - 1)
        for number, x in enumerate(places):
            picture.cell((x, y_of(row)), 18, allowed=number >= lowest)
    picture.text((places[-1], top + height * layers + 34), "last", size=15, bold=True)
    return picture


def local_and_global(local: int = 5) -> Drawing:
    """A stack in which each layer that sees everything stands above some that see a window, with what each caches."""
    rows = local + 1
    picture = Drawing(
        72 + 50 * rows,
        alt=f"A stack of {rows} layers. The lower {local} have a window and a short bar: their cache stops growing. "
        "The top layer is global and has a long bar with an arrow: its cache grows with the text.",
        caption=f"{local} local layers to each global one. Only the global layer's cache grows with the text; only it "
        "can look back further than the windows together.",
    )
    picture.text((110, 24), "layer", size=16, bold=True)
    picture.text((230, 24), "keys and values that it keeps", size=16, bold=True, anchor="start")
    bottom = 60 + 50 * (rows - 1)
    picture.stream((110, bottom + 8), (110, 48))
    for row in range(rows):
        y = bottom - 50 * row
        everything = row == rows - 1
        colour = palette.key if everything else palette.query
        picture.box((110, y), (150, 34), "global" if everything else "local", colour=colour)
        picture.bar((230, y), (310 if everything else 60, 26), colour=colour)
        if everything:
            picture.line([(540, y), (585, y)], colour=colour, width=3)
            picture.text((385, y), "all positions", size=15)
        else:
            picture.text((300, y), "the latest positions", size=15, anchor="start")
    return picture
