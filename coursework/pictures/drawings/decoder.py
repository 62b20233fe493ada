"""The drawings of chapter 5: writing, shift and mask, the layer, whole models, choosing, beams, cache, guesses."""

import math
from collections.abc import Sequence

from coursework.pictures.drawing import INK, Drawing
from coursework.pictures.style import palette

GREY = "#555555"
BAD = "#C22F2F"  # what goes wrong, or is refused


def choose_and_append(prompt: Sequence[str], words: Sequence[str], chances: Sequence[float], chosen: int) -> Drawing:
    """The loop of writing with its four stations: tokens, model, probabilities, one token chosen and appended.

    Args:
        prompt: the tokens so far.
        words: a few tokens that may follow.
        chances: their probabilities.
        chosen: the number of the one that is chosen.
    """
    said = ", ".join(f"{word} {chance:.2f}" for word, chance in zip(words, chances, strict=True))
    picture = Drawing(
        250,
        alt=f"The loop of writing. The tokens {' '.join(prompt)} go into the model. Out come probabilities of the next "
        f"token: {said}. One token is chosen, {words[chosen]}. It is appended to the tokens, and all begins again.",
        caption="One turn of the loop. Choosing is a step of its own, and only the chosen token goes back.",
    )
    step = 46 + 8 * max(map(len, prompt))
    for number, word in enumerate(prompt):
        picture.box((14 + step * (number + 0.5), 56), (step - 8, 34), word, colour=GREY)
    last = 14 + step * (len(prompt) + 0.5)
    picture.frame((last - step / 2 + 4, 39), (step - 8, 34), colour=palette.output, dashed=True)
    picture.text((14, 20), "1  the tokens so far", anchor="start", size=16, colour=GREY)
    picture.line([(last + step / 2 + 4, 56), (388, 56)], width=3)
    picture.box((450, 56), (116, 56), ["the model", "(decoder)"], filled=True)
    picture.text((450, 14), "2", size=16, colour=GREY)
    picture.line([(450, 86), (450, 116)], width=3)
    picture.text((345, 134), "3  how probable is each?", size=16, colour=GREY, anchor="start")
    for number, (word, chance) in enumerate(zip(words, chances, strict=True)):
        y = 164 + 30 * number
        picture.text((418, y), word, anchor="end", bold=number == chosen)
        picture.bar((426, y), (150 * chance + 2, 22), colour=palette.output if number == chosen else INK)
        picture.text((434 + 150 * chance, y), f"{chance:.2f}", anchor="start", size=15)
    y = 164 + 30 * chosen
    picture.line([(362, y), (300, y)], colour=palette.output, width=3)
    picture.box((232, y), (128, 40), ["choose one"], colour=palette.output)
    picture.text((150, y), "4", size=16, colour=GREY)
    picture.line([(232, y - 22), (232, 116), (last, 116), (last, 80)], colour=palette.output, width=3)
    for y, words in ((138, "append it, and"), (158, "begin again at 1")):
        picture.text((14, y), words, size=16, colour=palette.output, anchor="start")
    return picture


def shift_and_mask(words: Sequence[str]) -> Drawing:
    """Shift right and causal mask as one picture: what each position reads, sees, and has to predict."""
    read = ["⟨start⟩", *words[:-1]]
    n, cell, left, top = len(words), 66, 130, 150
    picture = Drawing(
        top + cell * n + 30,
        alt=f"Above, the target {' '.join(words)}; each word moves one position to the right, so that the decoder "
        f"reads {' '.join(read)}. Below, a grid: the row of each position is open up to its own column and hatched "
        f"after it. At the end of each row stands what this position has to predict: {', '.join(words)}. In every "
        "row but the last, the word that it has to predict stands in the first hatched column.",
        caption="The target is moved one position to the right (orange arrows). So in every row but the last, the "
        "answer is the first word that the mask hides.",
    )
    picture.text((14, 24), "target", anchor="start", bold=True, colour=palette.output)
    picture.text((14, 104), "read", anchor="start", bold=True, colour=palette.key)
    for number, (word, old) in enumerate(zip(words, read, strict=True)):
        x = left + cell * (number + 0.5)
        picture.box((x, 24), (cell - 6, 30), word, colour=palette.output)
        picture.text((x, 104), old, size=15)
        if number < n - 1:
            picture.line([(x + 8, 42), (x + cell - 8, 88)], colour=palette.key)
    picture.text((14, 132), "position", anchor="start", size=15, colour=GREY)
    picture.text((left + cell * n + 92, 132), "predicts", size=15, colour=palette.output, bold=True)
    for row, word in enumerate(words):
        y = top + cell * (row + 0.5)
        picture.text((14, y), f"{row}", anchor="start")
        for column in range(n):
            x = left + cell * (column + 0.5)
            picture.cell((x, y), cell - 8, allowed=column <= row)
        picture.line([(left + cell * n + 6, y), (left + cell * n + 50, y)], colour=palette.output)
        picture.text((left + cell * n + 92, y), word, bold=True)
    return picture


