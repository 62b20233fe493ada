"""Random learners meet random new editions: nothing of theirs is lost."""

import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import nbformat
import pytest
from desk_simulation import Course, Learner
from desk_tools import save
from thorough import rounds

from coursework.desk import copies, finding, updates
from coursework.desk.merge import merge
from coursework.desk.notebooks import dump_notebook, read_notebook, strip
from coursework.desk.store import Desk

HISTORIES = rounds(20, 100)
NAME = "01_attention.ipynb"


def by_id(notebook: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {cell["id"]: cell for cell in notebook["cells"]}


@pytest.mark.parametrize("seed", range(HISTORIES))
def test_update_keeps_everything(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    folder = tmp_path / "notebooks"
    folder.mkdir()
    monkeypatch.setenv("COURSE_NOTEBOOKS", str(folder))
    course = Course(rng)
    edition = course.first()
    save(folder / NAME, edition)
    desk = copies.create(tmp_path / "my").desk
    reordered = False
    for _ in range(rng.randint(1, 3)):  # several editions, with work in between
        mine = desk.folder / NAME
        learner = Learner(rng, read_notebook(mine), reordered=reordered)
        learner.work()
        reordered = learner.reordered
        save(mine, learner.notebook)
        base, edition = edition, course.next(edition)
        save(folder / NAME, edition)
        one_update(desk, learner, read_notebook(mine), base, edition)


def one_update(desk: Desk, learner: Learner, before: dict[str, Any], base: dict[str, Any], new: dict[str, Any]) -> None:
    path = desk.folder / NAME
    raw = path.read_bytes()
    (report,) = updates.update(desk)
    after = read_notebook(path)
    base_cells, new_cells, before_cells, after_cells = map(by_id, (base, new, before, after))

    # Valid, with unique ids, and as it was before in the backup.
    nbformat.validate(nbformat.read(path, as_version=4))
    assert len(after_cells) == len(after["cells"])
    if report.outcome == updates.UP_TO_DATE:
        assert new == base
        return
    assert report.backup is not None
    assert report.backup.read_bytes() == raw

    # Every answer and every other text of the learner's is there, in the same cell unless its id had been lost.
    sources = Counter(cell["source"] for cell in after["cells"])
    courses = {cell["source"] for cell in base["cells"]}  # a copy of the course's own text is not the learner's
    for cell_id, source in learner.written.items():
        if source in courses:
            continue
        assert sources[source] > 0, (cell_id, source)
        if cell_id in after_cells:  # otherwise a pasted cell was recognised as the course's
            assert after_cells[cell_id]["source"] == source

    # Untouched cells equal the new edition, and keep their outputs if the text is the same.
    for cell_id, cell in before_cells.items():
        was, now = base_cells.get(cell_id), new_cells.get(cell_id)
        if was is None or (was["cell_type"], was["source"]) != (cell["cell_type"], cell["source"]):
            continue
        if now is None:
            assert cell_id not in after_cells
            continue
        merged = after_cells[cell_id]
        assert (merged["cell_type"], merged["source"]) == (now["cell_type"], now["source"])
        if {k: v for k, v in cell["metadata"].items() if k != "collapsed"} == was["metadata"]:
            assert {k: v for k, v in merged["metadata"].items() if k != "collapsed"} == now["metadata"]
        if merged["cell_type"] == "code":
            kept = was["source"] == now["source"] and was["cell_type"] == "code"
            assert merged["outputs"] == (cell["outputs"] if kept else [])

    # Every text of the new edition is there, too, unless the learner deleted the cell and it did not change.
    text = dump_notebook(after)
    for cell_id, cell in new_cells.items():
        if cell_id not in before_cells and base_cells.get(cell_id, {}).get("source") == cell["source"]:
            continue
        assert cell_id in after_cells, cell_id
        if (after_cells[cell_id]["cell_type"], after_cells[cell_id]["source"]) != (cell["cell_type"], cell["source"]):
            was = base_cells.get(cell_id)
            changed = was is None or (was["cell_type"], was["source"]) != (cell["cell_type"], cell["source"])
            assert not changed or json.dumps(cell["source"], ensure_ascii=False)[1:-1].split("\\n")[0] in text

    # The learner's cells follow what they followed.
    order = [cell["id"] for cell in after["cells"] if "-beside-" not in cell["id"]]
    previous = None
    for cell in before["cells"]:
        if cell["id"] not in after_cells or "-beside-" in cell["id"]:
            continue
        if cell["id"] in learner.own and not learner.reordered and previous is not None:
            assert order.index(cell["id"]) == order.index(previous) + 1
        previous = cell["id"]
    if not learner.reordered:  # and the rest stands as in the new edition
        assert [i for i in order if i in new_cells] == [i for i in new_cells if i in after_cells]

    # Again is nothing, even if the merge itself is done again, and even from the old base (a crash in between).
    content = path.read_bytes()
    assert [one.outcome for one in updates.update(desk)] == [updates.UP_TO_DATE]
    assert path.read_bytes() == content
    theirs = strip(read_notebook(finding.course_notebooks() / NAME))
    assert merge(theirs, after, theirs).notebook["cells"] == after["cells"]
    if not learner.reordered:
        parsed = json.loads(json.dumps(base))
        assert merge(parsed, after, theirs).notebook["cells"] == after["cells"]
