"""The drawings of chapter 6: pieces of words, shifted targets, padding, the loss, the loop, checkpoints."""

import math
from collections.abc import Sequence

from coursework.pictures.drawing import INK, Drawing, tip
from coursework.pictures.style import palette

GREY = "#767676"


def merge_tree(word: str, merges: Sequence[tuple[str, str]]) -> Drawing:
    """A word as its characters, and the learned merges that join them, in the order in which they were learned.

    Args:
        word: cut into single characters at the bottom.
        merges: pairs in the order of learning.
    """
    step, bottom = 496 / len(word), 60 + 58 * len(merges)
    parts = [(letter, 84 + step * (i + 0.5), float(bottom)) for i, letter in enumerate(word)]  # text, x, y
    said = []
    boxes = [(text, x, y, INK, False) for text, x, y in parts]
    lines = []
    for number, (left, right) in enumerate(merges, start=1):
        i = 0
        while i < len(parts) - 1:
            (a, ax, ay), (b, bx, by) = parts[i], parts[i + 1]
            if (a, b) == (left, right):
                x, y = (ax + bx) / 2, bottom - 58.0 * number
                lines += [((ax, ay - 17), (x, y + 17)), ((bx, by - 17), (x, y + 17))]
                boxes.append((a + b, x, y, palette.query, True))
                parts[i : i + 2] = [(a + b, x, y)]
                said.append(f"merge {number} joins {a} and {b}")
            i += 1
    pieces = " and ".join(text for text, _, _ in parts)
    picture = Drawing(
        bottom + 34,
        alt=f"The word {word} as single characters at the bottom, and above it a tree: {'; '.join(said)}. "
        f"What is left at the top is {pieces}.",
        caption=f"{word} was in no text. The four learned merges, in their order, cut it into {pieces}.",
    )
    for start, end in lines:
        picture.line([start, end], arrow=False, colour=GREY)
    for text, x, y, colour, filled in boxes:
        picture.box((x, y), (24 + 13 * len(text), 34), text, colour=colour, filled=filled)
    for number, (left, right) in enumerate(merges, start=1):
        picture.text((12, bottom - 58 * number), f"{number}. {left} + {right}", anchor="start", size=15, colour=GREY)
    return picture


def shifted_targets(words: Sequence[str]) -> Drawing:
    """What the decoder reads, and what it has to answer: the same sentence, one position apart."""
    reads, answers = ["<bos>", *words], [*words, "<eos>"]
    step = 500 / len(reads)
    picture = Drawing(
        214,
        alt=f"Two rows. The decoder reads {' '.join(reads)}. Below each its label: {' '.join(answers)}. "
        "Slanted lines join each answer to the next thing that is read, which is the same word.",
        caption="Each label is what the decoder reads one position later. The last label is the end sign.",
    )
    picture.text((10, 50), "reads", anchor="start", size=15)
    picture.text((10, 164), "answers", anchor="start", size=15)
    for i, (read, answer) in enumerate(zip(reads, answers, strict=True)):
        x = 90 + step * (i + 0.5)
        picture.box((x, 50), (step - 10, 38), read, colour=palette.query)
        picture.line([(x, 71), (x, 142)], colour=INK)
        picture.box((x, 164), (step - 10, 38), answer, colour=palette.output)
        if i + 1 < len(reads):
            picture.line([(x + 14, 143), (x + step - 14, 71)], colour=GREY, width=1.5, arrow=False)
        picture.text((x, 18), f"position {i}", size=15, colour=GREY)
    return picture


def padded_batch(rows: Sequence[Sequence[str]]) -> Drawing:
    """Sentences of different lengths in one table: real tokens, padding, and what counts in the loss."""
    longest, real = max(map(len, rows)), sum(map(len, rows))
    size, left = 370 / longest, 30.0
    picture = Drawing(
        96 + 48 * len(rows),
        alt=f"A table of {len(rows)} rows and {longest} columns. "
        + " ".join(
            f"Row {i + 1}: {' '.join(row)}, then {longest - len(row)} cells of padding." for i, row in enumerate(rows)
        )
        + f" {real} of {longest * len(rows)} cells are real. Padding does not count in the loss.",
        caption=f"{real} of the {longest * len(rows)} cells hold a token. The hatched ones hold padding, "
        "which counts for nothing in the loss.",
    )
    for i, row in enumerate(rows):
        y = 46.0 + 48 * i
        for j in range(longest):
            x = left + size * (j + 0.5)
            if j < len(row):
                picture.box((x, y), (size - 6, 38), row[j], colour=palette.query)
            else:
                picture.box((x, y), (size - 6, 38), (), colour="#9A9A9A")
                for k in (-1, 0, 1):
                    picture.line(
                        [(x + 12 * k - 8, y + 14), (x + 12 * k + 8, y - 14)], colour="#9A9A9A", width=1, arrow=False
                    )
        picture.text((left + 376, y), f"{len(row)} in the loss", anchor="start", size=15, colour=palette.output)
    picture.text((left, 14), f"B = {len(rows)} rows, T = {longest} columns", anchor="start", size=15, colour=GREY)
    bottom = 48.0 * len(rows) + 52
    picture.text((left + 376, bottom), f"sum: {real}", anchor="start", size=15, colour=palette.output, bold=True)
    picture.text(
        (left, bottom), "the loss is divided by the number of real tokens:", anchor="start", size=15, colour=GREY
    )
    return picture


