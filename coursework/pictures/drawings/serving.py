"""The drawing of the lab on serving: where a paged cache keeps two texts."""

from coursework.pictures.drawing import Drawing
from coursework.pictures.style import palette

GREY = "#9A9A9A"


def block_tables() -> Drawing:
    """Two texts that begin alike, their tables, and the pool of blocks in which their tokens lie."""
    texts = {"text A, 10 tokens": ([2, 5, 0], 10, palette.query), "text B, 7 tokens": ([2, 3], 7, palette.key)}
    picture = Drawing(
        290,
        alt="Above, two texts with their tables. Text A has 10 tokens in the blocks 2, 5 and 0, text B has 7 in the "
        "blocks 2 and 3. Below, a pool of eight blocks with room for four tokens each. Block 2 is full and belongs to "
        "both, block 5 is full and A's, block 0 holds two tokens of A, block 3 holds three of B. Four blocks are free.",
        caption="The table of a text lists its blocks in order, here of four tokens each. Three positions are reserved "
        "and empty. Both texts begin with the same four tokens, so they share block 2.",
    )
    held: dict[int, tuple[int, str]] = {}  # block -> how many tokens, whose colour
    for row, (name, (table, n, colour)) in enumerate(texts.items()):
        y = 30 + 46 * row
        picture.text((20, y), name, bold=True, anchor="start", colour=colour)
        for place, block in enumerate(table):
            picture.box((240 + 58 * place, y), (46, 32), str(block), colour=palette.value if block == 2 else colour)
            held[block] = (min(4, n - 4 * place), palette.value if block == 2 else colour)
    for block in range(8):
        x, y = 16 + 146 * (block % 4), 118 + 88 * (block // 4)
        picture.frame((x, y), (132, 74))
        picture.text((x + 66, y + 16), f"block {block}" if block in held else f"block {block}, free", size=15)
        n, colour = held.get(block, (0, GREY))
        for place in range(4):
            picture.box((x + 24 + 28 * place, y + 48), (22, 28), colour=colour if place < n else GREY, filled=place < n)
    return picture
