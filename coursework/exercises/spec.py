"""What an exercise is: the dataclasses that an author fills in, one exercise a module.

It is pure data: `engine` works on it (run, compare, diagnose, say), and `handle` holds what a learner calls. The module
`bank/causal_mask.py` ends with `EXERCISE = Exercise(...)` (or `EXERCISE = Question(...)`), and a notebook's source says
with `# %% exercise="causal_mask"` where it stands. `bank/scaled_dot_product_attention.py` is the pattern to follow.
Everything else is derived from it: the prompt, the stub and the solved cell of the notebook, the check, its messages,
the hints, and the proofs in `tests/exercises`.

How a check uses the parts: the learner's function and `model()` run on every case, in order. If anything differs, the
function is compared with `model(**knobs)` of each misconception, then of each two at once; the one that agrees on every
case is named. Otherwise the first broken property and the first failing case are shown. So cases go from small to
large, each misconception must differ on some case from the right answer and from every other misconception, and no
case may rest on a value that rounding decides.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from coursework.exercises.draw import Draw

FOLDER = "exercise-"
"""How the names of folders begin that an exercise makes for an answer to write in."""

Kind = Literal["build", "debug", "predict", "measure"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Misconception:
    """A wrong idea that learners have, as a setting of `Exercise.model`.

    Args:
        name: short and unique in the exercise, in lower case with hyphens: "mask-after-softmax".
        knobs: the arguments of `model` that produce it. Two misconceptions that set the same knob exclude each other;
            all other pairs are tried as two at once.
        statement: completes "Your function behaves exactly like one that …": a verb phrase, no capital, no full stop:
            "applies the mask after the softmax". It says what is wrong, never what would be right.
        question: one sentence that leads the learner out, ending in a question mark, without the fix. It is the first
            hint after this misconception was recognised.
    """

    name: str
    knobs: Mapping[str, Any]
    statement: str
    question: str


_ENTRY = re.compile(r"([a-z0-9-]+) \((.+?)\): (\S.*)")


def misconceptions(text: str) -> list[Misconception]:
    """The misconceptions that a text describes, each by two lines; what is indented by eight goes on with a line.

    A line `name (knob=value, ...): statement`, and below it, indented by four, the question. `#` begins a comment.
    Raises ValueError with the number of the line that is none of these, or lacks its question.
    """
    joined: list[tuple[int, str]] = []  # each with the number of its first line
    for number, line in enumerate(text.split("\n")):
        if line.startswith(" " * 8) and joined:
            joined[-1] = joined[-1][0], f"{joined[-1][1]} {line.strip()}"
        elif line.strip() and not line.startswith("#"):
            joined.append((number, line.rstrip()))
    found: list[Misconception] = []
    for (number, line), (_, below) in itertools.zip_longest(joined[::2], joined[1::2], fillvalue=(0, "")):
        entry = _ENTRY.fullmatch(line)
        if entry is None or not re.fullmatch(r" {4}\S.*\?", below):
            raise ValueError(
                f"misconceptions, line {number}: expected `name (knob=value): statement` and below it, indented by "
                f"four, its question, got {line!r} and {below!r}"
            )
        name, knobs, statement = entry.groups()
        try:
            values = eval(f"dict({knobs})", {})  # the text is as much the module's own as its code
        except Exception as problem:
            raise ValueError(f"misconceptions, line {number}: expected knobs `name=value`, got {knobs}") from problem
        found.append(Misconception(name=name, knobs=values, statement=statement, question=below.strip()))
    return found


@dataclass(frozen=True)
class Case:
    """One fixed set of arguments on which the learner's function is compared with the right one.

    Args:
        name: what is special about it, as the learner will read it after "On the case": "3 queries, 5 keys, a causal
            mask".
        make: builds the arguments anew at each call: a tuple of positional arguments, or a dict of keyword arguments.
            Tensors that require gradients take part in the comparison of gradients. Use `tensors.normal`, whose
            values are the same on every machine and have two decimals.
    """

    name: str
    make: Callable[[], tuple[Any, ...] | dict[str, Any]]


def maker(build: Callable[..., Any]) -> Callable[..., Callable[[], Any]]:
    """Decorate a function of sizes and seeds that builds arguments: called, it returns the `make` of a case."""
    return lambda *sizes, **options: functools.partial(build, *sizes, **options)


@dataclass(frozen=True)
class Property:
    """A law that every right answer obeys. It is shown when a wrong answer breaks it and no misconception fits.

    Args:
        law: the law in one sentence, with capital and full stop: "A query never depends on a later token."
        check: takes the learner's function (same arguments as the cases) and returns None if the law holds, else one
            concrete sentence: "Changing token 3 changed the output at position 1." An AssertionError raised inside
            counts as that sentence, so a law of `course_lib.testing` can be called; any other exception means that
            the law says nothing here.
    """

    law: str
    check: Callable[[Callable[..., Any]], str | None]


@dataclass(frozen=True)
class Alternative:
    """Another right way, shown by `solution()` after success and proven to pass.

    Args:
        name: what distinguishes it, shown as a heading: "with einsum".
        function: the implementation, a plain `def` or a class; its source is what the learner reads.
    """

    name: str
    function: Callable[..., Any]


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Entry:
    """What `Exercise` and `Question` have in common; they explain the fields."""

    id: str = ""
    title: str
    kind: Kind
    what: str
    why: str
    difficulty: int
    minutes: int
    hints: tuple[str, str, str]

    def __post_init__(self) -> None:
        """Reject fields that no exercise may have."""
        if self.kind not in get_args(Kind):
            raise ValueError(f"kind: expected one of {get_args(Kind)}, got {self.kind!r}")
        if not 1 <= self.difficulty <= 5:
            raise ValueError(f"difficulty: expected 1 to 5, got {self.difficulty}")
        if self.minutes < 1:
            raise ValueError(f"minutes: expected at least 1, got {self.minutes}")
        if len(self.hints) != 3:
            raise ValueError(f"hints: expected three (question, pointer, skeleton), got {len(self.hints)}")

    def __repr__(self) -> str:
        """One line, without the solution and the misconceptions that the fields hold."""
        return f"{self.id}: {self.title} ({self.kind}, difficulty {self.difficulty} of 5, about {self.minutes} min)"


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Exercise(Entry):
    """A function (or class) that the learner writes ("build") or repairs ("debug").

    Args:
        id: given by the registry, the module's name: `ex.<id>` in the notebook.
        title: a heading, in sentence case.
        kind: "build": the stub is the solution's signature and docstring. "debug": the cell holds `given`, which is
            wrong. "measure": as build, for a function that measures. "predict": as build, for one that says what will
            come out; no message shows what is expected.
        what: Markdown; what to write, with every rule that the check tests (shapes, polarity, empty rows, dtype).
        why: Markdown; one or two sentences on what it is good for.
        difficulty: 1 to 5.
        minutes: for a typical learner.
        reference: the solution, as the learner will read it: a `def` (or class) in this module, under the name that the
            notebook cell uses, its docstring stating the shapes. Only the names of `engine.cells.PRELUDE` (math, torch,
            F, nn, Tensor), of `helpers` and of `parts` may be used.
        model: hidden; `model(**knobs)` returns the function whose settings are the misconceptions; `model()` is right.
        misconceptions: at least five, from a text: see `misconceptions`.
        cases: ordered by size; never square (T, S, E, H, B all different), except where squareness is the point.
        properties: laws, the most telling first.
        alternatives: at least three.
        hints: exactly three: a question, a pointer (where to look, which fact to use), a skeleton in code with exactly
            one gap `____`. The first two quote no line of the solution; the skeleton lacks the decisive one.
        sample: draws random arguments for the proof that the solution, the model and the alternatives agree everywhere,
            as `case.make` would return them; see `Draw`. A check tries some of them after the cases.
        tries: the names of the `engine.variants` of drawn inputs that a check tries, too: those that `what` allows.
        given: debug only: the broken function, named like the solution. It must be diagnosed as a misconception.
        blank: for a class: the methods whose bodies the learner writes; the others are given.
        helpers: functions whose source stands in the cell above the stub, given to the learner.
        parts: name -> what the notebook has under this name before the cell: functions, classes, numbers.
        run: how a candidate is called; `run(candidate, *arguments)`; a plain call unless given. For a class it builds
            the module and calls it: see `modules.call`.
        gradients: compare gradients of a fixed random projection of the outputs.
        tolerance: (relative, absolute) for float32 in place of the usual one.
        flop_limit: from the arguments to the largest number of multiply-add operations times two that is accepted.
        element_limit: from the arguments to the largest tensor, in elements, that may be created on the way.
        equivalent_mutants: changes of the solution by machine that change nothing that matters: label as the proof
            prints it -> reason.
    """

    kind: Kind = "build"
    reference: Callable[..., Any]
    model: Callable[..., Callable[..., Any]]
    misconceptions: Sequence[Misconception]
    cases: Sequence[Case]
    properties: Sequence[Property] = ()
    alternatives: Sequence[Alternative] = ()
    sample: Callable[[Draw], tuple[Any, ...] | dict[str, Any]]
    tries: Sequence[str] = ()
    given: Callable[..., Any] | None = None
    blank: tuple[str, ...] = ()
    helpers: tuple[Callable[..., Any], ...] = ()
    parts: Mapping[str, Any] = field(default_factory=dict)
    run: Callable[..., Any] | None = None
    gradients: bool = True
    tolerance: tuple[float, float] | None = None
    flop_limit: Callable[..., int] | None = None
    element_limit: Callable[..., int] | None = None
    equivalent_mutants: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Reject a specification that contradicts itself."""
        super().__post_init__()
        if (self.kind == "debug") != (self.given is not None):
            raise ValueError(f"given: expected for a debug exercise and no other, this is {self.kind}")
        names = [misconception.name for misconception in self.misconceptions]
        if len(set(names)) != len(names):
            raise ValueError(f"misconceptions: expected unique names, got {names}")
        if not self.cases:
            raise ValueError("cases: expected at least one, got none")
        if inspect.isclass(self.reference) != bool(self.blank):
            raise ValueError(f"blank: expected the methods to write for a class and no other, got {self.blank}")

    @property
    def thing(self) -> str:
        """What the learner writes: "class" or "function"."""
        return "class" if inspect.isclass(self.reference) else "function"

    @property
    def function_name(self) -> str:
        """The name that the notebook cell defines."""
        return self.reference.__name__


