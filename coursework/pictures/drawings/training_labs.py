"""The drawings of the labs on choosing tokens and on training: orders of filters, guesses, one update, padding."""

import itertools
from collections.abc import Mapping, Sequence

from coursework.pictures.drawing import Drawing
from coursework.pictures.style import palette

GREY = "#9A9A9A"


def sampler_orders() -> Drawing:
    """The same four settings in the order in which three libraries apply them."""
    orders = {
        "transformers": ("temperature", "top-k", "top-p", "min-p"),
        "vLLM": ("temperature", "min-p", "top-k", "top-p"),
        "llama.cpp": ("top-k", "top-p", "min-p", "temperature"),
    }
    said = ". ".join(f"{name}: {', '.join(order)}" for name, order in orders.items())
    picture = Drawing(
        280,
        alt=f"Three rows of four boxes, the order in which libraries change a distribution. {said}.",
        caption="The same four settings, in three orders. Follow the box of the temperature and that of min-p.",
    )
    colours = {"temperature": palette.key, "min-p": palette.value}
    for row, (name, order) in enumerate(orders.items()):
        y = 66 + 88 * row
        picture.text((20, y - 36), name, bold=True, anchor="start")
        for place, setting in enumerate(order):
            x = 76 + 142 * place
            picture.box((x, y), (112, 36), setting, colour=colours.get(setting, palette.query))
            picture.line([(x + 57, y), (x + 84 if place < 3 else x + 76, y)])
        picture.text((582, y - 36), "draw", size=16, anchor="end")
    return picture


def cached_positions(n: int = 6) -> Drawing:
    """Which positions each step computes, without a cache and with one."""
    picture = Drawing(
        290,
        alt=f"Two triangles of {n} steps. Without a cache step t computes t positions, {n * (n + 1) // 2} in all. With "
        f"a cache each step computes only the newest position, {n} in all; the older ones are kept.",
        caption="Filled: positions that go through the layers in this step. Empty: positions whose keys and values are "
        "still there from earlier steps.",
    )
    for left, name, cached in ((40, "without a cache", False), (340, "with a cache", True)):
        picture.text((left + 100, 20), name, bold=True)
        count = n if cached else n * (n + 1) // 2
        picture.text((left + 100, 275), f"{count} positions computed", size=16)
        for step in range(n):
            y = 56 + 34 * step
            picture.text((left - 8, y), f"{step + 1}", size=15, colour="#555555")
            for place in range(step + 1):
                fresh = not cached or place == step
                picture.box(
                    (left + 26 + 34 * place, y), (26, 26), colour=palette.query if fresh else GREY, filled=fresh
                )
    return picture


def sliding_crop(sight: int = 5, steps: int = 4) -> Drawing:
    """A model that always reads the newest tokens only, numbered from 0 each time."""
    picture = Drawing(
        72 + 56 * steps,
        alt=f"{steps} steps of writing. In each the newest {sight} tokens are framed and numbered 0 to {sight - 1}; "
        "the older tokens are outside and grey. From step to step the frame moves by one token.",
        caption=f"The crop: only the newest {sight} tokens are read, and they are numbered from 0 again each time.",
    )
    for step in range(steps):
        y = 40 + 56 * step
        picture.text((14, y), f"step {step + 1}", size=16, anchor="start")
        picture.frame((110 + 52 * step, y - 23), (52 * sight, 46), colour=palette.query)
        for place in range(sight + step):
            inside = place >= step
            picture.box(
                (136 + 52 * place, y), (40, 32), str(place - step) if inside else (),
                colour=palette.query if inside else GREY,
            )  # fmt: skip
    picture.text((300, 46 + 56 * steps), "number in the box: the position that the model is told", size=16)
    return picture


