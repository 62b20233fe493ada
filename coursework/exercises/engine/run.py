"""Running a function on a case and recording everything that a check compares."""

from __future__ import annotations

import contextlib
import inspect
import io
import random
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from coursework.exercises.engine.compare import Rules, Strange, compare, kind_of, unusual
from coursework.exercises.engine.guard import Guard, OutOfMemory, RanAway
from coursework.exercises.engine.likeness import copied
from coursework.exercises.engine.state import same_generators, same_state
from coursework.exercises.modules import Unfit
from coursework.exercises.spec import Case, Exercise

Call = Callable[..., Any]
PRINTED_LINES, PRINTED_COLUMNS = 12, 200

AGAIN = 4321
"""The seed of the second call."""

PRINTED = 100_000
"""Characters that are kept of what a call prints."""


@dataclass
class Outcome:
    """What one call did.

    Args:
        value: what it returned, detached from the graph.
        error: what it raised.
        gradients: of a fixed random projection of the outputs, for each argument tensor that requires one; None where
            none arrives, and for the whole if gradients are not compared.
        changed: the names of the arguments that it changed.
        graded: the names of the arguments in whose `.grad` it left a gradient.
        again: what a second call with equal arguments does, where it does not return the same.
        flops, elements: the cost, where the exercise limits it.
        printed: what it printed.
    """

    value: Any = None
    error: BaseException | None = None
    gradients: list[Tensor | None] | None = None
    changed: tuple[str, ...] = ()
    graded: tuple[str, ...] = ()
    again: str = ""
    flops: int = 0
    elements: int = 0
    printed: str = field(default="", repr=False)


@dataclass(frozen=True)
class Terms:
    """What a call needs to know of an exercise, under the names of `Exercise`: nothing of what is right.

    Args:
        signature: of the function that cases are arguments of.
        run, gradients: as in `Exercise`.
        flop_limit, element_limit: whether the cost is counted; None if not.
    """

    signature: inspect.Signature
    run: Call | None
    gradients: bool
    flop_limit: bool | None
    element_limit: bool | None

    @classmethod
    def of(cls, exercise: Exercise) -> Terms:
        """Those of an exercise."""
        counted = [None if limit is None else True for limit in (exercise.flop_limit, exercise.element_limit)]
        signature = inspect.signature(exercise.run or exercise.reference)
        plain = [one.replace(annotation=one.empty) for one in signature.parameters.values()]
        return cls(inspect.Signature(plain), exercise.run, exercise.gradients, *counted)


def bind(exercise: Exercise | Terms, candidate: Any) -> Call:
    """The candidate as a function of a case's arguments."""
    run = exercise.run
    if run is None:
        return candidate
    return lambda *args, **kwargs: run(candidate, *args, **kwargs)


def arguments(case: Case, exercise: Exercise | Terms) -> tuple[tuple[Any, ...], dict[str, Any], list[str]]:
    """The case's arguments, made anew: positional, by keyword, and the names to call them by."""
    made = case.make()
    if not exercise.gradients:
        made = tree_map(_without_gradient, made)  # so that a loop may write into what it makes of them
    if isinstance(made, dict):
        return (), made, list(made)
    return made, {}, argument_names(exercise, len(made))


def all_arguments(case: Case, exercise: Exercise) -> tuple[tuple[Any, ...], dict[str, Any], list[str]]:
    """The case's arguments as `arguments` gives them, and the default values of those that it leaves out."""
    args, kwargs, names = arguments(case, exercise)
    function = exercise.run if exercise.run is not None else exercise.reference
    parameters = list(inspect.signature(function).parameters.values())[exercise.run is not None :]
    for parameter in parameters[0 if kwargs else len(args) :]:
        if parameter.kind is not parameter.POSITIONAL_OR_KEYWORD or parameter.default is parameter.empty:
            if kwargs:
                continue
            break
        if parameter.name in names:
            continue
        names = [*names, parameter.name]
        if kwargs:
            kwargs = kwargs | {parameter.name: parameter.default}
        else:
            args = (*args, parameter.default)
    return args, kwargs, names


def _without_gradient(leaf: Any) -> Any:
    return leaf.detach() if isinstance(leaf, Tensor) and leaf.requires_grad else leaf


