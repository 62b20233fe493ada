"""The drawings of the lab on looking inside a model: where one listens, what adds up, is exchanged, is read."""

from coursework.pictures.drawing import INK, Drawing
from coursework.pictures.style import palette

QUIET = "#555555"
MARKED = "#C22F2F"  # what a hook hears


def hooks_on_the_stream() -> Drawing:
    """The stream with its three layers, and the four levels at which a hook listens."""
    picture = Drawing(
        268,
        alt="The residual stream as a thick grey line from left to right. It begins at a box called start. Three "
        "layers read from it and add to it, each made of two heads and a feed-forward. At the right end a "
        "norm and the table turn it into logits. Red dots mark the four levels where a hook listens: level 0 "
        "after the start, and levels 1, 2 and 3 after each layer.",
        caption="The model of this lab. A red dot is a hook: it notes what passes, and changes nothing.",
    )
    y = 176
    picture.stream((86, y), (506, y))
    picture.box((50, y), (72, 44), "start")
    for layer, x in enumerate((172, 298, 424), 1):
        picture.frame((x - 54, 44), (108, 74))
        picture.text((x, 26), f"layer {layer}", bold=True)
        picture.text((x, 66), "two heads", size=15)
        picture.text((x, 94), "feed-forward", size=15)
        picture.line([(x - 38, y - 3), (x - 38, 122)], colour=palette.residual)
        picture.line([(x + 22, 119), (x + 22, y - 13)], colour=palette.output, width=3)
        picture.plus((x + 22, y))
    for level, x in enumerate((104, 222, 348, 474)):
        picture.circle((x, y), 8, colour=MARKED, filled=True)
        picture.text((x, y + 36), f"level {level}", size=15, colour=MARKED)
    picture.box((548, y), (84, 60), ["norm,", "table"])
    picture.line([(548, y - 31), (548, 96)])
    picture.text((548, 80), "logits", bold=True)
    picture.text((300, 246), "each position of the text has its own stream", size=15, colour=QUIET)
    return picture


def logits_by_hand() -> Drawing:
    """Three parts write two numbers each; their sum, divided by 5, gives two logits, and so does each part alone."""
    picture = Drawing(
        258,
        alt="A table. The start writes (2, 1), a head writes (0, 4), the feed-forward writes (-1, 2); the sum is "
        "(1, 7). Divided by 5, the contributions to the logit of Q are 0.2, 0.8 and 0.4, drawn as bars, and "
        "their sum is 1.4. Those to the logit of K are 0.4, 0 and -0.2, and their sum is 0.2.",
        caption="The parts add up to the stream. Divided by the same 5, they add up to the logits as well.",
    )
    for x, head in ((190, "writes"), (310, "to K"), (400, "to Q")):
        picture.text((x, 26), head, bold=True)
    rows = (
        ("start", "(2, 1)", "0.4", 0.2, "0.2"),
        ("a head", "(0, 4)", "0.0", 0.8, "0.8"),
        ("feed-forward", "(−1, 2)", "−0.2", 0.4, "0.4"),
        ("sum", "(1, 7)", "0.2", 1.4, "1.4"),
    )
    for number, (name, vector, to_k, length, to_q) in enumerate(rows):
        last = number == len(rows) - 1
        y = 68 + 46 * number + (10 if last else 0)
        colour = INK if last else palette.output
        picture.text((14, y), name, anchor="start", bold=last)
        picture.box((190, y), (96, 36), vector, colour=palette.residual if last else palette.output)
        picture.text((310, y), to_k)
        picture.text((400, y), to_q, bold=last)
        picture.bar((436, y), (100 * length, 24), colour=colour)
    picture.line([(14, 190), (584, 190)], arrow=False, colour=palette.residual)
    return picture