def decoder_layer_stream() -> Drawing:
    """One decoder layer: the residual stream with three sublayers, their norms, and where q, k, v come from."""
    picture = Drawing(
        600,
        alt="One decoder layer, read from the bottom to the top. The residual stream is one thick line. Three "
        "sublayers stand beside it, each reads a normed copy of the stream and adds its result to it. First causal "
        "self-attention, with queries, keys and values from the stream. Second cross-attention, with queries from the "
        "stream, and keys and values from the output of the encoder. Third feed-forward.",
        caption="A decoder layer with the norm before each sublayer. Blue: queries. Orange: keys. Green: values. Only "
        "the second sublayer reads something that is not in the stream.",
    )
    x = 70
    picture.stream((x, 560), (x, 40))
    picture.text((x + 16, 578), "from the layer below", anchor="start", size=16, colour=GREY)
    picture.text((x + 16, 24), "to the layer above", anchor="start", size=16, colour=GREY)
    names = (["causal", "self-attention"], ["cross-", "attention"], ["feed-", "forward"])
    for number, words in enumerate(names):
        y = 500 - 165 * number
        picture.line([(x, y + 24), (138, y + 24)])
        picture.box((172, y + 24), (66, 34), "norm", colour=GREY)
        colour = (palette.query, palette.key, INK)[number]
        picture.box((330, y + 6), (140, 70), words, colour=colour)
        if number == 2:
            picture.line([(206, y + 24), (258, y + 24)])
        for name, dy, ink in (("q", 24, palette.query), ("k", 0, palette.key), ("v", -24, palette.value)):
            if number == 0 or (number == 1 and name == "q"):
                picture.line([(206, y + 24), (220, y + 6 + dy), (258, y + 6 + dy)], colour=ink)
                picture.text((238, y - 5 + dy), name, size=15, colour=ink, bold=True)
        picture.line([(330, y - 30), (330, y - 62), (x + 14, y - 62)], colour=palette.output)
        picture.plus((x, y - 62))
        picture.text((x + 24, y - 78), f"add  {number + 1}", size=16, colour=GREY, anchor="start")
    y = 335
    picture.box((516, y + 6), (132, 62), ["encoder’s", "output"], colour=palette.key)
    for name, dy, ink in (("k", -12, palette.key), ("v", 14, palette.value)):
        picture.line([(449, y + 6 + dy), (402, y + 6 + dy)], colour=ink)
        picture.text((426, y - 5 + dy), name, size=15, colour=ink, bold=True)
    return picture


