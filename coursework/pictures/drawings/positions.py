"""The drawings of chapter 3: order lost, positions added, clocks, turned pairs, slopes, buckets."""

import math
from collections.abc import Sequence

import numpy as np

from coursework.pictures.arrays import point
from coursework.pictures.drawing import INK, Drawing, Point, tip
from coursework.pictures.figures import softmax
from coursework.pictures.style import palette


def order_lost(words: Sequence[str], vectors: Sequence[Point]) -> Drawing:
    """Three words in two orders, and what attention makes of each: lines join what is equal.

    Args:
        words: the first sentence; the second is the same from its end.
        vectors: two numbers for each word, which serve as its query, key and value.
    """
    x = np.array(vectors)
    found = np.array([softmax(row) @ x for row in x @ x.T / math.sqrt(2)])  # (T, 2)
    results = [point(row) for row in found]
    picture = Drawing(
        330,
        alt=f"Above {' '.join(words)}, below {' '.join(reversed(words))}. Attention without positions makes "
        + "; ".join(f"{result} of {word}" for word, result in zip(words, results, strict=True))
        + ", in both sentences. Lines join the equal results: they cross, because only the positions have changed.",
        caption="Each word gets the same vector in both sentences. Only its position has changed.",
    )
    colours = (palette.query, INK, palette.key)
    places = (140.0, 330.0, 520.0)
    picture.text((16, 36), "words", anchor="start", size=15)
    picture.text((16, 96), "after", anchor="start", size=15)
    picture.text((16, 234), "after", anchor="start", size=15)
    picture.text((16, 294), "words", anchor="start", size=15)
    for number, (word, result, colour) in enumerate(zip(words, results, colours, strict=True)):
        above, below = places[number], places[len(words) - 1 - number]
        for at, y, sign in ((above, 36, 1), (below, 294, -1)):
            picture.text((at, y), word, size=19, bold=True, colour=colour)
            picture.line([(at, y + 16 * sign), (at, y + 38 * sign)])
            picture.box((at, y + 60 * sign), (140, 36), result, colour=colour)
        picture.line([(above, 116), (below, 214)], colour=colour, width=3, arrow=False)
    return picture


def added_places(words: Sequence[str], vectors: Sequence[Point], places: Sequence[Point]) -> Drawing:
    """The vector of each word plus that of its position: what goes into the model.

    Args:
        words: of the sentence; a word that occurs twice shows what this is for.
        vectors, positions: two numbers for each word, and for each position.
    """
    step = 520 / len(words)
    sums = [(a + c, b + d) for (a, b), (c, d) in zip(vectors, places, strict=True)]
    picture = Drawing(
        250,
        alt=f"Adding a position, for the words {' '.join(words)}. "
        + " ".join(
            f"{word} {point(vector)} plus position {number} {point(place)} gives {point(total)}."
            for number, (word, vector, place, total) in enumerate(zip(words, vectors, places, sums, strict=True))
        ),
        caption="The same word at two positions goes in as two different vectors.",
    )
    for number, (word, vector, place, total) in enumerate(zip(words, vectors, places, sums, strict=True)):
        x, size = 80 + step * (number + 0.5), (step - 16, 34.0)
        picture.text((x, 22), word, size=19, bold=True)
        picture.box((x, 60), size, point(vector), colour=palette.residual)
        picture.text((x, 89), "+", size=19)
        picture.box((x, 120), size, point(place), colour=palette.value)
        picture.text((x, 148), f"position {number}", size=15, colour=palette.value)
        picture.line([(x, 164), (x, 190)])
        picture.box((x, 210), size, point(total), filled=True, colour=INK)
    for y, label in ((60, "word"), (120, "position"), (210, "goes in")):
        picture.text((12, y), label, anchor="start", size=15)
    return picture


def clock_hand(degrees: float) -> Drawing:
    """One clock: the two coordinates of the tip of its hand are the cosine and the sine of its turn."""
    angle = math.radians(degrees)
    across, up = math.sin(angle), math.cos(angle)
    picture = Drawing(
        260,
        alt=f"A clock whose hand has turned by {degrees:g} degrees from twelve. Its tip stands {up:.2f} above "
        f"the middle, the cosine, and {across:.2f} to the right of it, the sine.",
        caption="Two numbers say where a hand points: how high its tip is, and how far to the right.",
    )
    middle, radius = (180.0, 130.0), 105.0
    end = tip(middle, radius, degrees)
    _face(picture, middle, radius)
    picture.line([(middle[0], end[1]), end], colour=palette.query, width=3, arrow=False)
    picture.line([(end[0], middle[1]), end], colour=palette.key, width=3, arrow=False)
    picture.line([middle, end], width=4, arrow=False)
    picture.arc(middle, 34, (0, degrees))
    picture.circle(end, 6, filled=True)
    picture.text((330, 84), f"turned by {degrees:g}°", anchor="start")
    picture.text((330, 124), f"above: cosine, {up:.2f}", anchor="start", colour=palette.key, bold=True)
    picture.text((330, 164), f"to the right: sine, {across:.2f}", anchor="start", colour=palette.query, bold=True)
    return picture