def guess_and_check() -> Drawing:
    """One round of speculative decoding: four guesses, one pass, two kept, one replaced, one dropped."""
    picture = Drawing(
        300,
        alt="A text of three tokens: the value of. The draft guesses four more: the, name, is, a. One pass of the "
        "large model checks them. The first two are kept, the third is replaced by can, the fourth is dropped.",
        caption="One round. The draft ran four times, the large model once, and the text is three tokens longer.",
    )
    known, guesses = ("the", "value", "of"), ("the", "name", "is", "a")
    for place, word in enumerate(known):
        picture.box((50 + 78 * place, 50), (70, 36), word, colour=palette.residual)
    for place, word in enumerate(guesses):
        x = 300 + 78 * place
        picture.box((x, 50), (70, 36), word, colour=palette.key)
        picture.line([(x, 70), (x, 108)])
    picture.text((415, 16), "guesses of the draft", size=16, colour=palette.key)
    picture.box((310, 130), (560, 42), "one pass of the large model over all seven", colour=palette.query)
    for place, (word, verdict) in enumerate((("the", "kept"), ("name", "kept"), ("can", "replaced"), ("", "dropped"))):
        x = 300 + 78 * place
        if place < 3:
            picture.line([(x, 152), (x, 190)])
            colour = palette.value if place < 2 else palette.output
            picture.box((x, 210), (70, 36), word, colour=colour, filled=True)
        picture.text((x, 248), verdict, size=16)
    picture.text((120, 210), "added to the text", size=16)
    picture.text((300, 282), "after the first refused guess nothing more is used", size=16)
    return picture


def one_update(exhibits: Mapping[str, str] | None = None) -> Drawing:
    """The way from a batch to new weights, part by part; `exhibits` puts numbers beside parts."""
    marks = dict(exhibits or {})
    parts = {
        "batch": ((75, 70), ("batch", "of rows")),
        "forward": ((225, 70), ("forward", "with dropout")),
        "loss": ((375, 70), ("sum of losses", "and a count")),
        "backward": ((525, 70), ("backward,", "add up")),
        "divide": ((525, 200), ("divide by", "the count")),
        "clip": ((375, 200), ("clip", "the norm")),
        "rate": ((225, 200), ("rate from", "the schedule")),
        "weights": ((75, 200), ("optimizer:", "new weights")),
    }
    unknown = set(marks) - set(parts)
    if unknown:
        raise ValueError(f"exhibits: expected parts among {', '.join(parts)}, got {', '.join(sorted(unknown))}")
    numbered = "".join(f" At {name}: {mark}." for name, mark in marks.items())
    picture = Drawing(
        300,
        alt="Eight boxes in a ring: a batch of rows, forward with dropout, the sum of losses and a count, backward and "
        "add up, divide by the count, clip the norm, the rate from the schedule, the optimizer that makes new "
        f"weights. An arrow leads from backward to batch: next micro-batch.{numbered}",
        caption="The numbers name exhibits and stand where each goes wrong."
        if marks
        else "Everything that happens between two updates of the weights, in its order.",
    )
    names = list(parts)
    for name, after in itertools.pairwise(names):
        (x, y), (to_x, to_y) = parts[name][0], parts[after][0]
        if y == to_y:
            sign = 1 if to_x > x else -1
            picture.line([(x + sign * 66, y), (to_x - sign * 67, y)])
        else:
            picture.line([(x, y + 30), (x, to_y - 31)])
    picture.line([(560, 41), (560, 16), (75, 16), (75, 40)], colour=palette.key)
    if not marks:
        picture.text((300, 128), "next micro-batch: the same weights, gradients added", size=15, colour=palette.key)
    for name, (at, words) in parts.items():
        colour = palette.output if name == "weights" else palette.query
        picture.box(at, (132, 58), words, colour=colour)
        if name in marks:
            x, y = at
            picture.text(
                (x - (35 if name == "backward" else 0), y + 45), marks[name], size=16, bold=True, colour=palette.key
            )
    if not marks:
        picture.text((300, 270), "gradients to zero, and the next batch", size=15)
    else:
        picture.text((300, 280), "and, after some updates, a look at held-out data", size=15)
    return picture


