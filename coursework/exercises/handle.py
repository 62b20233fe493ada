"""What a learner calls: `check` or `answer`, `hint`, `cases`, `solution`, `part`, `reset`, `restore`."""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from coursework.exercises.engine import cells, rules
from coursework.exercises.engine.apart import Ended, apart, can_fork
from coursework.exercises.engine.cases import Cases
from coursework.exercises.engine.compare import kind_of
from coursework.exercises.engine.diagnose import diagnose, examiner
from coursework.exercises.engine.finding import NOT_ATTEMPTED, NOT_JUDGED, RIGHT, WRONG, Finding
from coursework.exercises.engine.guard import Guard, OutOfMemory, RanAway
from coursework.exercises.engine.messages import case_of, message, way_on
from coursework.exercises.engine.messages import report as issue_text
from coursework.exercises.engine.question import judge, normal
from coursework.exercises.engine.source import source_of
from coursework.exercises.engine.speak import say
from coursework.exercises.engine.state import same_state
from coursework.exercises.learner import Named, Progress
from coursework.exercises.spec import Exercise, Question

OFFERED = (
    "check",
    "answer",
    "hint",
    "cases",
    "solution",
    "part",
    "reset",
    "restore",
    "report",
    "title",
    "kind",
    "difficulty",
    "minutes",
)


_NO_SOURCE = "# The source of this answer was not available.\n"


@dataclass(frozen=True)
class Judged:
    """What a check found: the verdict, the text for the learner, the answer's source, the mistakes, the failing case.

    `case` is its name and what differs there, ("", "") where no case failed; `report` is a text for an issue.
    """

    verdict: str
    text: str
    source: str = ""
    misconceptions: tuple[Named, ...] = ()
    case: tuple[str, str] = ("", "")
    report: str = ""


class Stopped(KeyboardInterrupt):
    """The learner has stopped a check; the cells below do not run."""

    def _render_traceback_(self) -> list[str]:
        return ["The check was stopped by you; nothing is recorded."]


class Handle(abc.ABC):
    """One exercise in a learner's hands: its specification, and the progress that what they do is recorded in."""

    def __init__(self, spec: Exercise | Question, progress: Progress) -> None:
        self.spec, self.progress = spec, progress
        self.title, self.kind, self.difficulty, self.minutes = spec.title, spec.kind, spec.difficulty, spec.minutes

    def __repr__(self) -> str:
        """One line on what the exercise is."""
        return repr(self.spec)

    def __dir__(self) -> list[str]:
        """What a learner uses, for completion; the specification stays out of sight."""
        return [name for name in OFFERED if hasattr(self, name)]

    @property
    @abc.abstractmethod
    def asks_for(self) -> str:
        """The name that the learner's cell gives to the answer."""

    @abc.abstractmethod
    def examine(self, answer: Any, *, keep: bool = False) -> Judged:
        """What there is to be said about an answer; nothing is printed or recorded."""

    def record(self, judged: Judged) -> None:
        """Count the attempt, if it is one, and have the answer kept."""
        if judged.verdict in (RIGHT, WRONG):
            self.progress.record(self.spec, judged.source, judged.verdict, judged.misconceptions)

    def judge(self, answer: Any, *, keep: bool = False) -> str:
        """Print what is to be said about an answer, record it, and return the verdict."""
        try:
            judged = self.examine(answer, keep=keep)
        except KeyboardInterrupt:
            raise Stopped from None
        say(judged.text, judged.verdict)
        self.record(judged)
        return judged.verdict

    @abc.abstractmethod
    def recognise(self, answer: Any) -> Sequence[Named]:
        """The misconceptions that an answer shows; nothing is printed or recorded."""

    def hint(self) -> None:
        """Print the next hint: a question, then a pointer, then a skeleton with one gap.

        After a recognised mistake, the question that leads out of that mistake comes first.
        """
        spec, own = self.spec, self.progress.record_hint(self.spec)
        for one in own.misconceptions:
            if one.question not in own.asked:
                own.asked.add(one.question)
                print(f"A question about your last answer:\n{one.question}")
                return
        number = min(own.next_hint, len(spec.hints) - 1)
        own.next_hint = number + 1
        kind = ("a question", "where to look", f"a skeleton; fill in {cells.BLANK}")[number]
        print(f"Hint {number + 1} of {len(spec.hints)}, {kind}:\n{spec.hints[number].rstrip()}")
        if number == 1 and isinstance(spec, Exercise) and (tested := rules.line(spec)):
            print(tested.replace("*", ""))
        if number == len(spec.hints) - 1:
            print(f"That was the last one. After an attempt, ex.{spec.id}.solution() in a new cell shows the solution.")

    def solution(self, reveal: bool = False) -> None:
        """Print the solution, after one attempt or with reveal=True; after success also the other right ways."""
        standing = self.progress.standing(self.spec)
        if reveal or standing.solved or standing.attempts:
            print(cells.solution_text(self.spec, alternatives=standing.solved))
            return
        print(
            f"Try {self.spec.id} once first; a wrong attempt is fine, and its message helps.\n"
            f"In a new cell, ex.{self.spec.id}.hint() gives a hint; ex.{self.spec.id}.solution(reveal=True) shows the "
            "solution all the same."
        )

    def reset(self) -> None:
        """Give back the cell as it was at first; in a notebook it replaces the cell that calls this."""
        _give_cell(cells.cell_source(self.spec), f"{self.spec.id} as it was at first (your saved answers stay):")

    def restore(self) -> None:
        """Give back your latest saved answer; in a notebook it replaces the cell that calls this."""
        saved = self.progress.latest_answer(self.spec)
        if saved is None:
            print(f"There is no saved answer to {self.spec.id}.")
            return
        if cells.last_line(self.spec) not in saved:
            saved = f"{saved.rstrip()}\n\n\n{cells.last_line(self.spec)}\n"
        _give_cell(saved, f"Your latest answer to {self.spec.id}:")


