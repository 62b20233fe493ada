"""The drawings of chapter 4: what a layer is made of, how layers are stacked, and what the stack is trained on."""

from collections.abc import Sequence

from coursework.pictures.drawing import INK, Drawing, tip
from coursework.pictures.style import palette

MARKED = "#C22F2F"  # what goes wrong, and what is marked in a sentence
FAINT_TEXT = "#555555"


def exactly_one_on() -> Drawing:
    """The four states of two switches in a plane: no straight line parts the wanted ones from the others."""
    picture = Drawing(
        300,
        alt="Four points at the corners of a square. First number to the right, second upwards. The points (1, 0) and "
        "(0, 1) are filled, wanted answer 1. The points (0, 0) and (1, 1) are open, wanted answer 0. The filled points "
        "lie on one diagonal, the open ones on the other. Two grey lines are tried: each cuts off one filled point, "
        "and the other filled point stays with the open ones.",
        caption="Filled: exactly one of the two numbers is 1. Neither grey line separates the filled points "
        "from the open ones: it cuts off one filled point and leaves the other behind. No straight line does better.",
    )
    left, bottom, side = 220, 238, 170
    picture.line([(left - 40, bottom), (left + side + 60, bottom)], colour=palette.residual)
    picture.line([(left, bottom + 36), (left, bottom - side - 40)], colour=palette.residual)
    picture.text((left + side + 70, bottom), "first number", anchor="start", size=15, colour=FAINT_TEXT)
    picture.text((left - 10, bottom - side - 44), "second number", anchor="end", size=15, colour=FAINT_TEXT)
    for points in (
        [(left + 60, bottom + 40), (left + side + 50, bottom - side * 0.62)],
        [(left - 50, bottom - side * 0.38), (left + side * 0.62, bottom - side - 40)],
    ):
        picture.line(points, colour="#BBBBBB", arrow=False)
    for a, b in ((0, 0), (1, 0), (0, 1), (1, 1)):
        x, y = left + side * a, bottom - side * b
        picture.circle((x, y), 14, colour=palette.query, width=3, filled=a != b)
        said = f"({a}, {b}): {int(a != b)}"
        if (a, b) == (0, 1):  # to its left: a line passes on the right
            picture.text((x - 24, y), said, anchor="end")
        else:
            picture.text((x + 24, y - 22), said, anchor="start")
    return picture


def two_hidden_units(first: int = 1, second: int = 0) -> Drawing:
    """A feed-forward of two numbers, two inner numbers, one result, with the numbers of one token on the lines."""
    one, two = max(0, first - second), max(0, second - first)
    picture = Drawing(
        250,
        alt=f"A small network from left to right. The token's numbers are {first} and {second}. The upper inner number "
        f"is max(0, first minus second), {one}. The lower one is max(0, second minus first), {two}. Their sum, "
        f"{one + two}, is the result. The weights on the lines are plus 1 and minus 1.",
        caption=f"The feed-forward that finds “exactly one”, at work on ({first}, {second}).",
    )
    picture.text((70, 24), "token", bold=True)
    picture.text((310, 24), "inner numbers", bold=True)
    picture.text((525, 24), "result", bold=True)
    rows = (84, 196)
    for y in rows:
        for other in rows:
            same = y == other
            picture.line([(98, y), (201, other)], colour=palette.query if same else palette.key, width=2)
            outwards = -1 if y == rows[0] else 1
            at = (150, y + 15 * outwards) if same else (139, y - 17 * outwards)
            picture.text(at, "+1" if same else "−1", size=15, colour=palette.query if same else palette.key)
    for y, number in zip(rows, (first, second), strict=True):
        picture.box((70, y), (54, 44), str(number))
    for y, said, number in zip(rows, ("max(0, first − second)", "max(0, second − first)"), (one, two), strict=True):
        picture.box((310, y), (216, 56), [said, f"= {number}"], colour=palette.value)
        picture.line([(419, y), (496, 140)], colour=palette.value)
        picture.text((467, y + (12 if y < 140 else -12)), "+1", size=15, colour=palette.value)
    picture.box((525, 140), (56, 44), str(one + two), colour=palette.output, filled=False)
    return picture


