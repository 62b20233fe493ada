"""The drawings of chapter 01: a book in one vector, a soft dictionary, linear maps, one query's way."""

import math
from collections.abc import Sequence

import numpy as np

from coursework.pictures.arrays import point, short
from coursework.pictures.drawing import INK, Drawing, Point
from coursework.pictures.figures import softmax
from coursework.pictures.style import palette

GREY = "#9A9A9A"


def one_vector() -> Drawing:
    """A book squeezed into one vector, and the same book kept open."""
    picture = Drawing(
        330,
        alt="Two ways to answer a question about a book. Above: the whole book is squeezed into one vector, and the "
        "answer can use nothing but this vector. Below: the book stays open; the question is compared with each of its "
        "lines, and the answer takes much from one line and little from the others.",
        caption="Above, all that the book said must fit into one vector, before the question is known. Below, the "
        "question comes first, and decides which lines to read.",
    )
    for top, heading in ((40, "one vector for the whole book"), (205, "every line kept, and read when it is needed")):
        picture.text((20, top - 20), heading, anchor="start", bold=True)
        picture.frame((20, top), (110, 110))
        for number in range(8):
            y = top + 14 + 12 * number
            picture.line([(32, y), (118 - 9 * (number % 3), y)], colour=GREY, width=3, arrow=False)
        picture.box((535, top + 55), (110, 40), "the answer", colour=palette.output)
    picture.line([(134, 95), (228, 95)], width=4)
    picture.box((285, 95), (110, 40), "one vector", colour=palette.residual)
    picture.line([(342, 95), (476, 95)], width=2)
    picture.box((400, 136), (120, 34), "the question", colour=palette.query)
    picture.line([(462, 136), (535, 136), (535, 118)], colour=palette.query)
    picture.box((285, 260), (120, 40), "the question", colour=palette.query)
    for number, width in ((0, 1), (1, 1), (2, 8), (4, 1.5), (5, 3), (7, 1)):
        y = 219 + 12 * number
        picture.line([(122, y), (224, 252 + 2.2 * number)], colour=palette.value, width=width, arrow=False)
    picture.line([(347, 260), (476, 260)], colour=palette.value, width=5)
    return picture


def dot_products(query: Point, keys: Sequence[Point]) -> Drawing:
    """A query beside three keys, as arrows, each pair with its dot product.

    Args:
        query: two numbers.
        keys: two numbers for each of three keys.
    """
    scores = [query[0] * key[0] + query[1] * key[1] for key in keys]
    said = "; ".join(
        f"with the key {point(key)} the product is {short(score)}" for key, score in zip(keys, scores, strict=True)
    )
    picture = Drawing(
        250,
        alt=f"Three pairs of arrows from one point. The query is {point(query)}; {said}. The more two arrows point the "
        "same way, the larger the product; at a right angle it is zero; for opposite directions it is negative.",
        caption="The dot product says how far two arrows point the same way. It is zero at a right angle, and negative "
        "for opposite directions.",
    )
    for number, (key, score) in enumerate(zip(keys, scores, strict=True)):
        x, y = 100 + 200 * number, 130
        for (a, b), colour, name in ((query, palette.query, "q"), (key, palette.key, "k")):
            tip = (x + 34 * a, y - 34 * b)
            picture.line([(x, y), tip], colour=colour, width=4)
            length = math.hypot(a, b)
            picture.text((tip[0] + 14 * a / length, tip[1] - 14 * b / length), name, colour=colour, bold=True)
        factors = [(short(a), f"({short(b)})" if b < 0 else short(b)) for a, b in zip(query, key, strict=True)]
        picture.text((x, 200), " + ".join(f"{a} · {b}" for a, b in factors))
        picture.text((x, 228), f"= {short(score)}", bold=True)
    return picture


def soft_dictionary(
    question: str, asked: Sequence[float], words: Sequence[str], keys: Sequence[Sequence[float]], values: Sequence[int]
) -> Drawing:
    """The same question put to a dictionary that wants an equal key, and to one that compares.

    Args:
        question: the word that is looked up.
        asked: its numbers.
        words: of the dictionary.
        keys: numbers of each, as many as `asked` has.
        values: what stands under each word.
    """
    weights = softmax(np.array(keys) @ np.array(asked))
    answer = float(weights @ np.array(values))
    shares = ", ".join(f"{word} {weight:.2f}" for word, weight in zip(words, weights, strict=True))
    picture = Drawing(
        100 + 52 * len(words),
        alt=f"Left, an exact dictionary with {', '.join(words)} is asked for {question}: no key is equal, so it has no "
        f"answer. Right, a soft one compares {question} with every key and gives weights: {shares}. The answer is the "
        f"mixture, {answer:.0f}.",
        caption="An exact look-up finds an equal key or nothing. A soft one weighs every key, and mixes the values.",
    )
    picture.text((20, 24), f"exact: is one equal to “{question}”?", anchor="start", bold=True, size=15)
    picture.text((316, 24), f"soft: how like “{question}”?", anchor="start", bold=True, size=15)
    for number, (word, value, weight) in enumerate(zip(words, values, weights, strict=True)):
        y = 66 + 52 * number
        for left in (20, 316):
            picture.box((left + 40, y), (80, 36), word, colour=palette.key)
        picture.text((140, y), "no", colour="#767676")
        picture.box((215, y), (70, 36), str(value), colour=palette.value)
        picture.box((441, y), (64, 36))
        picture.bar((411, y), (60 * float(weight), 32), colour=palette.query)
        picture.text((441, y), f"{weight:.2f}")
        picture.text((484, y), "×")
        picture.box((530, y), (70, 36), str(value), colour=palette.value)
        picture.line([(566, y), (586, y)], colour=palette.value, width=1 + 8 * float(weight), arrow=False)
    bottom = 68 + 52 * len(words)
    picture.text((135, bottom), "no answer", colour=palette.output, bold=True)
    picture.line([(586, 66), (586, bottom), (568, bottom)], colour=palette.output, width=3)
    picture.text((520, bottom), f"{answer:.0f}", colour=palette.output, bold=True)
    return picture


