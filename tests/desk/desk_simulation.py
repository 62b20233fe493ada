"""Random courses and random learners, for the proof that an update loses nothing."""

import copy
import random
from dataclasses import dataclass, field
from typing import Any

Notebook = dict[str, Any]
Cell = dict[str, Any]

OFTEN = ("answer", "answer", "answer", "note", "note", "run", "run")
ACTIONS = (*OFTEN, "code", "edit", "split", "move", "delete", "cut", "copy", "type", "view")
METADATA = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}


def course_cell(kind: str, cell_id: str, source: str, **metadata: Any) -> Cell:
    cell: Cell = {"cell_type": kind, "id": cell_id, "metadata": metadata, "source": source}
    if kind == "code":
        cell |= {"outputs": [], "execution_count": None}
    return cell


def notebook_of(cells: list[Cell]) -> Notebook:
    return {"cells": cells, "metadata": copy.deepcopy(METADATA), "nbformat": 4, "nbformat_minor": 5}


class Course:
    """The first edition of a chapter, and random next editions of it."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.number = 0

    def text(self, what: str) -> str:
        self.number += 1
        lines = [f"{what} {self.number}.{line} {'αβ é' if self.rng.random() < 0.2 else ''}" for line in range(3)]
        return "\n".join(lines)

    def exercise(self) -> list[Cell]:
        self.number += 1
        name = f"task_{self.number}"
        handle = name.replace("_", "-")
        stub = f"def {name}(x):\n    raise NotImplementedError  # edition {self.number}"
        source = f"{stub}\n\n\n{name} = ex.{name}.check({name})"
        return [
            course_cell("markdown", f"exercise-{handle}-prompt", f"### {name}\n\nWrite it."),
            course_cell("code", f"exercise-{handle}", source, exercise=name),
        ]

    def cell(self) -> Cell:
        kind = self.rng.choice(["markdown", "code"])
        text = self.text("course")
        tags = {"tags": [f"tol:{self.rng.random():.2f}"]} if kind == "code" and self.rng.random() < 0.3 else {}
        return course_cell(kind, f"cell-{self.number}", text, **tags)

    def first(self) -> Notebook:
        cells = [course_cell("code", "imports", "import math\nfrom coursework import exercises as ex")]
        for _ in range(self.rng.randint(6, 20)):
            cells += self.exercise() if self.rng.random() < 0.3 else [self.cell()]
        return notebook_of([*cells, *self.exercise()])

    def next(self, old: Notebook) -> Notebook:
        cells = copy.deepcopy(old["cells"])
        for _ in range(self.rng.randint(1, 8)):
            place = self.rng.randrange(len(cells))
            change = self.rng.choice(["edit", "edit", "insert", "exercise", "delete", "move", "tags", "stub", "type"])
            if change == "edit":
                cells[place]["source"] = self.text("edited by the course") + "\n" + cells[place]["source"]
            elif change == "insert":
                cells.insert(place, self.cell())
            elif change == "exercise":
                cells[place:place] = self.exercise()
            elif change == "delete" and len(cells) > 3:
                del cells[place]
            elif change == "move":
                cells.insert(self.rng.randrange(len(cells)), cells.pop(place))
            elif change == "tags":
                cells[place]["metadata"]["tags"] = [f"tol:{self.rng.random():.3f}"]
            elif change == "stub":
                for cell in cells:
                    if "exercise" in cell["metadata"] and self.rng.random() < 0.5:
                        cell["source"] = cell["source"].replace("# edition", "# changed, edition", 1)
            elif change == "type" and "exercise" not in cells[place]["metadata"]:
                cells[place] = course_cell("markdown", cells[place]["id"], cells[place]["source"])
        return notebook_of(cells)


@dataclass
class Learner:
    """Works on a copy and remembers what must never be lost."""

    rng: random.Random
    notebook: Notebook
    written: dict[str, str] = field(default_factory=dict)  # cell id -> source that is the learner's
    own: set[str] = field(default_factory=set)  # ids of cells that the learner added
    reordered: bool = False
    number: int = 0

    def new_id(self) -> str:
        return f"{self.rng.getrandbits(32):08x}"

    def work(self) -> None:
        for _ in range(self.rng.randint(2, 15)):
            getattr(self, self.rng.choice(ACTIONS))()
        self.answer()  # at least one

    def cells(self) -> list[Cell]:
        return self.notebook["cells"]

    def some(self) -> Cell:
        return self.rng.choice(self.cells())

    def write(self, cell: Cell, source: str) -> None:
        cell["source"] = source
        self.written[cell["id"]] = source

    def say(self, what: str) -> str:
        self.number += 1
        return f"{what} {self.number} by the learner, {self.rng.random()}"

    def answer(self) -> None:
        exercises = [cell for cell in self.cells() if "exercise" in cell["metadata"]]
        if exercises:
            cell = self.rng.choice(exercises)
            name = cell["metadata"]["exercise"]
            body = f"def {name}(x):\n    return x  # {self.say('answer')}\n\n\n{name} = ex.{name}.check({name})"
            self.write(cell, body)

    def add(self, kind: str) -> None:
        cell = course_cell(kind, self.new_id(), "")
        self.cells().insert(self.rng.randint(0, len(self.cells())), cell)
        self.own.add(cell["id"])
        self.write(cell, self.say("note" if kind == "markdown" else "x = 1  #"))

    def note(self) -> None:
        self.add("markdown")

    def code(self) -> None:
        self.add("code")

    def edit(self) -> None:
        cell = self.some()
        self.write(cell, cell["source"] + "\n" + self.say("# edit"))

    def run(self) -> None:
        for cell in self.cells():
            if cell["cell_type"] == "code" and self.rng.random() < 0.5:
                cell["execution_count"] = self.rng.randint(1, 99)
                text = f"{self.rng.random()}\n"
                cell["outputs"] = [{"output_type": "stream", "name": "stdout", "text": [text]}]

    def view(self) -> None:
        self.some()["metadata"]["collapsed"] = True

    def split(self) -> None:
        number = self.rng.randrange(len(self.cells()))
        cell = self.cells()[number]
        lines = cell["source"].split("\n")
        if len(lines) < 2:
            return
        at = self.rng.randint(1, len(lines) - 1)
        parts = ["\n".join(lines[:at]), "\n".join(lines[at:])]
        half = course_cell(cell["cell_type"], self.new_id(), "", **copy.deepcopy(cell["metadata"]))
        first, second = (cell, half) if self.rng.random() < 0.5 else (half, cell)
        self.cells()[number : number + 1] = [first, second]
        self.own.add(half["id"])
        self.write(first, parts[0])
        self.write(second, parts[1])

    def move(self) -> None:
        cell = self.cells().pop(self.rng.randrange(len(self.cells())))
        self.cells().insert(self.rng.randint(0, len(self.cells())), cell)
        self.reordered = True

    def cut(self) -> None:
        """Cut and paste gives a cell a new id."""
        cell = self.cells().pop(self.rng.randrange(len(self.cells())))
        old = cell["id"]
        cell["id"] = self.new_id()
        self.cells().insert(self.rng.randint(0, len(self.cells())), cell)
        if old in self.written:
            self.written[cell["id"]] = self.written.pop(old)
            self.own.add(cell["id"])
        self.reordered = True

    def copy(self) -> None:
        cell = copy.deepcopy(self.some())
        cell["id"] = self.new_id()
        self.cells().insert(self.rng.randint(0, len(self.cells())), cell)
        self.own.add(cell["id"])
        self.written[cell["id"]] = cell["source"]
        self.reordered = True  # if the first is deleted then, the cell has moved

    def delete(self) -> None:
        if len(self.cells()) > 4:
            cell = self.cells().pop(self.rng.randrange(len(self.cells())))
            self.written.pop(cell["id"], None)
            self.own.discard(cell["id"])

    def type(self) -> None:
        number = self.rng.randrange(len(self.cells()))
        cell = self.cells()[number]
        if "exercise" not in cell["metadata"] and cell["cell_type"] == "code":
            self.cells()[number] = course_cell("markdown", cell["id"], cell["source"])
            self.written[cell["id"]] = cell["source"]
