"""The drawings of the overview: attention by hand, the mask, a chain beside attention, writing word by word."""

import math
from collections.abc import Sequence

import numpy as np

from coursework.pictures.arrays import point
from coursework.pictures.drawing import INK, Drawing, Point
from coursework.pictures.figures import softmax
from coursework.pictures.style import palette


def attention_by_hand(
    reader: str, query: Sequence[float], words: Sequence[str], keys: Sequence[Point], values: Sequence[Point]
) -> Drawing:
    """One query, a few keys and values of two numbers each, and every step from them to what the reader collects.

    Args:
        reader: the word that looks.
        query: its query, two numbers.
        words: the words that are looked at.
        keys, values: two numbers for each of them.
    """
    scores = np.array(keys) @ np.array(query) / math.sqrt(2)  # (S, 2) @ (2,) -> (S,)
    weights = softmax(scores)
    taken = weights @ np.array(values)  # (S,) @ (S, 2) -> (2,)
    rows = list(zip(words, keys, scores, weights, values, strict=True))
    said = "; ".join(
        f"{word}: key {point(key)}, score {score:.2f}, weight {weight:.2f}, value {point(value)}"
        for word, key, score, weight, value in rows
    )
    picture = Drawing(
        130 + 48 * len(rows),
        alt=f"Attention by hand. The word {reader} asks with the query {point(query)}. {said}. The weighted sum of the "
        f"values is {point(taken)}.",
        caption="Score: query times key, divided by √2. Weight: the softmax of the scores. Collected: the sum of "
        "weight times value.",
    )
    picture.text((20, 30), f"“{reader}” asks with its query", anchor="start")
    picture.box((340, 30), (110, 34), point(query), colour=palette.query)
    for x, heading, colour in (
        (146, "key", palette.key),
        (250, "score", INK),
        (354, "weight", INK),
        (480, "value", palette.value),
    ):
        picture.text((x, 74), heading, colour=colour, bold=True)
    for number, (word, key, score, weight, value) in enumerate(rows):
        y = 108 + 48 * number
        picture.text((20, y), word, anchor="start", bold=True)
        picture.box((146, y), (100, 34), point(key), colour=palette.key)
        picture.line([(200, y), (223, y)])
        picture.text((250, y), f"{score:.2f}")
        picture.line([(277, y), (303, y)])
        picture.box((354, y), (90, 34))
        picture.bar((311, y), (86 * weight, 30), colour=palette.query)
        picture.text((354, y), f"{weight:.2f}")
        picture.text((412, y), "×")
        picture.box((480, y), (110, 34), point(value), colour=palette.value)
        picture.line([(536, y), (570, y)], arrow=False, colour=palette.value, width=1 + 8 * weight)
    bottom = 108 + 48 * len(rows)
    picture.line([(570, 108), (570, bottom), (538, bottom)], colour=palette.output, width=3)
    picture.box((480, bottom), (110, 34), point(taken), colour=palette.output)
    picture.text((410, bottom), f"“{reader}” collects", anchor="end", colour=palette.output)
    return picture


def mask_and_targets(words: Sequence[str]) -> Drawing:
    """The causal mask as a grid, and beside each row the word that its position has to predict.

    Args:
        words: of a sentence; all but the last are read, all but the first are predicted.
    """
    read, targets = words[:-1], words[1:]
    cell, left, top = 62, 105, 74
    bottom = top + cell * len(read)
    picture = Drawing(
        bottom + 10,
        alt=f"The causal mask for the words {' '.join(read)}. Each row is a position that looks, each column a "
        "position that can be looked at. The lower left triangle with its diagonal is open, the rest is closed. "
        f"Each row has to predict the word that follows it: {', '.join(targets)}.",
        caption="Each position looks at itself and at what came before, and has to predict the next word, which is "
        "hidden from it.",
    )
    picture.text((left + cell * len(read) / 2, 20), "may look at", colour=palette.key, bold=True)
    picture.text((20, 20), "position", anchor="start", colour=palette.query, bold=True)
    picture.text((500, 20), "has to predict", colour=palette.output, bold=True)
    for row, (word, target) in enumerate(zip(read, targets, strict=True)):
        y = top + cell * (row + 0.5)
        picture.text((20, y), word, anchor="start")
        picture.text((left + cell * (row + 0.5), 56), word, size=15)
        for column in range(len(read)):
            x = left + cell * (column + 0.5)
            picture.cell((x, y), cell - 5, allowed=column <= row)
        picture.line([(left + cell * len(read) + 10, y), (left + cell * len(read) + 60, y)], colour=palette.output)
        picture.text((500, y), target, bold=True)
    return picture