def in_float64(case: Case) -> Case:
    """The same case with its floating-point tensors in float64."""

    def exact(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or not leaf.is_floating_point():
            return leaf
        return leaf.detach().double().requires_grad_(leaf.requires_grad)

    return Case(case.name, lambda: tree_map(exact, case.make()))


def case_of_call(exercise: Exercise, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Case:
    """A case with the arguments of a call."""
    named = kwargs and {**dict(zip(argument_names(exercise, len(args)), args, strict=True)), **kwargs}
    return Case("the input of a law", lambda: copied(named or args))


def argument_names(exercise: Exercise | Terms, count: int) -> list[str]:
    """The names of the first `count` arguments, as the learner knows them."""
    signature = (
        exercise.signature if isinstance(exercise, Terms) else inspect.signature(exercise.run or exercise.reference)
    )
    parameters = list(signature.parameters.values())
    if exercise.run is not None:
        parameters = parameters[1:]  # the candidate itself
    names = [parameter.name for parameter in parameters if parameter.kind is not parameter.VAR_POSITIONAL]
    for parameter in parameters:
        if parameter.kind is parameter.VAR_POSITIONAL:
            names += [f"{parameter.name}[{i}]" for i in range(count - len(names))]
    return [names[i] if i < len(names) and len(names) >= count else f"argument {i + 1}" for i in range(count)]


def observe(
    exercise: Exercise | Terms,
    call: Call,
    case: Case,
    guard: Guard | None = None,
    seed: int = 1234,
    again: bool = True,
) -> Outcome:
    """Call it on the case and record the outcome; `seed` is that of the random generators.

    With a guard, as for an answer: output is captured, limits hold, and with `again` it is called a second time.
    """
    args, kwargs, names = arguments(case, exercise)
    values = [*args, *kwargs.values()]
    versions = [_versions(value) for value in values]
    leaves = [tensor for tensor in tree_leaves(values) if _wants_gradient(tensor)]
    printed = Beginning()
    outcome = Outcome()
    invoke = guard.call if guard is not None else lambda function, *a, **k: function(*a, **k)
    try:
        with quiet(printed if guard is not None else None, seed), _cost(exercise, args, kwargs, outcome):
            value = invoke(call, *args, **kwargs)
    except Exception as problem:
        outcome.error, outcome.printed = _with_a_text(problem, invoke), printed.getvalue()
        return outcome
    outcome.printed = printed.getvalue()
    fresh_args, fresh_kwargs, _ = arguments(case, exercise)
    fresh = [*fresh_args, *fresh_kwargs.values()]
    changes = zip(names, versions, fresh, values, strict=True)
    outcome.changed = tuple(name for name, v, old, new in changes if v != _versions(new) or _differ(old, new))
    outcome.graded = tuple(name for name, value in zip(names, values, strict=True) if _has_gradient(value))
    if exercise.gradients:
        try:
            with torch._C.DisableTorchFunctionSubclass():
                outcome.gradients = invoke(_projection_gradients, value, leaves)
        except (RanAway, OutOfMemory) as problem:
            outcome.error = problem
            return outcome
        except Exception:  # a function may have a backward of its own, and raise there what it likes
            outcome.gradients = [None for _ in leaves]
    try:
        outcome.value = invoke(detached, value)
    except RecursionError:
        outcome.error = Unfit("It returns a container that holds itself, or is nested far too deeply.")
        return outcome
    except Exception as problem:
        outcome.error = _with_a_text(problem, invoke)
        return outcome
    if guard is not None and again:
        try:
            with quiet(Beginning(), seed=AGAIN):
                second = invoke(call, *fresh_args, **fresh_kwargs)
            if compare(outcome.value, detached(value), Rules()) is not None:
                outcome.again = "changes what it returned before"
            elif compare(outcome.value, detached(second), Rules()) is not None:
                outcome.again = "returns something else"
        except Exception as problem:
            outcome.again = f"raises {type(problem).__name__}"
    return outcome


def _with_a_text(problem: BaseException, invoke: Callable[..., Any]) -> BaseException:
    """The error, or one of its name if it does not say its text."""
    try:
        invoke(str, problem)
    except (RanAway, OutOfMemory) as limit:
        return limit
    except Exception:
        return type(type(problem).__name__, (Exception,), {})("its text cannot be read")
    return problem


def leaf_names(case: Case, exercise: Exercise) -> list[str]:
    """A name for each tensor that takes part in the comparison of gradients."""
    args, kwargs, names = arguments(case, exercise)
    found = []
    for name, value in zip(names, [*args, *kwargs.values()], strict=True):
        if isinstance(value, dict):
            found += [key for key, tensor in value.items() if _wants_gradient(tensor)]
        else:
            found += [name for tensor in tree_leaves(value) if _wants_gradient(tensor)]
    return found


def _projection_gradients(value: Any, leaves: list[Tensor]) -> list[Tensor | None]:
    """Gradients of the sum of all floating outputs times fixed random numbers."""
    stream = np.random.RandomState(7)
    total: Any = 0.0
    for output in tree_leaves(value):
        if isinstance(output, Tensor) and output.is_floating_point():
            weights = torch.tensor(stream.standard_normal(tuple(output.shape)), device=output.device)
            if output.requires_grad:
                total = total + torch.where(output.isfinite(), output, 0).double().mul(weights).sum()
    if not isinstance(total, Tensor) or not leaves:
        return [None for _ in leaves]
    return list(torch.autograd.grad(total, leaves, allow_unused=True))


def _wants_gradient(value: Any) -> bool:
    return isinstance(value, Tensor) and value.requires_grad and value.is_leaf


def _has_gradient(value: Any) -> bool:
    return any(_wants_gradient(leaf) and leaf.grad is not None for leaf in tree_leaves(value))


def _versions(value: Any) -> list[tuple[int, bool]]:
    return [(leaf._version, leaf.requires_grad) for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]


def _differ(old: Any, new: Any) -> bool:
    if isinstance(old, Tensor | tuple | list | dict) or np.isscalar(old) or old is None:
        return compare(old, new, Rules()) is not None
    if isinstance(old, np.ndarray):
        return not np.array_equal(old, new)
    return False


def detached(value: Any) -> Any:
    """The value without its graph, tensors copied, lists as tuples; tensors of other classes as plain ones."""
    if isinstance(value, Tensor):
        with torch._C.DisableTorchFunctionSubclass():
            if unusual(value) and not value.is_meta:
                return Strange(kind_of(value))
            return value.as_subclass(Tensor).detach().clone()  # a function may hand out one that it changes later
    if isinstance(value, tuple | list):
        return tuple(detached(part) for part in value)
    if isinstance(value, dict):
        return {key: detached(part) for key, part in value.items()}
    return value


class Beginning(io.StringIO):
    """Keeps the beginning of what is printed: an answer may print more than there is memory for."""

    def write(self, text: str) -> int:
        """Take the text in as far as there is room."""
        super().write(text[: max(0, PRINTED - self.tell())])
        return len(text)

    def close(self) -> None:
        """Stay open: an answer may close what it prints to."""


@contextlib.contextmanager
def quiet(output: io.StringIO | None, seed: int) -> Iterator[None]:
    """No warnings, printed text to `output`, gradients on; random generators seeded, and all state as before."""
    with warnings.catch_warnings(), same_generators(), contextlib.ExitStack() as stack:
        warnings.simplefilter("ignore")
        stack.enter_context(torch.enable_grad())
        if output is not None:  # the learner's code, which may change anything
            stack.enter_context(same_state())
            stack.enter_context(contextlib.redirect_stdout(output))
            stack.enter_context(contextlib.redirect_stderr(output))
        torch.default_generator.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed)
        yield


class _Largest(TorchDispatchMode):
    """Counts the elements of the largest tensor that any operation makes."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        made = [_size(tensor) for tensor in tree_leaves(result) if isinstance(tensor, Tensor)]
        self.elements = max([self.elements, *made])
        return result


def _size(tensor: Tensor) -> int:
    """Elements that take memory: an expanded view repeats the same ones."""
    return min(tensor.numel(), tensor.untyped_storage().nbytes() // tensor.element_size())


@contextlib.contextmanager
def _cost(
    exercise: Exercise | Terms, args: tuple[Any, ...], kwargs: dict[str, Any], outcome: Outcome
) -> Iterator[None]:
    """Count operations and the largest tensor, where the exercise limits them."""
    with contextlib.ExitStack() as stack:
        flops = largest = None
        if exercise.flop_limit is not None:
            from torch.utils.flop_counter import FlopCounterMode

            flops = stack.enter_context(FlopCounterMode(display=False))
        if exercise.element_limit is not None:
            largest = stack.enter_context(_Largest())
        yield
        outcome.flops = flops.get_total_flops() if flops is not None else 0
        outcome.elements = largest.elements if largest is not None else 0
