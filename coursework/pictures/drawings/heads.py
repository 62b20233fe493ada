"""The drawings of chapter 2: why several heads, how a vector is cut into them, what they add, and how they share."""

from collections.abc import Sequence

from coursework.pictures.drawing import INK, Drawing
from coursework.pictures.style import palette

HEAD_COLOURS = ("#B07800", "#1B86C2", "#7A4FA3")  # of three heads, apart from those of query, key and value
MARKED = "#C22F2F"  # what goes wrong


def one_average_or_two() -> Drawing:
    """Two sentences with the same words: one average cannot say who sees whom, two can."""
    picture = Drawing(
        196,
        alt="Two sentences: queen sees boy, and boy sees queen. The word sees reads both persons. With one head and "
        "equal weights it takes the same average, (0.5, 0.5), from both sentences. With two heads it takes (1, 0) and "
        "(0, 1) from the first and (0, 1) and (1, 0) from the second.",
        caption="What “sees” gets. The value of “queen” is (1, 0), that of “boy” is (0, 1).",
    )
    picture.text((275, 24), "one head", bold=True)
    picture.text((475, 24), "two heads", bold=True)
    picture.text((275, 54), "an average", size=15, colour="#555555")
    picture.text((420, 54), "who sees", size=15, colour=HEAD_COLOURS[0])
    picture.text((530, 54), "who is seen", size=15, colour=HEAD_COLOURS[1])
    for y, words, first, second in (
        (100, "queen sees boy", "(1, 0)", "(0, 1)"),
        (156, "boy sees queen", "(0, 1)", "(1, 0)"),
    ):
        picture.text((20, y), words, anchor="start")
        picture.line([(168, y), (208, y)])
        picture.box((275, y), (120, 36), "(0.5, 0.5)", colour=palette.output)
        picture.box((420, y), (94, 36), first, colour=HEAD_COLOURS[0])
        picture.box((530, y), (94, 36), second, colour=HEAD_COLOURS[1])
    return picture


def two_places_task(letters: str = "CAFBD") -> Drawing:
    """The task of section 1: one position has to name the letters one and three positions back."""
    picture = Drawing(
        190,
        alt=f"A row of letters, {' '.join(letters)}. The last position has two questions to answer: which letter "
        f"stands one position back, {letters[-2]}, and which stands three positions back, {letters[-4]}.",
        caption="Each position has two questions to answer. Both answers are at other positions.",
    )
    step, y = 82, 128
    places = [60 + step * number for number in range(len(letters))]
    picture.curve((places[-4], y - 24), (places[-1] + 8, y - 24), lift=34, colour=HEAD_COLOURS[1], width=3)
    picture.curve((places[-2], y - 24), (places[-1] - 8, y - 24), lift=12, colour=HEAD_COLOURS[0], width=3)
    for number, (x, letter) in enumerate(zip(places, letters, strict=True)):
        picture.box((x, y), (48, 42), letter, filled=number == len(letters) - 1)
    picture.text((445, 110), f"one back: {letters[-2]}", anchor="start", colour=HEAD_COLOURS[0])
    picture.text((445, 144), f"three back: {letters[-4]}", anchor="start", colour=HEAD_COLOURS[1])
    picture.text((places[-1], 172), "asks", size=15, colour="#555555")
    return picture


def split_into_heads(*, straight: bool = False) -> Drawing:
    """Two tokens of six numbers become three heads of two numbers for each token.

    Args:
        straight: draw the mistake instead, in which the numbers are read on into the new shape.
    """
    if straight:
        taken, said = [[(0, 1), (2, 3)], [(4, 5), (6, 7)], [(8, 9), (10, 11)]], "read on into the new shape"
        alt = (
            "The mistake: the numbers 0 to 11 are read on into the shape of three heads. Head 0 gets 0 1 and 2 3, both "
            "from token 0. Head 1 gets 4 5 of token 0 and 6 7 of token 1. Head 2 gets 8 9 and 10 11, both of token 1."
        )
        caption = "The same shape, but head 0 now holds two pieces of token 0 and nothing of token 1."
    else:
        taken, said = [[(2 * head + 6 * token, 2 * head + 6 * token + 1) for token in (0, 1)] for head in range(3)], ""
        alt = (
            "Split and merge. Left, two tokens of six numbers: token 0 holds 0 to 5, token 1 holds 6 to 11. Right, "
            "three heads of two numbers for each token: head 0 holds 0 1 and 6 7, head 1 holds 2 3 and 8 9, head 2 "
            "holds 4 5 and 10 11. An arrow to the right is called split, one to the left merge."
        )
        caption = "Each head gets the same columns of every token. Merging puts them side by side again."
    picture = Drawing(344, alt=alt, caption=caption)
    for x, shape, numbers in ((165, "(B, T, H · E)", "(1, 2, 6)"), (510, "(B, H, T, E)", "(1, 3, 2, 2)")):
        picture.text((x, 22), shape, bold=True)
        picture.text((x, 44), numbers, size=15, colour="#555555")
    whose = {number: head for head, rows in enumerate(taken) for row in rows for number in row}
    for token in (0, 1):
        y = 154 + 50 * token
        picture.text((10, y), f"token {token}", anchor="start", size=15)
        for column in range(6):
            number = 6 * token + column
            picture.box((88 + 38 * column, y), (34, 36), str(number), colour=HEAD_COLOURS[whose[number]])
    for head, rows in enumerate(taken):
        for row, pair in enumerate(rows):
            y = 82 + 92 * head + 42 * row
            for column, number in enumerate(pair):
                picture.box((500 + 42 * column, y), (38, 36), str(number), colour=HEAD_COLOURS[head])
        picture.text((468, 103 + 92 * head), f"head {head}", anchor="end", colour=HEAD_COLOURS[head])
    picture.line([(312, 166), (392, 166)], width=3)
    picture.text((352, 146), "split" if not straight else "?", bold=True)
    if not straight:
        picture.line([(392, 198), (312, 198)], width=3)
        picture.text((352, 220), "merge", bold=True)
    else:
        picture.text((190, 254), said, colour=MARKED)
    return picture


