"""How the second edition is written: plain sentences, and terms that are explained where they are first used.

Spelling is codespell's (`tests/test_style.py`). Of linters for prose, vale fetches a program when it first runs, and
proselint had 73 remarks on the first edition's 27,000 words, 58 of them about quotes and dots and none about what
readers stumbled over. These rules are about that.
"""

import ast
import re
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any

from notebook_style import NOT_PROSE, Problem

SAID = {"alt", "caption", "title", "xlabel", "ylabel"}
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
# What readers named as translated, and what readers of code were told without need: each with what to say instead.
_RELAPSES = """
becomes? longer by it => gets longer
come to the test => say who tests what
made in this way have their name => are called … after …
heads of the columns => column titles
what several .{0,60}, section \\d+ measures => begin with the section
it goes just as in the picture => follows the picture
(two|three|four) \\w+ more\\. => two more …
who guesses => a guess
stands more => tolerates more
another person it hardly misses => it hardly misses another person
in its stead|in their stead => instead
to a like size => to a similar size
attempts to part => attempts to separate
in earnest => in real use
must do for => must work for
is no effect to please => is not a special effect
beam search is no tool => is the wrong tool
that can be had => possible
one cannot see from => cannot show
by the clock => how much time does it save
makes a sum of the product => turns the product into a sum
is a matter of cutting => is done by slicing
stands? in no table => is not stored anywhere
on one picture => in one picture
mind the \\w+ of => note the …
the check also looks at => say it where a hint or a message needs it
"""
RELAPSES = {
    re.compile(rf"\b({found})", re.IGNORECASE): better
    for found, better in (line.split(" => ") for line in _RELAPSES.strip().splitlines())
}
PARENTHESES = re.compile(r"\([^()]*[a-z]{3}[^()]*\)[,.;:]?\s+\([^()]*[a-z]{3}")  # two in a row; shapes are free
# Positions count from 0 and are called so; a place is where something stands that has no number.
PLACE = re.compile(
    r"\b((each|every|last|next|latest|earlier|later|trained|own) places?(?! (to|of|where|in the middle))"
    r"|places? (back|ahead|apart|forward|later|before|after|p|t|\d+)\b|places (\d|that look)"
    r"|(per|a|at|from|to|of) place \d|(number|numbers|numbered|know|knows|without|equal) (the )?places?\b)",
    re.IGNORECASE,
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


def relapses(text: str, *, chapter: str = "") -> Iterator[str]:
    """What sounds translated in a text, its parentheses after parentheses, and positions that it calls places.

    Before chapter 4 positions are the subject and are called so; `chapter` may be that of a lab.
    """
    for block in _BLOCKS.split(_prose(text, gap="X")):
        said = " ".join(block.split())
        for pattern, better in RELAPSES.items():
            if found := pattern.search(said):
                yield f"sounds translated: {found[0]!r}; better: {better}"
        if found := PARENTHESES.search(said):
            yield f"has two parentheses in a row: {found[0]!r}"
        if chapter < "04" and (found := PLACE.search(said)):
            yield f"calls a position a place: {found[0]!r}"


def prose_problems(notebook: Any, chapter: str = "") -> Iterator[Problem]:
    """Yield telegrams, words written twice, relapses, and sentences that nobody reads in one go."""
    for cell in notebook.cells:
        if cell.cell_type != "markdown":
            yield from ((cell.id, what) for text in captions(cell.source) for what in relapses(text, chapter=chapter))
            continue
        yield from ((cell.id, what) for what in relapses(cell.source, chapter=chapter))
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


def captions(source: str) -> Iterator[str]:
    """What a picture says of itself in code: the strings of `alt=`, `caption=` and the labels of axes."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.keyword) and node.arg in SAID:
            parts = [part.value for part in ast.walk(node.value) if isinstance(part, ast.Constant)]
            yield "X".join(part for part in parts if isinstance(part, str))


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
