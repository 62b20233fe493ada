"""Right answers pass, whatever they look like; a check is quick, offline and always says the same."""

import contextlib
import io
import os
import socket
import subprocess
import sys
import time

import pytest
import torch
from each import each
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from proofs import ENTRIES, EXERCISES, QUESTIONS, by_id, proof, run_cell
from thorough import rounds

from coursework.exercises.draw import Draw
from coursework.exercises.engine import cells
from coursework.exercises.engine.diagnose import NOT_ATTEMPTED, RIGHT, Examiner, diagnose, examiner
from coursework.exercises.engine.messages import message
from coursework.exercises.engine.question import judge
from coursework.exercises.engine.run import bind, observe
from coursework.exercises.spec import Case, Exercise, Question


@pytest.mark.parametrize("entry", ENTRIES, ids=by_id)
def test_the_cell_as_shipped_is_not_attempted(entry):
    names, printed = run_cell(cells.cell_source(entry), entry)
    assert printed.startswith(("Not attempted yet", "Not answered yet"))
    if isinstance(entry, Exercise):
        assert names[entry.function_name] is entry.reference


@pytest.mark.parametrize("entry", ENTRIES, ids=by_id)
def test_the_cell_with_the_solution_is_right(entry):
    names, printed = run_cell(cells.solved_cell_source(entry), entry)
    assert printed.startswith(f"Right: {entry.id}."), printed
    if isinstance(entry, Exercise):
        assert names[entry.function_name].__module__ == "__main__"  # the learner's own goes on


@proof
def test_every_alternative_passes(exercise, record_property):
    assert len(exercise.alternatives) >= 3
    names = [alternative.name for alternative in exercise.alternatives]
    assert len(set(names)) == len(names)
    for alternative in exercise.alternatives:
        finding = examiner(exercise).examine(alternative.function)
        assert finding.verdict == RIGHT, message(exercise, finding, alternative.function, keep=False)
    counts = {"alternatives": len(names), "alternatives accepted": len(names)}
    record_property("exercise", [exercise.id, counts])


EXAMPLES = rounds(40, 200)


@proof
def test_solution_model_and_alternatives_agree_on_random_cases(exercise):
    answers = {"the solution": exercise.reference} | {other.name: other.function for other in exercise.alternatives}
    seen = set()

    @seed(20_240_611)
    @settings(
        max_examples=EXAMPLES, derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck)
    )
    @given(st.data())
    def agree(data):
        drawn = []

        def integer(low, high):
            drawn.append(data.draw(st.integers(low, high)))
            return drawn[-1]

        exercise.sample(Draw(integer))
        case = Case("random", lambda: exercise.sample(Draw(_replay(drawn))))
        seen.add(tuple(drawn))
        rules = Examiner(exercise)
        trial = _Trial(rules, case)
        for name, function in answers.items():
            difference = trial.difference(function)
            assert difference is None, f"{name}: {difference} on {case.make()}"

    agree()
    assert len(seen) >= 30  # the sample draws real variety


def _replay(drawn):
    numbers = iter(drawn)
    return lambda low, high: next(numbers)


class _Trial:
    """Compares functions with the model on one case that is not among the cases."""

    def __init__(self, rules, case):
        from dataclasses import replace

        self.exercise = replace(rules.exercise, cases=[case])
        self.examiner = Examiner(self.exercise)

    def difference(self, function):
        call = bind(self.exercise, function)
        outcome = observe(self.exercise, call, self.exercise.cases[0])
        if outcome.error is not None and self.examiner.outcome((), 0).error is None:
            raise outcome.error
        return self.examiner.judged(0, outcome, call)


@pytest.mark.parametrize("question", QUESTIONS, ids=by_id)
def test_the_answer_is_what_measuring_gives(question, record_property):
    if question.choices is None:
        assert question.compute is not None
        assert judge(question, question.compute())[0] == RIGHT
    assert judge(question, question.right)[0] == RIGHT
    if isinstance(question.right, int | float) and not isinstance(question.right, bool):
        for same in (torch.tensor(question.right, dtype=torch.float64), float(question.right)):
            assert judge(question, same)[0] == RIGHT
    assert judge(question, None)[0] == NOT_ATTEMPTED
    record_property("exercise", [question.id, {}])