def padded_batches(lengths: Sequence[int], rows: int) -> Drawing:
    """The same sentences in batches of so many rows, in the given order and sorted by length."""
    longest = max(lengths)
    side = min(20.0, 250 / longest)
    shares = []
    for order in (list(lengths), sorted(lengths)):
        batches = [order[i : i + rows] for i in range(0, len(order), rows)]
        ids = sum(len(batch) * max(batch) for batch in batches)
        shares.append((batches, ids))
    picture = Drawing(
        64 + len(lengths) * (side + 3) + 20 * (-(-len(lengths) // rows)) + 26,
        alt=f"Sentences of the lengths {', '.join(map(str, lengths))} as rows of squares, in batches of {rows}. Each "
        f"row is padded to the longest of its batch. As they come they take {shares[0][1]} squares, sorted "
        f"by length {shares[1][1]}, for {sum(lengths)} real ids.",
        caption="Filled: real ids. Empty: padding, computed with and thrown away.",
    )
    for left, name, (batches, ids) in ((30, "as they come", shares[0]), (330, "sorted by length", shares[1])):
        picture.text((left + side * longest / 2, 20), name, bold=True)
        y = 56.0
        for batch in batches:
            for length in batch:
                for place in range(max(batch)):
                    x = left + side * place
                    real = place < length
                    picture._add(
                        "rect", x=x, y=y - side / 2, width=side - 2, height=side - 2, rx=2,
                        fill=palette.query if real else "#FFFFFF", stroke=palette.query if real else GREY,
                    )  # fmt: skip
                y += side + 3
            y += 20
        picture.text(
            (left + side * longest / 2, picture.height - 18), f"{ids} ids for {sum(lengths)} real ones", size=16
        )
    return picture


def dropout_places() -> Drawing:
    """One layer with the places where numbers may be dropped: two in the paper's text, two more in later code."""
    picture = Drawing(
        330,
        alt="One layer from left to right on a thick grey line: embedding and positions are added, then attention adds "
        "its output, then the feed-forward layer adds its output. Discs marked A lie after the sum of embeddings and "
        "on both outputs before they are added. Discs marked B lie inside attention, on its weights, and inside the "
        "feed-forward layer.",
        caption="A: the places that the paper's text names. B: places that later settings of the authors' code and "
        "many libraries add.",
    )
    picture.stream((60, 250), (585, 250))
    picture.box((60, 250), (104, 60), ("embedding", "+ position"), colour=palette.residual)
    for x, name, inner in ((250, "attention", "weights"), (460, "feed-forward", "hidden")):
        picture.line([(x - 75, 250), (x - 75, 105), (x - 66, 105)])
        picture.box((x, 105), (130, 130), colour=palette.query)
        picture.text((x, 62), name, bold=True, size=16)
        picture.text((x, 98), inner, size=16)
        picture.circle((x, 138), 16, colour=palette.key, filled=True)
        picture.text((x, 138), "B", bold=True, colour="#FFFFFF")
        picture.line([(x + 65, 105), (x + 85, 105), (x + 85, 237)])
        picture.circle((x + 85, 175), 16, colour=palette.value, filled=True)
        picture.text((x + 85, 175), "A", bold=True, colour="#FFFFFF")
        picture.plus((x + 85, 250))
    picture.circle((140, 250), 16, colour=palette.value, filled=True)
    picture.text((140, 250), "A", bold=True, colour="#FFFFFF")
    picture.text((300, 310), "the residual stream", size=16, colour="#555555")
    return picture


def parts_of_a_checkpoint() -> Drawing:
    """What the next update depends on, and so what a checkpoint must hold."""
    parts = (
        ("weights", "what the model is"),
        ("optimizer", "what it remembers of gradients"),
        ("step", "which rate comes next"),
        ("place in the data", "which batch comes next"),
        ("random state", "what dropout draws next"),
    )
    picture = Drawing(
        40 + 52 * len(parts),
        alt="Five boxes with arrows to one box, the next update: "
        + "; ".join(f"{name}, {why}" for name, why in parts)
        + ".",
        caption="Everything that the next update depends on must be in the checkpoint.",
    )
    middle = (40 + 52 * len(parts)) / 2
    for row, (name, why) in enumerate(parts):
        y = 46 + 52 * row
        picture.box((95, y), (166, 40), name, colour=palette.query)
        picture.text((190, y), why, size=16, anchor="start")
        picture.line([(450, y), (485, middle + 8 * (row - 2))], colour=GREY)
    picture.box((540, middle), (100, 60), ("the next", "update"), colour=palette.output)
    return picture
