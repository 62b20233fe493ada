"""Judge answers where no code of an answer ever runs.

An answer's process, see `answering`, gets the arguments of a case and says what came out; what is right, how closely,
and the verdict are known here alone. Why a wrong answer is wrong is found in a second process that has the bank: it
runs the answer again, and what it says is advice.

`isolated.check` judges the answer in a learner's desk or file, `coursework.classroom` those of a class.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import io
import json
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from course_lib.reading import one_line
from coursework.desk import answers, pen, running, sandbox, wire
from coursework.desk.frames import Malformed
from coursework.desk.notebooks import read_notebook
from coursework.desk.pen import Gone, Limits, Line, Pen
from coursework.desk.store import Desk, DeskError
from coursework.desk.tutor import SCHEMA
from coursework.exercises.engine import cells, guard
from coursework.exercises.engine.compare import Rules, compare
from coursework.exercises.engine.diagnose import Examiner
from coursework.exercises.engine.ending import end_with_parent
from coursework.exercises.engine.finding import NOT_ATTEMPTED, RIGHT, WRONG, Finding
from coursework.exercises.engine.guard import RanAway
from coursework.exercises.engine.messages import case_of, message, sentence_of
from coursework.exercises.engine.run import AGAIN, Outcome, Terms
from coursework.exercises.engine.source import definition
from coursework.exercises.handle import Handle, Judged
from coursework.exercises.learner import Named
from coursework.exercises.spec import Case, Exercise, Misconception, Question

_KINDS = ("question", "pointer", "skeleton")

NOT_RUN = "not run"
"""The verdict on an answer that gave nothing to judge."""

MEMORY = 4 << 30
"""Bytes that an answer of the learner's own may allocate."""

ADVICE = 20_000
"""Characters of advice that are passed on."""


class _Afar(Examiner):
    """Examines answers that run elsewhere: `call` is the line to them."""

    def observed(self, call: Line, case: Case, guard: object = None) -> Outcome:
        """What the answer did on the case; called a second time, it must return the same."""
        outcome = self._heard(call, case, 1234)
        if outcome.error is None:
            again = self._heard(call, case, AGAIN)
            same = again.error is None and (
                wire.is_without_values(outcome.value) or compare(outcome.value, again.value, Rules()) is None
            )
            outcome.again = "" if same else "returns something else"
        return outcome

    @staticmethod
    def _heard(line: Line, case: Case, seed: int) -> Outcome:
        try:
            line.tell(wire.ship({"arguments": wire.ship(case.make()), "seed": seed}))
            return wire.unpack_outcome(line.hear())
        except Gone as problem:
            if problem.code is not None and -problem.code in guard.TIMERS:
                return Outcome(error=RanAway())
            raise


@functools.lru_cache(maxsize=256)
def _examiner(exercise: Exercise) -> _Afar:
    return _Afar(exercise)


def judge(request: Mapping[str, Any], pen: Pen) -> dict[str, Any]:
    """Have the answer run, and return the report on it.

    `request` names the "exercise" and where its answer is: "file", a Python file; or "notebook" with the "numbers" of
    its cells, and the "name" to call it by; or else the notebooks of "desk", in which the verdict is recorded.
    """
    said: dict[str, Any] = {
        "exercise": request["exercise"],
        "verdict": NOT_RUN,
        "misconceptions": [],
        "case": None,
        "problem": "",
        "text": "",
        "printed": "",
        "facts": None,
    }
    desk, spec = None, None
    try:
        desk = Desk(request["desk"]) if request.get("desk") else None
        handle = running.handle(request["exercise"], desk)
        spec = handle.spec
        answer = _answer(request, handle, desk)
        judged = _judged(handle, answer, pen, said)
        said["verdict"], said["text"] = judged.verdict, judged.text
        said["misconceptions"] = [_named(one) for one in judged.misconceptions]
        if any(judged.case):
            said["case"] = {"name": judged.case[0], "differs": judged.case[1]}
        with contextlib.redirect_stdout(io.StringIO()) as trouble:
            handle.record(judged)
        said["text"] += "\n" + trouble.getvalue()
        if judged.verdict == WRONG and answer.missing:
            said["text"] += f"\n{running.explain_missing(answer.missing)}\n"
    except DeskError as problem:
        said["problem"] = str(problem)
    except Malformed as problem:
        said["problem"] = f"the answer could not be judged: {problem}."
    except Gone as problem:
        said["problem"] = without_verdict(problem.code, pen.limits.seconds)
    except Exception as problem:  # those whose answers come next are to be judged, too
        said["problem"] = f"the answer could not be judged ({type(problem).__name__}: {one_line(problem)})."
    said["right"] = said["verdict"] == RIGHT
    if spec is not None and not request.get("notebook"):
        said["facts"] = facts(spec, said, desk)
    return said


def _answer(request: Mapping[str, Any], handle: Handle, desk: Desk | None) -> running.Answer:
    if request.get("file"):
        return running.from_file(Path(request["file"]))
    if request.get("notebook"):
        path = Path(request["notebook"])
        place = answers.Place(path, request.get("name", path.stem), read_notebook(path), request["numbers"])
        return running.from_place(place, whole=True)
    if desk is None:
        raise DeskError(
            "your copies of the notebooks were not found: run `course start`, or name a file, `--file answer.py`."
        )
    return running.from_notebook(desk, handle.spec.id)


