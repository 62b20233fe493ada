"""What is said of the first wrong value, which `leaving` looks for."""

from __future__ import annotations

import ast
import functools
import textwrap
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from coursework.exercises.engine import show
from coursework.exercises.engine.equal_values import flat, kind_of_values, same
from coursework.exercises.engine.leaving import FirstWrong, Place, Way
from coursework.exercises.engine.likeness import Seen
from coursework.exercises.engine.noting import noted
from coursework.exercises.engine.relations import Finder
from coursework.exercises.engine.source import code_of

CODE, FULL = 90, 24
"""Longest piece of code, and largest value in elements, that is shown."""


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
            places = [one for one in places if self._is_on_the_way(one.number) and self._so_far(one.number)][:1]
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

    def _is_on_the_way(self, number: int) -> bool:
        """Whether something right has been computed before: from arguments alone another way may begin just as well."""
        values, status = self.own.values, self.status
        rows = [part for part in self._parts(number) if part in values and status.get(part) is None]
        return any(not self._given(part, values[part]) for part in self._right_parts(number).values()) or any(
            "tensor" in kind_of_values(values[part]) and not isinstance(self.own.noted.nodes[part], ast.Name)
            for part in rows
        )

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
            if kind_of_values(self.own.values[part]) and not any(code in other for other in found):
                found[code] = part
        return found

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
