"""Learners who began with an earlier edition: random histories on the course's real notebooks; nothing may be lost.

`python tests/desk/histories.py 200` lives through that many and prints what was counted; `--first 200` begins with
another seed. A few of them run in `test_first_edition.py`.
"""

import argparse
import contextlib
import copy
import os
import random
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from desk_simulation import ACTIONS, Course, Learner, course_cell
from desk_tools import Fault, save, snapshot
from editions import NAMES, ROOT, earlier

from coursework.desk import copies, updates
from coursework.desk.code import followed, without_imports
from coursework.desk.notebooks import exercise_of, read_notebook
from coursework.desk.store import RIGHT, Desk, DeskError
from coursework.exercises import registry
from coursework.exercises.engine import cells

Notebook = dict[str, Any]
Edition = dict[str, Notebook]
Text = tuple[str, str]


def present_edition() -> Edition:
    """The notebooks as their sources are now, without outputs."""
    sys.path.insert(0, str(ROOT / "notebooks"))
    import build

    found = {}
    for source, _ in build.sources():
        notebook = build.read_source(source)
        listed = [dict(cell) | {"metadata": dict(cell.metadata)} for cell in notebook.cells]
        found[build.name_of(source)] = dict(notebook) | {"cells": listed}
    return found


def next_edition(rng: random.Random, course: Course, old: Edition) -> Edition:
    """A random next edition: changed notebooks, and exercises that moved to another notebook, some to a new lab."""
    new = {name: course.next(notebook) for name, notebook in old.items()}
    chapters = [name for name in new if not name.startswith("labs/")]
    homes = [*new, f"labs/{rng.choice(chapters)[:2]}_more"]
    for name in list(new):
        listed = new[name]["cells"]
        for cell in [cell for cell in listed if "exercise" in cell["metadata"]]:
            home = rng.choice(homes)
            if rng.random() < 0.25 and home != name:
                group = [one for one in listed if one["id"] in (cell["id"], f"{cell['id']}-prompt")]
                new.setdefault(home, {**new[name], "cells": [course_cell("markdown", "title", f"# {home}")]})
                if not {one["id"] for one in group} & {one["id"] for one in new[home]["cells"]}:
                    listed[:] = [one for one in listed if one not in group]
                    place = rng.randint(1, len(new[home]["cells"]))
                    new[home]["cells"][place:place] = group
    return {name: notebook for name, notebook in new.items() if notebook["cells"]}


OLD_NAMES = (
    "from course_lib import masks, exercises as ex",
    "from course_lib.viz import (\n    palette,  # colours\n    show,\n)",
    "from course_lib.data import pad_batch, number_pairs",
    "import course_lib.viz\ncourse_lib.viz.show",
    "%%time\nfrom course_lib.explorers import MaskComposer",
    "broken = (\nfrom course_lib.data.sentences import ENGLISH",
)


class FirstLearner(Learner):
    """Works in one of the course's real notebooks; some answers are checked, as the desk is told."""

    desk: Desk

    def answer(self) -> None:
        found = [cell for cell in self.cells() if "exercise" in cell["metadata"]]
        if not found:
            return
        cell = self.rng.choice(found)
        exercise_id = cell["metadata"]["exercise"]
        kind = self.rng.choice(["solved", "half", "wrong"])
        body = f"def {exercise_id}(x):\n    return x\n\n\n{exercise_id} = ex.{exercise_id}.check({exercise_id})"
        if exercise_id in registry.places():
            entry = registry.get(exercise_id)
            body = cells.solved_cell_source(entry) if kind == "solved" else cells.cell_source(entry)
        if kind == "half":
            body = cell["source"].replace("raise NotImplementedError", "half = 1 / 2\n    raise NotImplementedError")
        self.write(cell, f"# {self.say(kind)}\n{body.rstrip()}")
        if self.rng.random() < 0.6:
            self.desk.save_answer(exercise_id, cell["source"], RIGHT if kind == "solved" else "wrong", "first")

    def below(self) -> None:
        """A note, or a trial, below an exercise; some write their answer there."""
        places = [number for number, cell in enumerate(self.cells()) if "exercise" in cell["metadata"]]
        if places:
            kind = self.rng.choice(["markdown", "code"])
            cell = course_cell(kind, self.new_id(), "")
            self.cells().insert(self.rng.choice(places) + 1, cell)
            self.own.add(cell["id"])
            self.write(cell, self.say("note below" if kind == "markdown" else "trial = 1  #"))

    def predict(self) -> None:
        found = [cell for cell in self.cells() if cell["source"].startswith('ex.predict("')]
        if found:
            cell = self.rng.choice(found)
            name = cell["source"].split('"')[1]
            self.write(cell, f'ex.predict("{name}", "{self.say("guess")}")')

    def imports(self) -> None:
        """In a cell of their own, or in one of the course's that imports."""
        found = [cell for cell in self.cells() if "import" in cell["source"] and cell["cell_type"] == "code"]
        if found and self.rng.random() < 0.5:
            cell = self.rng.choice(found)
            self.write(cell, f"{cell['source'].rstrip()}\nimport json  # {self.say('import')}")
        else:
            cell = course_cell("code", self.new_id(), "")
            self.cells().insert(self.rng.randint(0, len(self.cells())), cell)
            self.own.add(cell["id"])
            self.write(cell, f"{self.rng.choice(OLD_NAMES)}  # {self.say('old name')}")

    def work(self) -> None:
        actions = (*ACTIONS, "answer", "answer", "below", "below", "predict", "predict", "imports", "imports")
        for _ in range(self.rng.randint(4, 25)):
            getattr(self, self.rng.choice(actions))()
        self.answer()


