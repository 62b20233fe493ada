"""The small English: what is drawn is accepted, and every broken agreement is refused."""

import math
import random
from collections import Counter

import pytest

from coursework.corpora.sentences import (
    ENGLISH,
    JUDGED_WORDS,
    REFLEXIVE_OF,
    REFLEXIVES,
    english_entropy,
    english_sentence,
    is_english,
    judged_pair,
    judged_sentences,
)


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


def test_a_judged_pair_has_the_same_words_and_only_the_first_fits_its_subject():
    draw = random.Random(0)
    for _ in range(500):
        right, wrong = judged_pair(draw)
        assert Counter(right) == Counter(wrong)
        for words, fits in ((right, True), (wrong, False)):
            persons = [(words[i - 3] == "near", word) for i, word in enumerate(words) if word in REFLEXIVE_OF]
            (subject,) = [word for is_near, word in persons if not is_near]
            assert (REFLEXIVE_OF[subject] == words[-1]) == fits


def test_judged_sentences_come_in_pairs():
    sentences, right = judged_sentences(300, random.Random(0))
    assert right == [1, 0] * 300
    assert {word for words in sentences for word in words} == set(JUDGED_WORDS)
