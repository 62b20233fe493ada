"""Pairs of texts to translate between: files of your own, and Multi30k."""

import gzip
from pathlib import Path
from typing import Literal, NamedTuple, get_args

from course_lib.checks import check_choice, checked
from course_lib.reading import read_text

from .download import fetch

PairSplit = Literal["train", "validation", "test"]
_MULTI30K_FILES = {"train": "train", "validation": "val", "test": "test_2016_flickr"}


class Pair(NamedTuple):
    """One text and its translation."""

    source: str
    target: str


def multi30k(split: PairSplit = "train", *, source: str = "de", target: str = "en") -> list[Pair]:
    """Return captions of photographs and their translations: 29,000 to train, 1014 to validate, 1000 to test.

    Downloaded at the first call and cached: see `fetch`. The test set is test_2016_flickr. Source: Elliott et al. 2016,
    "Multi30K: Multilingual English-German Image Descriptions".
    """
    check_choice("split", split, get_args(PairSplit))
    if {source, target} != {"de", "en"}:
        raise ValueError(f"source, target: Multi30k is here in 'de' and 'en', got {source!r} and {target!r}")
    sides = []
    for language in (source, target):
        packed = fetch(f"multi30k/{_MULTI30K_FILES[split]}.{language}.gz").read_bytes()
        # Only "\n" ends a line: some captions hold other separators, at which splitlines would cut.
        sides.append([line.strip() for line in gzip.decompress(packed).decode("utf-8").strip("\n").split("\n")])
    return [Pair(*texts) for texts in zip(*sides, strict=True)]


@checked
def read_pairs(path: str | Path) -> list[Pair]:
    """Return the pairs of a file: UTF-8, one a line, source and target apart by one tab; empty lines are skipped."""
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"path: expected a file of pairs, found none at {path}")
    pairs = []
    for number, line in enumerate(read_text(path, "pairs of texts").split("\n"), start=1):
        if not line.strip():
            continue
        texts = line.rstrip("\r").split("\t")
        if len(texts) != 2:
            raise ValueError(f"path: expected two texts apart by a tab in line {number} of {path}, got {len(texts)}")
        pairs.append(Pair(*(text.strip() for text in texts)))
    return pairs
