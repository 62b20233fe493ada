"""Wrong answers are rejected, and the misconception that is named is the one that they show."""

import itertools

import pytest
from proofs import EXERCISES, QUESTIONS, by_id, garbage, pairs, proof

from coursework.exercises.engine import guard
from coursework.exercises.engine.diagnose import NOT_ATTEMPTED, RIGHT, WRONG, diagnose, examiner
from coursework.exercises.engine.formula import value_of
from coursework.exercises.engine.messages import message
from coursework.exercises.engine.question import judge
from coursework.exercises.engine.run import bind, observe
from coursework.exercises.engine.variants import drawn


@proof
def test_every_misconception_is_rejected_under_its_own_name(exercise, record_property):
    assert len(exercise.misconceptions) >= 5
    own = examiner(exercise)
    for misconception in exercise.misconceptions:
        candidate = exercise.model(**misconception.knobs)
        finding = own.examine(candidate, pairs=False)
        assert finding.verdict == WRONG, f"{misconception.name} is accepted"
        assert [tuple(m.name for m in fit) for fit in finding.fits] == [(misconception.name,)]
        assert misconception.statement in message(exercise, finding, candidate, keep=False)
    count = len(exercise.misconceptions)
    record_property("exercise", [exercise.id, {"misconceptions": count, "rejected": count, "named": count}])


@proof
def test_an_unknown_misconception_gets_no_false_name(exercise, record_property):
    own = examiner(exercise)
    related = 0
    for misconception in exercise.misconceptions:
        finding = own.examine(exercise.model(**misconception.knobs), skip=(misconception.name,))
        names = [tuple(m.name for m in fit) for fit in finding.fits]
        assert not names, f"{misconception.name}, were it unknown, would be taken for {names}"
        if finding.relation is not None and finding.relation.exact:
            related += 1
            false = _false_on_other_inputs(own, misconception, finding.relation)
            assert not false, f"{misconception.name}: not true of {false}: {finding.relation.statement}"
    record_property("exercise", [exercise.id, {"false": 0, "related": related}])


def _false_on_other_inputs(own, misconception, relation):
    """Inputs, drawn after those that confirmed it, on which the misconception does not behave as the relation says."""
    false = []
    for case in (drawn(own.exercise, seed) for seed in range(1000, 1004)):
        right, wrong = (observe(own.exercise, bind(own.exercise, own.exercise.model(**knobs)), case)
                        for knobs in ({}, misconception.knobs))  # fmt: skip
        if right.error is None and wrong.error is None:
            seen = own.as_seen(case, wrong, right)
            if seen.wrong and not relation.holds(seen):
                false.append(case.make())
    return false


@proof
def test_no_two_misconceptions_at_once_are_accepted(exercise, record_property):
    own = examiner(exercise)
    count = named = 0
    for pair in pairs(exercise):
        count += 1
        names = tuple(misconception.name for misconception in pair)
        outcomes = [own.outcome(pair, case) for case in range(len(exercise.cases))]
        failed = [number for number, outcome in enumerate(outcomes) if own.difference(number, outcome) is not None]
        assert failed, f"{names} together are accepted"
        fits = own.fits(outcomes, failed[0])
        if not fits:  # errors alone are no evidence for two mistakes
            assert all(outcomes[number].error is not None for number in failed), names
            continue
        assert all(set(fit) <= set(pair) or _equal(own, fit, pair) for fit in fits)
        named += fits[0] == pair or (len(fits[0]) == 1 and fits[0][0] in pair)
    counts = {"pairs": count, "pairs named": named}
    record_property("exercise", [exercise.id, counts])


def _equal(own, fit, pair):
    """Whether the misconceptions named behave exactly like the pair: then the name says nothing false."""
    cases = range(len(own.exercise.cases))
    return all(own.behaves_like(fit, case, own.outcome(pair, case)) for case in cases)


# The guard may stop an answer while Python clears up behind it, which is told and does no harm.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@proof
def test_garbage_is_rejected_and_harms_nothing(exercise, record_property, monkeypatch):
    monkeypatch.setattr(guard, "SECONDS", 0.2)
    battery = garbage(exercise)
    own = examiner(exercise)
    for name, candidate in battery.items():
        finding = own.examine(candidate)
        assert finding.verdict == WRONG, f"{name} is {finding.verdict}"
        text = message(exercise, finding, candidate, keep=False)
        assert text.startswith(f"Not yet: {exercise.id}.")
        assert text.isprintable() or "\n" in text
    assert diagnose(exercise, exercise.reference).verdict == RIGHT  # the engine still works
    record_property("exercise", [exercise.id, {"garbage rejected": len(battery)}])


@pytest.mark.parametrize("exercise", [e for e in EXERCISES if e.given is not None], ids=by_id)
def test_broken_code_to_repair_shows_a_known_misconception(exercise):
    assert diagnose(exercise, exercise.given).verdict == NOT_ATTEMPTED
    finding = examiner(exercise).examine(exercise.given)
    assert finding.verdict == WRONG
    assert finding.fits


@pytest.mark.parametrize("question", QUESTIONS, ids=by_id)
def test_every_wrong_answer_is_named(question, record_property):
    assert len(question.wrong) >= (1 if question.choices else 3)
    if question.choices is not None:
        assert {wrong.value for wrong in question.wrong} == set(question.choices) - {question.right}
    for wrong in question.wrong:
        verdict, named, text = judge(question, wrong.value)
        assert (verdict, named) == (WRONG, wrong), f"{wrong.value} is {verdict}, taken for {named}"
        assert wrong.statement in text
    for a, b in itertools.combinations(question.wrong, 2):
        assert judge(question, a.value)[1] is not judge(question, b.value)[1]
    count = len(question.wrong)
    record_property("exercise", [question.id, {"misconceptions": count, "rejected": count, "named": count}])


@pytest.mark.parametrize("question", [one for one in QUESTIONS if one.formula], ids=by_id)
def test_a_formula_gives_the_right_number(question):
    assert judge(question, value_of(question.formula))[0] == RIGHT


@pytest.mark.parametrize("question", QUESTIONS, ids=by_id)
def test_garbage_is_no_answer(question, record_property):
    battery = [float("nan"), float("inf"), "garbage", object(), [], {}, 1e300, -17, (1, 2, 3, 4, 5), b"", print]
    for value in battery:
        verdict, named, text = judge(question, value)
        assert verdict == WRONG, value
        assert named is None, value
        assert question.id in text
        assert "0x" not in text
    record_property("exercise", [question.id, {"garbage rejected": len(battery)}])
