"""Notes in text and echoes: every answer stands where it is said to stand, and nowhere nearer."""

import pytest
import torch

from coursework.corpora.notes import DIGIT, LETTERS, QUESTION, START, echoes_in_text, notes_in_text, spelled


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize(("notes", "questions"), [(1, 1), (3, 4), (5, 0)])
def test_the_answer_is_the_latest_note(notes, questions, split):
    drawn = notes_in_text(50, 40, notes=notes, questions=questions, split=split, generator=generator())
    assert drawn.tokens.shape == drawn.targets.shape == (50, 40)
    assert (drawn.tokens[:, 0] == START).all()
    assert (drawn.asked.sum(1) == questions).all()
    for row, places in enumerate(drawn.asked):
        for place in places.nonzero()[:, 0].tolist():
            before = [token for token in drawn.tokens[row, :place].tolist() if DIGIT <= token < DIGIT + 10]
            assert drawn.targets[row, place] == before[-1]
            assert drawn.tokens[row, place - drawn.back[row, place]] == before[-1]
    elsewhere = ~drawn.asked
    assert (drawn.targets[elsewhere] < len(LETTERS)).all()
    assert (drawn.back[elsewhere] == 0).all()


def test_text_stays_text():
    drawn = notes_in_text(20, 60, generator=generator())
    letters = drawn.tokens[:, 1:] < len(LETTERS)
    assert (drawn.targets[:, :-1][letters] == drawn.tokens[:, 1:][letters])[~drawn.asked[:, :-1][letters]].all()
    assert "".join(LETTERS) in "".join(spelled(torch.arange(42)))


def test_the_splits_share_no_text():
    train, test = (notes_in_text(300, 30, split=split, generator=generator()) for split in ("train", "test"))
    pieces = {spelled(row) for row in train.tokens}
    assert not pieces & {spelled(row) for row in test.tokens}


def test_an_echo_is_the_letter_before():
    drawn = echoes_in_text(40, 30, share=0.3, generator=generator())
    assert (drawn.tokens[:, 0] == START).all()
    assert not (drawn.asked[:, 1:] & drawn.asked[:, :-1]).any()
    before = drawn.tokens.roll(1, dims=1)
    assert torch.equal(drawn.targets[drawn.asked], before[drawn.asked])
    assert (drawn.tokens[drawn.asked] == QUESTION).all()
    assert not (echoes_in_text(40, 30, start=False, generator=generator()).tokens == START).any()


def test_the_same_seed_draws_the_same():
    for draw in (notes_in_text, echoes_in_text):
        assert torch.equal(draw(3, 20, generator=generator(1)).tokens, draw(3, 20, generator=generator(1)).tokens)


def test_sizes_that_do_not_fit_are_named():
    with pytest.raises(ValueError, match="length: expected an integer of at least 8"):
        notes_in_text(2, 7, generator=generator())