@dataclass(frozen=True, eq=False)
class WrongAnswer:
    """A wrong answer to a question that comes from a misconception.

    Args:
        value: the number, shape or choice.
        statement: completes "That is …": "the total, not the active count".
        question: one sentence that leads out, ending in a question mark.
    """

    value: Any
    statement: str
    question: str


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Question(Entry):
    """A question with one right answer: a number, a shape (tuple), True or False, or one of several choices.

    Args:
        id, title, difficulty, minutes: as in `Exercise`.
        kind: "predict" (work it out before running) or "measure" (run something and read it off).
        what: Markdown; the question itself, complete with every number needed. The choices are listed under it.
        why: Markdown; what the answer is good for.
        right: the right value; for choices, its key.
        formula: the right number in named quantities, a text as `engine.formula` reads it: a wrong number is looked up
            among what follows from slips in it.
        compute: returns the right answer by measuring or counting; proven equal to `right`. Not for choices.
        choices: key ("a", "b", …) -> text; each wrong one needs its `WrongAnswer`.
        tolerance: relative deviation that still counts as right (and as a wrong answer's value).
        form: what to type, shown in the cell: "a number of bytes". Derived from `right` unless given.
        wrong: named wrong answers, at least three (for choices: one for each wrong choice).
        hints: question, pointer, skeleton with one gap `____`, as in `Exercise`.
        explanation: Markdown; why the answer is what it is; shown after success and by `solution()`.
    """

    kind: Kind = "predict"
    right: Any
    formula: str = ""
    compute: Callable[[], Any] | None = None
    choices: Mapping[str, str] | None = None
    tolerance: float = 0.0
    form: str = ""
    wrong: Sequence[WrongAnswer]
    explanation: str

    def __post_init__(self) -> None:
        """Reject a specification that contradicts itself."""
        super().__post_init__()
        if self.kind not in ("predict", "measure"):
            raise ValueError(f"kind: expected 'predict' or 'measure' for a question, got {self.kind!r}")
        if self.choices is not None and self.right not in self.choices:
            raise ValueError(f"right: expected one of {sorted(self.choices)}, got {self.right!r}")