def loss_of_tokens(words: Sequence[str], chances: Sequence[float]) -> Drawing:
    """For each token the probability that the model gave to it, as a bar, and what it costs."""
    costs = [-math.log(chance) for chance in chances]
    mean = sum(costs) / len(costs)
    picture = Drawing(
        92 + 44 * len(words),
        alt="For each right token its probability and its cost. "
        + " ".join(f"{w}: {p:g}, cost {c:.2f}." for w, p, c in zip(words, chances, costs, strict=True))
        + f" The mean cost is {mean:.2f}.",
        caption=f"The loss per token is the mean of the costs, {mean:.2f}.",
    )
    picture.text((20, 22), "right token", anchor="start", size=15, colour=GREY)
    picture.text((130, 22), "probability that it got", anchor="start", size=15, colour=GREY)
    picture.text((580, 22), "cost = −ln", anchor="end", size=15, colour=GREY)
    for i, (word, chance, cost) in enumerate(zip(words, chances, costs, strict=True)):
        y = 58.0 + 44 * i
        picture.text((20, y), word, anchor="start", bold=True)
        picture.bar((130, y), (300 * chance, 26), colour=palette.query)
        picture.text((140 + 300 * chance, y), f"{chance:g}", anchor="start", size=15)
        picture.text((580, y), f"{cost:.2f}", anchor="end", colour=palette.output, bold=True)
    y = 62.0 + 44 * len(words)
    picture.line([(490, y - 20), (584, y - 20)], arrow=False, width=1.5)
    picture.text((580, y), f"mean {mean:.2f}", anchor="end", colour=palette.output, bold=True)
    return picture


def micro_batches(counts: Sequence[int]) -> Drawing:
    """Parts of a batch go through the model one after the other; their gradients add up, then there is one update."""
    step, total = 560 / len(counts), sum(counts)
    picture = Drawing(
        268,
        alt=f"{len(counts)} parts with {', '.join(map(str, counts))} real tokens. Below each the sum of its costs "
        f"goes backward, and its gradient is added to the others. The sum is divided by {total}, all real tokens, and "
        "then comes one update.",
        caption=f"Add sums, and divide once, by the number of all real tokens ({total}).",
    )
    for i, count in enumerate(counts):
        x = 20 + step * (i + 0.5)
        picture.box((x, 40), (step - 14, 50), [f"part {i + 1}", f"{count} tokens"], colour=palette.query)
        picture.line([(x, 66), (x, 104)])
        picture.box((x, 124), (step - 14, 36), "sum of costs")
        picture.line([(x, 143), (300 + 0.5 * (x - 300), 178)])
    picture.box((300, 198), (330, 38), "gradients add up", colour=palette.key)
    picture.line([(300, 218), (300, 230)], arrow=False)
    picture.text((300, 246), f"÷ {total}, then one update", bold=True)
    return picture


def clipped_gradients(gradient: tuple[float, float] = (3.0, 4.0), limit: float = 1.0) -> Drawing:
    """A long gradient is shortened to the limit and keeps its direction; clipped number by number it turns."""
    norm = math.hypot(*gradient)
    both = [limit * part / norm for part in gradient]
    picture = Drawing(
        300,
        alt=f"Left, an arrow ({gradient[0]:g}, {gradient[1]:g}) of length {norm:g} and a circle of radius {limit:g}. "
        f"The arrow is shortened to the circle, ({both[0]:.1f}, {both[1]:.1f}), and keeps its direction. "
        f"Right, the mistake: each number is cut to {limit:g} on its own, and the arrow points elsewhere.",
        caption="All gradients are shortened together, so the gradient keeps its direction. "
        "Clip each number separately and it turns.",
    )
    unit = 44.0
    for left, title, end in ((70.0, "together", both), (360.0, "one by one", [limit, limit])):
        at = (left, 250.0)
        picture.text((left + 80, 18), title, bold=True)
        picture.arc(at, unit * limit, (0, 90), colour=GREY)
        picture.line([at, (at[0] + unit * gradient[0], at[1] - unit * gradient[1])], colour="#9A9A9A", width=2)
        picture.line([at, (at[0] + unit * end[0], at[1] - unit * end[1])], colour=palette.key, width=4)
        picture.line([(at[0] - 6, at[1]), (at[0] + 190, at[1])], colour="#C8C8C8", width=1, arrow=False)
        picture.line([(at[0], at[1] + 6), (at[0], at[1] - 190)], colour="#C8C8C8", width=1, arrow=False)
        words = f"({end[0]:.1f}, {end[1]:.1f})"
        beside = (at[0] + unit * max(end[0], limit) + 14, at[1] - unit * end[1] + 8)  # past the arc
        picture.text(beside, words, anchor="start", colour=palette.key)
        for line, words in enumerate((f"({gradient[0]:g}, {gradient[1]:g})", f"length {norm:g}")):
            beside = (at[0] + unit * gradient[0] + 8, at[1] - unit * gradient[1] - 4 + 20 * line)
            picture.text(beside, words, anchor="start", size=15)
        picture.text((at[0] + unit * limit, 270), f"limit {limit:g}", size=15, colour=GREY)
    return picture


