"""A small English of thirty-five words and a full stop, in which grammar decides what comes next, several words later.

"the queen near the king paints herself": the last word must agree with *queen*, not with the nearer *king*. Whoever
predicts it from the word before can only guess, so a model that gets it right has looked back.
"""

import math
import random
from collections.abc import Sequence

__all__ = [
    "ENGLISH",
    "JUDGED_WORDS",
    "REFLEXIVES",
    "REFLEXIVE_OF",
    "english_entropy",
    "english_sentence",
    "is_english",
    "judged_pair",
    "judged_sentences",
]

# Who there is, with the word for "the same one again".
_ONE = {"girl": "herself", "queen": "herself", "woman": "herself"}
_ONE |= {"boy": "himself", "king": "himself", "man": "himself"}
_MANY = dict.fromkeys(["girls", "queens", "women", "boys", "kings", "men"], "themselves")
_VERBS = ("sees", "hears", "paints", "helps", "trusts", "follows")
_ADJECTIVES = ("old", "young", "tall", "tired", "clever")
REFLEXIVE_OF = _ONE | _MANY

REFLEXIVES = ("herself", "himself", "themselves")
ENGLISH = sorted(
    {"the", "near", "that", ".", *REFLEXIVE_OF, *_ADJECTIVES, *REFLEXIVES, *_VERBS, *(verb[:-1] for verb in _VERBS)}
)  # every word there is

_PAST = ("followed", "heard", "helped", "painted", "saw", "trusted")  # the same for one and for many
JUDGED_WORDS = sorted({"the", "near", *REFLEXIVE_OF, *_ADJECTIVES, *REFLEXIVES, *_PAST})  # those of `judged_pair`


def english_sentence(draw: random.Random) -> list[str]:
    """Draw one sentence, a list of words that ends with a full stop.

    Half of them end with a reflexive such as "herself", the others with another person; in two of three something
    stands between the subject and its verb.
    """
    words, subject = _person(draw)
    kind = draw.random()
    if kind < 1 / 3:
        words += ["near", *_person(draw)[0]]
    elif kind < 2 / 3:
        other, who = _person(draw)
        words += ["that", *other, _agreeing(draw.choice(_VERBS), who)]
    words.append(_agreeing(draw.choice(_VERBS), subject))
    words += [REFLEXIVE_OF[subject]] if draw.random() < 0.5 else _person(draw)[0]
    return [*words, "."]


def judged_pair(draw: random.Random) -> tuple[list[str], list[str]]:
    """Draw a right sentence and a wrong one of the same words: two persons have changed places.

    "near the old king the tall queen painted herself": whom a person stands near may be said before the subject, after
    it, or both, and *herself* must fit the subject. In the second sentence the subject is another person, whom it does
    not fit. Whoever only counts words cannot tell the two apart.
    """
    while True:
        before, after = draw.randrange(2), draw.randrange(3)
        who = [draw.choice(list(REFLEXIVE_OF)) for _ in range(before + 1 + after)]
        last = REFLEXIVE_OF[who[before]]
        others = [place for place, person in enumerate(who) if REFLEXIVE_OF[person] != last]
        if others:
            break
    adjectives = [draw.choice(_ADJECTIVES) for _ in who]
    verb, other = draw.choice(_PAST), draw.choice(others)
    sentences = []
    for _ in range(2):
        words: list[str] = []
        for place, (adjective, person) in enumerate(zip(adjectives, who, strict=True)):
            words += [*(["near"] if place != before else []), "the", adjective, person]
        sentences.append([*words, verb, last])
        who[before], who[other] = who[other], who[before]
    return sentences[0], sentences[1]


def judged_sentences(n_pairs: int, draw: random.Random) -> tuple[list[list[str]], list[int]]:
    """Draw pairs of `judged_pair`, one after the other: their sentences, and 1 for a right one, 0 for a wrong one."""
    sentences = [sentence for _ in range(n_pairs) for sentence in judged_pair(draw)]
    return sentences, [1, 0] * n_pairs


def english_entropy() -> float:
    """Return the entropy of a word in nats: the smallest loss that any model of these sentences can have.

    It is the entropy of a sentence, by the choices that `english_sentence` makes, over its mean number of words.
    """
    person = math.log(len(REFLEXIVE_OF)) + math.log(2) + 0.5 * math.log(len(_ADJECTIVES))
    verb = math.log(len(_VERBS))
    sentence = person + math.log(3) + person / 3 + (person + verb) / 3 + verb + math.log(2) + 0.5 * person
    words = 2.5 + (1 + 2.5) / 3 + (1 + 2.5 + 1) / 3 + 1 + 0.5 * 1 + 0.5 * 2.5 + 1
    return sentence / words


def is_english(words: Sequence[str]) -> bool:
    """Whether the words are a whole sentence of this English, with every agreement kept."""
    subject, rest = _read_person(list(words))
    if subject is None:
        return False
    if rest[:1] == ["near"]:
        other, rest = _read_person(rest[1:])
        if other is None:
            return False
    elif rest[:1] == ["that"]:
        other, rest = _read_person(rest[1:])
        if other is None or not rest or not _agrees(rest.pop(0), other):
            return False
    if not rest or not _agrees(rest.pop(0), subject):
        return False
    if rest == [REFLEXIVE_OF[subject], "."]:
        return True
    other, rest = _read_person(rest)
    return other is not None and rest == ["."]


def _person(draw: random.Random) -> tuple[list[str], str]:
    """Draw "the (old) queen": its words, and the noun."""
    noun = draw.choice(list(REFLEXIVE_OF))
    return ["the", *([draw.choice(_ADJECTIVES)] if draw.random() < 0.5 else []), noun], noun


def _read_person(words: list[str]) -> tuple[str | None, list[str]]:
    """Read what `_person` draws from the front: the noun, None if there is none, and the words that follow."""
    if words[:1] != ["the"]:
        return None, words
    rest = words[2:] if words[1:2] and words[1] in _ADJECTIVES else words[1:]
    return (rest[0], rest[1:]) if rest and rest[0] in REFLEXIVE_OF else (None, rest)


def _agreeing(verb: str, noun: str) -> str:
    """The verb as it stands with this noun: she sees, they see."""
    return verb if noun in _ONE else verb[:-1]


def _agrees(verb: str, noun: str) -> bool:
    return verb in {_agreeing(each, noun) for each in _VERBS}
