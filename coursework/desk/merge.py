"""Bring a new edition of a notebook into the learner's copy, cell by cell, and lose nothing of the learner's.

A three-way merge over cell ids: `base` is the edition that the copy came from, `mine` the learner's copy, `theirs` the
new edition. nbdime is not used: it aligns cells by similar content, because ids may be missing, and answers a
disagreement with conflict markers or an open decision. Here ids are stable and written by the course, and each
disagreement has a fixed answer (the learner's cell stays, the course's text is put beside it), so a dictionary by id
and one longest increasing subsequence do the whole work, and merging again changes nothing.
"""

import copy
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from coursework.desk.code import with_imports_of
from coursework.desk.notebooks import Cell, Notebook, digest, exercise_of

FOLLOWED = "follows the new edition"
ADDED = "new in this edition"
REMOVED = "no longer in the course"
KEPT = "changed by you and by the course: yours stays, the new text is in the cell below it"
KEPT_REMOVED = "no longer in the course, kept because you changed it"
KEPT_MOVED = "the course has it in {home} now; yours stays here because you changed it"
RETURNED = "deleted by you, but changed in this edition: it is back"
IMPORTS = "changed only in its imports, which follow the course"
STRANDED = "yours ({start}): the cell above it is no longer in the course; it stands {where} now"
_NOTE = "**{title}** You changed the cell above, so it was left alone. Delete this note when you have read it. {lead}"


@dataclass(frozen=True)
class Wording:
    """How the cell that holds the other side's text introduces it."""

    title: str = "The new edition of the course has another text here."
    lead: str = "This is the course's new text:"


@dataclass
class Merge:
    """The merged notebook and what happened, as (cell id, event) in the order of the notebook."""

    notebook: Notebook
    events: list[tuple[str, str]] = field(default_factory=list)

    def count(self, event: str) -> int:
        """Return how many cells met this event."""
        return sum(1 for _, what in self.events if what == event)


def merge(
    base: Notebook | None,
    mine: Notebook,
    theirs: Notebook,
    *,
    wording: Wording | None = None,
    deletions: bool = True,
) -> Merge:
    """Merge the change from `base` to `theirs` into `mine`; all three as `read_notebook` returns them.

    Without a base (None) every differing cell counts as changed on both sides. With `deletions=False` a cell that
    `theirs` lacks stays, and a cell that `mine` lacks comes back only if `theirs` changed it. The arguments are not
    changed. Merging the result again, against the same `theirs` and with it or `base` as base, gives the same cells.
    """
    base_cells = {cell["id"]: cell for cell in base["cells"]} if base else {}
    their_cells = {cell["id"]: cell for cell in theirs["cells"]}
    mine_cells = recognise(mine["cells"], list(base_cells.values()), list(their_cells.values()))
    by_id = {cell["id"]: cell for cell in mine_cells}

    plan = _Plan(wording or Wording())
    for cell_id, cell in by_id.items():
        plan.decide(cell_id, base_cells.get(cell_id), cell, their_cells.get(cell_id), deletions)
    for cell_id, cell in their_cells.items():
        if cell_id not in by_id:
            plan.decide_absent(cell_id, base_cells.get(cell_id), cell)
    cells = plan.arrange(list(base_cells), mine_cells, list(their_cells))

    notebook = {key: copy.deepcopy(value) for key, value in mine.items() if key not in ("cells", "metadata")}
    notebook["cells"] = cells
    notebook["metadata"] = _merge_metadata(base["metadata"] if base else {}, mine["metadata"], theirs["metadata"])
    notebook["nbformat"] = 4
    notebook["nbformat_minor"] = max(mine["nbformat_minor"], theirs["nbformat_minor"])
    order = {cell["id"]: index for index, cell in enumerate(cells)}
    return Merge(notebook, sorted(plan.events, key=lambda event: order.get(event[0], -1)))


