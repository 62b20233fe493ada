"""The drawings of the labs on attention: ways to the last position, one state for all, tiles, a leak, a NaN."""

import itertools
from collections.abc import Sequence

from coursework.pictures.drawing import INK, Drawing, Point
from coursework.pictures.style import palette

GREY = "#9A9A9A"


def _dot(picture: Drawing, at: Point, colour: str = GREY, *, filled: bool = False) -> None:
    picture.box(at, (16, 16), colour=colour, filled=filled)


def three_ways(places: int = 7) -> Drawing:
    """How the last position of a text hears of the first: along a chain, through layers of neighbours, directly."""
    layers = -(-(places - 1) // 2)
    picture = Drawing(
        270,
        alt=f"Three rows of {places} positions. In the recurrent one a message goes from each position to the next, "
        f"{places - 1} steps in all. In the convolution of width 5 it goes up {layers} layers, two positions a layer. "
        "In attention the last position receives directly from every position, in one step.",
        caption=f"From the first of {places} positions to the last: {places - 1} steps, {layers} steps, one step.",
    )
    gap, bottom = 25, 205
    for panel, (name, steps) in enumerate((("recurrent", places - 1), ("convolution", layers), ("attention", 1))):
        left = 25 + 200 * panel
        xs = [left + gap * place for place in range(places)]
        picture.text((left + 75, 22), name, bold=True)
        picture.text((left + 75, 250), f"{steps} step{'s' if steps > 1 else ''}")
        rows = layers + 1 if panel == 1 else 2
        ys = [bottom - row * (130 / (rows - 1)) for row in range(rows)]
        if panel == 0:
            for a, b in itertools.pairwise(xs):
                picture.line([(a + 8, ys[1]), (b - 8, ys[1])], colour=palette.output)
            for x in xs:
                picture.line([(x, ys[0] - 9), (x, ys[1] + 9)], colour=GREY if x > xs[0] else palette.output)
        elif panel == 1:
            for row in range(layers):
                for place in range(places):
                    for near in range(max(0, place - 2), min(places, place + 3)):
                        on_way = near == 2 * row and place == min(2 * row + 2, places - 1)
                        if on_way or row == 0 or place >= 2 * row:
                            picture.line(
                                [(xs[near], ys[row] - 8), (xs[place], ys[row + 1] + 9)],
                                colour=palette.output if on_way else "#DDDDDD", width=3 if on_way else 1, arrow=on_way,
                            )  # fmt: skip
        else:
            for place, x in enumerate(xs):
                first = place == 0
                picture.line(
                    [(x, ys[0] - 9), (xs[-1] - 2, ys[1] + 10)], colour=palette.output if first else GREY,
                    width=3 if first else 1.2,
                )  # fmt: skip
        for row, y in enumerate(ys):
            for place, x in enumerate(xs):
                lit = (row == 0 and place == 0) or (row == rows - 1 and place == places - 1)
                _dot(picture, (x, y), palette.output if lit else GREY, filled=lit)
    return picture


def one_state_or_all(pairs: Sequence[str], question: str, answer: str) -> Drawing:
    """Two readers of a list: one answers from its last state, the other looks at all entries again."""
    picture = Drawing(
        330,
        alt=f"Above, a recurrent network reads the pairs {', '.join(pairs)} one after the other into a state and "
        f"answers the question {question} from the last state alone. Below, the question looks at every pair directly, "
        f"mostly at the right one, and takes along {answer}.",
        caption="Above, everything that was read has to fit into one state before the question is known. Below, the "
        "pairs stay where they are, and the question chooses.",
    )
    xs = [60 + 90 * i for i in range(len(pairs))]
    end = xs[-1] + 105
    for x, pair in zip(xs, pairs, strict=True):
        picture.box((x, 30), (72, 34), pair, colour=palette.key)
        picture.line([(x, 48), (x, 80)])
        picture.box((x, 100), (60, 34), "state", colour=palette.residual)
        picture.box((x, 215), (72, 34), pair, colour=palette.key)
    for a, b in itertools.pairwise(xs):
        picture.line([(a + 31, 100), (b - 31, 100)], width=3, colour=palette.residual)
    picture.line([(xs[-1] + 31, 100), (end - 45, 100)], width=3, colour=palette.residual)
    picture.box((end, 100), (84, 48), ("last state", "+ " + question), colour=palette.residual)
    picture.line([(end + 43, 100), (end + 68, 100)], colour=palette.output)
    picture.text((end + 80, 100), "?", bold=True, colour=palette.output)
    picture.box((xs[-1] + 20, 300), (84, 34), question, colour=palette.query)
    for x, pair in zip(xs, pairs, strict=True):
        found = pair.startswith(question[0])
        picture.line(
            [(x, 233), (xs[-1] + 20 + 0.1 * (x - xs[-1]), 281)], colour=palette.value,
            width=8 if found else 1.2, arrow=not found,
        )  # fmt: skip
    picture.line([(xs[-1] + 63, 300), (end + 24, 300)], colour=palette.output)
    picture.text((end + 44, 300), answer, bold=True, colour=palette.output)
    picture.line([(10, 152), (590, 152)], colour="#DDDDDD", arrow=False)
    return picture


def score_tiles(places: int = 12, tile: int = 3) -> Drawing:
    """The whole table of weights beside a kernel that holds one tile of it at a time."""
    picture = Drawing(
        260,
        alt=f"Two square tables of {places} by {places} weights. The left one is filled: all weights are held at once. "
        f"In the right one a single tile of {tile} by {tile} is filled, with an arrow to the tile that is next; beside "
        "it stand the output so far and the largest score and the sum of each row.",
        caption="Left: the whole table is stored. Right: one tile at a time is computed, used and forgotten; of each "
        "row only the output so far, the largest score and the sum are kept.",
    )
    side, top = 14, 50
    for left, name in ((30, "explicit"), (300, "fused")):
        picture.text((left + side * places / 2, 24), name, bold=True)
        for row in range(places):
            for column in range(places):
                lit = name == "explicit" or (row // tile == 1 and column // tile == 1)
                picture._add(
                    "rect", x=left + side * column, y=top + side * row, width=side - 2, height=side - 2,
                    fill=palette.query if lit else "#FFFFFF", stroke=palette.query if lit else "#CCCCCC",
                )  # fmt: skip
    x, y = 300 + side * 1.5 * tile, top + side * 1.5 * tile
    picture.line([(x + 10, y), (x + side * tile, y)], colour=INK, width=3)
    for number, colour in enumerate((palette.output, GREY, GREY)):
        left = 494 + 34 * number
        picture._add("rect", x=left - 8, y=top, width=16, height=side * places - 2, fill=colour, opacity=0.5)
    picture.text((528, 24), "kept", bold=True)
    picture.text((590, 238), "output so far · largest score · sum", size=15, anchor="end")
    return picture


def leak_in_noise(tokens: Sequence[str] = ("7", "2", "9", "0", "4")) -> Drawing:
    """A model that reads random tokens and has to say the next one; one of its positions looks where it must not."""
    picture = Drawing(
        250,
        alt=f"Random tokens {', '.join(tokens)} go into a model that is drawn as a closed box. Each position has to "
        "name the token that follows. An arrow from the second token to the first position is marked as the leak.",
        caption="Nobody can guess the next random token. A position that does must have seen it.",
    )
    xs = [70 + 100 * i for i in range(len(tokens))]
    for x, token in zip(xs, tokens, strict=True):
        picture.box((x, 215), (50, 34), token, colour=palette.key)
        picture.line([(x, 197), (x, 160)])
    picture.box((270, 125), (480, 66))
    picture.text((330, 125), "a model whose code nobody reads")
    for x, target in zip(xs, (*tokens[1:], "?"), strict=True):
        picture.line([(x, 91), (x, 62)])
        picture.box((x, 42), (50, 34), target, colour=palette.output)
    picture.text((550, 42), "next", colour=palette.output, anchor="middle")
    picture.text((550, 215), "read", colour=palette.key, anchor="middle")
    picture.line(
        [(xs[1] - 12, 197), (xs[1] - 12, 150), (xs[0] + 14, 102), (xs[0] + 14, 64)], colour=palette.value, width=4
    )
    picture.text((xs[0] + 60, 75), "leak", colour=palette.value, bold=True)
    return picture


def spreading_nan(rows: int = 3) -> Drawing:
    """Backwards through a batch in which one row is NaN: the parameters are shared, so the NaN reaches them."""
    picture = Drawing(
        250,
        alt=f"{rows} sentences share one matrix of parameters. The last sentence has a row of NaN. Its output is not "
        "used by the loss, but on the way back zero times NaN is NaN, and the sum over the sentences, which is the "
        "gradient of the matrix, is NaN too.",
        caption="The loss does not use the third sentence. On the way back it is multiplied all the same, zero times "
        "NaN is NaN, and one sum over all sentences makes the gradient of the shared matrix.",
    )
    ys = [60 + 70 * row for row in range(rows)]
    for x, heading in ((190, "from the loss"), (350, "weights"), (545, "the matrix")):
        picture.text((x, 18), heading, size=15)
    for number, y in enumerate(ys):
        bad = number == rows - 1
        colour = palette.key if bad else palette.query
        picture.text((60, y), f"sentence {number + 1}")
        picture.box((190, y), (110, 40), "0" if bad else "gradient", colour=colour)
        picture.text((268, y), "×", bold=True)
        picture.box((350, y), (110, 40), "NaN" if bad else "numbers", colour=colour)
        end = (500, ys[1] + 22 * (number - 1))
        picture.line([(410, y), end], colour=colour, width=4 if bad else 2)
    picture.box((545, ys[1]), (86, 74), ("sum:", "NaN"), colour=palette.key)
    return picture