def multi_head_layer() -> Drawing:
    """The layer from bottom to top, with the shape on each line."""
    picture = Drawing(
        520,
        alt="Multi-head attention from bottom to top. x of shape (B, T, D) goes into three linear maps for queries, "
        "keys and values. Each result, still (B, T, D), is split into H heads, (B, H, T, E). H attentions run side by "
        "side. Their outputs are merged to (B, T, D), and a fourth linear map gives the output, (B, T, D).",
        caption="The layer. On the right, the shape at each step; B sentences, T tokens, H heads, D = H · E numbers.",
    )
    x = 220
    picture.box((x, 492), (150, 34), "x")
    for column, (name, colour) in enumerate(
        (("query map", palette.query), ("key map", palette.key), ("value map", palette.value))
    ):
        left = 70 + 150 * column
        picture.line([(x, 474), (x, 458), (left, 458), (left, 434)])
        picture.box((left, 412), (124, 40), name, colour=colour)
        picture.line([(left, 391), (left, 352)], colour=colour)
        picture.box((left, 332), (124, 36), "split", colour=colour)
        picture.line([(left, 313), (left, 272)], colour=colour)
    for head in (2, 1, 0):
        shift = 9 * head
        picture.box((x + shift, 236 - shift), (400, 66), ["attention"] if head == 0 else (), colour=HEAD_COLOURS[head])
    picture.text((x + 196, 250), "× H", anchor="end", bold=True)
    picture.line([(x, 182), (x, 146)], colour=palette.output, width=3)
    picture.box((x, 126), (150, 36), "merge", colour=palette.output)
    picture.line([(x, 107), (x, 86)], colour=palette.output, width=3)
    picture.box((x, 64), (150, 40), "output map", colour=palette.output)
    picture.line([(x, 43), (x, 14)], colour=palette.output, width=3)
    for y, shape in (
        (492, "(B, T, D)"),
        (372, "(B, T, D)"),
        (294, "(B, H, T, E)"),
        (164, "(B, H, T, E)"),
        (97, "(B, T, D)"),
        (26, "(B, T, D)"),
    ):
        picture.text((590, y), shape, anchor="end", colour="#555555")
    return picture


def heads_add_up() -> Drawing:
    """Each head's output goes through its own rows of the output matrix, and the results are added."""
    picture = Drawing(
        300,
        alt="Three heads. Each has an output of shape (T, E), which goes through its own block of E rows of the output "
        "matrix, of shape (E, D), and the result, (T, D), is added to the residual stream, one thick grey line.",
        caption="“Side by side, then one matrix” is the same as “each through its own rows, then added”.",
    )
    picture.text((95, 24), "output of a head", bold=True)
    picture.text((315, 24), "rows of the output matrix", bold=True)
    picture.stream((530, 290), (530, 40))
    picture.text((530, 24), "stream", colour=palette.residual, bold=True)
    for head, y in enumerate((78, 156, 234)):
        picture.box((95, y), (140, 44), f"head {head}: (T, E)", colour=HEAD_COLOURS[head])
        picture.line([(166, y), (228, y)], colour=HEAD_COLOURS[head], width=3)
        rows = "0 to E − 1", "E to 2E − 1", "2E to 3E − 1"
        picture.box((315, y), (168, 50), [rows[head], "(E, D)"], colour=HEAD_COLOURS[head])
        picture.line([(400, y), (516, y)], colour=HEAD_COLOURS[head], width=3)
        picture.text((456, y - 16), "(T, D)", size=15)
        picture.plus((530, y))
    return picture