def encoder_decoder_tokens(source: str = "cab") -> Drawing:
    """The reader's encoder-decoder with its tokens in it: letters in, letters backwards out."""
    target = [*reversed(source), "⟨stop⟩"]
    read = ["⟨start⟩", *reversed(source)]
    picture = Drawing(
        500,
        alt=f"The encoder-decoder with tokens. On the left the letters {' '.join(source)} go through token and "
        "position vectors, two encoder layers and a norm, and become the context, one vector for each letter. On the "
        f"right the decoder reads {' '.join(read)} and predicts {' '.join(target)}. The context goes into both decoder "
        "layers.",
        caption="Your encoder–decoder. The context is computed once; each decoder layer reads it.",
    )
    left, right = 120, 430
    picture.stream((left, 390), (left, 145))
    picture.stream((right, 390), (right, 145))
    for x, tokens, wide in ((left, list(source), 52), (right, read, 72)):
        step = wide + 8
        for number, word in enumerate(tokens):
            at = x + step * (number - (len(tokens) - 1) / 2)
            picture.box((at, 455), (wide, 32), word, colour=GREY)
            picture.line([(at, 437), (at, 410)])
        picture.box((x, 390), (step * len(tokens), 36), "tokens + positions", colour=palette.value)
    for number in range(2):
        y = 320 - 70 * number
        picture.box((left, y), (190, 46), "encoder layer", colour=palette.query)
        picture.box((right, y), (250, 46), "decoder layer", colour=palette.query)
        picture.line([(268, y), (304, y)], colour=palette.key, width=3.5)
    picture.box((left, 196), (190, 30), "norm", colour=GREY)
    picture.box((left, 145), (190, 34), "context", colour=palette.key)
    picture.line([(216, 145), (268, 145), (268, 320)], colour=palette.key, width=3.5, arrow=False)
    picture.box((right, 145), (250, 46), "norm, linear map", colour=palette.output)
    for number, word in enumerate(target):
        at = right + 80 * (number - (len(target) - 1) / 2)
        picture.line([(at, 122), (at, 82)])
        picture.box((at, 64), (72, 32), word, colour=palette.output)
    picture.text((right, 24), "what each position predicts", size=16, colour=GREY)
    picture.text((left, 484), "source", size=16, colour=GREY)
    picture.text((right, 484), "target, moved right by one", size=16, colour=GREY)
    return picture


def gpt_stack(letters: str = "the c") -> Drawing:
    """A GPT whole: letters in, one layer opened with its two sublayers, next letters out."""
    following = [*letters[1:], "a"]
    shown = {" ": "␣"}
    picture = Drawing(
        600,
        alt=f"A GPT, from the bottom to the top. The letters of {letters!r} become vectors. N layers follow, one of "
        "them opened: a norm and causal self-attention, whose result is added to the stream, then a norm and a "
        "feed-forward network, whose result is added, too. There is no encoder and no cross-attention. A last norm and "
        f"a linear map give logits, and each position predicts the letter after it: {' '.join(following)}.",
        caption="A GPT: layers under a causal mask. Each position predicts the letter after it.",
    )
    x = 150
    step = 50
    for number, (letter, after) in enumerate(zip(letters, following, strict=True)):
        at = x + step * (number - (len(letters) - 1) / 2)
        picture.box((at, 560), (42, 32), shown.get(letter, letter), colour=GREY)
        picture.line([(at, 542), (at, 520)])
        picture.line([(at, 90), (at, 68)])
        picture.box((at, 50), (42, 32), shown.get(after, after), colour=palette.output)
    picture.frame((30, 186), (510, 274))
    picture.stream((x, 482), (x, 130))
    picture.box((x, 500), (step * len(letters), 36), "token vectors", colour=palette.value)
    picture.box((x, 110), (step * len(letters), 36), "norm, linear map", colour=palette.output)
    picture.text((516, 440), "N ×", anchor="end", bold=True, colour=palette.residual)
    for y, words, colour in ((410, ["causal", "self-attention"], palette.query), (282, ["feed-", "forward"], INK)):
        picture.line([(x, y + 28), (226, y + 28)])
        picture.box((262, y + 28), (70, 34), "norm", colour=GREY)
        picture.line([(298, y + 28), (328, y + 28)])
        picture.box((402, y + 20), (144, 56), words, colour=colour)
        picture.line([(402, y - 10), (402, y - 52), (x + 14, y - 52)], colour=palette.output)
        picture.plus((x, y - 52))
    picture.text((300, 560), "the text so far: tokens (B, T)", anchor="start", size=16, colour=GREY)
    picture.text((x - 14, 212), "(B, T, D)", anchor="end", size=15, colour=palette.residual)
    picture.text((300, 500), "(positions: inside the attention)", anchor="start", size=15, colour=GREY)
    picture.text((300, 50), "logits (B, T, V): next letter", anchor="start", size=16, colour=GREY)
    return picture


