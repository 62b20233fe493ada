"""Spelled numbers: questions, answers and pages say what they are said to say, and the splits share no number."""

import pytest
import torch

from coursework.corpora import number_words, split_of
from coursework.corpora.spelled import (
    END,
    EQUALS,
    GERMAN,
    LARGEST,
    PAD,
    PROMPT,
    SYMBOLS,
    answers,
    draw_numbers,
    pages,
    questions,
    spelled,
)

SOME = [0, 1, 7, 16, 27, 100, 101, 1000, 1011, 20_001, 100_000, 777_777, 999_999]


def test_every_symbol_is_there_once():
    assert len(set(SYMBOLS)) == len(SYMBOLS)


def test_a_question_is_the_number_word():
    for value, row in zip(SOME, questions(SOME), strict=True):
        parts = [SYMBOLS[token] for token in row.tolist() if token not in (PAD, EQUALS)]
        assert "".join(parts) == number_words(value, "de")
        assert set(parts) <= set(GERMAN)
        assert row[-1] == EQUALS
        assert row.size(0) == PROMPT


def test_padding_stands_on_the_outer_sides():
    for row in questions(SOME):
        assert row.tolist() == sorted(row.tolist(), key=lambda token: token != PAD)
    for row in answers(SOME, 10):
        assert row.tolist() == sorted(row.tolist(), key=lambda token: token == PAD)


def test_an_answer_is_the_digits_and_the_end():
    for value, row in zip(SOME, answers(SOME), strict=True):
        assert spelled(row) == f"{value} end"
        assert (row == END).sum() == 1
    with pytest.raises(ValueError, match="length: expected at least 7"):
        answers([100_000], 6)


def test_a_page_says_true_things_and_never_ends():
    rows = pages(SOME, 60, seed=3)
    assert rows.shape == (len(SOME), 60)
    assert not (rows == END).any()
    english = {number_words(value, "en").replace("-", " ").replace(",", "") for value in SOME}
    kinds = set()
    for value, row in zip(SOME, rows, strict=True):
        assert row[PROMPT - 1] == EQUALS
        first = spelled(row[PROMPT:]).split(" ;")[0]
        assert first == str(value) or first in english
        kinds.add(first.isdigit())
    assert kinds == {True, False}


def test_the_splits_share_no_number_and_the_same_seed_draws_the_same():
    train, test = draw_numbers(300, seed=1), draw_numbers(300, "test", seed=1)
    assert train == draw_numbers(300, seed=1)
    assert train != draw_numbers(300, seed=2)
    assert {split_of("number", value) for value in train} == {"train"}
    assert {split_of("number", value) for value in test} == {"test"}
    assert all(1 <= value <= LARGEST for value in train + test)


def test_a_range_that_there_is_not_is_named():
    with pytest.raises(ValueError, match="largest: expected"):
        draw_numbers(1, largest=1_000_000)
    with pytest.raises(ValueError, match="smallest: expected"):
        draw_numbers(1, smallest=10, largest=9)


def test_spelled_leaves_out_padding_and_what_follows_the_end():
    row = torch.tensor([PAD, *answers([42])[0].tolist(), 5])
    assert spelled(row) == "42 end"
