"""Texts by name, and texts with labels."""

import functools
import random
from collections.abc import Callable, Sequence

from course_lib.data import Pair
from course_lib.reading import read_text as read_text_file
from course_lib.reading import shown
from coursework.corpora import library_text, number_words, own, reference_text, split_of, tiny_shakespeare

__all__ = ["TEXTS", "numbers_in_languages", "read_text"]

TEXTS: dict[str, Callable[[], str]] = {
    "tinyshakespeare": tiny_shakespeare,
    "reference": functools.partial(reference_text, each_once=True),  # so that the held-out part is new
    "library": library_text,
}


def read_text(name: str) -> str:
    """Return the text of that name, or in that file."""
    if name in TEXTS:
        return TEXTS[name]()
    if not own.is_own(name):
        known = ", ".join(map(repr, TEXTS))
        raise ValueError(f"data: there is no file or folder {shown(name)}; without files: {known}")
    text = read_text_file(name)
    if not text.strip():
        raise ValueError(f"data: expected a text, got nothing, {name} is empty")
    return text


def numbers_in_languages(languages: Sequence[str], split: str, n: int, seed: int) -> list[Pair]:
    """Return `n` numbers of a split in words, each labelled with its language; nearly all are different."""
    draw = random.Random(f"languages {seed} {split}")
    found: list[Pair] = []
    seen: set[tuple[str, int]] = set()
    while len(found) < n:
        language, value = draw.choice(languages), draw.randrange(10 ** draw.randint(1, 6))
        if split_of("number", value) == split and ((language, value) not in seen or value < 1000):
            seen.add((language, value))
            found.append(Pair(number_words(value, language), language))
    return found