def feed_forward_widths(tokens: Sequence[str] = ("the", "queen", "smiled"), d_model: int = 4) -> Drawing:
    """Each token by itself: D numbers, 4 D inner numbers, D numbers again, by the same two matrices."""
    picture = Drawing(
        330,
        alt=f"Three columns, one for each of the tokens {', '.join(tokens)}. In each the vector of {d_model} numbers "
        f"below is widened to {4 * d_model} inner numbers, and narrowed to {d_model} numbers again. No line goes from "
        "one column to another.",
        caption="The feed-forward at three tokens. Each column is computed by itself, with the same W₁ and W₂.",
    )
    cell = 9
    for column, token in enumerate(tokens):
        x = 192 + 160 * column
        picture.text((x, 312), token, bold=True)
        for y, width, colour in ((264, d_model, INK), (158, 4 * d_model, palette.value), (52, d_model, INK)):
            for number in range(width):
                corner = (x - width * cell / 2 + number * cell, y - 10)
                picture.numbers(corner, [[""]], cell=(cell, 20), colour=colour)
        picture.line([(x, 250), (x, 174)], colour=palette.value)
        picture.line([(x, 144), (x, 66)], colour=palette.value)
    for y, said in ((264, f"D = {d_model}"), (158, f"F = {4 * d_model}"), (52, f"D = {d_model}")):
        picture.text((8, y), said, anchor="start")
    picture.text((8, 212), "W₁, b₁, ReLU", anchor="start", size=15, colour=palette.value)
    picture.text((8, 105), "W₂, b₂", anchor="start", size=15, colour=palette.value)
    return picture


def layer_norm_bars(numbers: Sequence[float] = (1, 2, 6)) -> Drawing:
    """One vector as bars: as it is, minus its mean, over its standard deviation."""
    mean = sum(numbers) / len(numbers)
    centred = [number - mean for number in numbers]
    deviation = (sum(number**2 for number in centred) / len(numbers)) ** 0.5
    normed = [number / deviation for number in centred]

    def said(row: Sequence[float]) -> str:
        return ", ".join(f"{number:.3g}".replace("-", "−") for number in row)

    picture = Drawing(
        300,
        alt=f"Three groups of three bars. First the vector, {said(numbers)}, with its mean {mean:g}. Then the vector "
        f"minus its mean, {said(centred)}. Then that over the standard deviation {deviation:.2f}: "
        f"{', '.join(f'{number:.2f}'.replace('-', '−') for number in normed)}.",
        caption="LayerNorm in two steps: move the numbers so that their mean is 0, then squeeze or stretch them so "
        "that their variance is 1.",
    )
    zero, unit = 190, 24
    for group, (title, row) in enumerate(
        (("the vector", numbers), ("minus its mean", centred), ("over its deviation", normed))
    ):
        left = 30 + 195 * group
        picture.text((left + 75, 286), title, bold=True)
        picture.line([(left, zero), (left + 160, zero)], colour=palette.residual, arrow=False)
        for number, value in enumerate(row):
            x, top = left + 28 + 52 * number, zero - unit * value
            picture.line([(x, zero), (x, top)], colour=palette.query, width=26, arrow=False)
            words = (f"{value:g}" if group < 2 else f"{value:.2f}").replace("-", "−")
            picture.text((x, top - 14 if value >= 0 else top + 15), words, size=16)
        if group == 0:
            y = zero - unit * mean
            picture.line([(left, y), (left + 160, y)], colour=palette.key, arrow=False)
            picture.text((left + 4, y - 13), f"mean {mean:g}", size=15, anchor="start", colour=palette.key)
    return picture


def norm_place(place: str = "post", *, caption: str = "") -> Drawing:
    """One layer with its residual stream as a thick line, the norms on it (post) or beside it (pre).

    Args:
        place: "post" or "pre".
        caption: instead of the one that names the two.
    """
    if place not in ("post", "pre"):
        raise ValueError(f"place: expected 'post' or 'pre', got {place!r}")
    post = place == "post"
    order = (
        "The stream branches into attention, whose result is added to the stream, and then the stream itself goes "
        "through a norm. The same again with the feed-forward."
        if post
        else "The stream branches into a norm and then attention, whose result is added to the stream. The same again "
        "with a norm and the feed-forward. No norm stands on the stream."
    )
    picture = Drawing(
        206 if post else 226,
        alt=f"One encoder layer, {place}-norm, from left to right, with the residual stream as one thick line. {order}",
        caption=caption
        or (
            "Post-norm, as in 2017: each norm stands on the stream, after the plus."
            if post
            else "Pre-norm: each norm stands on the branch, before the sublayer. No norm stands on the stream."
        ),
    )
    y, branch = 150 if post else 180, 52
    picture.stream((14, y), (586, y))
    picture.text((14, y + 26), "x", anchor="start", bold=True)
    picture.text((586, y + (38 if post else 26)), "x of the next layer", anchor="end", size=15)
    for left, name, colour in ((40, "attention", palette.query), (320, "feed-forward", INK)):
        middle, added = left + 92, left + 170
        if not post:
            picture.line([(left, y), (left, 132)])
            picture.box((left, 112), (66, 36), "norm", colour=palette.key)
            picture.line([(left, 94), (left, branch), (left + 28, branch)])
        else:
            picture.line([(left, y), (left, branch), (left + 28, branch)])
        picture.box((middle, branch), (126, 44), name, colour=colour)
        picture.line([(middle + 64, branch), (added, branch), (added, y - 13)])
        picture.plus((added, y))
        if post:
            picture.box((added + 56, y), (66, 38), "norm", colour=palette.key)
    return picture