class History:
    """One learner's way from an earlier edition to the present one, and perhaps on to the next."""

    def __init__(self, seed: int, folder: Path, present: Edition) -> None:
        self.rng = random.Random(seed)
        self.course_folder, self.folder = folder / "notebooks", folder / "my"
        self.counted: Counter[str] = Counter()
        self.course = Course(self.rng)
        self.texts: set[Text] = set()  # what the course ever wrote
        self.ids: set[str] = set()
        numbers = {self.rng.choice(["01", "02", "03"]), self.rng.choice(["04", "05", "06", "07", "08"])}
        first, present = (
            {name: one for name, one in edition.items() if name.removeprefix("labs/")[:2] in numbers}
            for edition in (earlier(NAMES[seed % len(NAMES)]), present)
        )
        between = {name: followed(one) for name, one in first.items()}  # the present code brings it
        self.editions = [first]
        for _ in range(self.rng.choice([0, 0, 1, 2])):
            between = next_edition(self.rng, self.course, between)
            self.editions.append(between)
        self.editions.append(present)
        if self.rng.random() < 0.5:
            self.editions.append(next_edition(self.rng, self.course, present))

    def live(self) -> Counter[str]:
        """Work and update, edition by edition; AssertionError as soon as something of the learner's is lost."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("COURSE_NOTEBOOKS", str(self.course_folder))
            patch.delenv("CI", raising=False)
            patch.setattr(os, "fsync", lambda file: None)  # no power fails here, and a busy disk takes its time
            self.publish(self.editions[0])
            desk = copies.create(self.folder).desk
            for edition in self.editions[1:]:
                self.work(desk)
                self.publish(edition)
                if self.rng.random() < 0.8:  # some skip an edition
                    self.update(desk, edition)
            self.update(desk, self.editions[-1])
        self.counted["histories"] += 1
        return self.counted

    def publish(self, edition: Edition) -> None:
        """Put an edition in the place of the last one."""
        for old in self.course_folder.rglob("*.ipynb"):
            old.unlink()
        for name, notebook in edition.items():
            path = self.course_folder / f"{name}.ipynb"
            path.parent.mkdir(parents=True, exist_ok=True)
            save(path, notebook)
            self.texts |= {text_of(cell) for one in (notebook, followed(notebook)) for cell in one["cells"]}
            self.ids |= {cell["id"] for cell in notebook["cells"]}

    def work(self, desk: Desk) -> None:
        """Work in each notebook of the desk."""
        for path in sorted(desk.folder.rglob("*_*.ipynb")):
            if ".course" not in path.parts:
                learner = FirstLearner(self.rng, read_notebook(path))
                learner.desk = desk
                learner.work()
                save(path, learner.notebook)

    def update(self, desk: Desk, edition: Edition) -> None:
        """Update, perhaps after an interrupted attempt, and look for everything that was there before."""
        before = {name: followed(notebook) for name, notebook in notebooks_of(desk).items()}
        progress = desk.progress()
        interrupted = self.rng.random() < 0.4
        if interrupted:
            with pytest.MonkeyPatch.context() as patch:
                problem = self.rng.choice([KeyboardInterrupt, lambda: OSError(28, "No space left on device")])
                Fault(patch, self.rng.randint(1, 60), problem)
                with contextlib.suppress(KeyboardInterrupt, DeskError):
                    updates.update(desk)
            self.counted["interrupted"] += 1
        reports = {report.name.removesuffix(".ipynb"): report for report in updates.update(desk)}
        after = notebooks_of(desk)
        homes = {exercise_of(cell): name for name, notebook in edition.items() for cell in notebook["cells"]}
        for name, notebook in before.items():
            for number, cell in enumerate(notebook["cells"]):
                if text_of(cell) not in self.texts and "course" not in cell["metadata"]:
                    self.look_for(name, number, before, after, homes)
        if not interrupted:
            self.hear(before, after, reports)
        for exercise_id, one in progress.items():
            now = desk.progress()[exercise_id]
            assert (now["attempts"], now["solved"]) == (one["attempts"], one["solved"]), exercise_id
        content = snapshot(desk.folder)
        again = updates.update(desk)
        assert {report.outcome for report in again} <= {updates.UP_TO_DATE, "kept"}
        assert snapshot(desk.folder) == content
        self.counted["updates"] += 1

    def look_for(self, name: str, number: int, before: Edition, after: Edition, homes: dict[str | None, str]) -> None:
        """One cell of the learner's, by its text: it is where it was, or where its exercise is now."""
        cell = before[name]["cells"][number]
        exercise_id = exercise_of(cell)
        where = [one for one, notebook in after.items() if has(notebook, cell)]
        assert where, (name, cell["id"], cell["source"][:80])
        places = [one for one, other in before.items() for each in other["cells"] if exercise_of(each) == exercise_id]
        home = homes.get(exercise_id, name)
        there = [exercise_of(one) for one in after.get(home, {"cells": ()})["cells"]]
        taken_out = home in before and exercise_id not in there  # by the learner: the course's cell stays away
        if exercise_id and exercise_id in homes and places == [name] and not taken_out:
            assert has(after[home], cell, exercise_id), (name, home, exercise_id)
            self.counted["answers"] += 1
            self.counted["answers that moved"] += home != name
        elif exercise_id:
            self.counted["answers, in several cells or of no exercise now"] += 1
        else:
            above = (exercise_of(one) for one in reversed(before[name]["cells"][:number]) if exercise_of(one))
            assert name in where or homes.get(next(above, None)) in where, (name, where, cell["id"])
            kind = "edited cells" if cell["id"] in self.ids else "own cells"
            self.counted["predictions" if "ex.predict(" in cell["source"] else kind] += 1
            self.counted[f"{kind} that moved"] += name not in where

    def hear(self, before: Edition, after: Edition, reports: dict[str, updates.Updated]) -> None:
        """What became of a cell is said: that it moved, or that what stood above it is gone."""
        for name, notebook in before.items():
            said = dict(reports[name].merge.events) if reports[name].merge else {}
            now = {cell["id"] for cell in after[name]["cells"]}
            texts = set(map(text_of, after[name]["cells"]))
            for above, cell in zip(notebook["cells"], notebook["cells"][1:], strict=False):
                own = cell["id"] not in self.ids and text_of(cell) not in self.texts and exercise_of(cell) is None
                if not own or "course" in (*cell["metadata"], *above["metadata"]):
                    continue
                if text_of(cell) not in texts or (above["id"] in self.ids - now and text_of(above) not in texts):
                    assert cell["id"] in said, (name, cell["id"])
                    self.counted["said"] += 1


