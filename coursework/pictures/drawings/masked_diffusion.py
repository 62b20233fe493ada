"""The drawing of the lab on masked diffusion: a text that is written in any order."""

from collections.abc import Sequence

from coursework.pictures.drawing import INK, Drawing
from coursework.pictures.style import palette

GREY = "#9A9A9A"


def written_in_any_order(
    words: Sequence[str] = ("the", "tall", "queen", "near", "the", "boys", "sees", "herself"),
    passes: Sequence[Sequence[int]] = ((3, 7), (0, 2), (4, 6), (1, 5)),
) -> Drawing:
    """Each row is the text after one more pass: new words in colour, hidden positions empty."""
    steps = "; then ".join(" and ".join(words[place] for place in one) for one in passes)
    picture = Drawing(
        46 * (len(passes) + 1) + 14,
        alt=f"A page of {len(words)} empty boxes, and below it the same page after each of {len(passes)} passes. "
        f"Written are {steps}. Then no box is empty.",
        caption=f"{len(words)} words in {len(passes)} passes. Each pass reads the whole row above it, left and right.",
    )
    room, known = 500 / sum(len(word) + 2.2 for word in words), set[int]()
    for row in range(len(passes) + 1):
        new = set(passes[row - 1]) if row else set[int]()
        known |= new
        x, y = 96.0, 28 + 46 * row
        picture.text((44, y), f"pass {row}" if row else "empty")
        for place, word in enumerate(words):
            width = room * (len(word) + 2.2)
            colour = palette.output if place in new else INK if place in known else GREY
            label = [word] if place in known else []
            picture.box((x + width / 2, y), (width - 5, 34), *label, colour=colour, filled=place in new)
            x += width
    return picture
