"""How the second edition is written: plain sentences, and terms that are explained where they are first used.

Spelling is codespell's (`tests/test_style.py`). Of linters for prose, vale fetches a program when it first runs, and
proselint had 73 remarks on the first edition's 27,000 words, 58 of them about quotes and dots and none about what
readers stumbled over. These rules are about that.
"""

import re
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

from notebook_style import NOT_PROSE, Problem

LONGEST = 40  # words in a sentence; the overview's longest has 36

# "One a head", "three vectors a token": say "per", or "for each".
_NUMBERS = "one|two|three|four|five|six|seven|eight|nine|ten|twelve|a dozen|half|several|many"
_COUNTED = (
    "answer|bit|byte|cell|character|degree|exercise|head|key|layer|line|map|nat|number|operation|pair|parameter"
    "|picture|place|query|row|score|step|table|text|token|value|vector|weight|word"
)
_EACH = (
    "batch|block|byte|cell|chapter|character|class|degree|dimension|group|head|key|language|layer|line|model|pair|parameter"
    "|place|position|query|row|section|sentence|sequence|step|text|token|weight|word"
)
TELEGRAM = re.compile(
    rf"\b((({_NUMBERS})\s+(\w+\s+)?({_COUNTED})s?)|({_NUMBERS})|({_COUNTED})s)\s+an?\s+({_EACH})\b(?!\s+(at|of)\b)",
    re.I,
)
TWICE = re.compile(r"\b([a-z]{2,})\s+\1\b", re.IGNORECASE)

# Terms of 00 to 03. Each is set in *italics* or **bold** where it is explained: in the cell that uses it first.
_TERMS = """
attention, query, key, value, score, softmax, weight, mask, causal, padding, head, token, embedding, residual stream,
logit, entropy, batch, gradient, vector, dot product, layer, block, norm, parameter, vocabulary, seed, encoder, decoder,
feed-forward, self-attention, cross-attention, recurrent, state, cache, temperature, dropout, equivariant, broadcast,
induction head, previous-token head, grouped-query, multi-query, sinusoid, rotary, ALiBi, wavelength, sublayer"""
TERMS = [term.strip() for term in _TERMS.split(",")]
LOOKED_UP = {("00_overview", "formulas"), ("00_overview", "map")}  # a page of formulas, a map of what is to come

_HEADING = re.compile(r"^#[^\n]*$|^\|[^\n]*$", re.MULTILINE)  # and tables
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_STRESSED = re.compile(r"(\*{1,2})(?=\S)([^*]+?)(?<=\S)\1")
_BLOCKS = re.compile(r"\n\s*\n|\n(?=\s*(?:[-*>]|\d+\.)\s)")
_SENTENCES = re.compile(r"(?<=[.?:;])[\"”’*_)]*\s+")


def prose_problems(notebook: Any) -> Iterator[Problem]:
    """Yield telegrams, words written twice, and sentences that nobody reads in one go."""
    for cell in notebook.cells:
        if cell.cell_type != "markdown":
            continue
        for block in _BLOCKS.split(_prose(cell.source, gap="X")):
            text = " ".join(block.split())
            for found in TELEGRAM.finditer(text):
                yield cell.id, f"drops a word: {found[0]!r}; say 'per' or 'for each'"
            for found in TWICE.finditer(text):
                if found[1].lower() not in ("that", "had", "not"):
                    yield cell.id, f"says a word twice: {found[0]!r}"
            for sentence in _SENTENCES.split(text):
                if (words := len(sentence.split())) > LONGEST:
                    yield cell.id, f"has a sentence of {words} words; at most {LONGEST}: {sentence[:60]}…"


def unexplained(name: str, notebook: Any, before: Iterable[Any]) -> Iterator[Problem]:
    """Yield each term that a notebook uses first, and does not explain there, nor any notebook `before` it."""
    known = {term for one in before for cell in one.cells for term in _explained(cell)}
    for term in TERMS:
        if term in known:
            continue
        for cell in notebook.cells:
            if cell.id == "title" or (name, cell.id) in LOOKED_UP or not _uses(cell, term):
                continue
            if term not in _explained(cell):
                yield cell.id, f"uses {term!r} first: explain it there, in *italics* or **bold**"
            break


def form(term: str) -> re.Pattern[str]:
    """A term in the singular, the plural, and (masked, cached) as a participle."""
    stem = f"{term[:-1]}(ys?|ies)" if term.endswith("y") else f"{term}(e?s|ed|ing)?"
    return re.compile(rf"(?<![\w-]){stem}(?![\w-])", re.IGNORECASE)


FORMS = {term: form(term) for term in TERMS} | {"cache": re.compile(r"\bcach(es?|ed|ing)\b", re.IGNORECASE)}


def _uses(cell: Any, term: str) -> bool:
    return cell.cell_type == "markdown" and FORMS[term].search(_prose(cell.source)) is not None


def _explained(cell: Any) -> set[str]:
    return _explained_in(cell.source) if cell.cell_type == "markdown" else set()


@cache
def _explained_in(source: str) -> set[str]:
    stressed = [found[2] for found in _STRESSED.finditer(_prose(source)) if len(found[2].split()) < 5]
    return {term for term, form in FORMS.items() if any(map(form.search, stressed))}


@cache
def _prose(source: str, gap: str = " ") -> str:
    """A cell's sentences, without headings, tables, code and formulas."""
    return _HEADING.sub("", NOT_PROSE.sub(gap, _LINK.sub(r"\1", source)))
