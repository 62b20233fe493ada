"""The drawings of the labs on encoder and decoder: depth, padding, and the two museums of bugs."""

import itertools
from collections.abc import Sequence
from fractions import Fraction

from coursework.pictures.drawing import INK, Drawing
from coursework.pictures.style import palette

GREY = "#9A9A9A"


def only_the_average(tokens: Sequence[int] = (0, 3, 6)) -> Drawing:
    """Three numbers as tokens through two layers that average evenly, with and without what was there before."""
    bare, kept = [list(tokens)], [list(tokens)]
    for rows, residual in ((bare, False), (kept, True)) * 2:
        mean = sum(rows[-1]) // len(tokens)
        rows.append([mean + (old if residual else 0) for old in rows[-1]])
    picture = Drawing(
        290,
        alt=f"Two stacks of two layers above the tokens {', '.join(map(str, tokens))}. In the left one each layer "
        f"gives every token the average alone: {bare[1]}, then {bare[2]}. In the right one the average is added to the "
        f"token along a thick grey line: {kept[1]}, then {kept[2]}; the tokens stay apart.",
        caption="The simplest case: each layer averages evenly. Left: only the average is passed on, and the tokens "
        "become one. Right: the average is added to what was there, and the differences stay.",
    )
    heights = (250, 165, 80)
    for left, name, rows in ((0, "average only", bare), (345, "token + average", kept)):
        xs = [left + 40 + 85 * place for place in range(len(tokens))]
        picture.text((xs[1], 24), name, bold=True)
        for low, high in itertools.pairwise(heights):
            for x, above in itertools.product(xs, xs):
                picture.line([(x, low - 17), (above, high + 17)], colour=palette.value, width=1.2, arrow=False)
            if rows is kept:
                for x in xs:
                    picture.stream((x, low - 17), (x, high + 17))
        for y, row in zip(heights, rows, strict=True):
            for x, number in zip(xs, row, strict=True):
                picture.box((x, y), (50, 34), str(number), colour=palette.residual)
    for y, name in zip(heights[1:], ("layer 1", "layer 2"), strict=True):
        picture.text((290, y), name, size=15)
    picture.text((290, heights[0]), "tokens", size=15)
    return picture


def share_of_a_token(sublayers: Sequence[int] = (0, 1, 2, 4, 8, 24)) -> Drawing:
    """Which share of a token's vector is still its own, if every sublayer writes something of the first size."""
    picture = Drawing(
        72 + 36 * len(sublayers),
        alt="Bars, one pair for each number of sublayers. Post-norm: the token's own share is halved by each, from 1 "
        f"to a half, a quarter, and 1 in {2 ** max(sublayers):,} at the end. Pre-norm: it becomes a half, a third, a "
        f"fifth, and 1 in {1 + max(sublayers)} at the end.",
        caption="The share of the stream that is still the token's own, if every sublayer writes as much as the token "
        "was at the start. With the norm in the stream the share is halved each time.",
    )
    picture.text((8, 24), "sublayers", size=15, anchor="start")
    picture.text((200, 24), "post-norm", bold=True)
    picture.text((455, 24), "pre-norm", bold=True)
    for row, number in enumerate(sublayers):
        y = 62 + 36 * row
        picture.text((60, y), str(number))
        for left, share in ((100, Fraction(1, 2**number)), (355, Fraction(1, 1 + number))):
            picture.bar((left, y), (max(1.5, 120 * float(share)), 22), colour=palette.query)
            words = "1" if share == 1 else f"1/{share.denominator:,}"
            picture.text((left + 130, y), words, size=15, anchor="start")
    return picture


