"""The first wrong value: where an answer leaves the values that right ways pass through.

The answer, the reference and the other right ways run on a few small inputs, and every value on the way is noted. The
first expression whose parts are all right and which no right way has is the place, unless all that is made of it is
right again: then it is only another way. The place is sure where a value of a right way, put there, mends the result.
Two places are sure if that mends the result at both together.
"""

from __future__ import annotations

import ast
import functools
import itertools
import math
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from coursework.exercises.engine import show
from coursework.exercises.engine.compare import compare
from coursework.exercises.engine.guard import OutOfMemory, RanAway
from coursework.exercises.engine.likeness import Seen
from coursework.exercises.engine.noting import Noted, kept, noted
from coursework.exercises.engine.relations import Finder
from coursework.exercises.engine.run import detached
from coursework.exercises.engine.source import code_of

SECONDS, PLACES, RUNS = 1.5, 6, 60
"""Processor time for the search; suspected places, and values of right ways at each, that are tried."""

CODE, FULL = 90, 24
"""Longest piece of code, and largest value in elements, that is shown."""

ROUNDING = {torch.bfloat16: 2e-2, torch.float16: 4e-3}
"""Where the numbers of a dtype have fewer than four digits."""

Sequences = list[list[Any]]
"""Values of one expression in turn, for each input."""


@dataclass
class Way:
    """A function and what its expressions are worth on the inputs."""

    noted: Noted
    values: dict[int, Sequences] = field(default_factory=dict)
    times: dict[int, list[list[int]]] = field(default_factory=dict)
    flows: set[tuple[int, int]] = field(default_factory=set)

    def run(self, calls: Sequence[Callable[[Any], Any]]) -> None:
        """Note what comes of each input."""
        for number, call in enumerate(calls):
            _, record = self.noted.run(call)
            self.flows |= record.flows
            for node, taken in record.values.items():
                self.values.setdefault(node, [[] for _ in calls])[number] = taken
                self.times.setdefault(node, [[] for _ in calls])[number] = record.times[node]


def flat(value: Any) -> tuple[tuple[int, ...], np.ndarray] | None:
    """The numbers of a value, and its shape without axes of size 1; None for what is no array of numbers."""
    array: np.ndarray | None
    if isinstance(value, Tensor | np.ndarray):
        array = (value.double() if isinstance(value, Tensor) else torch.from_numpy(value).double()).numpy()
    elif isinstance(value, bool | int | float):
        array = np.array(float(value)) if abs(value) < 1e300 or isinstance(value, float) else None
    elif isinstance(value, list | tuple) and value and all(type(part) in (int, float, bool) for part in value):
        array = np.array([float(part) for part in value]) if max(map(abs, value)) < 1e300 else None
    elif isinstance(value, list | tuple) and value and all(isinstance(part, Tensor) for part in value):
        same = len({part.shape for part in value}) == 1
        array = torch.stack([part.double() for part in value]).numpy() if same else None
    else:
        return None
    return None if array is None else (tuple(n for n in array.shape if n != 1), array.reshape(-1))


def same(a: Any, b: Any) -> bool:
    """Whether two values are equal but for dtype, rounding and axes of size 1."""
    x, y = flat(a), flat(b)
    if x is not None and y is not None:
        return x[0] == y[0] and _close(x[1], y[1], max(_rounding(a), _rounding(b)))
    if x is not None or y is not None or a is None or b is None:
        return False
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    return type(a) is type(b) and not isinstance(a, dict | list | tuple) and bool(a == b)


def _is_filled(value: Any) -> bool:
    """Whether it is a tensor whose numbers are all the same, as a place to put results in is."""
    return isinstance(value, Tensor) and value.dim() > 0 and bool((value == value.flatten()[:1]).all())


def _rounding(value: Any) -> float:
    """How far values of this dtype may be apart, as a share."""
    return ROUNDING.get(value.dtype, 1e-4) if isinstance(value, Tensor) else 1e-4


def _close(x: np.ndarray, y: np.ndarray, rounding: float = 1e-4) -> bool:
    if x.size and x[0] != y[0] and abs(x[0] - y[0]) > rounding * (10 + 10 * abs(x[0])):
        return False  # most differ at once
    return bool(np.isclose(x, y, rtol=rounding, atol=rounding / 100, equal_nan=True).all())


