"""German number words and what may follow them: pages to learn from, questions, and the answer in digits.

Every row of tokens has the sign "=" at the same place, `PROMPT - 1`: what stands before it is padded on the left, so
that all answers begin at the same place. `SYMBOLS` is the vocabulary: signs, digits, parts of German and English words.
"""

import functools
import random

import torch
from torch import Tensor

from course_lib.checks import check_integer
from course_lib.data.pairs import PairSplit

from .pairs import number_parts, split_of

SIGNS = ("_", "end", "=", ";")
DIGITS = tuple("0123456789")
GERMAN = (
    "null", "eins", "ein", "eine", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun", "zehn",
    "elf", "zwölf", "sechzehn", "siebzehn", "zwanzig", "dreißig", "vierzig", "fünfzig", "sechzig", "siebzig",
    "achtzig", "neunzig", "hundert", "tausend", "und",
)  # fmt: skip
ENGLISH = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen", "twenty", "thirty",
    "forty", "fifty", "sixty", "seventy", "eighty", "ninety", "hundred", "thousand", "and",
)  # fmt: skip
SYMBOLS = SIGNS + DIGITS + GERMAN + ENGLISH
PAD, END, EQUALS, NEXT = range(4)
ZERO = 4  # the digit 0; the others follow
PROMPT = 12  # places of a question: eleven parts and "="
LARGEST = 999_999
_GERMAN = {part: ZERO + 10 + number for number, part in enumerate(GERMAN)}
_ENGLISH = {part: ZERO + 10 + len(GERMAN) + number for number, part in enumerate(ENGLISH)}


def draw_numbers(
    n: int, split: PairSplit = "train", *, smallest: int = 1, largest: int = LARGEST, seed: int = 0
) -> list[int]:
    """Draw `n` numbers of the split, each equally likely, in which one may occur twice.

    A number belongs to one split for ever, as in `number_pairs`.

    Raises ValueError for a range that there is not.
    """
    check_integer("n", n, 0)
    check_integer("smallest", smallest, 0, largest)
    check_integer("largest", largest, smallest, LARGEST)
    draw = random.Random(f"spelled {seed} {split}")
    found: list[int] = []
    while len(found) < n:
        value = draw.randint(smallest, largest)
        if _split(value) == split:
            found.append(value)
    return found


def questions(values: list[int]) -> Tensor:
    """The number words and "=", padded on the left: ids (N, PROMPT)."""
    rows = [[*_german(value), EQUALS] for value in values]
    return torch.tensor([[PAD] * (PROMPT - len(row)) + row for row in rows])


def answers(values: list[int], length: int = 7) -> Tensor:
    """The digits and the end sign, padded on the right: ids (N, length).

    Raises ValueError if a number is longer.
    """
    rows = [[ZERO + int(digit) for digit in str(value)] + [END] for value in values]
    if longest := max((len(row) for row in rows if len(row) > length), default=0):
        raise ValueError(f"length: expected at least {longest}, the digits and the end sign, got {length}")
    return torch.tensor([row + [PAD] * (length - len(row)) for row in rows])


def pages(values: list[int], length: int, seed: int = 0) -> Tensor:
    """Rows as in a book of numbers, ids (N, length): a question, its continuation, and then other lines.

    A line continues in digits or in English words, each half of the time; a sign ";" ends it, and the next one begins.
    No row has an end sign: the book goes on.
    """
    draw, rows = random.Random(f"pages {seed}"), []
    for value, question in zip(values, questions(values).tolist(), strict=True):
        row = question + _line_end(value, draw)
        while len(row) < length:
            other = values[draw.randrange(len(values))]
            row += [*_german(other), EQUALS, *_line_end(other, draw)]
        rows.append(row[:length])
    return torch.tensor(rows)


def spelled(tokens: Tensor) -> str:
    """The symbols of one row (T,), up to its end sign, without padding: for a reader."""
    found = [SYMBOLS[token] for token in tokens.tolist() if token != PAD]
    found = found[: found.index("end") + 1] if "end" in found else found
    text = ""
    for symbol in found:
        glued = symbol in DIGITS and text[-1:] in DIGITS and text != ""
        text += symbol if glued or not text else f" {symbol}"
    return text


def _line_end(value: int, draw: random.Random) -> list[int]:
    if draw.random() < 0.5:
        return [ZERO + int(digit) for digit in str(value)] + [NEXT]
    return [*_english(value), NEXT]


@functools.cache
def _split(value: int) -> PairSplit:
    return split_of("number", value)


@functools.cache
def _german(value: int) -> tuple[int, ...]:
    return tuple(_GERMAN[part] for part in number_parts(value, "de"))


@functools.cache
def _english(value: int) -> tuple[int, ...]:
    return tuple(_ENGLISH[part] for part in number_parts(value, "en"))