def diluted_average(words: Sequence[str] = ("the", "old", "cat", "sat"), pads: int = 4) -> Drawing:
    """An even average over the words of a sentence, and the same when padding takes part in it."""
    n, total = len(words), len(words) + pads
    picture = Drawing(
        262,
        alt=f"A row of {n} words and {pads} pads, twice. With the mask each word has a weight of 1/{n} and each pad 0. "
        f"Without it words and pads have 1/{total} each, so that the words hold {n}/{total} of the weight.",
        caption=f"An even average. With a mask it is over {n} words; without one over {total} places, "
        f"and {pads} of them hold no word.",
    )
    width = 570 / total
    for top, name, masked in ((20, "with the mask", True), (145, "without", False)):
        picture.text((15, top), name, bold=True, anchor="start")
        for place in range(total):
            x, real = 15 + width * (place + 0.5), place < n
            colour = palette.value if real else GREY
            picture.box((x, top + 38), (width - 6, 34), words[place] if real else "pad", colour=colour)
            weight = (f"1/{n}" if real else "0") if masked else f"1/{total}"
            if weight != "0":
                height = 130 / (n if masked else total)
                picture._add(
                    "rect", x=x - 16, y=top + 60, width=32, height=height, fill=colour, opacity=0.5, rx=3,
                )  # fmt: skip
            picture.text((x, top + 104), weight, size=15)
    return picture


def averaged_together(tokens: Sequence[str] = ("the", "cat", "sleeps", "pad"), features: int = 5) -> Drawing:
    """Which numbers share one mean and one spread: those of a token, or those of a whole sentence."""
    picture = Drawing(
        216,
        alt=f"Two tables of {len(tokens)} tokens by {features} features. In the left one each row has a colour of its "
        "own: mean and spread are those of a token. In the right one all cells, those of the padding too, have one "
        "colour.",
        caption="Cells of one colour share a mean and a spread. Left: LayerNorm. Right: the exhibit, in which every "
        "token depends on every other and on the padding.",
    )
    for left, name in ((85, "for each token"), (365, "for the sentence")):
        picture.text((left + 20 * features, 22), name, bold=True)
        for row, token in enumerate(tokens):
            y = 62 + 40 * row
            picture.text((left - 12, y), token, size=15, anchor="end")
            for column in range(features):
                colour = palette.series[row % 4] if left < 300 else palette.series[5]
                picture._add(
                    "rect", x=left + 40 * column, y=y - 17, width=36, height=34, rx=5, fill=colour, opacity=0.55,
                )  # fmt: skip
    return picture


def one_layer_many_times(layers: int = 4) -> Drawing:
    """A stack of layers that have weights of their own, and one in which all are the same object."""
    picture = Drawing(
        70 + 56 * layers,
        alt=f"Left: {layers} layers on top of each other, each with weights of its own, numbered 1 to {layers}. Right: "
        f"{layers} boxes, from each of which a line leads to one and the same set of weights.",
        caption="Left: what was meant. Right: what the line makes, one layer with several names.",
    )
    picture.text((150, 24), "a list of layers", bold=True)
    picture.text((440, 24), "[layer] * " + str(layers), bold=True)
    middle = 66 + 28 * (layers - 1)
    for number in range(layers):
        y = 66 + 56 * (layers - 1 - number)
        colour = palette.series[number % len(palette.series)]
        picture.box((90, y), (110, 36), f"layer {number + 1}", colour=colour)
        picture.line([(147, y), (187, y)], colour=colour)
        picture.box((240, y), (100, 36), f"weights {number + 1}", colour=colour)
        picture.box((385, y), (110, 36), f"layer {number + 1}", colour=palette.query)
        picture.line([(442, y), (483, middle)], colour=palette.query)
        if number:
            for x in (90, 385):
                picture.line([(x, y + 38), (x, y + 19)], arrow=False)
    picture.box((535, middle), (100, 44), "weights", colour=palette.query, filled=True)
    return picture