class ExerciseHandle(Handle):
    """A function or class that the learner writes."""

    spec: Exercise
    _report = ""
    _stands_in = False  # whether the course's own version has been given for an answer

    @property
    def asks_for(self) -> str:
        """The name of the function or class."""
        return self.spec.function_name

    def check(self, candidate: Any, *, keep: bool = False) -> Any:
        """Say whether `candidate` is right and, if not, which mistake it makes; return a function to go on with.

        That is the learner's function if it is right, else the course's own, so the notebook runs to its end. With
        keep=True it is the learner's even if wrong. Prints its findings and never raises on a wrong answer.
        """
        verdict = self.judge(candidate, keep=keep)
        self._stands_in = not (verdict == RIGHT or (keep and verdict == WRONG))
        return self.spec.reference if self._stands_in else candidate

    def part(self) -> Any:
        """Return your latest right answer, the function or class itself, or the course's own if you have none.

        A later chapter builds on it. One line says which it is; where no answers are kept it is the course's own.
        """
        own, remark = self.progress.right_answer(self)
        whose = "the course's own" if own is None else "yours"
        print(f"{self.asks_for}: {whose}" + (f" ({remark})" if remark else ""))
        return self.spec.reference if own is None else own

    def examine(self, answer: Any, *, keep: bool = False) -> Judged:
        """What there is to be said about a function or class; nothing is printed or recorded."""
        if self._stands_in and answer is self.spec.reference:
            text = f"Not attempted: {self.asks_for} is the course's own here, not yours. Run the cell with your answer."
            return Judged(NOT_ATTEMPTED, text)
        judged = self._examined(answer, keep)
        self._report = judged.report
        return judged

    def _examined(self, answer: Any, keep: bool) -> Judged:
        if can_fork():
            examiner(self.spec).prepare()  # once, not in every copy
        judged = _apart(lambda report: self.report_on(answer, keep, report))
        if isinstance(judged, Ended):
            reason, judged = f"It {judged.reason}.", judged.reported or {}
            if "verdict" not in judged:  # it was not the search for an explanation that ended it
                text = f"Not yet: {self.spec.id}.\n{reason}\n\n{way_on(self.spec, keep)}"
                judged |= {"verdict": WRONG, "text": text, "misconceptions": [], "case": ("", reason)}
        named = [one for one in self.spec.misconceptions if one.name in judged["misconceptions"]]
        return Judged(**judged | {"misconceptions": tuple(named), "case": tuple(judged["case"])})

    def report_on(self, answer: Any, keep: bool, report: Callable[[Any], None]) -> None:
        """Report the fields of `Judged`, with names of misconceptions: more each time, for any step may be the last."""

        def found(finding: Finding) -> None:
            failure, case = finding.failure, ("", "")
            if failure is not None:
                case = case_of(self.spec, failure).name, failure.difference.sentence
            report(
                {
                    "verdict": finding.verdict,
                    "text": message(self.spec, finding, answer, keep),
                    "source": source,
                    "misconceptions": [one.name for one in finding.misconceptions],
                    "case": case,
                    "report": issue_text(self.spec, finding, answer),
                }
            )

        source = _NO_SOURCE
        try:
            with same_state():  # looking at an object may run its code
                source = source_of(answer) or source
            report({"source": source})
            found(diagnose(self.spec, answer, found))
        except KeyboardInterrupt:
            raise
        except BaseException as problem:  # an answer strange enough to break the check must not break the notebook
            text = (
                f"The check of {self.spec.id} could not judge this answer ({type(problem).__name__}: {problem}).\n"
                f"The course's own version goes on below; please open an issue with your answer."
            )
            report({"verdict": NOT_JUDGED, "text": text, "source": source, "misconceptions": [], "case": ("", "")})

    def recognise(self, answer: Any) -> Sequence[Named]:
        """The misconceptions that a function or class shows; nothing is printed or recorded."""
        return diagnose(self.spec, answer).misconceptions

    def report(self) -> None:
        """Print a text for an issue about the last answer, should you think that it was judged wrongly."""
        print(self._report or f"There is no answer to {self.spec.id} in this session to report on.")

    def cases(self) -> Cases:
        """The cases that the check uses, as small tensors: shown in a notebook, and indexable as a list."""
        return Cases(self.spec)