def lens_by_hand() -> Drawing:
    """The same stream, read with the norm and the table at each level."""
    picture = Drawing(
        286,
        alt="The stream of the last example, from bottom to top. After the start it is (2, 1); read with norm and"
        " table, K has 1.3 and Q has 0.6, so it says K. After the head it is (2, 5): K 0.5, Q 1.3, so it says"
        " Q. After the feed-forward it is (1, 7): K 0.2, Q 1.4, so it says Q.",
        caption="The last norm and the table, used too early. In this example the head turns K into Q.",
    )
    x = 176
    picture.stream((x, 280), (x, 30))
    rows = (
        ("start", "(2, 1)", "K 1.3", "Q 0.6", "K"),
        ("head", "(2, 5)", "K 0.5", "Q 1.3", "Q"),
        ("feed-forward", "(1, 7)", "K 0.2", "Q 1.4", "Q"),
    )
    for number, (after, vector, to_k, to_q, says) in enumerate(rows):
        y = 236 - 88 * number
        picture.text((14, y), "after the", anchor="start", size=15, colour=QUIET)
        picture.text((14, y + 20), after, anchor="start", size=15, colour=QUIET)
        picture.box((x, y), (84, 38), vector, colour=palette.residual)
        picture.line([(x + 44, y), (252, y)])
        picture.box((312, y), (116, 44), "norm, table")
        picture.line([(371, y), (398, y)])
        picture.text((406, y), to_k, anchor="start")
        picture.text((482, y), to_q, anchor="start")
        picture.text((560, y), says, bold=True, size=20)
    picture.text((560, 24), "says", size=15, colour=QUIET)
    return picture


def patch_between_runs() -> Drawing:
    """Two runs of the model on prompts that differ in one letter; one vector is carried over."""
    picture = Drawing(
        330,
        alt="Two runs side by side, each a grid of stream vectors: columns are the letters of a prompt, rows the "
        "levels 0 to 3 from bottom to top. The clean prompt is K Q M R K, the corrupted one X Q M R K. One "
        "vector of the clean run, above M at level 1, is copied into the same cell of the corrupted run. The "
        "cells above it and to its right can change.",
        caption="One vector of the clean run takes the place of the corrupted one. Only what is computed from it can "
        "change.",
    )
    for left, title, letters in ((70, "clean run", "KQMRK"), (370, "corrupted run", "XQMRK")):
        picture.text((left + 84, 24), title, bold=True)
        for place, letter in enumerate(letters):
            x = left + 42 * place
            different = place == 0
            colour = MARKED if different and letter == "X" else INK
            picture.box((x, 268), (36, 34), letter, colour=colour)
            for level in range(4):
                y = 216 - 46 * level
                lit = (place, level) == (2, 1)
                reached = letter != "X" and left > 300 and level > 1 and place >= 2
                colour = palette.value if lit else (palette.output if reached else palette.residual)
                picture.box((x, y), (34, 34), (), colour=colour, filled=lit)
    for level in range(4):
        picture.text((40, 216 - 46 * level), str(level), size=15, colour=QUIET, anchor="end")
    picture.text((12, 48), "level", size=15, colour=QUIET, anchor="start")
    picture.curve((154, 152), (446, 152), lift=62, colour=palette.value, width=3)
    picture.text((154, 312), "then: Q", colour=QUIET)
    picture.text((454, 312), "then: Q again?", colour=QUIET)
    return picture


def probe_and_controls() -> Drawing:
    """A probe on the stream, and the two controls beside it."""
    picture = Drawing(
        262,
        alt="Three columns. Left, the probe: the stream of the trained model goes into a linear map that has to "
        "say the letter before. Middle, the first control: the same stream, but the labels are shuffled. "
        "Right, the second control: the right labels, but the stream of an untrained model.",
        caption="A probe learns; the model does not. Each control takes one thing away that the probe should need.",
    )
    columns = (
        ("probe", "trained model", "letter before", palette.value),
        ("control 1", "trained model", "shuffled labels", MARKED),
        ("control 2", "untrained model", "letter before", MARKED),
    )
    for number, (title, model, label, colour) in enumerate(columns):
        x = 104 + 196 * number
        first = number == 0
        picture.text((x, 24), title, bold=True, colour=INK if first else MARKED)
        picture.box((x, 74), (164, 40), label, colour=colour if number < 2 else palette.value)
        picture.line([(x, 122), (x, 97)])
        picture.box((x, 144), (124, 42), "linear map")
        picture.line([(x, 206), (x, 168)])
        picture.stream((x - 80, 212), (x + 80, 212))
        picture.text((x, 240), model, size=16, colour=colour if number != 1 else INK)
    return picture