def _forms(values: list[Any]) -> Iterator[tuple[tuple[int, ...], np.ndarray]]:
    """A tensor with its axes in other orders, as one array: the same numbers, laid out or taken in turn."""
    for value in values:
        if isinstance(value, Tensor) and 1 <= value.dim() <= 4:
            orders = itertools.permutations(range(value.dim()))
            yield from (one for order in orders if (one := flat(value.permute(order))) is not None)


def alike(own: list[Any], right: list[Any]) -> bool:
    """Whether values are those of a right way in another layout, or taken from them one by one."""
    if own and all(any(same(a, b) for b in right) for a in own):
        return True
    forms = list(_forms(right))
    if len(own) > 1:
        arrays = [flat(one) for one in own]
        if any(one is None for one in arrays):
            return False
        numbers = np.concatenate([one[1] for one in arrays if one is not None])
        return any(len(x) == len(numbers) and _close(numbers, x) for _, x in forms)
    one = flat(own[0]) if own else None
    return one is not None and any(shape == one[0] and _close(one[1], x) for shape, x in forms)


def _kind(values: Sequences) -> str:
    """What an expression is worth: "float", "int", "bool", "text" or "", in tensors or not."""
    for value in (one for taken in values for one in taken):
        leaves = [leaf for leaf in tree_leaves(value) if leaf is not None]
        if not leaves or isinstance(value, torch.Size):
            return ""
        leaf = leaves[0]
        dtype = str(leaf.dtype) if isinstance(leaf, Tensor | np.ndarray) else type(leaf).__name__
        word = next((word for word in ("float", "bool", "int", "str") if word in dtype), "")
        return word + (" tensor" if any(isinstance(one, Tensor) and one.dim() for one in leaves) else "")
    return ""


@dataclass
class Place:
    """An expression of the answer that is wrong: its number there and, if it is sure, the right values."""

    number: int
    right: Sequences | None = None