LOOP = ("batch", "scores", "loss", "gradients", "clip", "rate", "update", "clear")


def _on_the_circle(middle: tuple[float, float], degrees: float) -> tuple[float, float]:
    """A point of a circle that is wider than high; the angle runs like a clock, from twelve."""
    x, y = tip((0.0, 0.0), 1.0, degrees)
    return middle[0] + 214 * x, middle[1] + 146 * y


def training_loop(steps: Sequence[str] = LOOP) -> Drawing:
    """The steps of training as a circle."""
    picture = Drawing(
        372,
        alt="A circle of steps, in order: "
        + ", ".join(steps)
        + ", and from the last back to the first. In the middle stands that every so often it looks at held-out "
        "data and saves.",
        caption="One round is one update. Step 8 clears the gradients. Every so often the loop pauses to look at "
        "held-out data and to save.",
    )
    middle = (300.0, 186.0)
    for i, name in enumerate(steps):
        at, then = (_on_the_circle(middle, 360 * (i + ahead) / len(steps)) for ahead in (0, 1))
        dx, dy = then[0] - at[0], then[1] - at[1]
        reach = min(63 / max(abs(dx), 1), 24 / max(abs(dy), 1))  # from the middle of a box to just outside it
        ends = [(at[0] + part * dx, at[1] + part * dy) for part in (reach, 1 - reach)]
        picture.line(ends, width=2.5, colour=GREY)
        colour = {"loss": palette.output, "update": palette.key}.get(name, palette.query)
        picture.box(at, (116, 38), f"{i + 1} {name}", colour=colour)
    picture.text((300, 166), "every so often:", size=15, colour=GREY)
    picture.text((300, 190), "held-out loss", bold=True)
    picture.text((300, 214), "checkpoint", bold=True)
    return picture


def checkpoint_contents() -> Drawing:
    """What it takes to resume a run, and what goes wrong where one part is missing."""
    rows = (
        ("weights", "the model is new"),
        ("optimizer's averages", "steps too long or the wrong way"),
        ("number of the step", "the rate of another step"),
        ("position in the data", "some data twice, some never"),
        ("random state", "other dropout than before"),
        ("settings, tokenizer", "ids that mean something else"),
    )
    picture = Drawing(
        56 + 46 * len(rows),
        alt="What it takes to resume a run, and what happens if it is missing: "
        + "; ".join(f"{what}: {missing}" for what, missing in rows)
        + ".",
        caption="Your loop will save the five in blue. If one of the six is missing, the run resumes as a different "
        "one. You can leave out the random state only if there is no dropout.",
    )
    picture.text((150, 22), "needed to resume", bold=True)
    picture.text((320, 22), "if it is missing", anchor="start", bold=True)
    for i, (what, missing) in enumerate(rows):
        y = 62.0 + 46 * i
        picture.box((150, y), (240, 36), what, colour=GREY if what.startswith("settings") else palette.query)
        picture.line([(272, y), (310, y)], colour=GREY)
        picture.text((320, y), missing, anchor="start", size=15)
    return picture


def crossing_words(german: Sequence[str], english: Sequence[str], pairs: Sequence[tuple[int, int]]) -> Drawing:
    """A number in two languages, with lines between parts of one meaning: two of them cross."""
    above, below = 580 / len(german), 580 / len(english)
    picture = Drawing(
        190,
        alt=f"Above {' '.join(german)}, below {' '.join(english)}. Lines join parts of one meaning: "
        + "; ".join(f"{german[a]} to {english[b]}" for a, b in pairs)
        + ". The lines of the tens and of the units cross.",
        caption="German says the units before the tens. A translator has to look ahead, then back.",
    )
    crossing = {pairs[-1], pairs[-2]}
    for a, b in pairs:
        colour, width = (palette.key, 4.0) if (a, b) in crossing else (GREY, 2.0)
        ends = [(10 + above * (a + 0.5), 62.0), (10 + below * (b + 0.5), 128.0)]
        picture.line(ends, colour=colour, width=width, arrow=False)
    for words, step, y, colour in ((german, above, 42.0, palette.query), (english, below, 148.0, palette.output)):
        for i, word in enumerate(words):
            picture.box((10 + step * (i + 0.5), y), (step - 10, 38), word, colour=colour)
    return picture