def mask_axes() -> Drawing:
    """Broadcasting lines shapes up from the right: what meets what."""
    picture = Drawing(
        190,
        alt="Two shapes written above each other, lined up from the right. Scores: B, H, T, S. Mask: B, T, S. So S "
        "stands under S, T under T, but the B of the mask stands under the H of the scores, marked in red.",
        caption="Shapes are lined up from the right, so the mask's sentences meet the scores' heads.",
    )
    for y, name, letters in ((56, "scores", "BHTS"), (130, "mask", "BTS")):
        picture.text((30, y), name, anchor="start", bold=True)
        for number, letter in enumerate(reversed(letters)):
            wrong = name == "mask" and letter == "B"
            picture.box((500 - 100 * number, y), (70, 44), letter, colour=MARKED if wrong else INK)
    for number in range(3):
        x = 500 - 100 * number
        picture.line([(x, 79), (x, 106)], arrow=False, colour=MARKED if number == 2 else INK)
    picture.text((300, 172), "sentences meet heads", size=15, colour=MARKED)
    return picture


def induction_steps(letters: str = "KQBZRMK") -> Drawing:
    """The two steps of induction: each letter learns what stood before it, then the last one looks for its follower.

    Args:
        letters: the last of them has come before.
    """
    found = letters.index(letters[-1]) + 1
    if found == len(letters):
        raise ValueError(f"letters: expected the last one, {letters[-1]}, to have come before")
    wanted = letters[found]
    picture = Drawing(
        330,
        alt=f"The letters {' '.join(letters)}. In layer 1 each letter gets a note of what stood before it: {wanted} is "
        f"noted as coming after {letters[-1]}. In layer 2 the last {letters[-1]} looks for the position with the note "
        f"after {letters[-1]}, finds {wanted}, and copies it as the prediction.",
        caption="Two steps. Layer 1: each letter notes its predecessor. Layer 2: the last letter looks for a note with "
        "its own name and copies the letter that carries it.",
    )
    step = 76
    places = [96 + step * number for number in range(len(letters))]
    picture.text((10, 292), "text", anchor="start", bold=True)
    picture.text((10, 190), "layer 1", anchor="start", bold=True)
    picture.text((10, 40), "layer 2", anchor="start", bold=True)
    for number, (x, letter) in enumerate(zip(places, letters, strict=True)):
        lit = number in (found, len(letters) - 1)
        picture.box((x, 292), (44, 40), letter, colour=palette.value if number == found else INK, filled=lit)
        if number:
            picture.line([(places[number - 1] + 10, 270), (x - 8, 210)], colour=palette.residual)
            note = palette.key if number == found else palette.residual
            picture.box((x, 190), (70, 34), f"after {letters[number - 1]}", colour=note)
    reader = places[-1]
    side = Drawing.WIDTH - 6  # past the note, from the letter itself
    picture.line([(reader + 22, 292), (side, 292), (side, 100), (reader + 29, 100)], colour=palette.query)
    picture.box((reader - 30, 100), (118, 34), f"after {letters[-1]}?", colour=palette.query)
    picture.line([(reader - 92, 100), (places[found], 100), (places[found], 170)], colour=palette.query, width=3)
    gap = places[found] - step / 2  # between two notes
    picture.line(
        [(places[found] - 24, 292), (gap, 292), (gap, 40), (reader - 76, 40)],
        colour=palette.value,
        width=3,
    )
    picture.box((reader - 22, 40), (104, 36), f"next: {wanted}", colour=palette.value, filled=True)
    return picture


def shared_heads(n_heads: int = 6, groups: Sequence[int] = (6, 3, 1)) -> Drawing:
    """Full, grouped and multi-query attention: which query heads read which heads of keys and values."""
    picture = Drawing(
        236,
        alt="Three arrangements of six query heads. Full: six heads of keys and values, one for each query head. "
        "Grouped: three, each shared by two neighbouring query heads. Multi-query: one, shared by all six.",
        caption="Only the keys and values below are kept in the cache. There are as many query heads as before.",
    )
    width = Drawing.WIDTH / len(groups)
    for column, (title, shared) in enumerate(zip(("full", "grouped", "multi-query"), groups, strict=True)):
        left, room = width * column + 14, width - 28
        picture.text((width * (column + 0.5), 24), title, bold=True)
        at = [left + room * (head + 0.5) / shared for head in range(shared)]
        for head in range(n_heads):
            x = left + room * (head + 0.5) / n_heads
            picture.line([(x, 96), (at[head * shared // n_heads], 146)], arrow=False, colour=palette.residual, width=2)
            picture.box((x, 78), (24, 36), "q", colour=palette.query)
        for x in at:
            picture.box((x, 165), (25, 36), "k", colour=palette.key)
            picture.box((x, 203), (25, 36), "v", colour=palette.value)
    return picture
