"""Answers as learners write them, independent of the models: wrong ones get their name, unusual right ones pass."""

import answers_at_the_limits
import answers_of_chapter_02
import answers_of_chapter_04
import answers_of_chapter_05
import answers_of_classics
import pytest
import unseen

from coursework.exercises import registry
from coursework.exercises.engine.diagnose import RIGHT, WRONG, examiner

CHAPTERS = (
    answers_of_chapter_02,
    answers_of_chapter_04,
    answers_of_chapter_05,
    answers_of_classics,
    answers_at_the_limits,
)


@pytest.mark.parametrize(
    ("exercise_id", "function", "name"), [answer for chapter in CHAPTERS for answer in chapter.WRONG_ANSWERS]
)
def test_a_wrong_answer_gets_its_name(exercise_id, function, name):
    finding = examiner(registry.get(exercise_id)).examine(function)
    assert finding.verdict == WRONG
    assert {misconception.name for misconception in finding.misconceptions} == {name}


@pytest.mark.parametrize(
    ("exercise_id", "function"), [answer for chapter in CHAPTERS for answer in chapter.RIGHT_ANSWERS]
)
def test_an_unusual_right_answer_is_accepted(exercise_id, function):
    assert examiner(registry.get(exercise_id)).examine(function).verdict == RIGHT


@pytest.mark.parametrize("part", range(4))
def test_answers_of_writers_who_saw_only_the_prompts(part):
    """A seventh of them, and all that are not judged as their writers meant; `unseen.py` judges all."""
    mine = [row for row in unseen.answers() if row["set"] == part + 1]
    tried = [row for number, row in enumerate(mine) if number % 7 == part or row["id"] in unseen.OPEN]
    assert {row["id"] for row in tried if not unseen.is_as_meant(row)} == {
        row["id"] for row in mine if row["id"] in unseen.OPEN
    }