def notebooks_of(desk: Desk) -> Edition:
    """Every notebook of a desk by its name."""
    paths = [*desk.folder.glob("*.ipynb"), *desk.folder.glob("labs/*.ipynb")]
    return {path.relative_to(desk.folder).with_suffix("").as_posix(): read_notebook(path) for path in sorted(paths)}


def text_of(cell: Notebook) -> Text:
    return cell["cell_type"], cell["source"].rstrip()


def has(notebook: Notebook, cell: Notebook, exercise_id: str | None = None) -> bool:
    """Whether the text of a cell is in a notebook: as a cell, or in the cell of its exercise."""
    for one in notebook["cells"]:
        if exercise_id is None and (text_of(one) == text_of(cell) or only_imports_more(one, cell)):
            return True
        if exercise_of(cell) is not None and exercise_of(one) == exercise_of(cell) and cell["source"] in one["source"]:
            return True
    return False


def only_imports_more(one: Notebook, cell: Notebook) -> bool:
    """Whether a cell is another one with more imports, from the course."""
    if one["id"] != cell["id"] or {one["cell_type"], cell["cell_type"]} != {"code"}:
        return False
    more, less = without_imports(one["source"]), without_imports(cell["source"])
    return bool(more and less) and more[0] == less[0] and set(less[1]) <= set(more[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("histories", type=int)
    parser.add_argument("--first", type=int, default=0)
    options = parser.parse_args()
    present = present_edition()
    counted: Counter[str] = Counter()
    for seed in range(options.first, options.first + options.histories):
        with tempfile.TemporaryDirectory() as folder:
            counted += History(seed, Path(folder), copy.deepcopy(present)).live()
    for what, number in sorted(counted.items()):
        print(f"{number:7}  {what}")
    print("      0  lost")


if __name__ == "__main__":
    main()