def cache_steps(tokens: Sequence[str] = ("the", "cat", "sat", "on")) -> Drawing:
    """The cache of one layer at three steps of writing: one column more each time, the old ones untouched."""
    picture = Drawing(
        430,
        alt=f"Three steps of writing with a cache. First the prompt {' '.join(tokens[:2])} is read: two keys and two "
        f"values are computed and kept. Then {tokens[2]} comes: its query, key and value are computed, its key and "
        f"value join the two kept ones, and its query reads all three. Then {tokens[3]} comes: three columns are kept, "
        "one is new.",
        caption="The cache of one layer. Filled: computed in this step. Empty: kept from before. Old queries are not "
        "kept, because each query asks only once.",
    )
    step, left = 86, 196
    for number, n in enumerate((2, 3, 4)):
        top = 30 + 136 * number
        name = "the prompt" if number == 0 else f"“{tokens[n - 1]}” comes"
        picture.text((14, top), name, anchor="start", bold=True)
        for row, (what, colour) in enumerate(
            (("queries", palette.query), ("keys", palette.key), ("values", palette.value))
        ):
            y = top + 30 + 31 * row
            picture.text((180, y), what, anchor="end", size=16, colour=colour)
            for column in range(n):
                new = number == 0 or column == n - 1
                if row == 0 and not new:
                    continue
                letter = "qkv"[row] + "₀₁₂₃"[column]
                at = (left + step * (column + 0.5), y)
                picture.box(at, (step - 12, 26), letter, colour=colour, filled=new)
        for column in range(n):
            picture.text((left + step * (column + 0.5), top), tokens[column], size=16)
    return picture


def cut_and_share(words: Sequence[str], scores: Sequence[float], *, k: int = 3, p: float = 0.7) -> Drawing:
    """Five probabilities, and what top-k and top-p leave of them."""
    powers = [math.exp(score) for score in scores]
    chances = [power / sum(powers) for power in powers]
    nucleus = next(n for n in range(1, len(words) + 1) if sum(chances[:n]) >= p)
    panels = [("all", len(words)), (f"top-k, k = {k}", k), (f"top-p, p = {p:g}", nucleus)]
    rows = {name: [c / sum(chances[:n]) if i < n else 0.0 for i, c in enumerate(chances)] for name, n in panels}
    said = "; ".join(
        f"{name}: " + ", ".join(f"{word} {c:.2f}" for word, c in zip(words, row, strict=True) if c)
        for name, row in rows.items()
    )
    picture = Drawing(
        70 + 34 * len(words),
        alt=f"Bars of the probabilities of {len(words)} words in three panels. {said}.",
        caption="What is cut gets probability 0. What is left is divided by its sum, so that it adds up to one again.",
    )
    for panel, (name, n) in enumerate(panels):
        left = 92 + 172 * panel
        picture.text((left, 26), name, anchor="start", bold=True, size=16)
        for i, (word, chance) in enumerate(zip(words, rows[name], strict=True)):
            y = 62 + 34 * i
            if not panel:
                picture.text((left - 10, y), word, anchor="end")
            if i < n:
                picture.bar((left, y), (110 * chance + 2, 24), colour=palette.output)
                picture.text((left + 110 * chance + 8, y), f"{chance:.2f}", anchor="start", size=15)
            else:
                picture.text((left + 6, y), "cut", anchor="start", size=15, colour=BAD)
        if panel:
            picture.line([(left - 16, 12), (left - 16, 54 + 34 * len(words))], arrow=False, colour=GREY, width=1)
    return picture