def linear_map(word: str, features: Sequence[str], x: Sequence[float], W: Sequence[Point], name: str) -> Drawing:
    """One word's vector times a matrix: the numbers of the vector say how much of each row is taken.

    Args:
        word: whose vector it is.
        features: a name for each number of it.
        x: its numbers.
        W: a row of two numbers for each feature.
        name: of what comes out: "query", "key" or "value".
    """
    colour, result = getattr(palette, name), np.array(x) @ np.array(W)
    taken = [number for number, share in enumerate(x) if share]
    rows = ", ".join(f"{features[number]} {point(W[number])}" for number in taken)
    top = 64
    bottom = top + 32 * len(features)
    picture = Drawing(
        bottom + 66,
        alt=f"How the {name} of {word} is made. Its vector is {point(x)}, a number for each of {', '.join(features)}. "
        f"Each number says how much of a row of the matrix is taken. Taken are {rows}. The sum is {point(result)}.",
        caption=f"A linear map: each number of the vector takes a share of one row of the matrix, and the shares are "
        f"added. That gives the {name} of “{word}”.",
    )
    picture.text((200, 24), "the vector", bold=True)
    picture.text((200, 46), f"of “{word}”", size=15)
    picture.text((390, 24), f"the matrix for the {name}", colour=colour, bold=True)
    picture.text((390, 46), "a row for each feature", size=15)
    picture.numbers((176, top), [[short(share)] for share in x], cell=(48, 32), lit=taken)
    picture.numbers((336, top), [[short(a) for a in row] for row in W], cell=(54, 32), colour=colour, lit=taken)
    for number, feature in enumerate(features):
        y = top + 32 * number + 16
        picture.text((160, y), feature, anchor="end", colour=INK if number in taken else "#767676")
        if number in taken:
            picture.line([(228, y), (330, y)])
            picture.text((279, y - 10), f"{short(x[number])} ×", size=15)
            picture.line([(444, y), (490, y)], colour=colour, arrow=False)
    y = bottom + 36
    picture.line([(490, top + 32 * taken[0] + 16), (490, y), (452, y)], colour=colour, width=3)
    picture.text((320, y), "added up", anchor="end", size=15)
    picture.numbers((336, y - 16), [[short(a) for a in result]], cell=(54, 32), colour=colour)
    return picture


def linear_maps(
    words: Sequence[str],
    features: Sequence[str],
    x: Sequence[Sequence[float]],
    maps: Sequence[Sequence[Point]],
) -> Drawing:
    """The vectors of a sentence times three matrices: queries, keys and values, all numbers in sight.

    Args:
        words: of the sentence.
        features: a name for each number of a word's vector.
        x: the vectors, a row for each word.
        maps: the matrices for queries, keys and values, a row of two numbers for each feature.
    """
    names = ("query", "key", "value")
    found = [np.array(x) @ np.array(W) for W in maps]
    said = ". ".join(
        f"{name.capitalize()}: " + ", ".join(f"{word} {point(row)}" for word, row in zip(words, rows, strict=True))
        for name, rows in zip(names, found, strict=True)
    )
    block = 28 * len(features) + 50
    picture = Drawing(
        3 * block + 16,
        alt=f"The vectors of {', '.join(words)}, with the numbers {', '.join(features)}, are multiplied by three "
        f"matrices. {said}.",
        caption="The vectors of the words go through three matrices. What comes out are the queries, the keys and the "
        "values, a row for each word.",
    )
    middle = 1.5 * block
    top = middle - 14 * len(words)
    picture.text((128, top - 22), "X", bold=True)
    picture.numbers((84, top), [[short(a) for a in row] for row in x], cell=(26, 28))
    for number, word in enumerate(words):
        picture.text((76, top + 28 * number + 14), word, anchor="end")
    edge = 84 + 26 * len(features)
    for number, (name, W, rows) in enumerate(zip(names, maps, found, strict=True)):
        colour, upper = getattr(palette, name), number * block + 42
        y = upper + 14 * len(features)
        picture.line([(edge + 4, middle), (edge + 22, middle), (edge + 22, y), (edge + 40, y)], colour=colour)
        picture.text((354, upper - 18), f"W for the {name}", colour=colour, bold=True)
        for line, feature in enumerate(features):
            picture.text((302, upper + 28 * line + 14), feature, anchor="end", size=15)
        picture.numbers((310, upper), [[short(a) for a in row] for row in W], colour=colour)
        picture.line([(402, y), (436, y)], colour=colour)
        picture.text((486, upper - 18), name, colour=colour, bold=True)
        start = y - 14 * len(words)
        picture.numbers((442, start), [[short(a) for a in row] for row in rows], colour=colour)
        for line, word in enumerate(words):
            picture.text((538, start + 28 * line + 14), word, anchor="start", size=15)
    return picture