def clock_rows(width: int = 64, positions: Sequence[int] = (0, 1, 10, 100), base: float = 10_000.0) -> Drawing:
    """Every second clock of a table, in a row for each position: the left ones spin, the right ones hardly move.

    Args:
        width: numbers in a code; it has half as many clocks.
        positions: one row each.
        base: of the frequencies.
    """
    half = width // 2
    shown = [*range(0, half - 1, 2), half - 1]
    picture = Drawing(
        52 + 62 * len(positions),
        alt=f"{len(shown)} of the {half} clocks of a code, in one row for each of the positions "
        f"{', '.join(map(str, positions))}. At position 0 all hands point to twelve. At 1 only the leftmost have "
        "moved. At 100 the left half points everywhere, and the last ones still stand nearly at twelve.",
        caption=f"Every other clock of the {half}, plus the last; the fastest at the left. The fast ones tell "
        "neighbours apart; the slow ones tell near positions from far ones. No two rows are the same.",
    )
    step = 490 / len(shown)
    picture.text((102, 18), "fast", anchor="start", size=15)
    picture.text((592, 18), "slow", anchor="end", size=15)
    for row, position in enumerate(positions):
        y = 56 + 62 * row
        picture.text((10, y - 8), "position", anchor="start", size=15)
        picture.text((10, y + 12), str(position), anchor="start", size=18, bold=True)
        for column, i in enumerate(shown):
            at = (102 + step * (column + 0.5), float(y))
            angle = math.degrees(position * base ** (-2 * i / width)) % 360
            picture.circle(at, 0.45 * step, colour=palette.residual, width=1)
            picture.line([at, tip(at, 0.45 * step, angle)], width=2.5, arrow=False, colour=palette.query)
    return picture


def step_of_a_clock(degrees: float = 30, positions: Sequence[int] = (1, 6), step: int = 3) -> Drawing:
    """A step forward turns the hand by the same angle, wherever it starts."""
    picture = Drawing(
        235,
        alt=f"Two clocks that turn by {degrees:g} degrees for each position. On the left the hand goes from position "
        f"{positions[0]} to {positions[0] + step}, on the right from {positions[1]} to {positions[1] + step}. Both "
        f"times it turns by {step * degrees:g} degrees.",
        caption=f"Moving {step} positions forward turns the hand by {step * degrees:g}°, wherever it starts.",
    )
    for x, position in zip((150.0, 450.0), positions, strict=True):
        _face(picture, (x, 105.0), 85)
        first, last = position * degrees, (position + step) * degrees
        picture.arc((x, 105), 46, (first, last), colour=palette.output, width=4)
        for place, colour in ((position, palette.query), (position + step, palette.key)):
            picture.line([(x, 105), tip((x, 105), 85, place * degrees)], colour=colour, width=4, arrow=False)
        picture.text((x - 12, 215), f"from {position}", colour=palette.query, bold=True, anchor="end")
        picture.text((x + 12, 215), f"to {position + step}", colour=palette.key, bold=True, anchor="start")
        middle = tip((x, 105), 62, (first + last) / 2)
        picture.text(middle, f"{step * degrees:g}°", size=15, colour=INK)
    return picture


def learned_table(rows: int = 8, length: int = 5) -> Drawing:
    """A table with one trained row for each position: some are used, and after the last there is nothing.

    Args:
        rows: in the table.
        length: of the text that is read.
    """
    picture = Drawing(
        60 + 34 * (rows + 1),
        alt=f"A table with {rows} rows, one vector for each position, from 0 to {rows - 1}. A text of {length} words "
        f"takes the rows 0 to {length - 1}. Under the last row stands a dashed empty row, number {rows}: it "
        "does not exist.",
        caption=f"Position p takes row p; each bar is one number. A training text of {length} words teaches only the "
        "green rows, and after the last row there is nothing.",
    )
    draw = np.random.default_rng(0).uniform(-1, 1, (rows, 6))
    picture.text((300, 22), "one row for each position", bold=True)
    for row in range(rows + 1):
        y = 60 + 34 * row
        picture.text((160, y), f"position {row}", anchor="end", size=16)
        if row == rows:
            picture.frame((190, y - 13), (216, 26), dashed=True)
            picture.text((298, y), "no such row", size=15)
            continue
        for column, value in enumerate(draw[row]):
            colour = palette.value if row < length else palette.residual
            picture.frame((190 + 36 * column, y - 13), (32, 26), colour=colour)
            picture.bar((193 + 36 * column, y), (3 + 11.5 * (1 + value), 18), colour=colour)
        if row < length:
            picture.line([(420, y), (470, y)], colour=palette.value)
            picture.text((480, y), "added to word", anchor="start", size=15)
    return picture