@each(EXERCISES, by_id)
def test_every_case_is_the_same_each_time(exercise):
    for case in exercise.cases:
        first, second = cells.fingerprint(case.make()), cells.fingerprint(case.make())
        assert first == second, case.name
    names = [case.name for case in exercise.cases]
    assert len(set(names)) == len(names)


@proof
def test_no_law_is_broken_by_a_right_answer_and_each_is_broken_by_a_misconception(exercise):
    for law in exercise.properties:
        for answer in (exercise.reference, *(other.function for other in exercise.alternatives)):
            assert law.check(bind(exercise, answer)) is None, law.law
        assert any(_breaks(exercise, law, one) for one in exercise.misconceptions), f"never broken: {law.law}"


def _breaks(exercise, law, misconception):
    try:
        return bool(law.check(bind(exercise, exercise.model(**misconception.knobs))))
    except AssertionError:
        return True
    except Exception:
        return False


@pytest.mark.parametrize("exercise", EXERCISES, ids=by_id)
def test_a_passing_check_takes_less_than_a_second_of_cpu_and_no_network(exercise, monkeypatch, record_property):
    def refuse(*args, **kwargs):
        raise OSError("no network in a check")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    for _ in range(3):  # the first may pay for what is loaded once
        start = time.process_time()
        assert diagnose(exercise, exercise.reference).verdict == RIGHT
        seconds = time.process_time() - start
        if seconds < 1.0:
            break
    record_property("exercise", [exercise.id, {"seconds": seconds}])
    assert seconds < 1.0


TEXTS = """
import hashlib, sys
from coursework.exercises import registry
from coursework.exercises.engine import cells
from coursework.exercises.engine.cases import Cases
from coursework.exercises.engine.diagnose import Examiner
from coursework.exercises.engine.messages import message
from coursework.exercises.engine.question import judge
from coursework.exercises.spec import Exercise

for entry in registry.all_exercises()[:: int(sys.argv[1])]:
    texts = [cells.edition(entry), cells.prompt_markdown(entry), cells.cell_source(entry)]
    if isinstance(entry, Exercise):
        own = Examiner(entry)
        for number, misconception in enumerate(entry.misconceptions[:6]):
            candidate = entry.model(**misconception.knobs)
            for skip in ((), (misconception.name,))[: 2 if number < 4 else 1]:  # named; as if nobody had thought of it
                texts.append(message(entry, own.examine(candidate, skip=skip, pairs=False), candidate, keep=False))
        texts.append(repr(Cases(entry)))
    else:
        texts += [judge(entry, wrong.value)[2] for wrong in entry.wrong]
    print(entry.id, hashlib.sha256("\\n".join(texts).encode()).hexdigest())
"""


def test_messages_are_the_same_byte_for_byte_in_two_processes(monkeypatch):
    every = str(rounds(8, 1))
    environment = os.environ | {"PYTHONHASHSEED": "1", "OMP_NUM_THREADS": "2"}
    done = subprocess.run(
        [sys.executable, "-c", TEXTS, every], env=environment, capture_output=True, text=True, timeout=500, check=False
    )
    assert done.returncode == 0, done.stderr
    monkeypatch.setattr(sys, "argv", ["", every])
    here = io.StringIO()
    with contextlib.redirect_stdout(here):
        exec(TEXTS, {})
    assert here.getvalue() == done.stdout
    assert len(done.stdout.splitlines()) == len(ENTRIES[:: int(every)])


@each(ENTRIES, by_id)
def test_the_edition_changes_with_what_the_learner_meets(entry):
    from dataclasses import replace

    before = cells.edition(entry)
    assert len(before) == 8
    assert cells.edition(replace(entry, what=entry.what + " More.")) != before
    assert cells.edition(replace(entry, minutes=entry.minutes + 1)) != before
    if isinstance(entry, Question):
        return
    assert cells.edition(replace(entry, cases=entry.cases[:-1])) != before
    assert cells.edition(replace(entry, misconceptions=entry.misconceptions[:-1])) != before
    assert cells.edition(replace(entry)) == before
