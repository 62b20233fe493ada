"""What the proofs over all exercises share: the lists to run over, running cells, and wrong answers of every kind."""

import contextlib
import importlib
import inspect
import io
import itertools
import linecache
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from coursework.exercises import registry
from coursework.exercises.engine import cells
from coursework.exercises.engine.diagnose import Examiner
from coursework.exercises.engine.guard import Guard, OutOfMemory, RanAway
from coursework.exercises.engine.run import arguments, bind, observe
from coursework.exercises.spec import Exercise, Misconception, Question

ENTRIES = registry.all_exercises()
EXERCISES = [entry for entry in ENTRIES if isinstance(entry, Exercise)]
QUESTIONS = [entry for entry in ENTRIES if isinstance(entry, Question)]

_numbers = itertools.count()


def by_id(entry: Any) -> str:
    """The name of an exercise in a test's id."""
    return entry.id


def proof(test: Callable[..., None]) -> Callable[..., None]:
    """Make a test one over every exercise; `ledger.py` keeps what it finds."""
    return pytest.mark.proof(pytest.mark.parametrize("exercise", EXERCISES, ids=by_id)(test))


def run_cell(source: str, entry: Any = None) -> tuple[dict[str, Any], str]:
    """Run the source of a cell as a notebook would, after the usual imports: its names and what it printed.

    An exercise finds the parts there that its notebook has by then.
    """
    filename = f"<ipython-input-{next(_numbers)}>"
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    names: dict[str, Any] = {"__name__": "__main__"}
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(cells.PRELUDE, "<prelude>", "exec"), names)
        names |= entry.parts if isinstance(entry, Exercise) else {}
        exec(compile(source, filename, "exec"), names)
    return names, printed.getvalue()


def accepted(examiner: Examiner, candidate: Any, seconds: float = 1.0) -> bool:
    """Whether a check would accept the candidate; stops at the first difference."""
    exercise = examiner.exercise
    for number in range(len(examiner.cases)):
        examiner.outcome((), number)
    with Guard(seconds=seconds) as guard:
        for number, case in enumerate(examiner.cases):
            call = bind(exercise, candidate)
            if examiner.judged(number, observe(exercise, call, case, guard), call, guard) is not None:
                return False
    return True


def pairs(exercise: Exercise) -> Iterator[tuple[Misconception, Misconception]]:
    """Every two misconceptions that can occur together."""
    for a, b in itertools.combinations(exercise.misconceptions, 2):
        if not set(a.knobs) & set(b.knobs):
            yield a, b


def module_names(exercise: Exercise) -> dict[str, Any]:
    """The names that the solution's source sees, for running a changed copy of it."""
    return dict(vars(importlib.import_module(exercise.reference.__module__)))


def garbage(exercise: Exercise) -> dict[str, Callable[..., Any]]:
    """Functions that nobody would call an answer. Those that make no sense for this exercise are left out."""
    right = exercise.model()  # called as an answer is: what it gets, `exercise.run` decides
    modules: list[Any] = []  # of an exercise that is a class: the one whose forward runs
    if inspect.isclass(exercise.reference):

        def right(*args, **kwargs):
            return exercise.reference.forward(modules[-1], *args, **kwargs)

    def candidate(function):
        """The function in the form that the exercise expects: as it is, or as the forward of a module."""
        if not inspect.isclass(exercise.reference):
            return function

        def forward(self, *args, **kwargs):
            modules.append(self)
            return function(*args, **kwargs)

        return type("Garbage", (exercise.reference,), {"forward": forward})

    reached: list[Any] = []  # what an answer gets: tensors, or an iterator over them, which cannot be changed like one
    made: list[Any] = []  # what it returns

    def spy(*args, **kwargs):
        reached.extend(tree_leaves([args, kwargs]))
        result = right(*args, **kwargs)
        made.extend(tree_leaves(result))
        return result

    for case in exercise.cases:
        args, kwargs, _ = arguments(case, exercise)
        bind(exercise, candidate(spy))(*args, **kwargs)
    makes_tensors = any(isinstance(leaf, Tensor) for leaf in made)
    takes_tensors = any(isinstance(leaf, Tensor) for leaf in reached)

    def identity(*args, **kwargs):
        return next(iter([*args, *kwargs.values()]), None)

    def zeros(*args, **kwargs):
        return tree_map(lambda leaf: leaf * 0 if _is_number(leaf) else leaf, right(*args, **kwargs))

    def mean(*args, **kwargs):
        def average(leaf):
            if isinstance(leaf, Tensor):
                value = leaf.double().mean()
                return (leaf * 0 + value if leaf.is_floating_point() else value > 0.5).to(leaf.dtype)
            return float(torch.tensor([float(leaf), 0.0]).mean()) if _is_number(leaf) else leaf

        return tree_map(average, right(*args, **kwargs))

    def nothing(*args, **kwargs):
        return None

    def numpy(*args, **kwargs):
        return tree_map(lambda leaf: _as_numpy(leaf), right(*args, **kwargs))

    def mutating(*args, **kwargs):
        result = args[0] if exercise.blank else right(*args, **kwargs)
        for leaf in tree_leaves([args, kwargs]):
            if isinstance(leaf, Tensor) and leaf.numel():
                leaf.data.copy_(~leaf.data if leaf.dtype == torch.bool else leaf.data + 1)
        return result

    def raising(*args, **kwargs):
        raise ValueError("no")

    def leaving(*args, **kwargs):
        raise SystemExit

    def endless(*args, **kwargs):
        while True:
            pass

    def endless_and_stubborn(*args, **kwargs):
        while True:
            try:
                sum(range(1000))
            except BaseException:
                continue

    def huge(*args, **kwargs):
        return torch.ones(25_000_000_000)

    def hoarding(*args, **kwargs):
        kept = []
        while True:
            kept.append(bytearray(1 << 26))

    def forgetful(*args, **kwargs):
        calls.append(1)
        result = right(*args, **kwargs)
        return result if len(calls) % 2 else None

    calls: list[int] = []
    battery = [
        identity,
        nothing,
        raising,
        leaving,
        endless,
        endless_and_stubborn,
        huge,
        hoarding,
        forgetful,
    ]
    if any(_is_number(leaf) for leaf in made):  # else what it returns, a module, would come back as it is
        battery += [zeros, mean]
    if makes_tensors:
        battery.append(numpy)
    if takes_tensors:
        battery.append(mutating)
    return {function.__name__: candidate(function) for function in battery}


def _is_number(value: Any) -> bool:
    return isinstance(value, Tensor | int | float) and not isinstance(value, bool)


def _as_numpy(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    return value.detach().float().numpy() if value.dtype == torch.bfloat16 else value.detach().numpy()


STOPPED = RanAway, OutOfMemory