def four_products() -> Drawing:
    """What a score is made of when positions are added: four products, of which three know a position."""
    picture = Drawing(
        236,
        alt="A score when positions were added to the words. The query holds a word and a position, the key holds "
        "a word and a position. Their product has four parts. When the sentence moves, word with word stays, word with "
        "position and position with word change, and position with position usually changes.",
        caption="Move the sentence: one part stays, two change, and the fourth usually changes.",
    )
    picture.text((405, 22), "the key holds", colour=palette.key, bold=True)
    picture.text((16, 62), "the query holds", colour=palette.query, bold=True, anchor="start")
    for column, what in enumerate(("word", "position")):
        picture.text((310 + 190 * column, 62), f"a {what}", colour=palette.key)
    for row, what in enumerate(("word", "position")):
        y = 116 + 78 * row
        picture.text((120, y), f"a {what}", colour=palette.query)
        for column, other in enumerate(("word", "position")):
            stays = row + column == 0
            fate = ("stays", "changes", "usually changes")[row + column]
            words = [f"{what} × {other}", fate]
            picture.box((310 + 190 * column, y), (170, 60), words, colour=INK if stays else palette.output)
    return picture


def rotary_hands(degrees: float = 30, query: int = 5, key: int = 3, moved: int = 3) -> Drawing:
    """A query and a key as hands, each turned by its position, and the same two a few positions later."""
    apart = (query - key) * degrees
    picture = Drawing(
        290,
        alt=f"Two clocks. Left: the hand of the query at position {query} is turned by {query * degrees:g} degrees, "
        f"that of the key at position {key} by {key * degrees:g}; the angle between them is {apart:g} degrees. Right: "
        f"{moved} positions later they are turned by {(query + moved) * degrees:g} and {(key + moved) * degrees:g} "
        f"degrees, and the angle between them is again {apart:g} degrees.",
        caption=f"Both hands have turned further, but the angle between them is still {apart:g}°.",
    )
    for x, offset in ((150.0, 0), (450.0, moved)):
        middle = (x, 120.0)
        _face(picture, middle, 95)
        first, last = (key + offset) * degrees, (query + offset) * degrees
        picture.arc(middle, 40, (first, last), colour=palette.output, width=5)
        picture.line([middle, tip(middle, 95, last)], colour=palette.query, width=5, arrow=False)
        picture.line([middle, tip(middle, 95, first)], colour=palette.key, width=5, arrow=False)
        picture.text(tip(middle, 62, (first + last) / 2), f"{apart:g}°", bold=True)
        picture.text((x, 242), f"query at {query + offset}: {last:g}°", colour=palette.query, bold=True)
        picture.text((x, 268), f"key at {key + offset}: {first:g}°", colour=palette.key, bold=True)
    return picture


def rotary_layouts(width: int = 8) -> Drawing:
    """Which numbers of a head form a pair: those half a head apart, or neighbours."""
    half = width // 2
    picture = Drawing(
        290,
        alt=f"The {width} numbers of one head, twice. Above, arcs join number i with number i plus {half}: the layout "
        "of halves. Below, arcs join neighbours, 0 with 1, 2 with 3: the interleaved layout.",
        caption="The same numbers, paired in two ways. Each is right for weights that were trained with it.",
    )
    colours = (palette.query, palette.key, palette.value, palette.output)
    step = 560 / width
    for top, title, pairs in (
        (0, "halves: i with i + d/2", [(i, i + half) for i in range(half)]),
        (150, "interleaved: 2i with 2i + 1", [(2 * i, 2 * i + 1) for i in range(half)]),
    ):
        picture.text((20, top + 20), title, anchor="start", bold=True)
        for number, (a, b) in enumerate(pairs):
            colour = colours[number % 4]
            ends = [20 + step * (i + 0.5) for i in (a, b)]
            lift = 26 + 5 * number if b - a > 1 else 14
            picture.curve((ends[0], top + 98), (ends[1], top + 98), lift=lift, colour=colour, width=2.5)
            for i, x in zip((a, b), ends, strict=True):
                picture.box((x, top + 118), (step - 10, 36), str(i), colour=colour)
    return picture