def beam_tree() -> Drawing:
    """Two steps of beam search with two beams, with all numbers; greedy goes another way."""
    first = (("dog", 0.5), ("cat", 0.4), ("car", 0.1))
    second = {"dog": (("and", 0.4), ("barks", 0.3), ("runs", 0.3)), "cat": (("sleeps", 0.9), ("and", 0.1))}
    picture = Drawing(
        390,
        alt="A tree of texts with their probabilities. After The: dog 0.50, cat 0.40, car 0.10. Two are kept, dog and "
        "cat. After dog: and 0.20, barks 0.15, runs 0.15. After cat: sleeps 0.36, and 0.04. The two best of these five "
        "are The cat sleeps with 0.36 and The dog and with 0.20. Greedy choice took dog first and ends at 0.20.",
        caption="Beam search with two beams (pink: kept). On the lines: the probability of the next word. In the "
        "boxes: the probability of the whole text, the product along the way.",
    )
    picture.box((50, 190), (70, 36), "The")
    places = {"dog": 80, "cat": 250, "car": 350}
    labels = {"dog": (120, 130), "cat": (136, 203), "car": (112, 262)}  # beside the lines
    for word, chance in first:
        y, kept = places[word], word != "car"
        picture.line([(86, 190), (196, y)], colour=palette.output if kept else GREY, width=3 if kept else 1.5)
        picture.text(labels[word], f"{chance:.1f}", size=15, colour=GREY)
        picture.box((256, y), (116, 36), f"{word}  {chance:.2f}", colour=palette.output if kept else GREY)
    rows = iter((30, 86, 142, 220, 284))
    for parent, children in second.items():
        for word, chance in children:
            y, total = next(rows), dict(first)[parent] * chance
            kept = total >= 0.2
            picture.line(
                [(316, places[parent]), (432, y)], colour=palette.output if kept else GREY, width=3 if kept else 1.5
            )
            picture.text(
                (378, places[parent] + (y - places[parent]) * 0.55 + (12 if word == "runs" else -12)),
                f"{chance:.1f}",
                size=15,
                colour=GREY,
            )
            picture.box((506, y), (144, 36), f"{word}  {total:.2f}", colour=palette.output if kept else GREY)
    picture.text((324, 350), "not kept", anchor="start", size=16, colour=BAD)
    return picture


def guesses_and_checks() -> Drawing:
    """Time lines of writing alone and of writing with a draft: one pass checks several guesses at once."""
    picture = Drawing(
        336,
        alt="Two time lines. Above, the large model alone: four passes, one after the other, each gives one token: the "
        "cat sat on. Below, a small draft makes four short passes and guesses the cat sat in; one pass of the large "
        "model, hardly longer than before, gives its own choices side by side, the cat sat on; three guesses equal "
        "them and are kept, the fourth is refused and replaced by on. Then the next four guesses begin. The same four "
        "tokens are there in less time.",
        caption="The same four tokens, in less time. Each line joins a guess to the choice that it is compared with; "
        "the fifth choice, after “in”, is not needed. When few texts are written at a time, one pass of a large model "
        "over several tokens takes hardly longer than over one. Lengths are only for illustration.",
    )
    picture.text((14, 22), "the large model alone", anchor="start", bold=True)
    for number, word in enumerate(("the", "cat", "sat", "on")):
        picture.box((82 + 134 * number, 60), (128, 40), "one pass", colour=palette.query)
        picture.text((82 + 134 * number, 98), word, bold=True)
    picture.text((14, 146), "with a small draft that guesses", anchor="start", bold=True)
    picture.frame((214, 201), (152, 107), colour=palette.query)
    for number, word in enumerate(("the", "cat", "sat", "in")):
        at = 34 + 46 * number
        picture.box((at, 184), (42, 30), word, colour=palette.key, filled=True)
        y = 208 + 25 * number
        refused = word == "in"
        picture.line([(at, 201), (at, y + 9), (219, y + 9)], colour=palette.key, arrow=False)
        picture.box((290, y + 9), (140, 22), (), colour=palette.query)
        picture.text((290, y + 9), f"own choice “{'on' if refused else word}”", size=15)
        colour = BAD if refused else palette.output
        verdict = f"guess “{word}” {'refused' if refused else 'kept'}"
        picture.text((372, y + 9), verdict, size=16, anchor="start", colour=colour)
    picture.text((14, 322), "the draft’s guesses", anchor="start", size=15, colour=palette.key)
    picture.text((290, 322), "one pass checks all", size=15, colour=palette.query)
    for number in range(4):
        picture.box((398 + 24 * number, 184), (20, 30), (), colour=palette.key, filled=True)
    picture.box((542, 184), (108, 40), "next check", colour=palette.query)
    return picture