def _judged(handle: Handle, answer: running.Answer, pen: Pen, said: dict[str, Any]) -> Judged:
    """The verdict, and for a wrong answer the advice."""
    spec = handle.spec
    asked = {
        "exercise": spec.id,
        "answer": answer,
        "asks_for": handle.asks_for,
        "parts": running.parts(spec.id, answer),
        "terms": Terms.of(spec) if isinstance(spec, Exercise) else None,
    }
    request = wire.ship(asked)
    line = pen.line(request)
    try:
        made = line.hear()
        if "problem" in made:
            raise DeskError(str(made["problem"]))
        if isinstance(spec, Question):
            return handle.examine(wire.unpack(made.get("value")))
        finding = _finding(spec, answer, made, line)
    finally:
        line.end()
        said["printed"] = line.printed
    case = ("", "")
    if finding.failure is not None:
        case = case_of(spec, finding.failure).name, one_line(sentence_of(finding.failure, None))
    judged = Judged(finding.verdict, message(spec, finding, None, False), answer.source, (), case)
    if finding.failure is None or finding.failure.stopped:
        return judged
    return _advised(spec, judged, pen.line(request, trusted=True))


def _finding(spec: Exercise, answer: running.Answer, made: Mapping[str, Any], line: Line) -> Finding:
    if spec.given is not None and _same(answer.source, spec):
        return Finding(NOT_ATTEMPTED)
    if made.get("callable") is not True or (spec.thing == "class" and made.get("class") is not True):
        return Finding(WRONG, misuse=f"check expects a {spec.thing}; it got {str(made.get('kind'))[:80]}.")
    examiner = _examiner(spec)
    examiner.prepare()
    return examiner.verdict(line)[0]


def _same(source: str, spec: Exercise) -> bool:
    """Whether the answer is still the broken function that was given."""
    given = definition(spec.given)
    try:
        own = [node for node in ast.parse(source).body if getattr(node, "name", "") == spec.function_name]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return given is not None and bool(own) and ast.dump(own[-1]) == ast.dump(given[1])


def _advised(spec: Exercise, judged: Judged, line: Line) -> Judged:
    """The same verdict, with what a process that ran the answer says of it as far as it came."""
    advice: dict[str, Any] = {}
    try:
        while True:
            advice |= line.hear()
    except (Gone, Malformed):
        pass
    finally:
        line.end()
    if advice.get("verdict") != WRONG or not isinstance(advice.get("misconceptions"), list):
        return judged
    named = tuple(one for one in spec.misconceptions if one.name in advice["misconceptions"])
    return Judged(WRONG, str(advice.get("text"))[:ADVICE], judged.source, named, judged.case)


def _named(one: Named) -> dict[str, str]:
    name = one.name if isinstance(one, Misconception) else f"answers {one.value!r}"
    return {"name": name, "statement": one.statement, "question": one.question}


def without_verdict(ended: int | None, seconds: float) -> str:
    """What to say of a process that ended with this code, None if it was stopped, before there was a verdict."""
    if ended is None:
        return (
            f"the answer was stopped after {seconds:g} s without an end. Is there a loop that never ends, or a "
            "computation far larger than the small cases need? (--seconds gives it more time.)"
        )
    how = pen.how(ended)
    return f"the answer ended the whole process ({how}) before it could be judged, so it counts as not checked."


# -- what `course check --json` prints, for a tutor --------------------------------------------------------------------


def facts(entry: Exercise | Question, said: Mapping[str, Any], desk: Desk | None) -> dict[str, Any]:
    """Return what `course check --json` prints, from a report of `judge`; nothing in it is of the solution."""
    counted = desk.progress().get(entry.id) if desk is not None else None
    attempts = counted["attempts"] if counted else int(said["verdict"] in ("right", "wrong"))
    due = 0 if said["verdict"] == "right" else min(len(entry.hints), max(1, attempts))
    texts = [*entry.hints[:2], without_solution(entry)]
    return {
        "schema": SCHEMA,
        "exercise": entry.id,
        "title": entry.title,
        "verdict": said["verdict"],
        "misconceptions": said["misconceptions"],
        "case": said["case"],
        "problem": said["problem"],
        "attempts": attempts,
        "hints": [{"level": level + 1, "kind": _KINDS[level], "text": texts[level]} for level in range(due)],
        "next_level": due + 1 if 0 < due < len(entry.hints) else None,
    }


def without_solution(entry: Exercise | Question) -> str:
    """Return the last hint, the skeleton, with every line that stands so in the solution left open as well."""
    given = {plain(line) for line in cells.cell_source(entry).splitlines()}
    lines = {plain(line) for line in cells.solved_cell_source(entry).splitlines()} - given
    kept = []
    for line in entry.hints[2].rstrip().splitlines():
        indent = line[: len(line) - len(line.lstrip())]
        known = any(one in plain(line) for one in lines if len(one) > 5)
        kept.append(f"{indent}{cells.BLANK}" if known else line)
    return "\n".join(kept)


def plain(line: str) -> str:
    """A line of code without space and comment."""
    return re.sub(r"\s+", "", line.partition("#")[0])


# -- a process that judges for another one -----------------------------------------------------------------------------


def main() -> None:
    """For each request on standard input, a line of JSON, print the report on it as another."""
    start = json.loads(sys.argv[1])
    sandbox.forbid_tracing()
    end_with_parent(start["parent"])
    said_to = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    limits = Limits(start["seconds"], start["memory"])
    with Pen(limits, start["environment"], hidden=[Path(path) for path in start["hidden"]]) as answering:
        for line in sys.stdin:
            print(json.dumps(judge(json.loads(line), answering)), file=said_to, flush=True)


if __name__ == "__main__":
    main()
