"""More drawings of chapter 01: a batch, self- and cross-attention, masks as grids, shuffled words."""

from collections.abc import Sequence

from coursework.pictures.arrays import matrix
from coursework.pictures.drawing import INK, Drawing
from coursework.pictures.style import palette


def batch_of_sentences(B: int = 3, T: int = 4, E: int = 3) -> Drawing:
    """A tensor (B, T, E) as a pile of sheets: a sheet for each sentence, a row for each word."""
    picture = Drawing(
        250,
        alt=f"A tensor of shape (B, T, E) drawn as {B} sheets, one behind the other. Each sheet is one sentence, each "
        "row of a sheet one word, each column one number of its vector. One sheet alone has the shape (T, E).",
        caption="One sentence is a sheet (T, E). A batch is a pile of sheets (B, T, E), each processed separately.",
    )
    for sheet in reversed(range(B)):
        corner = (210 + 34 * sheet, 106 - 34 * sheet)
        picture.numbers(corner, [[""] * E for _ in range(T)], cell=(46, 30), colour=palette.query)
    picture.text((190, 166), "T words", anchor="end", bold=True)
    picture.text((210 + 23 * E, 240), "E numbers", bold=True)
    picture.text((432, 70), "B sentences", anchor="start", bold=True)
    picture.line([(362, 128), (430, 60)], colour=palette.residual)
    return picture


def self_and_cross(here: Sequence[str], there: Sequence[str]) -> Drawing:
    """Self-attention beside cross-attention: who asks, and who is asked.

    Args:
        here: the words that ask, and in self-attention are asked as well.
        there: the words that are asked in cross-attention.
    """
    picture = Drawing(
        300,
        alt=f"Left, self-attention: queries, keys and values all come from {' '.join(here)}. Right, cross-attention: "
        f"the queries come from {' '.join(here)}, the keys and values from {' '.join(there)}.",
        caption="Self-attention: a sentence asks itself. Cross-attention: one sentence asks, another one is asked. The "
        "computation in the box is the same.",
    )
    for left, heading, other in ((0, "self-attention", here), (300, "cross-attention", there)):
        picture.text((left + 150, 20), heading, bold=True)
        picture.box((left + 150, 110), (210, 44), "softmax(Q Kᵀ / √d) V", colour=INK)
        picture.line([(left + 150, 86), (left + 150, 62)], colour=palette.output, width=3)
        picture.text((left + 150, 48), "a row for each query", colour=palette.output, size=15)
        for x, name, colour in ((80, "Q", palette.query), (150, "K", palette.key), (220, "V", palette.value)):
            picture.line([(left + x, 196), (left + x, 134)], colour=colour, width=3)
            picture.text((left + x + 14, 166), name, colour=colour, bold=True)
        if other is here:
            picture.line([(left + 80, 196), (left + 220, 196)], arrow=False)
            picture.line([(left + 150, 226), (left + 150, 196)], arrow=False)
            picture.box((left + 150, 246), (250, 40), " ".join(here), colour=palette.residual)
        else:
            picture.line([(left + 80, 226), (left + 80, 196)], arrow=False)
            picture.line([(left + 150, 196), (left + 220, 196)], arrow=False)
            picture.line([(left + 185, 226), (left + 185, 196)], arrow=False)
            picture.box((left + 58, 246), (108, 40), " ".join(here), colour=palette.residual)
            picture.box((left + 205, 246), (172, 40), " ".join(there), colour=palette.residual)
            picture.text((left + 58, 280), "asks", size=15)
            picture.text((left + 205, 280), "is asked", size=15)
    return picture


def mask_grids(
    panels: Sequence[tuple[str, Sequence[str], Sequence[str], object]], *, caption: str, cell: float = 40
) -> Drawing:
    """Masks as grids, side by side: a row for each word that looks, a column for each word that is looked at.

    Args:
        panels: of each grid the heading, the words of its rows, those of its columns, and a boolean mask (T, S).
        caption: what the drawing is for.
        cell: side of a cell.
    """
    tall = max(len(rows) for _, rows, _, _ in panels)
    room = 600 / len(panels)
    said, grids = [], []
    for heading, rows, columns, mask in panels:
        allowed = matrix("mask", mask).astype(bool)
        if allowed.shape != (len(rows), len(columns)):
            raise ValueError(f"mask: expected {(len(rows), len(columns))} for the words, got {allowed.shape}")
        grids.append((heading, rows, columns, allowed))
        seen = "; ".join(
            f"{row} may look at {', '.join(word for word, may in zip(columns, line, strict=True) if may) or 'nothing'}"
            for row, line in zip(rows, allowed, strict=True)
        )
        said.append(f"{heading}: {seen}.")
    longest = 8.5 * max(len(word) for _, _, columns, _ in panels for word in columns)
    high = 15 + (longest if longest > cell else 18)
    top = 40 + high
    picture = Drawing(top + cell * tall + 12, alt=f"Masks as grids. {' '.join(said)}", caption=caption)
    for number, (heading, rows, columns, allowed) in enumerate(grids):
        names = 12 + 8.8 * max(map(len, rows))
        left = room * number + (room - names - cell * len(columns)) / 2 + names
        picture.text((left + (cell * len(columns) - names) / 2, 18), heading, bold=True, size=16)
        for column, word in enumerate(columns):
            x = left + cell * (column + 0.5)
            if longest > cell:
                picture.upright((x, top - 10), word)
            else:
                picture.text((x, top - 14), word, size=15)
        for row, word in enumerate(rows):
            y = top + cell * (row + 0.5)
            picture.text((left - 8, y), word, anchor="end", size=15)
            for column in range(len(columns)):
                picture.cell((left + cell * (column + 0.5), y), cell - 5, allowed=bool(allowed[row, column]))
    return picture


def shuffled_words(words: Sequence[str], order: Sequence[int]) -> Drawing:
    """A sentence and the same words in another order: each word's output moves with it.

    Args:
        words: of the sentence.
        order: for each position of the second line, the position in the first line from which its word comes.
    """
    after = [words[number] for number in order]
    picture = Drawing(
        270,
        alt=f"The words {' '.join(words)} go through attention, each to its output. Below, the same words as "
        f"{' '.join(after)}: each word has the same output as before, and the outputs stand in the new order.",
        caption="Without positions each word gets the same output wherever it stands: the outputs move with the words.",
    )
    step = 600 / len(words)
    colours = [palette.query, palette.key, palette.value, palette.output, "#E69F00", palette.residual]
    for y, numbers in ((60, range(len(words))), (190, order)):
        picture.frame((12, y - 8), (576, 34))
        picture.text((300, y + 9), "attention", colour="#555555", size=15)
        for place, number in enumerate(numbers):
            x = step * (place + 0.5)
            colour = colours[number % len(colours)]
            picture.text((x, y - 40), words[number], bold=True)
            picture.line([(x, y - 26), (x, y - 10)], colour=colour)
            picture.line([(x, y + 28), (x, y + 42)], colour=colour)
            picture.numbers((x - 33, y + 46), [["", "", ""]], cell=(22, 22), colour=colour)
    return picture