def sentence_arcs(words: Sequence[str], reader: int, weights: Sequence[float], *, caption: str) -> Drawing:
    """A sentence in which one word reads the others: arcs from them to it, the wider the more it takes.

    Args:
        words: of the sentence.
        reader: the position of the word that reads.
        weights: how much it takes from each word, one number for each, 0 to 1.
        caption: what the drawing is for.
    """
    if len(weights) != len(words):
        raise ValueError(f"weights: expected {len(words)} numbers, one for each word, got {len(weights)}")
    shares = ", ".join(f"{word} {weight:.0%}" for word, weight in zip(words, weights, strict=True))
    picture = Drawing(
        190,
        alt=f"The sentence: {' '.join(words)}. What its word {words[reader]} takes from each: {shares}.",
        caption=caption,
    )
    room = (Drawing.WIDTH - 30) / sum(len(word) + 2 for word in words)
    places, x = [], 15.0
    for word in words:
        places.append(x + room * (len(word) + 2) / 2)
        x += room * (len(word) + 2)
    arriving = [n for n in range(len(words)) if n != reader and weights[n] >= 0.02]
    sizes = [1 + 11 * weights[n] for n in arriving]
    ends = _side_by_side(places[reader], [8 + 1.2 * size for size in sizes], before=[n < reader for n in arriving])
    for number, size, end in zip(arriving, sizes, ends, strict=True):
        lift = 20 + 0.13 * abs(places[number] - places[reader])
        picture.fall((places[number], 128), (end, 128), lift=lift, colour=palette.value, width=size)
    for number, (word, weight) in enumerate(zip(words, weights, strict=True)):
        if weight > 0:
            picture.text((places[number], 172), f"{weight:.0%}", size=16, colour=palette.value, bold=True)
        picture.text((places[number], 146), word, size=18, bold=number == reader)
    return picture


def _side_by_side(middle: float, rooms: Sequence[float], before: Sequence[bool]) -> list[float]:
    """Where arcs arrive around `middle`, so that neither heads nor arcs meet: from the left, the farthest rightmost.

    Args:
        middle: of the word at which they arrive.
        rooms: the width that the head of each takes, in the order of the words from which they come.
        before: whether each comes from the left; from the right the farthest arrives leftmost.
    """
    left = [n for n, is_left in enumerate(before) if is_left]
    right = [n for n, is_left in enumerate(before) if not is_left]
    order = left[::-1] + right[::-1]
    at, found = middle - sum(rooms) / 2, dict[int, float]()
    for n in order:
        found[n] = at + rooms[n] / 2
        at += rooms[n]
    return [found[n] for n in range(len(rooms))]


def recurrent_and_attention(words: Sequence[str]) -> Drawing:
    """The same words read by a recurrent network, one after the other, and by attention, all at once."""
    picture = Drawing(
        310,
        alt="Two ways to read the same words. A recurrent network is a chain: each word's state goes to the next, so "
        "that what the first word said passes through every step before it reaches the last. Attention: the last "
        "word has a direct line to every earlier word.",
        caption="A recurrent network hands one state along a chain. With attention each word reads others directly.",
    )
    step = 560 / len(words)
    places = [20 + step * (number + 0.5) for number in range(len(words))]
    earlier = len(words) - 1
    ends = _side_by_side(places[-1], [12.0] * earlier, before=[True] * earlier)
    picture.text((20, 24), "Recurrent network", anchor="start", bold=True)
    picture.text((20, 170), "Attention", anchor="start", bold=True)
    for number, (x, word) in enumerate(zip(places, words, strict=True)):
        picture.box((x, 70), (step - 26, 32), "state", colour=palette.residual)
        picture.line([(x, 112), (x, 88)])
        picture.text((x, 126), word)
        if number:
            picture.line([(places[number - 1] + step / 2 - 12, 70), (x - step / 2 + 13, 70)], width=4)
        picture.text((x, 288), word, bold=number == len(words) - 1)
        if number < len(words) - 1:
            picture.fall(
                (x, 270), (ends[number], 270), lift=12 + 0.085 * (places[-1] - x), colour=palette.value, width=3
            )
    return picture


def writing_loop(prompt: Sequence[str], following: str) -> Drawing:
    """How a language model writes: words in, probabilities of the next word out, one chosen and appended."""
    picture = Drawing(
        190,
        alt=f"The loop of writing. The words {' '.join(prompt)} go into the model; out come probabilities of the next "
        f"word; one is chosen, {following}; it is appended to the words, and the loop begins again.",
        caption="Predict the next word, append it, predict again: this loop is all there is to writing.",
    )
    step = 350 / (len(prompt) + 1)
    for number, word in enumerate(prompt):
        picture.box((10 + step * (number + 0.5), 60), (step - 6, 34), word, colour="#777777")
    last = 10 + step * (len(prompt) + 0.5)
    picture.frame((last - step / 2 + 3, 43), (step - 6, 34), colour=palette.output, dashed=True)
    picture.line([(366, 60), (390, 60)], width=3)
    picture.box((430, 60), (74, 60), ["the", "model"], filled=True)
    picture.line([(470, 60), (494, 60)], width=3)
    picture.box((543, 60), (94, 34), following, colour=palette.output)
    picture.line([(543, 79), (543, 140), (last, 140), (last, 84)], colour=palette.output, width=3)
    picture.text((430, 160), "append, and begin again", colour=palette.output)
    return picture