def collapsing_tokens() -> Drawing:
    """Three tokens as arrows: apart at first, closer after each averaging, one at the end."""
    picture = Drawing(
        220,
        alt="Four pictures from left to right, each with three arrows from one point. In the first the arrows point in "
        "three different directions. After one layer they are closer, after two closer still, after four they lie on "
        "each other.",
        caption="Tokens as arrows. Each layer without a residual connection replaces every token by a mixture of all, "
        "so the differences between them shrink.",
    )
    for column, (name, spread) in enumerate(
        (("tokens", 1.0), ("after 1 layer", 0.42), ("after 2 layers", 0.14), ("after 4 layers", 0.0))
    ):
        x = 76 + 150 * column
        for turn, colour in ((-52, palette.query), (8, palette.key), (58, palette.value)):
            shift = 0.0 if spread else turn / 14  # side by side, or only one would be seen
            start = (x + shift, 150)
            picture.line([start, tip(start, 92, 5 + (turn - 5) * spread)], colour=colour, width=3)
        picture.text((x, 192), name, bold=column == 0)
    return picture


def encoder_reads(
    words: Sequence[str] = ("[CLS]", "the", "old", "queen", "smiled", "[PAD]"), answer: str = "right or wrong"
) -> Drawing:
    """The whole classifier from bottom to top: ids, vectors plus positions, layers, a norm, a head at [CLS].

    Args:
        words: of one sentence, with [CLS] in front; those called [PAD] are drawn faint and nobody reads them.
        answer: what the head decides.
    """
    real = [word for word in words if word != "[PAD]"]
    picture = Drawing(
        450,
        alt=f"The classifier from bottom to top. The words {' '.join(words)} become vectors, and each gets the vector "
        "of its position added. A thick line, the residual stream, rises from each word through layer 1 and layer 2. "
        "In each layer a word reads from all real words, but not from [PAD]. Above, after a last norm, only the vector "
        f"at [CLS] is read by a linear map, which says {answer}.",
        caption="The classifier. One thick line for each word; padding only fills the table; nobody reads it.",
    )
    step = 560 / len(words)
    places = [52 + step * number for number in range(len(words))]
    for x, word in zip(places, words, strict=True):
        pad = word == "[PAD]"
        if pad:
            picture.line([(x, 356), (x, 132)], colour="#C9C9C9", width=3, arrow=False)
        else:
            picture.stream((x, 356), (x, 116))
        picture.box((x, 424), (step - 10, 36), word, colour="#BBBBBB" if pad else INK)
        picture.line([(x, 405), (x, 380)], colour="#BBBBBB" if pad else INK)
    picture.box((300, 362), (572, 34), "vector of the word + vector of its position", colour=palette.value)
    for y, name in ((296, "layer 1: attention, feed-forward"), (218, "layer 2: attention, feed-forward")):
        picture.box((300, y), (572, 52), name, colour=palette.query)
    picture.box((300, 148), (572, 34), "norm", colour=palette.key)
    picture.line([(places[0], 118), (places[0], 92)], width=3, colour=palette.output)
    picture.box((places[0] + 78, 70), (236, 38), "linear map, at [CLS] only", colour=palette.output)
    picture.line([(places[0] + 70, 50), (places[0] + 70, 36)], colour=palette.output)
    picture.text((places[0] + 70, 20), answer, bold=True)
    if len(real) > 2:
        first, last = places[1] - 12, places[len(real) - 1] + 12
        picture.line([(first, 110), (last, 110)], colour="#BBBBBB", arrow=False)
        middle = (places[1] + places[-1]) / 2 + 95
        picture.text((middle, 92), "the head does not read these", size=15, colour=FAINT_TEXT)
    return picture