class QuestionHandle(Handle):
    """A question with one right answer."""

    spec: Question
    asks_for = "answer"

    def answer(self, value: Any = None) -> None:
        """Say whether `value` is right and, if not, which known mistake leads to it. None means not attempted."""
        self.judge(value)

    def examine(self, answer: Any, *, keep: bool = False) -> Judged:
        """What there is to be said about a value; nothing is printed or recorded."""
        if type(answer) in (int, float, bool, str, type(None)):
            return self._examined(answer)
        judged = _apart(lambda report: report(self._fields_of(answer)))
        if isinstance(judged, Ended):
            return Judged(WRONG, f"Not yet: {self.spec.id}. Looking at the value, it {judged.reason}.")
        return Judged(**judged | {"misconceptions": tuple(self.spec.wrong[i] for i in judged["misconceptions"])})

    def _unread(self, answer: Any) -> Judged:
        said = f"That is {kind_of(answer)} that cannot be read."
        return Judged(WRONG, f"Not yet: {self.spec.id}. {said} {self.spec.id} expects {cells.form(self.spec)}.")

    def _fields_of(self, answer: Any) -> dict[str, Any]:
        try:
            with Guard() as guard:
                judged = guard.call(self._examined, answer)
        except (RanAway, OutOfMemory):  # a class of one's own may compute without end
            judged = self._unread(answer)
        known = [number for number, one in enumerate(self.spec.wrong) if one in judged.misconceptions]
        fields = {"verdict": judged.verdict, "text": judged.text, "source": judged.source}
        return fields | {"misconceptions": known, "case": ("", "")}

    def _examined(self, answer: Any) -> Judged:
        try:
            verdict, wrong, text = judge(self.spec, answer)
            given = None if verdict == NOT_ATTEMPTED else normal(self.spec, answer)
            source = f"answer = {given!r}\n{cells.last_line(self.spec)}\n"
        except Exception:  # a list that holds itself, a value that compares in its own way
            return self._unread(answer)
        return Judged(verdict, text, source, () if wrong is None else (wrong,))

    def recognise(self, answer: Any) -> Sequence[Named]:
        """The wrong answer that a value is known as; nothing is printed or recorded."""
        wrong = judge(self.spec, answer)[1]
        return [] if wrong is None else [wrong]


def _apart(function: Callable[[Callable[[Any], None]], None]) -> Any:
    """What function(report) reported last, or `Ended`.

    It runs in a copy of this process where there can be one, so that nothing of an answer reaches the notebook.
    """
    if can_fork():
        with contextlib.suppress(OSError):
            return apart(function)
    said: list[Any] = []
    function(said.append)
    return said[-1]


def handle(spec: Exercise | Question, progress: Progress) -> Handle:
    """The handle of an exercise or of a question."""
    return ExerciseHandle(spec, progress) if isinstance(spec, Exercise) else QuestionHandle(spec, progress)


def _give_cell(source: str, heading: str) -> None:
    """In a notebook, replace the cell that asked; elsewhere, print."""
    try:
        from IPython.core.getipython import get_ipython

        shell = get_ipython()
    except ImportError:
        shell = None
    if shell is not None and hasattr(shell, "set_next_input") and hasattr(shell, "kernel"):
        shell.set_next_input(source.rstrip("\n"), replace=True)
        return
    print(f"{heading}\n\n{source.rstrip()}")
