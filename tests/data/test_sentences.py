"""The small English: what is drawn is accepted, and every broken agreement is refused."""

import math
import random
from collections import Counter

import pytest

from course_lib.data.sentences import ENGLISH, REFLEXIVES, english_entropy, english_sentence, is_english


def test_what_is_drawn_is_english():
    draw = random.Random(0)
    drawn = [english_sentence(draw) for _ in range(2000)]
    assert all(is_english(words) for words in drawn)
    assert {word for words in drawn for word in words} == set(ENGLISH)
    assert 0.45 < sum(words[-2] in REFLEXIVES for words in drawn) / len(drawn) < 0.55


@pytest.mark.parametrize(
    "words",
    [
        "the queen paints himself .",
        "the queen near the boys paint herself .",
        "the queen near the boys paints themselves .",
        "the kings that the tall girl see hear themselves .",
        "the kings that the tall girl sees hears themselves .",
        "the queen paints herself",
        "the queen paints .",
        "queen paints herself .",
        "the old paints herself .",
        "the queen near the boys near the king paints herself .",
        "",
    ],
)
def test_what_breaks_the_grammar_is_refused(words):
    assert not is_english(words.split())


def test_a_sentence_with_one_word_changed_is_accepted_only_if_it_could_be_drawn():
    """Exchanging the reflexive of a sentence for another one always breaks it."""
    draw = random.Random(1)
    for words in (english_sentence(draw) for _ in range(500)):
        if words[-2] in REFLEXIVES:
            others = [other for other in REFLEXIVES if other != words[-2]]
            assert not any(is_english([*words[:-2], other, "."]) for other in others)


def test_the_entropy_is_that_of_the_sentences_drawn():
    """The mean surprise at a drawn sentence, by the choices that can be read off it, over the mean number of words."""
    draw = random.Random(2)
    drawn = [english_sentence(draw) for _ in range(40_000)]
    words = sum(map(len, drawn)) / len(drawn)

    def surprise(sentence):
        """Minus the log-probability, from the sentence alone."""
        persons = sentence.count("the")
        verbs = sum(word in {"sees", "hears", "paints", "helps", "trusts", "follows"} for word in sentence)
        verbs += sum(word in {"see", "hear", "paint", "help", "trust", "follow"} for word in sentence)
        adjectives = sum(word in {"old", "young", "tall", "tired", "clever"} for word in sentence)
        choices = persons * (math.log(12) + math.log(2)) + adjectives * math.log(5) + verbs * math.log(6)
        return choices + math.log(3) + math.log(2)

    measured = sum(map(surprise, drawn)) / len(drawn) / words
    assert measured == pytest.approx(english_entropy(), rel=0.005)
    assert Counter(map(len, drawn)).most_common(1)[0][0] in range(6, 12)
