"""All exercises of the course: what they are lies in `bank`, where they stand is written in the notebooks' sources.

`notebooks/build.py` copies the places out of the sources into `places.json`, for a package that is installed without
them. So an exercise is registered by its module and by its marker in a source, and moved by moving the marker.
"""

from __future__ import annotations

import ast
import difflib
import functools
import importlib
import json
import pkgutil
from dataclasses import dataclass, fields, replace
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from coursework.exercises import bank

if TYPE_CHECKING:
    from coursework.exercises.spec import Exercise, Question


@dataclass(frozen=True)
class Card:
    """What a list shows of an exercise; `minutes` are those of a typical learner."""

    id: str
    title: str
    kind: str
    difficulty: int
    minutes: int


CAPSTONES = (
    "classifier",
    "masks_and_heads",
    "characters",
    "trained_heads",
    "families",
    "positions",
    "own_text",
    "sizes",
    "efficient",
)
"""The capstones, which `coursework.exercises.capstones` checks; they stand in a lab, and have no solution."""

_FIELDS = {field.name for field in fields(Card)}


@functools.cache
def places() -> dict[str, str]:
    """Exercise id -> name of the notebook that it stands in, in course order, without importing any exercise.

    Names are "01_attention", or "labs/05_inside_a_model": chapters first, then labs. An exercise that no notebook has
    yet comes last, under "".
    """
    there = sorted(module.name for module in pkgutil.iter_modules(bank.__path__))
    found: dict[str, str] = {}
    for notebook, ids in json.loads(files(__package__).joinpath("places.json").read_text(encoding="utf-8")).items():
        found |= {exercise_id: notebook for exercise_id in ids if exercise_id in there}
    return found | {exercise_id: "" for exercise_id in there if exercise_id not in found}


def label(exercise_id: str) -> str:
    """Where an exercise stands, in short: "01" for a chapter, the whole name for a lab, "" for nowhere."""
    notebook = places().get(exercise_id, "")
    return notebook if notebook.startswith("labs/") else notebook[:2]


@functools.cache
def get(exercise_id: str) -> Exercise | Question:
    """The exercise or question with this id. Raises KeyError, naming the closest ids, if there is none."""
    if exercise_id not in places():
        raise KeyError(unknown(exercise_id))
    try:
        module = importlib.import_module(f"{bank.__name__}.{exercise_id}")
    except ValueError as problem:  # of a specification, which does not know its name
        raise ValueError(f"{exercise_id}: {problem}") from problem
    return replace(module.EXERCISE, id=exercise_id)


@functools.cache
def card(exercise_id: str) -> Card:
    """The card of an exercise, read from its module's text, for importing the module loads torch. Raises KeyError."""
    if exercise_id not in places():
        raise KeyError(unknown(exercise_id))
    text = files(bank).joinpath(f"{exercise_id}.py").read_text(encoding="utf-8")
    call: Any = ast.parse(text[text.index("\nEXERCISE = ") + len("\nEXERCISE = ") :]).body[0]
    found = {one.arg: ast.literal_eval(one.value) for one in call.value.keywords if one.arg in _FIELDS}
    return Card(**{"kind": "predict" if call.value.func.id == "Question" else "build"} | found | {"id": exercise_id})


def all_exercises() -> list[Exercise | Question]:
    """Every exercise and question, in course order."""
    return [get(exercise_id) for exercise_id in places()]


def unknown(exercise_id: str) -> str:
    """One line that says there is no such exercise and names the closest ids."""
    close = difflib.get_close_matches(exercise_id, places(), n=3, cutoff=0.6)
    suggestion = f" Did you mean {' or '.join(close)}?" if close else " `course status` counts them by chapter."
    return f"There is no exercise {exercise_id!r}.{suggestion}"
