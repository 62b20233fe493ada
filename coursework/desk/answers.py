"""Exercise cells in the learner's notebooks: find an answer, put the stub or a kept answer back."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from course_lib.files import write_atomic
from coursework.desk.code import follow
from coursework.desk.copies import base_for, new_backup
from coursework.desk.finding import name_in, notebooks
from coursework.desk.notebooks import (
    Cell,
    DamagedNotebook,
    Notebook,
    answers_in,
    exercise_of,
    read_notebook,
    text_of,
    with_check,
    write_notebook,
)
from coursework.desk.store import UNCHECKED, Desk, DeskError, content
from coursework.exercises import registry


@dataclass
class Place:
    """Where an exercise is answered: a notebook, and the numbers of the cells (several if the learner split it)."""

    path: Path
    name: str
    notebook: Notebook
    numbers: list[int]

    @property
    def exercise(self) -> str:
        """Which exercise is answered."""
        return exercise_of(self.notebook["cells"][self.numbers[0]]) or ""

    @property
    def source(self) -> str:
        """The answer as it stands in the notebook."""
        return text_of(self.notebook, self.numbers)

    @property
    def above(self) -> list[Cell]:
        """The cells above it."""
        return self.notebook["cells"][: self.numbers[0]]


def places(desk: Desk) -> dict[str, Place]:
    """Return the exercise cells of all readable notebooks of the desk, by exercise id, in order.

    Of two, the one in the notebook that the course has the exercise in: the other one may be left of an update that
    was killed after it had moved.
    """
    found: dict[str, Place] = {}
    homes = registry.places()
    for place in all_places(desk):
        if place.exercise not in found or place.name == homes.get(place.exercise):
            found[place.exercise] = place
    return found


def all_places(desk: Desk) -> Iterator[Place]:
    """Yield every place of every exercise: the learner may have copied one to another notebook."""
    for path in notebooks(desk.folder):
        yield from _places_in(desk, path)


def _places_in(desk: Desk, path: Path) -> Iterator[Place]:
    try:
        notebook = read_notebook(path)
    except (OSError, DamagedNotebook):
        return
    for numbers in answers_in(notebook).values():
        yield Place(path, name_in(desk.folder, path), notebook, numbers)


def place_of(desk: Desk, exercise_id: str) -> Place | None:
    """Return where the exercise is answered in the notebook that the course has it in, or None."""
    path = desk.folder / f"{registry.places().get(exercise_id, '')}.ipynb"
    return next((place for place in _places_in(desk, path) if place.exercise == exercise_id), None)


def find(desk: Desk, exercise_id: str) -> Place:
    """Return where the exercise is answered; DeskError says what to do if it is nowhere."""
    place = places(desk).get(exercise_id)
    if place is not None:
        return place
    damaged = []
    for path in notebooks(desk.folder):
        try:
            read_notebook(path)
        except (DamagedNotebook, OSError) as problem:
            damaged.append(str(problem))
    hint = f" ({damaged[0]}; `course rescue` repairs it)" if damaged else ""
    raise DeskError(
        f"No cell in {desk.folder} answers {exercise_id}{hint}. `course solution {exercise_id}` and "
        f"`course check {exercise_id} --file answer.py` work without one; `course update` adds new chapters."
    )


def stub(desk: Desk, place: Place, exercise_id: str) -> str:
    """Return the exercise's cell as the course wrote it, in the edition that the copy came from."""
    base = base_for(desk, place.name, place.notebook)
    for cell in base["cells"] if base else ():
        if exercise_of(cell) == exercise_id:
            return cell["source"]
    from coursework.exercises.engine import cells

    return cells.cell_source(registry.get(exercise_id))


def reset(desk: Desk, exercise_ids: Iterable[str]) -> list[str]:
    """Put the stubs back, after keeping the answers in the history; return the ids that had an answer."""
    with desk.lock():
        backup = new_backup(desk, "reset")
        changed = []
        for exercise_id in exercise_ids:
            place = find(desk, exercise_id)
            blank = stub(desk, place, exercise_id)
            if place.source.strip() == blank.strip():
                continue
            keep(desk, exercise_id, place.source)
            _rewrite(place, exercise_id, blank, backup)
            changed.append(exercise_id)
    return changed


def fill(desk: Desk) -> list[str]:
    """Put kept answers into exercise cells that hold only the stub; return the ids. The lock must be held."""
    backup = new_backup(desk, "rescue-answers")
    filled = []
    for exercise_id in places(desk):
        place = find(desk, exercise_id)  # read again: the cell before may be in the same notebook
        try:
            blank = stub(desk, place, exercise_id)
        except KeyError:  # of another edition, or a cell whose metadata somebody wrote
            continue
        answer = desk.latest_answer(exercise_id, right=True) or desk.latest_answer(exercise_id)
        if answer is None or place.source.strip() != blank.strip():
            continue
        source = with_check(follow([answer])[0], blank, exercise_id)
        if source.strip() != blank.strip():
            _rewrite(place, exercise_id, source, backup)
            filled.append(exercise_id)
    return filled


def keep(desk: Desk, exercise_id: str, source: str) -> None:
    """Keep an answer that was perhaps never checked; OSError if it cannot be kept. The lock must be held."""
    if all(source.strip() != body.strip() for _, body in desk.history(exercise_id)):
        desk.keep_answer(exercise_id, source, UNCHECKED, "")


def follow_moves(desk: Desk, backup: Path) -> int:
    """Let the imports of kept answers name what the course moved by its present name; return how many files changed.

    OSError if one cannot be written. The lock must be held.
    """
    changed = 0
    for path in sorted(desk.answers.rglob("*.py")):
        try:
            data = content(path)
            text = data.decode()
        except (OSError, UnicodeDecodeError):
            continue
        if (new := follow([text])[0]) != text:
            write_atomic(backup / path.relative_to(desk.folder), data)
            write_atomic(path, new.encode())
            changed += 1
    return changed


def _rewrite(place: Place, exercise_id: str, source: str, backup: Path) -> None:
    target = backup / f"{place.name}.ipynb"
    if not target.exists():  # the first state is the one to keep
        write_atomic(target, content(place.path))
    cells = place.notebook["cells"]
    first, *rest = place.numbers
    cells[first] = {**cells[first], "source": source, "outputs": [], "execution_count": None}
    for number in reversed(rest):
        del cells[number]
    write_notebook(place.path, place.notebook)
