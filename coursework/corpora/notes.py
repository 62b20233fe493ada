"""Two tasks on text that ask for what stands further back: notes to be remembered, and letters to be echoed.

Both are drawn from a `torch.Generator`, out of the Python reference. `SYMBOLS` is their vocabulary: letters, digits, a
question mark, and a sign for the start.
"""

import functools
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from course_lib.checks import check_integer

from .text import reference_text

Split = Literal["train", "test"]
LETTERS = " abcdefghijklmnopqrstuvwxyz.,\n"
SYMBOLS = LETTERS + "0123456789?^"
DIGIT, QUESTION, START = len(LETTERS), len(LETTERS) + 10, len(LETTERS) + 11  # the first digit, "?", "^"
LONGEST = 400_000  # characters used
KEPT_BACK = 40_000  # of them for the test


class Asked(NamedTuple):
    """Sequences with questions in them.

    tokens (N, T); targets (N, T), what should follow, at a question its answer; asked (N, T), True at the questions;
    back (N, T), how many places before it the answer to a question stands, 0 elsewhere.
    """

    tokens: Tensor
    targets: Tensor
    asked: Tensor
    back: Tensor


def spelled(tokens: Tensor) -> str:
    """The symbols of one sequence (T,)."""
    return "".join(SYMBOLS[token] for token in tokens.tolist())


@functools.cache
def _letters() -> Tensor:
    number = {letter: code for code, letter in enumerate(LETTERS)}
    return torch.tensor([number.get(letter, 0) for letter in reference_text()[:LONGEST].lower()])


def _pieces(n_examples: int, length: int, split: Split, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Pieces of the text, and what follows each letter: (N, T) both."""
    text = _letters()[:-KEPT_BACK] if split == "train" else _letters()[-KEPT_BACK:]
    starts = torch.randint(len(text) - length - 1, (n_examples, 1), generator=generator)
    piece = text[starts + torch.arange(length + 1)]  # (N, T + 1)
    return piece[:, :-1].clone(), piece[:, 1:].clone()


def notes_in_text(
    n_examples: int,
    length: int,
    *,
    notes: int = 3,
    questions: int = 4,
    split: Split = "train",
    generator: torch.Generator,
) -> Asked:
    """Draw pieces of real text in which some letters are replaced by notes and questions, at random places.

    A note is a digit. The answer to each question is the latest note before it, which stands nowhere else: a model has
    to find it, however far back, and to prefer it to older ones. All other places are to be continued as text. Each
    sequence begins with the start sign.

    Raises ValueError for sizes that do not fit.
    """
    check_integer("notes", notes, 1)
    check_integer("questions", questions, 0)
    check_integer("length", length, 1 + notes + questions)
    tokens, targets = _pieces(n_examples, length, split, generator)
    tokens[:, 0] = START
    places = torch.rand(n_examples, length - 1, generator=generator).argsort(1)[:, : notes + questions] + 1
    first = places.argmin(1, keepdim=True)  # a note comes before all questions
    earliest = places.gather(1, first)
    places.scatter_(1, first, places[:, :1].clone())
    places[:, :1] = earliest
    tokens.scatter_(1, places[:, :notes], DIGIT + torch.randint(10, (n_examples, notes), generator=generator))
    tokens.scatter_(1, places[:, notes:], QUESTION)
    place = torch.arange(length).expand_as(tokens)
    is_note = (tokens >= DIGIT) & (tokens < DIGIT + 10)
    latest = torch.where(is_note, place, -1).cummax(1).values  # (N, T), the place of the latest note
    asked = tokens == QUESTION
    targets = torch.where(asked, tokens.gather(1, latest.clamp(min=0)), targets)
    return Asked(tokens, targets, asked, (place - latest) * asked)


def echoes_in_text(
    n_examples: int,
    length: int,
    *,
    share: float = 0.1,
    start: bool = True,
    split: Split = "train",
    generator: torch.Generator,
) -> Asked:
    """Draw pieces of real text in which some letters are replaced by questions; the answer is the letter just before.

    `share` of the places are questions, never two in a row; with `start` each sequence begins with the start sign.
    """
    check_integer("length", length, 3)
    tokens, targets = _pieces(n_examples, length, split, generator)
    drawn = torch.rand(n_examples, length, generator=generator) < share
    drawn[:, :2] = False
    asked = drawn.clone()
    asked[:, 1:] &= ~drawn[:, :-1]
    targets = torch.where(asked, tokens.roll(1, dims=1), targets)
    tokens = torch.where(asked, QUESTION, tokens)
    if start:
        tokens[:, 0] = START
    return Asked(tokens, targets, asked, asked.long())
