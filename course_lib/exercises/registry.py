"""All exercises of the course, in its order: found by the lists `EXERCISES` of the chapter folders."""

from __future__ import annotations

import difflib
import functools
import importlib
import pkgutil

from course_lib.exercises.spec import Exercise, Question


@functools.cache
def chapters() -> dict[str, int]:
    """Exercise id -> chapter number, in course order, without importing any exercise.

    Raises ValueError if two chapters use one id.
    """
    package = importlib.import_module("course_lib.exercises")
    folders = [m.name for m in pkgutil.iter_modules(package.__path__) if m.ispkg and m.name.startswith("ch")]
    found: dict[str, int] = {}
    for folder in sorted(folders):
        for exercise_id in importlib.import_module(f"course_lib.exercises.{folder}").EXERCISES:
            if exercise_id in found:
                raise ValueError(
                    f"exercise id {exercise_id!r} is used twice: chapters {found[exercise_id]} and {folder}"
                )
            found[exercise_id] = int(folder.removeprefix("ch"))
    return found


@functools.cache
def get(exercise_id: str) -> Exercise | Question:
    """The exercise or question with this id. Raises KeyError, naming the closest ids, if there is none."""
    if exercise_id not in chapters():
        raise KeyError(unknown(exercise_id))
    module = importlib.import_module(f"course_lib.exercises.ch{chapters()[exercise_id]:02d}.{exercise_id}")
    entry = module.EXERCISE
    if entry.id != exercise_id or entry.chapter != chapters()[exercise_id]:
        raise ValueError(
            f"{module.__name__}: expected id {exercise_id!r} and its chapter, got {entry.id!r}, {entry.chapter}"
        )
    return entry


def all_exercises() -> list[Exercise | Question]:
    """Every exercise and question, in course order."""
    return [get(exercise_id) for exercise_id in chapters()]


def unknown(exercise_id: str) -> str:
    """One line that says there is no such exercise and names the closest ids."""
    close = difflib.get_close_matches(exercise_id, chapters(), n=3, cutoff=0.6)
    suggestion = f" Did you mean {' or '.join(close)}?" if close else " course_lib.exercises.progress() lists them all."
    return f"There is no exercise {exercise_id!r}.{suggestion}"