def answer_in_sight(tokens: Sequence[str] = ("A", "B", "C", "D")) -> Drawing:
    """What stands above each prediction: its own answer, if the targets go in unshifted."""
    picture = Drawing(
        220,
        alt=f"Two rows of inputs with the predictions above them. Left, unshifted: {tokens[0]} stands below the place "
        f"that has to predict {tokens[0]}, and so on. Right, shifted: the start sign stands below {tokens[0]}, "
        f"{tokens[0]} below {tokens[1]}, and so on.",
        caption="Left: each place can copy what it is asked for. Right: each place sees what comes before.",
    )
    for left, name, inputs in ((75, "unshifted", list(tokens)), (340, "shifted", ["start", *tokens[:-1]])):
        picture.text((left + 125, 24), name, bold=True)
        for place, (below, above) in enumerate(zip(inputs, tokens, strict=True)):
            x = left + 30 + 62 * place
            picture.box((x, 75), (52, 36), above, colour=palette.output)
            picture.box((x, 185), (52, 36), below, colour=palette.key)
            picture.line([(x, 166), (x, 95)], colour=palette.output if below == above else INK)
    for y, name in ((75, "predict"), (185, "read")):
        picture.text((8, y), name, size=15, anchor="start")
    return picture


def beams_and_caches() -> Drawing:
    """Two beams whose texts were chosen anew, while their caches stayed where they were."""
    picture = Drawing(
        262,
        alt="Two rows, each with a text and a cache. Before: row 1 holds the text A B and the cache of A B, row 2 the "
        "text C D and the cache of C D. Both best continuations belong to row 2. After: the texts are C D E and C D "
        "F, but the caches are still those of A B and C D; the first no longer fits its text.",
        caption="Both of the best continuations come from row 2. The texts were copied, the caches were not: row 1 now "
        "writes on about a text that it no longer has.",
    )
    picture.text((150, 24), "before", bold=True)
    picture.text((470, 24), "after", bold=True)
    rows = (("A B", "A B", "C D E", "A B"), ("C D", "C D", "C D F", "C D"))
    for number, (text, cache, new, stale) in enumerate(rows):
        y = 80 + 110 * number
        wrong = palette.output if stale[0] != new[0] else palette.key
        picture.text((20, y + 22), str(number + 1), bold=True)
        picture.box((140, y), (190, 36), "text: " + text, colour=palette.query)
        picture.box((140, y + 44), (190, 36), "cache of " + cache, colour=palette.key)
        picture.box((470, y), (190, 36), "text: " + new, colour=palette.query)
        picture.box((470, y + 44), (190, 36), "cache of " + stale, colour=wrong)
        picture.line([(237, 190), (372, y)], colour=palette.query)
    return picture


def last_column(
    prompts: Sequence[Sequence[str]] = (("the", "old", "cat", "sat"), ("she", "sings"), ("a", "dog", "ran")),
) -> Drawing:
    """A batch of prompts that is padded on the right, with its last column marked."""
    longest = max(map(len, prompts))
    picture = Drawing(
        64 + 50 * len(prompts),
        alt=f"{len(prompts)} prompts, padded on the right to {longest} columns. The last column is marked. It holds a "
        "word in the longest prompt only; in the others it holds padding, and their own last words stand further "
        "left.",
        caption="The marked column is what logits[:, -1] takes. Only the longest prompt ends there.",
    )
    width = min(110, 560 / longest)
    left = 300 - width * longest / 2
    picture.frame(
        (left + width * (longest - 1), 8), (width, 44 + 50 * len(prompts)), colour=palette.output, dashed=True
    )
    picture.text((left + width * (longest - 0.5), 26), "[:, -1]", bold=True, colour=palette.output)
    for row, prompt in enumerate(prompts):
        for column in range(longest):
            at = (left + width * (column + 0.5), 68 + 50 * row)
            if column < len(prompt):
                last = column == len(prompt) - 1
                picture.box(at, (width - 14, 36), prompt[column], colour=palette.query if last else palette.residual)
            else:
                picture.box(at, (width - 14, 36), "pad", colour="#CCCCCC")
    return picture