def attention_path(
    words: Sequence[str],
    reader: int,
    x: Sequence[Sequence[float]],
    maps: Sequence[Sequence[Point]],
) -> Drawing:
    """The whole way of one query: vectors, maps, query, keys and values, scores, softmax, weighted sum.

    Args:
        words: three of them.
        reader: the position of the word that reads, the last one.
        x: the vectors, a row for each word.
        maps: the matrices for queries, keys and values.
    """
    if reader != len(words) - 1 or len(words) != 3:
        raise ValueError(f"reader: expected the last of three words, got {reader} of {len(words)}")
    query, keys, values = (np.array(x) @ np.array(W) for W in maps)
    asked = query[reader]
    scores = keys @ asked
    divided = scores / math.sqrt(2)
    weights = softmax(divided)
    taken = weights @ values
    said = "; ".join(
        f"{word}: key {point(k)}, dot product {short(s)}, divided by the root of 2 {d:.2f}, weight {w:.2f}, value "
        f"{point(v)}"
        for word, k, s, d, w, v in zip(words, keys, scores, divided, weights, values, strict=True)
    )
    picture = Drawing(
        560,
        alt=f"Attention from the vectors to the result. The word {words[reader]} asks with the query {point(asked)}. "
        f"{said}. The sum of weight times value is {point(taken)}.",
        caption="Read from the top. Blue asks, orange answers the question “how well do you fit?”, green is what is "
        "handed over, pink is what arrives. The green lines are as thick as the weights.",
    )
    places = [158, 301, 444]
    for y, label in (
        (62, "vector"),
        (150, "key, value"),
        (256, "q · k"),
        (283, "÷ √2"),
        (309, "score"),
        (364, "softmax"),
    ):
        picture.text((6, y), label, anchor="start", size=15, colour="#555555")
    for place, word, row, k, v, s, d, w in zip(places, words, x, keys, values, scores, divided, weights, strict=True):
        number = float(w)
        picture.text((place, 20), word, bold=True)
        picture.box((place, 58), (122, 34), point(row))
        for offset, colour, pair in ((-36, palette.key, k), (36, palette.value, v)):
            picture.line([(place + offset, 78), (place + offset, 128)], colour=colour)
            picture.box((place + offset, 150), (66, 36), point(pair), colour=colour)
        picture.line([(place - 36, 170), (place - 36, 236)], colour=palette.key)
        picture.box((place - 36, 256), (68, 34), short(s))
        picture.line([(place - 36, 275), (place - 36, 289)], arrow=False)
        picture.text((place - 36, 308), f"{d:.2f}")
        picture.line([(place - 36, 325), (place - 36, 343)])
        picture.box((place - 36, 364), (76, 36))
        picture.bar((place - 72, 364), (72 * number, 32), colour=palette.query)
        picture.text((place - 36, 364), f"{w:.2f}")
        picture.line([(place + 36, 170), (place + 36, 420)], colour=palette.value, arrow=False, width=1 + 9 * number)
        picture.line([(place - 36, 383), (place - 36, 420)], arrow=False)
        picture.text((place - 36, 436), f"{w:.2f} × {point(v)}", size=15, colour=palette.value, anchor="start")
        picture.line([(place + 36, 452), (place + 36, 480)], colour=palette.value, arrow=False, width=1 + 9 * number)
    picture.text((places[0] - 44, 108), "W key", size=15, colour=palette.key, anchor="end")
    picture.text((places[0] + 44, 108), "W value", size=15, colour=palette.value, anchor="start")
    picture.line([(508, 58), (556, 58), (556, 128)], colour=palette.query)
    picture.text((548, 96), "W query", size=15, colour=palette.query, anchor="end")
    picture.text((556, 184), "query", size=15, colour=palette.query)
    picture.box((556, 150), (72, 36), point(asked), colour=palette.query)
    picture.line([(556, 196), (556, 210), (places[0] - 22, 210)], colour=palette.query, width=3, arrow=False)
    for place in places:
        picture.line([(place - 22, 210), (place - 22, 236)], colour=palette.query, width=3)
    picture.line([(places[0] + 36, 480), (places[2] + 36, 480)], colour=palette.output, width=4, arrow=False)
    picture.line([(300, 480), (300, 508)], colour=palette.output, width=4)
    picture.box((300, 530), (120, 38), point(taken), colour=palette.output)
    picture.text((232, 530), f"what “{words[reader]}” takes along", colour=palette.output, anchor="end", size=15)
    return picture
