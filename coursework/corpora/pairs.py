"""Pairs of texts to translate between: number words and dates; with Multi30k and files of your own, by one interface.

Number words and dates have no end, need no network, and each has one right answer. German says units before tens
("fünfundzwanzig", five-and-twenty), so what a model learns to look at on the way to English crosses.
"""

import datetime
import functools
import hashlib
import random
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

from course_lib.checks import check_choice, check_integer
from course_lib.data.pairs import Pair, PairSplit, multi30k, read_pairs

_T = TypeVar("_T")
PAIR_SETS = ("numbers", "dates", "numbers+dates", "multi30k")
DATE_FORMATS = ("full", "long", "medium")
_PARTS = {  # of number words, longer ones first where one begins with another
    "de": "zwanzig|dreißig|vierzig|fünfzig|sechzig|siebzig|achtzig|neunzig|elf|zwölf|sechzehn|siebzehn|zehn|hundert|"
    "tausend|und|eins|eine?|zwei|drei|vier|fünf|sechs|sieben|acht|neun|null",
    "en": "[a-z]+",
}


def load_pairs(
    name: str,
    split: PairSplit = "train",
    n: int | None = None,
    *,
    source: str = "de",
    target: str = "en",
    seed: int = 0,
) -> list[Pair]:
    """Return pairs by the name of their set: one interface to all of them.

    Args:
        name: one of `PAIR_SETS`; or a folder with the files train.tsv, validation.tsv and test.tsv, a pair a line, the
            two texts apart by a tab.
        split: nothing in one split occurs in another: numbers and dates are held out by value, whatever the wording.
        n: how many; for numbers and dates 10,000 unless given, for files all.
        source, target: languages; see `number_languages`, `date_locales`. Multi30k has "de" and "en". A folder has its
            own.
        seed: another seed draws other numbers and dates, from the same splits.

    Raises:
        ValueError: an unknown name, split or language, or more pairs asked for than there are.
        DownloadError: Multi30k is neither in the data folder nor reachable.
    """
    _check_split(split)
    check_integer("n", n, 0, or_none=True)
    if name in ("numbers", "dates", "numbers+dates"):
        kinds = name.split("+")
        wanted = 10_000 if n is None else n
        pairs: list[Pair] = []
        for i, kind in enumerate(kinds):
            draw = number_pairs if kind == "numbers" else date_pairs
            share = wanted // len(kinds) + (i < wanted % len(kinds))
            pairs += draw(share, split, source=source, target=target, seed=seed)
        if len(kinds) > 1:
            random.Random(f"order {seed} {split}").shuffle(pairs)
        return pairs
    if name == "multi30k":
        pairs = multi30k(split, source=source, target=target)
    elif Path(name).is_dir():
        pairs = read_pairs(Path(name) / f"{split}.tsv")
    else:
        raise ValueError(f"name: expected one of {', '.join(PAIR_SETS)} or a folder with {split}.tsv, got {name!r}")
    if n is not None and n > len(pairs):
        raise ValueError(f"n: {name} has {len(pairs):,} pairs in {split}, got {n:,}")
    return pairs if n is None else pairs[:n]


def number_pairs(
    n: int,
    split: PairSplit = "train",
    *,
    source: str = "de",
    target: str = "en",
    largest: int = 999_999,
    seed: int = 0,
) -> list[Pair]:
    """Return `n` numbers written out in two languages, all different: "fünfundzwanzig", "twenty-five".

    Numbers of one digit, two, ... are drawn equally often while there are any left, up to `largest`. A number belongs
    to one split for ever: eight of ten to train, one each to validation and test.
    """
    values = _draw(n, _numbers_by_digits(split, largest, seed), f"numbers up to {largest:,} in {split}")
    return [Pair(number_words(value, source), number_words(value, target)) for value in values]


def date_pairs(
    n: int,
    split: PairSplit = "train",
    *,
    source: str = "de",
    target: str = "en",
    first: datetime.date = datetime.date(1900, 1, 1),
    last: datetime.date = datetime.date(2099, 12, 31),
    formats: Sequence[str] = DATE_FORMATS,
    seed: int = 0,
) -> list[Pair]:
    """Return `n` dates as two locales write them, all different: "3. Mai 1987", "May 3, 1987".

    Each is written in one of `formats`, the same on both sides; those in which a locale leaves out the century are not
    used. A day belongs to one split, in whatever format: eight of ten days to train, one each to validation and test.
    """
    if first > last:
        raise ValueError(f"first: expected a day up to last={last}, got {first}")
    usable = [name for name in formats if _tells_century(source, name) and _tells_century(target, name)]
    if not usable:
        raise ValueError(f"formats: none of {list(formats)} tells the century in both {source} and {target}")
    days = _draw(n, _days(split, first, last, usable, seed), f"dates from {first} to {last} in {split}")
    pairs = []
    for ordinal, name in days:
        day = datetime.date.fromordinal(ordinal)
        text = date_words(day, source, name)
        # Where the source writes two formats alike, the right answer is that of the first.
        alike = next(other for other in usable if date_words(day, source, other) == text)
        pairs.append(Pair(text, date_words(day, target, alike)))
    return pairs


