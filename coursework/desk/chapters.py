"""How far the learner is in each chapter and lab, and how many minutes are left: reading, exercises, playing."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from coursework.desk.finding import name_in, notebooks
from coursework.desk.launch import to_open
from coursework.desk.notebooks import Cell, DamagedNotebook, exercise_of, read_notebook
from coursework.desk.store import Desk
from coursework.exercises import registry

WORDS_PER_MINUTE = 100
LINES_PER_MINUTE = 10
PICTURE = 1.5
"""Minutes for what a folded cell shows, a figure or a table."""
PLAYING = 10
"""Minutes for predictions, explorers and changes of one's own. The four numbers fit readers who were timed."""

_FOLD = re.compile(r"<details.*?</details>", re.DOTALL)


@dataclass(frozen=True)
class Standing:
    """One notebook: its name ("01_attention"), how many of its exercises are solved, and the minutes left."""

    name: str
    solved: int
    exercises: int
    left: int
    here: bool

    @property
    def is_lab(self) -> bool:
        """Whether it is a lab and no chapter."""
        return self.name.startswith("labs/")


def reading_minutes(cells: Iterable[Cell]) -> float:
    """Minutes to read what is in sight; those of an exercise are part of the exercise's own minutes."""
    words = lines = pictures = 0
    for cell in cells:
        text = cell["source"]
        if cell["cell_type"] == "markdown" and not text.startswith("### Exercise:"):
            words += len(_FOLD.sub("", text).split())
        elif cell["cell_type"] == "code" and not exercise_of(cell):
            folded = cell["metadata"].get("jupyter", {}).get("source_hidden", False)
            lines += 0 if folded else len(re.findall(r"^.*\S", text, re.MULTILINE))
            pictures += folded
    return words / WORDS_PER_MINUTE + lines / LINES_PER_MINUTE + pictures * PICTURE


def total_minutes(cells: Iterable[Cell]) -> float:
    """Minutes that a notebook takes: its texts and code, its exercises, and playing with what it shows."""
    cells, places = list(cells), registry.places()
    own = [one for cell in cells if (one := exercise_of(cell)) in places]
    return reading_minutes(cells) + sum(registry.card(one).minutes for one in own) + PLAYING


def standings(desk: Desk) -> list[Standing]:
    """Where the learner stands in each notebook, in course order.

    Reading that is left is what stands below the last exercise that was tried. In a chapter before the one that
    the learner is in, none is left.
    """
    cells = {name_in(desk.folder, path): _cells(path) for path in notebooks(desk.folder)}
    progress, here = desk.progress(), to_open(desk, None)
    names = list(dict.fromkeys([*cells, *registry.places().values()]))
    names.sort(key=lambda name: (not name, name.startswith("labs/"), name))
    return [_standing(name, cells.get(name, []), progress, here) for name in names]


def _cells(path: Any) -> list[Cell]:
    try:
        return read_notebook(path)["cells"]
    except (OSError, DamagedNotebook):  # it is counted without its text; `course doctor` names it
        return []


def _standing(name: str, cells: list[Cell], progress: Mapping[str, Mapping[str, Any]], here: str) -> Standing:
    ids = [exercise_id for exercise_id, place in registry.places().items() if place == name]
    solved = [one for one in ids if one in progress and progress[one]["solved"]]
    tried = [one for one in ids if one in progress and progress[one]["attempts"]]
    below = max((number + 1 for number, cell in enumerate(cells) if exercise_of(cell) in tried), default=0)
    passed = not name.startswith("labs/") and name < here.removeprefix("labs/")[: len("00_")]
    left = 0.0 if passed else reading_minutes(cells[below:])
    left += PLAYING if cells and not (passed or tried) else 0
    left += sum(registry.card(one).minutes for one in ids if one not in solved)
    return Standing(name, len(solved), len(ids), round(left), name == here)