def alibi_slopes(
    slopes: Sequence[float] = (0.5, 0.25), words: Sequence[str] = ("the", "queen", "near", "the", "king", "paints")
) -> Drawing:
    """How much each slope takes from the scores of the words before: the farther, the more."""
    last = len(words) - 1
    tall = 96
    picture = Drawing(
        24 + (tall + 26) * len(slopes),
        alt=f"The words {' '.join(words)}; the last one reads. "
        + " ".join(
            f"Slope {slope:g} takes from their scores, in this order: "
            + ", ".join(f"{slope * (last - place):g}" for place in range(last + 1))
            + "."
            for slope in slopes
        ),
        caption="Each head lowers the scores by slope × distance. With the steep slope, "
        "far words soon fade; with the gentle one, less so.",
    )
    step = 500 / len(words)
    for row, slope in enumerate(slopes):
        top = 8 + (tall + 26) * row
        picture.text((8, top + 22), "slope", anchor="start", size=15)
        picture.text((8, top + 44), f"{slope:g}", anchor="start", bold=True)
        picture.line([(90, top + 8), (592, top + 8)], colour=palette.residual, width=1, arrow=False)
        for place in range(len(words)):
            x, down = 90 + step * (place + 0.5), (tall - 12) * slope * (last - place) / (max(slopes) * last)
            if down:
                picture.line([(x, top + 8), (x, top + 8 + down)], colour=palette.key, width=26, arrow=False)
            label = f"−{slope * (last - place):g}" if down else "0"
            picture.text((x, top + 20 + down), label, size=15)
    for place, word in enumerate(words):
        picture.text((90 + step * (place + 0.5), picture.height - 16), word, bold=place == last)
    return picture


def relative_buckets(starts: Sequence[int], longest: int) -> Drawing:
    """Distances sorted into buckets: one each for the near ones, shared ones for the far.

    Args:
        starts: the first distance of each bucket.
        longest: where the drawn line of distances ends; all beyond it shares the last bucket.
    """
    ends = [*starts[1:], longest + 1]
    rows = list(zip(starts, ends, strict=True))
    near = sum(last == first + 1 for first, last in rows)
    names = [str(first) if number < near else f"{first}–{last - 1}" for number, (first, last) in enumerate(rows)]
    names[-1] = f"{starts[-1]} …"
    picture = Drawing(
        300,
        alt="Distances sorted into buckets. "
        + " ".join(f"Bucket {number}: {name}." for number, name in enumerate(names[:-1]))
        + f" Bucket {len(starts) - 1}: distance {starts[-1]} and all beyond.",
        caption="Near distances have a bucket each. Far ones share buckets, and the last takes all the "
        "rest. The bar at the bottom shows which part of the line of distances each bucket covers.",
    )
    step = 592 / max(near, len(rows) - near)
    for number, name in enumerate(names):
        row, column = divmod(number, near)
        at = (4 + step * (column + 0.5), 62 + 96 * row)
        picture.box(at, (step - 6, 36), name, colour=palette.key if row else palette.query)
        picture.text((at[0], at[1] - 30), f"{number}", size=15, colour=palette.key if row else palette.query)
    picture.text((4, 12), "bucket, and the distances in it", anchor="start", size=15)
    room = 592 / (longest + 1)
    for number, (first, last) in enumerate(rows):
        left, colour = 4 + room * first, palette.key if number >= near else palette.query
        picture.line([(left, 240), (room * last, 240)], colour=colour, width=26, arrow=False)  # a gap after each
        picture.text(((left + room * last) / 2, 240), str(number), size=15, colour="#FFFFFF")
    picture.text((4, 276), "distance 0", anchor="start", size=15)
    picture.text((596, 276), f"{longest}", anchor="end", size=15)
    return picture


def hidden_far_keys(trained: int = 4, length: int = 9) -> Drawing:
    """The control: a causal mask as it is, and with the keys hidden that are farther back than any in training."""
    cell, top = 27, 62
    picture = Drawing(
        top + cell * length + 14,
        alt=f"Two masks of {length} words. Left: each position may look at itself and at all before it. Right: each "
        f"position may look at itself and at the {trained - 1} positions before it; what is farther back is hidden.",
        caption="Left: the usual mask; the last rows look back farther than the longest training text. Right: the "
        "control, which hides these keys.",
    )
    for left, title, reach in ((40, "as usual", length), (345, "far keys hidden", trained)):
        picture.text((left + cell * length / 2, 22), title, bold=True)
        picture.text((left + cell * length / 2, 46), "keys", size=15, colour=palette.key)
        picture.upright((left - 14, top + cell * length / 2 + 26), "queries", colour=palette.query)
        for row in range(length):
            for column in range(length):
                at = (left + cell * (column + 0.5), top + cell * (row + 0.5))
                picture.cell(at, cell - 4, allowed=0 <= row - column < reach)
    return picture


def _face(picture: Drawing, at: Point, radius: float) -> None:
    """The face of a clock with a mark at each hour."""
    picture.circle(at, radius, colour=palette.residual, width=2)
    for hour in range(12):
        inner = 0.86 if hour % 3 == 0 else 0.93
        ends = [tip(at, share * radius, 30 * hour) for share in (inner, 1.0)]
        picture.line(ends, colour=palette.residual, width=2, arrow=False)