def sentences_in_a_table(sentences: Sequence[str] = ("the queen smiled", "the old king near her slept")) -> Drawing:
    """Two sentences in one table, the shorter filled up, and the mask beside it."""
    rows = [["[CLS]", *sentence.split()] for sentence in sentences]
    longest = max(map(len, rows))
    table = [row + ["[PAD]"] * (longest - len(row)) for row in rows]
    picture = Drawing(
        70 + 92 * len(rows),
        alt="A table with one row for each sentence. "
        + " ".join(f"Row {number}: {' '.join(row)}." for number, row in enumerate(table))
        + " Under each row its mask: filled cells under real words, hatched ones under [PAD].",
        caption="A batch is a table, so short sentences are filled up. The mask says for each sentence which positions "
        "may be read (filled) and which may not (hatched).",
    )
    width = 584 / longest
    for number, row in enumerate(table):
        y = 40 + 92 * number
        for column, word in enumerate(row):
            x = 8 + width * (column + 0.5)
            picture.box((x, y), (width - 8, 34), word, colour="#BBBBBB" if word == "[PAD]" else INK)
            picture.cell((x, y + 38), 24, allowed=word != "[PAD]")
    picture.text((300, 92 * len(rows) + 36), "the mask says which positions may be read, whoever looks", size=15)
    return picture


def same_words(
    right: Sequence[str] = ("near", "the", "old", "king", "the", "tall", "queen", "saw", "herself"),
    wrong: Sequence[str] = ("near", "the", "old", "queen", "the", "tall", "king", "saw", "herself"),
    marked: tuple[int, int] = (6, 8),
) -> Drawing:
    """Two sentences of the same words, one right and one wrong, with a bow from the subject to the last word."""
    picture = Drawing(
        270,
        alt=f"Two sentences. Right: {' '.join(right)}. Wrong: {' '.join(wrong)}. Both have the same words. A bow "
        f"joins the subject, {right[marked[0]]} and {wrong[marked[0]]}, to the last word, {right[marked[1]]}.",
        caption="The task. Both sentences have the same words; who stands where decides whether the last word fits.",
    )
    room = 560 / sum(len(word) + 1.6 for word in right)
    for y, name, words, colour in ((100, "right", right, palette.value), (222, "wrong", wrong, MARKED)):
        picture.text((14, y - 62), name, anchor="start", bold=True, colour=colour)
        x, at = 12.0, []
        for word in words:
            width = room * (len(word) + 1.6)
            at.append(x + width / 2)
            lit = len(at) - 1 in marked
            picture.box((x + width / 2, y), (width - 5, 34), word, colour=colour if lit else "#9A9A9A")
            x += width
        picture.curve((at[marked[0]], y - 19), (at[marked[1]], y - 19), lift=26, colour=colour, width=3)
    return picture


def hidden_words(
    words: Sequence[str] = ("the", "tall", "queen", "near", "the", "king", "saw", "herself"),
    hidden: Sequence[int] = (3, 7),
) -> Drawing:
    """Fill in the hidden word: [MASK] goes in at some positions, and the model names what stood there."""
    shown = ["[MASK]" if number in hidden else word for number, word in enumerate(words)]
    picture = Drawing(
        262,
        alt=f"Below, the sentence as the model gets it: {' '.join(shown)}. Above it the encoder as one wide box. Over "
        f"the hidden positions it names what stood there: {' and '.join(words[number] for number in hidden)}.",
        caption="Fill in the hidden word. The labels come from the text itself, so nobody has to write any.",
    )
    room = 572 / sum(len(word) + 1.6 for word in shown)
    x = 14.0
    for number, (word, was) in enumerate(zip(shown, words, strict=True)):
        width, lit = room * (len(word) + 1.6), number in hidden
        at = x + width / 2
        picture.box((at, 222), (width - 5, 36), word, colour=MARKED if lit else INK)
        picture.line([(at, 203), (at, 164)], colour=palette.residual, arrow=False, width=5)
        if lit:
            picture.line([(at, 112), (at, 72)], colour=palette.output, width=3)
            picture.box((at, 52), (max(width - 5, 84), 36), was, colour=palette.output)
        x += width
    picture.box((300, 138), (576, 50), "encoder", colour=palette.query)
    return picture
