"""The first wrong value: where an answer leaves the values that right ways pass through.

The answer, the reference and the other right ways run on a few small inputs, and every value on the way is noted. The
first expression whose parts are all right and which no right way has is the place, unless all that is made of it is
right again: then it is only another way. The place is sure where a value of a right way, put there, mends the result.
Two places are sure if that mends the result at both together.
"""

from __future__ import annotations

import ast
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from coursework.exercises.engine.compare import compare
from coursework.exercises.engine.equal_values import Sequences, alike, flat, is_filled, kind_of_values, same
from coursework.exercises.engine.guard import OutOfMemory, RanAway
from coursework.exercises.engine.likeness import Seen
from coursework.exercises.engine.noting import Noted, kept
from coursework.exercises.engine.relations import Finder
from coursework.exercises.engine.run import detached

TRIED, SECONDS, PLACES, RUNS = 25_000, 6.0, 6, 60
"""Values that the search may compute, about two seconds of them: counted, so that a message is the same on any machine;
processor time that ends it where each value is slow; suspected places, and values of right ways at each, that are
tried."""


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
        self.started, self.tried = time.process_time(), 0
        self._since_when: dict[int, tuple[int, int]] = {}
        kinds = {kind_of_values([[one.expected]]) for one in seen}
        self.plain = not any("tensor" in kind for kind in kinds)
        self.right_values = [
            (way, number, values)
            for way in self.rights
            for number, values in way.values.items()
            if kind_of_values(values)
        ]

    # Which values are right ------------------------------------------------------------------------------------

    @cached_property
    def status(self) -> dict[int, bool | None]:
        """Whether the value of each expression is right; None where nothing can be said."""
        return {number: self._status(number, values) for number, values in self.own.values.items()}

    def _status(self, number: int, values: Sequences) -> bool | None:
        kind = kind_of_values(values)
        if not kind:
            return None
        if self._source(number, values) is not None:
            return True
        if self._given(number, values):
            return True
        if kind == "bool" or (kind in ("int", "str") and not self.plain):
            return None  # conditions, sizes and counters are other ones in every way
        if self._is_form(number) or all(is_filled(one) for own in values for one in own):
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
        kind, own = kind_of_values(self.own.values[other]), kind_of_values(self.own.values[number])
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
            value, record = self.own.noted.run(call, {number: one[index] for number, one in exchanged.items()})
            self.tried += 1 + record.count
            if isinstance(value, RanAway | OutOfMemory):
                self.tried = TRIED  # no more of this
            if isinstance(value, Exception) or compare(seen.expected, detached(value), self.finder.rules) is not None:
                return False
        return True

    def _over(self) -> bool:
        return self.tried >= TRIED or time.process_time() - self.started > SECONDS

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