class FirstWrong:
    """Looks for the first wrong value of one answer.

    Args:
        answer: the answer, and `rights` the right ways, noted.
        calls: for each input, the failing one first, what calls a candidate on it.
        expected: what is right there.
        seen: the inputs, with what is right and what the answer gave.
        finder: knows what counts as equal, and what one value has to do with another.
    """

    def __init__(
        self, answer: Noted, rights: Sequence[Noted], calls: Sequence[Callable[[Any], Any]], seen: Sequence[Seen],
        finder: Finder,
    ) -> None:  # fmt: skip
        self.calls, self.seen, self.finder = calls, seen, finder
        self.arguments = [[kept(value) for value in one.arguments.values()] for one in seen]
        self.own = Way(answer)
        self.own.run(calls)
        self.rights = [Way(one) for one in rights]
        for way in self.rights:
            way.run(calls)
        self.started = time.process_time()
        self._since_when: dict[int, tuple[int, int]] = {}
        kinds = {_kind([[one.expected]]) for one in seen}
        self.plain = not any("tensor" in kind for kind in kinds)
        self.right_values = [
            (way, number, values) for way in self.rights for number, values in way.values.items() if _kind(values)
        ]

    # Which values are right ------------------------------------------------------------------------------------

    @cached_property
    def status(self) -> dict[int, bool | None]:
        """Whether the value of each expression is right; None where nothing can be said."""
        return {number: self._status(number, values) for number, values in self.own.values.items()}

    def _status(self, number: int, values: Sequences) -> bool | None:
        kind = _kind(values)
        if not kind:
            return None
        if self._source(number, values) is not None:
            return True
        if self._given(number, values):
            return True
        if kind == "bool" or (kind in ("int", "str") and not self.plain):
            return None  # conditions, sizes and counters are other ones in every way
        if self._is_form(number) or all(_is_filled(one) for own in values for one in own):
            return None
        for _, _, right in self.right_values:
            if all(not own or alike(own, other) for own, other in zip(values, right, strict=True)):
                return None
        return False

    def _is_form(self, number: int) -> bool:
        """Whether it says of other values only how they go on: a sign, or a tuple that is not the result."""
        returned = any(number in results for results in self.own.noted.results.values())
        return isinstance(self.own.noted.nodes[number], ast.UnaryOp | ast.Tuple) and not returned

    def _given(self, number: int, values: Sequences) -> bool:
        """Whether it is an argument."""
        return isinstance(self.own.noted.nodes[number], ast.Name) and all(
            any(same(value, given) for given in arguments)
            for arguments, taken in zip(self.arguments, values, strict=True)
            for value in taken
        )

    def _source(self, number: int, values: Sequences) -> tuple[Way, int] | None:
        """The expression of a right way that has the same values on every input."""
        for way, other, right in self.right_values:
            if all(
                not own or (len(own) == len(wanted) and all(map(same, own, wanted)))
                for own, wanted in zip(values, right, strict=True)
            ):
                return way, other
        return None

    @cached_property
    def _made_of(self) -> dict[int, set[int]]:
        """From an expression to those that it is made of: its parts, and what its own function returns."""
        noted = self.own.noted
        made = {number: set(parts) for number, parts in enumerate(noted.parts)}
        for number, node in enumerate(noted.nodes):
            called = node.func if isinstance(node, ast.Call) else None
            made[number].update(noted.results.get(getattr(called, "id", getattr(called, "attr", "")), ()))
        return made

    @cached_property
    def _leads_to(self) -> dict[int, set[int]]:
        """From an expression to those that are made of it, or read it by name."""
        leads: dict[int, set[int]] = {}
        parts = ((part, number) for number, made in self._made_of.items() for part in made)
        for one, other in (*self.own.flows, *parts):
            leads.setdefault(one, set()).add(other)
        return leads

    def _excused(self, number: int) -> bool:
        """Whether all goes on rightly: something that is made of it is right, then at least, and tells much."""
        todo, met, start = [number], {number}, self._since(number)
        while todo:
            for other in self._leads_to.get(todo.pop(), set()) - met:
                met.add(other)
                if self._tells(other, number) and self._is_right_after(other, start):
                    return True
                todo.append(other)
        return False

    def _is_right_after(self, number: int, start: tuple[int, int]) -> bool:
        status = self.status.get(number)
        if status is not False:
            return status is True
        end = self._since(number)
        return any(start < (index, one) < end for index, taken in enumerate(self.own.times[number]) for one in taken)

    def _tells(self, other: int, number: int) -> bool:
        if other not in self.own.values:
            return False
        kind, own = _kind(self.own.values[other]), _kind(self.own.values[number])
        return "tensor" in kind or ("tensor" not in own and kind in ("float", "int", "str") and self.plain)

    def _parts(self, number: int) -> set[int]:
        """What it is made of, and the parts of that where nothing can be said of it."""
        todo, met = [number], set[int]()
        while todo:
            new = self._made_of[todo.pop()] - met
            met |= new
            todo += [part for part in new if self.status.get(part) is None]
        return met

    def suspects(self) -> list[int]:
        """The expressions that are wrong, though their parts are not, in the order in which they are computed."""
        nodes = self.own.noted.nodes
        wrong = [number for number, status in self.status.items() if status is False and not self._excused(number)]
        made = {number for number in wrong if not isinstance(nodes[number], ast.Name)}
        read = {number for one, number in self.own.flows if one in made}  # another name is that of a counter, say
        wrong = [number for number in wrong if number in made or number in read]
        since = {number: self._since(number) for number in wrong}
        return sorted(
            (
                number
                for number in wrong
                if not any(part in since and since[part] < since[number] for part in self._parts(number))
                and not isinstance(nodes[number], ast.Name)
            ),
            key=lambda number: since[number],
        )

    def _since(self, number: int) -> tuple[int, int]:
        """The input on which, and the time at which, an expression first has a value that no right way has there."""
        if number in self._since_when:
            return self._since_when[number]
        self._since_when[number] = found = self._first_unknown(number)
        return found

    def _first_unknown(self, number: int) -> tuple[int, int]:
        times = self.own.times[number]
        for index, taken in enumerate(self.own.values[number]):
            known = [value for _, _, right in self.right_values for value in right[index]]
            for time_, value in zip(times[index], taken, strict=True):
                if not any(same(value, one) for one in known):
                    return index, time_
        return next((index, taken[0]) for index, taken in enumerate(times) if taken)  # right ones, in another order

    # Which place is sure ---------------------------------------------------------------------------------------

    def _proposals(self, values: Sequences) -> Iterator[Sequences]:
        """What right ways have that may stand in the place of these values, the most similar first."""
        alike_in_all: list[Sequences] = []
        alike_in_some: list[Sequences] = []
        for _, _, right in self.right_values:
            lengths = [(len(own), len(other)) for own, other in zip(values, right, strict=True) if own]
            likeness = list(_like_in_shape(values, right))
            if any(own != other for own, other in lengths) or not any(likeness):
                continue
            if not any(all(map(_equal, right, other)) for other in (*alike_in_all, *alike_in_some)):
                (alike_in_all if all(likeness) else alike_in_some).append(right)
        yield from [*alike_in_all, *alike_in_some][:RUNS]

    def _mends(self, exchanged: dict[int, Sequences]) -> bool:
        """Whether the result is right on all inputs with these values in the place of the answer's own."""
        for index, (call, seen) in enumerate(zip(self.calls, self.seen, strict=True)):
            value, _ = self.own.noted.run(call, {number: one[index] for number, one in exchanged.items()})
            if isinstance(value, RanAway | OutOfMemory):
                self.started = -math.inf  # no more of this
            if isinstance(value, Exception) or compare(seen.expected, detached(value), self.finder.rules) is not None:
                return False
        return True

    def _over(self) -> bool:
        return time.process_time() - self.started > SECONDS

    def find(self) -> list[Place]:
        """The places that are wrong: one or two that are sure."""
        suspects = self.suspects()[:PLACES]
        for number in suspects:
            for right in self._proposals(self.own.values[number]):
                if self._over():
                    return []
                if self._mends({number: right}):
                    return [Place(number, right)]
        for first, second in itertools.combinations(suspects, 2):
            for one in self._proposals(self.own.values[first]):
                for other in self._proposals(self.own.values[second]):
                    if self._over():
                        return []
                    if self._mends({first: one, second: other}):
                        return [Place(first, one), Place(second, other)]
        return [Place(number) for number in suspects if not isinstance(self.own.noted.nodes[number], ast.stmt)]


