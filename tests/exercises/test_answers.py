"""Answers as learners write them, independent of the models: wrong ones get their name, unusual right ones pass.

A line of `answers.jsonl` has an exercise, the code of an answer, and, if it is wrong, the names of its mistakes; none
where nobody has named what it does.
"""

import json
from pathlib import Path

import pytest
import unseen
from thorough import rounds

from coursework.exercises import registry
from coursework.exercises.engine.diagnose import RIGHT, WRONG, examiner

FILE = Path(__file__).with_name("answers.jsonl")
ANSWERS = [json.loads(line) for line in FILE.read_text(encoding="utf-8").splitlines()]


def name(answer):
    return f"{answer['exercise']}-{answer['code'].rpartition('def ')[2].partition('(')[0]}"


@pytest.mark.parametrize("answer", [one for one in ANSWERS if "mistakes" in one], ids=name)
def test_a_wrong_answer_gets_its_name(answer):
    finding = examiner(registry.get(answer["exercise"])).examine(unseen.defined(answer)[1])
    assert finding.verdict == WRONG
    assert {misconception.name for misconception in finding.misconceptions} == set(answer["mistakes"])


@pytest.mark.parametrize("answer", [one for one in ANSWERS if "mistakes" not in one], ids=name)
def test_an_unusual_right_answer_is_accepted(answer):
    assert examiner(registry.get(answer["exercise"])).examine(unseen.defined(answer)[1]).verdict == RIGHT


@pytest.mark.parametrize("part", [1, 2, 3, 4, 6, 8, 9])
def test_answers_of_writers_who_saw_only_the_prompts(part):
    """Some of them, and all that are not judged as their writers meant; `unseen.py` judges all."""
    every = rounds(28, 1)
    mine = [row for row in unseen.answers() if row["set"] == part]
    tried = [row for number, row in enumerate(mine) if number % every == part % every or row["id"] in unseen.OPEN]
    assert {row["id"] for row in tried if not unseen.is_as_meant(row)} == {
        row["id"] for row in mine if row["id"] in unseen.OPEN
    }
