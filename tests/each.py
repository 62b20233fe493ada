"""One test over many things: a line for each that fails, instead of an item for each that passes."""

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any


def each(
    things: Iterable[Any], name: Callable[[Any], str] = str
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make the test one over all these things, of which it takes one as its first argument."""
    things = list(things)

    def decorate(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def over_all(**fixtures: Any) -> None:
            assert things
            failed: list[tuple[str, Exception]] = []
            for thing in things:
                try:
                    test(thing, **fixtures)
                except Exception as error:
                    failed.append((name(thing), error))
            if failed:
                lines = [f"{label}: {error!r:.500}" for label, error in failed]
                raise AssertionError("\n".join([f"{len(failed)} of {len(things)} fail", *lines])) from failed[0][1]

        parameters = list(inspect.signature(test).parameters.values())[1:]
        over_all.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        return over_all

    return decorate