def _equal(one: list[Any], other: list[Any]) -> bool:
    return len(one) == len(other) and all(map(same, one, other))


def _like_in_shape(values: Sequences, right: Sequences) -> Iterator[bool]:
    for own, other in zip(values, right, strict=True):
        for a, b in zip(own, other, strict=False):
            x, y = flat(a), flat(b)
            yield (x is None) == (y is None) and (x is None or y is None or x[0] == y[0])


def _code(way: Way, number: int) -> tuple[str, int]:
    """An expression as it is written, on one line, and the number of its line in its cell or file."""
    noted = way.noted
    text, before = noted.definitions[noted.owner[number]]
    node = noted.nodes[number]
    piece = ast.get_source_segment(text, node) or ast.unparse(node)
    return textwrap.shorten(" ".join(piece.split()), CODE), before + node.lineno


class Said(FirstWrong):
    """What is said of the first wrong value."""

    def sentence(self) -> str:
        """Where the answer goes wrong, in words; "" if nothing is known."""
        places = self.find()
        if places and places[0].right is None:
            places = [one for one in places if self._is_on_the_way(one.number)][:1]
        if not places:
            return ""
        where = [f"`{code}` (line {line})" for code, line in (_code(self.own, place.number) for place in places)]
        if len(places) == 2:
            return (
                f"It leaves the right ways at two places, {where[0]} and {where[1]}: with the values that right ways "
                "have there, the result would be right."
            )
        place = places[0]
        so_far = self._so_far(place.number)
        if place.right is not None:
            told = "with the value that a right way has there, the result would be right."
            told = f"{so_far}, and {told}" if so_far else told
            begin = f"It leaves the right ways at {where[0]}{self._turn(place.number)}"
            return f"{begin}: {told}{self._how(place)}{self._shown(place)}"
        told = f"The first value that no right way known here has is that of {where[0]}{self._turn(place.number)}"
        return f"{told}: {so_far}.{self._shown(place)}"

    def _turn(self, number: int) -> str:
        """At which time it is wrong, if not at the first."""
        index, moment = self._since(number)
        turn = self.own.times[number][index].index(moment) + 1
        return f", when it is computed for the {turn}{ {2: 'nd', 3: 'rd'}.get(turn, 'th') } time" if turn > 1 else ""

    def _right_parts(self, number: int) -> dict[str, int]:
        """The nearest of its parts that are right, by their code."""
        todo, found = [*self.own.noted.parts[number]], dict[str, int]()
        while todo:
            part = todo.pop(0)
            late = self.status.get(part) is False and self._since(part) > self._since(number)
            if self.status.get(part) is not True and not late:
                todo = [*self.own.noted.parts[part], *todo]
                continue
            code, _ = _code(self.own, part)
            if _kind(self.own.values[part]) and not any(code in other for other in found):
                found[code] = part
        return found

    def _is_on_the_way(self, number: int) -> bool:
        """Whether a right part has been computed: from arguments alone another way may begin just as well."""
        return any(not self._given(part, self.own.values[part]) for part in self._right_parts(number).values())

    def _so_far(self, number: int) -> str:
        """Which of its parts are right, as the learner and the field call them."""
        found = {code: self._field_name(part) for code, part in self._right_parts(number).items()}
        named = [f"`{code}`{f', the {name},' if name and name not in code else ''}" for code, name in found.items()]
        return f"{' and '.join(named[:3])} {'is' if len(named[:3]) == 1 else 'are'} right" if named else ""

    def _field_name(self, number: int) -> str:
        """What a right way calls this value."""
        source = self._source(number, self.own.values[number])
        if source is None:
            return ""
        way, other = source
        node = way.noted.nodes[other]
        return node.id.strip("_").replace("_", " ") if isinstance(node, ast.Name) and len(node.id) > 3 else ""

    def _pairs(self, place: Place) -> Iterator[Seen]:
        """What the place is worth and what would be right, one by one."""
        for seen, own, right in zip(self.seen, self.own.values[place.number], place.right or [], strict=True):
            for a, b in zip(own, right, strict=False):
                yield Seen(seen.names, seen.args, seen.kwargs, b, a, wrong=not same(a, b))

    def _how(self, place: Place) -> str:
        """What its value has to do with the right one, if that is one of the things that relations know."""
        pairs = list(self._pairs(place))
        wrong = [one for one in pairs if one.wrong]
        if not wrong or any(flat(one.actual) is None or flat(one.expected) is None for one in wrong):
            return ""
        for exact in (True, False):
            for relation in self.finder.of_values(wrong[0], exact):
                if all(_holds(relation, one) for one in (pairs if relation.exact else wrong)):
                    said = relation.statement
                    for old, new in (("The result", "It"), ("the result", "its value"), ("a result", "it")):
                        said = said.replace(old, new)
                    return f" {said}"
        return ""

    def _shown(self, place: Place) -> str:
        """Its value on the smallest input that shows it."""
        index, moment = self._since(place.number)
        taken = self.own.values[place.number][index][self.own.times[place.number][index].index(moment) :]
        if place.right is not None:
            wrong = [one.actual for one in self._pairs(place) if one.wrong]
            taken = wrong or taken
        return "" if not taken or taken[0] is None else f"\n  {show.line_of('its value there', taken[0], FULL)}"


def _holds(relation: Any, seen: Seen) -> bool:
    try:
        return bool(relation.holds(seen))
    except Exception:
        return False


def first_wrong_value(
    candidate: Any, rights: Sequence[Any], calls: Sequence[Callable[[Any], Any]], seen: Sequence[Seen], finder: Finder
) -> str:
    """Where an answer goes wrong, in words; "" if its text is not to be had, or nothing is sure.

    Args:
        candidate: the answer: a function or class.
        rights: right ways to write it.
        calls: for each input what calls a candidate on it, the failing one first.
        seen: the same inputs, with what is right and what the answer gave.
        finder: knows what counts as equal and how values may be related.
    """
    file = getattr(code_of(candidate), "co_filename", "")
    answer = noted(candidate, lambda one: getattr(code_of(one), "co_filename", "") == file)
    if answer is None:
        return ""
    ways = [noted(one, functools.partial(_stands_in, one.__module__)) for one in rights]
    return Said(answer, [way for way in ways if way is not None], calls, seen, finder).sentence()


def _stands_in(module: str, one: Any) -> bool:
    return bool(one.__module__ == module)