def recognise(mine: Sequence[Cell], base: Sequence[Cell], theirs: Sequence[Cell]) -> list[Cell]:
    """Return copies of the learner's cells in which lost ids are put back.

    Cutting and pasting, and some editors, give cells new ids. A cell whose id the course never used gets back the id
    of a missing cell of the new edition with the same exercise, or else with exactly the same text in either edition.
    """
    cells = [copy.deepcopy(cell) for cell in mine]
    present = {cell["id"] for cell in cells}
    course = {cell["id"] for cell in (*base, *theirs)}
    wanted = {cell["id"] for cell in theirs} - present
    by_exercise: dict[str, str] = {}
    by_text: dict[tuple[str, str], list[str]] = {}
    for cell in (*base, *theirs):
        if cell["id"] not in wanted:
            continue
        name = exercise_of(cell)
        if name is not None:
            by_exercise.setdefault(name, cell["id"])
        if cell["source"].strip():
            by_text.setdefault(_text(cell), []).append(cell["id"])
    for cell in cells:
        if cell["id"] in course:
            continue
        name = exercise_of(cell)
        found = by_exercise.get(name) if name is not None else None
        if found is None:
            found = next((one for one in by_text.get(_text(cell), []) if one not in present), None)
        if found is not None and found not in present:
            cell["id"] = found
            present.add(found)
    return cells


class _Plan:
    """What becomes of each cell; `arrange` then puts the survivors in order."""

    def __init__(self, wording: Wording) -> None:
        self.wording = wording
        self.survivors: dict[str, Cell] = {}
        self.beside: dict[str, Cell] = {}
        self.settled: set[str] = set()
        self.own: set[str] = set()
        self.removed: set[str] = set()
        self.events: list[tuple[str, str]] = []

    def decide(self, cell_id: str, base: Cell | None, mine: Cell, theirs: Cell | None, deletions: bool) -> None:
        """A cell that the learner has."""
        edited = base is None or not _same(mine, base)
        if theirs is None:
            if base is not None and not edited and deletions:
                self.events.append((cell_id, REMOVED))
                self.removed.add(cell_id)
                return
            self.survivors[cell_id] = mine
            if base is None:
                self.own.add(cell_id)
            elif deletions:
                self.events.append((cell_id, KEPT_REMOVED))
        elif _same(mine, theirs):
            self.survivors[cell_id] = _taken(theirs, mine, base, keep_outputs=True)
            self.settled.add(cell_id)
        elif not edited:
            self.survivors[cell_id] = _taken(theirs, mine, base, keep_outputs=False)
            self.settled.add(cell_id)
            self.events.append((cell_id, FOLLOWED))
        else:
            mine["metadata"] = _merge_metadata(base["metadata"] if base else {}, mine["metadata"], theirs["metadata"])
            self.survivors[cell_id] = mine
            code = base is not None and {cell["cell_type"] for cell in (base, mine, theirs)} == {"code"}
            imports = with_imports_of(mine["source"], base["source"], theirs["source"]) if base and code else None
            if imports is None and (base is None or not _same(base, theirs)):
                self.beside[cell_id] = self._note(cell_id, theirs)
                self.events.append((cell_id, KEPT))
            elif imports is not None and imports != mine["source"]:
                mine["source"] = imports
                self.events.append((cell_id, IMPORTS))

    def decide_absent(self, cell_id: str, base: Cell | None, theirs: Cell) -> None:
        """A cell of the new edition that the learner does not have."""
        if base is None or not _same(base, theirs):
            self.survivors[cell_id] = _clean(theirs)
            self.settled.add(cell_id)
            self.events.append((cell_id, ADDED if base is None else RETURNED))

    def arrange(self, base: list[str], mine: list[Cell], theirs: list[str]) -> list[Cell]:
        """The new edition's order, with what is the learner's own or was moved by them after what it followed."""
        moved = _moved([cell["id"] for cell in mine], base)
        order = [i for i in theirs if i in self.survivors and i not in moved]
        placed = set(order)
        after: str | None = None
        above: str | None = None
        for cell in mine:
            cell_id, above_it = cell["id"], above
            above = cell_id
            if cell_id not in self.survivors or self._outdated(cell):
                continue
            if cell_id in self.own and above_it in self.removed:
                where = "at the top" if after is None else f"below {after}"
                self.events.append((cell_id, STRANDED.format(start=beginning(cell), where=where)))
            if cell_id not in placed:
                order.insert(0 if after is None else order.index(after) + 1, cell_id)
                placed.add(cell_id)
            after = cell_id
        cells: list[Cell] = []
        for cell_id in order:
            cells.append(self.survivors[cell_id])
            note = self.beside.get(cell_id)
            if note is not None and note["id"] not in self.survivors:
                cells.append(note)
        return cells

    def _outdated(self, cell: Cell) -> bool:
        """A note of an earlier merge that the learner left as it was, and that a newer one or the cell replaces."""
        stamp = cell["metadata"].get("course")
        mark = digest(cell["source"], 12)
        if not isinstance(stamp, dict) or stamp.get("digest") != mark or not cell["id"].endswith(f"-beside-{mark}"):
            return False  # a copy that the learner made of it is theirs
        owner = stamp.get("beside")
        replaced = owner in self.beside and self.beside[owner]["id"] != cell["id"]
        return owner in self.settled or replaced

    def _note(self, cell_id: str, theirs: Cell) -> Cell:
        text = theirs["source"]
        if theirs["cell_type"] != "markdown":
            fence = "```"
            while fence in text:
                fence += "`"
            text = f"{fence}{'python' if theirs['cell_type'] == 'code' else ''}\n{text}\n{fence}"
        source = _NOTE.format(title=self.wording.title, lead=self.wording.lead) + f"\n\n{text}"
        mark = digest(source, 12)
        note: Cell = {
            "cell_type": "markdown",
            "id": f"{cell_id[:40]}-beside-{mark}",
            "metadata": {"course": {"beside": cell_id, "digest": mark}},
            "source": source,
        }
        if "attachments" in theirs:
            note["attachments"] = copy.deepcopy(theirs["attachments"])
        return note