def number_words(value: int, language: str) -> str:
    """Return a whole number in the words of a language of `number_languages`: (25, "de") -> "fünfundzwanzig"."""
    import num2words

    if language not in num2words.CONVERTER_CLASSES:
        raise ValueError(f"language: expected one of {', '.join(number_languages())}, got {language!r}")
    try:
        return str(num2words.num2words(value, lang=language))
    except (TypeError, IndexError, KeyError, NotImplementedError, OverflowError) as error:
        raise ValueError(f"value: num2words has no words for {value:,} in {language!r}") from error


def number_parts(value: int, language: Literal["de", "en"]) -> list[str]:
    """Return a number below a million as the parts of its words: (27, "de") -> ["sieben", "und", "zwanzig"].

    German writes such a number as one word, units before tens; English words are cut at spaces and hyphens.
    """
    if language not in _PARTS:
        raise ValueError(f"language: expected 'de' or 'en', got {language!r}")
    if not 0 <= value < 1_000_000:
        raise ValueError(f"value: expected 0 to 999999, got {value!r}")
    return re.findall(_PARTS[language], number_words(value, language))


def date_words(day: datetime.date, locale: str, format: str = "long") -> str:
    """Return a date as a locale of `date_locales` writes it; format "full", "long", "medium" or "short"."""
    from babel.dates import format_date

    if format not in (*DATE_FORMATS, "short"):
        raise ValueError(f"format: expected one of {', '.join(DATE_FORMATS)}, short, got {format!r}")
    return format_date(day, format, locale=_locale(locale))


def number_languages() -> tuple[str, ...]:
    """Return the languages of `number_words`: 56 with num2words 0.5.14."""
    import num2words

    return tuple(sorted(num2words.CONVERTER_CLASSES))


def date_locales() -> tuple[str, ...]:
    """Return the locales of `date_words`, more than a thousand, from the Unicode CLDR."""
    from babel.localedata import locale_identifiers

    return tuple(sorted(locale_identifiers()))


def split_of(kind: str, value: int) -> PairSplit:
    """Return the split that a number, or a date by its ordinal, belongs to: by a hash, the same on every machine."""
    bucket = hashlib.blake2b(f"{kind} {value}".encode(), digest_size=8).digest()
    return {0: "validation", 1: "test"}.get(int.from_bytes(bucket, "big") % 10, "train")  # type: ignore[return-value]


def _numbers_by_digits(split: PairSplit, largest: int, seed: int) -> Iterator[int]:
    """Draw numbers of the split without repetition, each count of digits in turn with equal chance."""
    _check_split(split)
    check_integer("largest", largest, 9)
    draw = random.Random(f"numbers {seed} {split}")
    ranges = [(10**d if d else 0, min(10 ** (d + 1) - 1, largest)) for d in range(len(str(largest)))]
    seen: list[set[int]] = [set() for _ in ranges]
    tried: list[set[int]] = [set() for _ in ranges]
    left = list(range(len(ranges)))
    while left:
        i = draw.choice(left)
        low, high = ranges[i]
        value = draw.randint(low, high)
        tried[i].add(value)
        if len(tried[i]) == high - low + 1:
            left.remove(i)
        if value not in seen[i] and split_of("number", value) == split:
            seen[i].add(value)
            yield value


def _days(
    split: PairSplit, first: datetime.date, last: datetime.date, formats: Sequence[str], seed: int
) -> Iterator[tuple[int, str]]:
    """Draw days of the split with a format, without repetition."""
    _check_split(split)
    draw = random.Random(f"dates {seed} {split}")
    low, high = first.toordinal(), last.toordinal()
    tried: set[tuple[int, str]] = set()
    while len(tried) < (high - low + 1) * len(formats):
        choice = draw.randint(low, high), draw.choice(formats)
        if choice not in tried and split_of("date", choice[0]) == split:
            yield choice
        tried.add(choice)


def _draw(n: int, values: Iterator[_T], what: str) -> list[_T]:
    check_integer("n", n, 0)
    drawn = [value for value, _ in zip(values, range(n), strict=False)]
    if len(drawn) < n:
        raise ValueError(f"n: there are {len(drawn):,} {what}, got {n:,}")
    return drawn


@functools.cache
def _locale(name: str) -> Any:
    import babel

    try:
        return babel.Locale.parse(name)
    except (babel.UnknownLocaleError, ValueError) as error:
        raise ValueError(f"locale: expected one of date_locales(), such as 'de' or 'en_GB', got {name!r}") from error


@functools.cache
def _tells_century(locale: str, format: str) -> bool:
    day = datetime.date(1987, 5, 3)
    return date_words(day, locale, format) != date_words(day.replace(year=1887), locale, format)


def _check_split(split: str) -> None:
    check_choice("split", split, get_args(PairSplit))
