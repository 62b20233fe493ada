"""The drawing of the lab on experts: what a bias does to a router's choice, and what it leaves alone."""

from coursework.pictures.drawing import INK, Drawing
from coursework.pictures.style import palette

GREY, FAR = "#555555", "#9A9A9A"


def bias_decides_the_choice() -> Drawing:
    """Four experts with score, bias and sum; the two largest sums are chosen, and weighed by their scores."""
    picture = Drawing(
        262,
        alt="Four experts in rows, each with its score, its bias, their sum, and its weight. Expert 0: score 0.9, "
        "bias minus 0.3, sum 0.6, not chosen. Expert 1: 0.8 and 0.0, sum 0.8, chosen, weight 0.53. Expert 2: 0.7 and "
        "plus 0.2, sum 0.9, chosen, weight 0.47. Expert 3: 0.2 and plus 0.1, sum 0.3, not chosen.",
        caption="Expert 0 was too busy: its bias costs it this token. Among the chosen, the one with the higher score "
        "still has the higher weight.",
    )
    for x, words in ((170, "score"), (282, "+ bias"), (398, "choose by"), (535, "weight")):
        picture.text((x, 20), words, size=16, bold=True)
    rows = (("0.9", "−0.3", "0.6", ""), ("0.8", "0.0", "0.8", "0.53"), ("0.7", "+0.2", "0.9", "0.47"),
            ("0.2", "+0.1", "0.3", ""))  # fmt: skip
    for number, (score, bias, total, weight) in enumerate(rows):
        y, ink, colour = 60 + 54 * number, INK if weight else GREY, palette.value if weight else FAR
        picture.box((62, y), (104, 38), f"expert {number}", colour=colour)
        picture.bar((136, y), (68 * float(score), 26), colour=palette.query)
        picture.text((170, y), score, size=16, colour=ink)
        picture.text((282, y), bias, size=16, colour=palette.key if bias != "0.0" else ink)
        picture.bar((364, y), (68 * float(total), 26), colour=colour)
        picture.text((398, y), total, size=16, colour=ink, bold=bool(weight))
        if weight:
            picture.line([(452, y), (498, y)], colour=colour, width=3)
            picture.text((535, y), weight, size=17, bold=True)
    return picture