def beginning(cell: Cell) -> str:
    """Return the first words of a cell, by which its writer knows it again."""
    text = " ".join(cell["source"].split())
    return f"“{text}”" if len(text) <= 40 else f"“{text[:39].rstrip()}…”"


def _moved(mine: Sequence[str], base: Sequence[str]) -> set[str]:
    """Return the fewest cells whose moving explains the learner's order: all but a longest increasing subsequence."""
    place = {cell_id: index for index, cell_id in enumerate(base)}
    common = [cell_id for cell_id in mine if cell_id in place]
    tails: list[int] = []  # tails[k]: smallest place at which an increasing subsequence of length k + 1 ends
    ends: list[str] = []
    before: dict[str, str | None] = {}
    for cell_id in common:
        k = bisect_left(tails, place[cell_id])
        before[cell_id] = ends[k - 1] if k else None
        tails[k : k + 1] = [place[cell_id]]
        ends[k : k + 1] = [cell_id]
    moved = set(common)
    last: str | None = ends[-1] if ends else None
    while last is not None:
        moved.discard(last)
        last = before[last]
    return moved


def _taken(theirs: Cell, mine: Cell, base: Cell | None, *, keep_outputs: bool) -> Cell:
    cell = _clean(theirs)
    cell["metadata"] = _merge_metadata(base["metadata"] if base else {}, mine["metadata"], theirs["metadata"])
    if keep_outputs and cell["cell_type"] == "code":
        cell["outputs"] = mine["outputs"]
        cell["execution_count"] = mine["execution_count"]
    return cell


def _clean(cell: Cell) -> Cell:
    cell = copy.deepcopy(cell)
    if cell["cell_type"] == "code":
        cell["outputs"] = []
        cell["execution_count"] = None
    return cell


def _merge_metadata(base: dict[str, Any], mine: dict[str, Any], theirs: dict[str, Any]) -> dict[str, Any]:
    """Key by key: what the learner or their editor set stays, everything else follows `theirs`."""
    merged = {}
    for key in (*theirs, *(key for key in mine if key not in theirs)):
        side = theirs if key == "exercise" or mine.get(key) == base.get(key) else mine
        if key in side:
            merged[key] = copy.deepcopy(side[key])
    return merged


def _same(one: Cell, other: Cell) -> bool:
    return _text(one) == _text(other) and one.get("attachments", {}) == other.get("attachments", {})


def _text(cell: Cell) -> tuple[str, str]:
    return cell["cell_type"], cell["source"].replace("\r\n", "\n").rstrip()
