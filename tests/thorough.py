"""How much is tried. `make test` tries a part of what is drawn at random or slow; `make test-all` all of it.

The latter sets COURSE_TESTS=all. A test marked `thorough` runs only then.
"""

import os
from collections.abc import Sequence
from typing import Any

import pytest

ALL = os.environ.get("COURSE_TESTS") == "all"


def rounds(some: int, every: int) -> int:
    """How many to try: examples, histories, inputs."""
    return every if ALL else some


def mostly(values: Sequence[Any], keep: int = 1) -> list[Any]:
    """The values as parameters of a test; all but `keep` of them, spread evenly, are for `make test-all`."""
    kept = {round((number + 0.5) * len(values) / keep - 0.5) for number in range(keep)}
    return [
        value
        if number in kept
        else pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.thorough)
        for number, value in enumerate(values)
    ]
