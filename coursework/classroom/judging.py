"""Judge the answers of a whole class, each in a process of its own.

Only the cells of the exercises count, with the definitions that they use, as this installation's registry judges them.
Running the rest of a notebook would add hours and the ways in which a notebook can lie: what it prints and stores, a
check that it patches, a result that another cell changes.
"""

import datetime
import os
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from course_lib.files import temporary_folder
from coursework.classroom.remarks import Remarks, remarks
from coursework.classroom.submissions import Found, Learner, answers, is_called_like, learners, read
from coursework.classroom.workers import Worker
from coursework.desk.finding import is_called
from coursework.desk.notebooks import DamagedNotebook, dump_notebook
from coursework.desk.pen import FOLDER, Limits
from coursework.desk.store import DeskError
from coursework.exercises import registry
from coursework.exercises.engine import cells
from coursework.exercises.engine.finding import NOT_ATTEMPTED, RIGHT, WRONG

PASS, FAIL, OPEN, BROKEN = "pass", "fail", "not attempted", "could not be run"
OUTCOMES = (PASS, FAIL, OPEN, BROKEN)
SCHEMA = "course-verify/1"

_OUTCOME = {RIGHT: PASS, WRONG: FAIL, NOT_ATTEMPTED: OPEN}


@dataclass(frozen=True)
class Task:
    """One answer to judge: whose, of which exercise, where, and how the learner called the notebook."""

    learner: int
    exercise: str
    notebook: Path
    numbers: tuple[int, ...]
    name: str


def judge_class(
    folder: Path,
    *,
    chapters: Collection[str] = (),
    exercises: Collection[str] = (),
    jobs: int | None = None,
    limits: Limits | None = None,
    shown: Callable[[int, int], None] = lambda done, of: None,
) -> dict[str, Any]:
    """Judge all answers in `folder` and return the report, which docs/classroom.md describes.

    Args:
        folder: one folder or notebook for each learner, see `submissions.learners`.
        chapters: only the exercises of these chapters and labs ("1", "labs/05"); else those of the notebooks found.
        exercises: only these.
        jobs: answers judged at once; else as many as there are processors.
        limits: for each answer.
        shown: called with how many answers are judged, and of how many.

    Raises DeskError if there are no learners, or a chapter or an exercise is not known.
    """
    limits = limits or Limits()
    started = datetime.datetime.now(datetime.UTC)
    class_ = learners(folder)
    with ExitStack() as stack:
        place = stack.enter_context(temporary_folder(FOLDER))
        results: list[dict[str, dict[str, Any]]] = []
        damaged: list[list[DamagedNotebook]] = []
        tasks: list[Task] = []
        looks: dict[tuple[int, str], Remarks] = {}
        seen: set[str] = set()
        for number, learner in enumerate(class_):
            found, bad = _collect(learner)
            damaged.append(bad)
            results.append({})
            seen |= {registry.places()[one] for one in found}
            seen |= {name for name in _names() for problem in bad if is_called_like(problem.name, name)}
            written: dict[Path, Path] = {}
            for exercise, (one, others) in found.items():
                if one.path not in written:
                    written[one.path] = place / f"{number}-{len(written)}.ipynb"
                    text = dump_notebook(one.notebook).encode("utf-8", "backslashreplace")
                    written[one.path].write_bytes(text)
                several = [f"answered in {others + 1} places; this one counts"] if others else []
                results[number][exercise] = _result(OPEN, where=_where(one, folder), remarks=several)
                if one.source.strip() != cells.cell_source(registry.get(exercise)).strip():
                    looks[number, exercise] = remarks(one)
                    tasks.append(Task(number, exercise, written[one.path], tuple(one.numbers), one.path.stem))
        wanted = _wanted(seen, chapters, exercises)
        lost = 0
        tasks = [task for task in tasks if task.exercise in wanted]
        for done, (task, said) in enumerate(_judged(tasks, jobs or os.cpu_count() or 1, limits, folder), start=1):
            results[task.learner][task.exercise] |= _said(said)
            lost += "verdict" not in said
            shown(done, len(tasks))
    judged = {(task.learner, task.exercise) for task in tasks}
    for (number, exercise), look in looks.items():
        own = results[number]
        own[exercise]["remarks"] += look.texts
        for other in sorted(look.stand_ins):
            tried = (number, other) in looks and (number, other) not in judged  # and whether it is right is not known
            if other == exercise or not (tried or own.get(other, {}).get("outcome") == PASS):
                own[exercise]["remarks"].append(
                    f"it rests on the course's own version of {other}, which this learner has not solved"
                )
    for learner, own, bad in zip(class_, results, damaged, strict=True):
        _fill(learner, own, bad, wanted)
    return {
        "schema": SCHEMA,
        "started": started.isoformat(timespec="seconds"),
        "seconds": round((datetime.datetime.now(datetime.UTC) - started).total_seconds(), 1),
        "not_judged": lost,
        "limits": {"seconds": limits.seconds, "megabytes": limits.memory >> 20},
        "exercises": [
            {"id": one, "title": registry.get(one).title, "notebook": registry.places()[one]} for one in wanted
        ],
        "learners": [
            {
                "name": learner.name,
                "id": learner.identifier,
                "problems": [*learner.problems, *map(str, bad)],
                "results": [{"exercise": one, **own[one]} for one in wanted],
            }
            for learner, own, bad in zip(class_, results, damaged, strict=True)
        ],
    }


def _names() -> Iterable[str]:
    return dict.fromkeys(name for name in registry.places().values() if name)


def _wanted(seen: Collection[str], chapters: Collection[str], exercises: Collection[str]) -> list[str]:
    """The exercises to report on, in course order."""
    places = registry.places()
    for one in exercises:
        if one not in places:
            raise DeskError(registry.unknown(one))
    for one in chapters:
        if not any(is_called(name, one) for name in _names()):
            raise DeskError(f"--chapter must be the number or beginning of a chapter or lab, got {one!r}.")
    of_chapters = [one for one, name in places.items() if any(is_called(name, chapter) for chapter in chapters)]
    if chapters and (other := next((one for one in exercises if one not in of_chapters), None)):
        raise DeskError(f"--exercise: expected one of the chapters {', '.join(chapters)}, got {other}.")
    if exercises:
        return [one for one in places if one in exercises]
    if chapters:
        return of_chapters
    return [one for one, name in places.items() if name in seen]


def _collect(learner: Learner) -> tuple[dict[str, tuple[Found, int]], list[DamagedNotebook]]:
    """The answer to each exercise, with the number of other places that answer it, and the notebooks not readable."""
    places: dict[str, list[Found]] = {}
    damaged: list[DamagedNotebook] = []
    for path in learner.files:
        try:
            for one in answers(path, read(path)):
                places.setdefault(one.exercise, []).append(one)
        except DamagedNotebook as problem:
            damaged.append(problem)
        except Exception as problem:  # one bad notebook never stops the rest
            damaged.append(DamagedNotebook(path.name, f"something that cannot be read ({type(problem).__name__})"))
    chosen = {}
    for exercise, found in places.items():
        stub = cells.cell_source(registry.get(exercise)).strip()
        found.sort(key=lambda one: not is_called_like(one.path.name, registry.places()[exercise]))  # its home first
        tried = [one for one in found if one.source.strip() != stub]
        chosen[exercise] = (tried or found)[0], max(0, len(tried) - 1)
    return chosen, damaged


def _where(one: Found, folder: Path) -> str:
    return f"{one.path.relative_to(folder).as_posix()}, cell {one.notebook['cells'][one.numbers[0]]['id']}"


def _result(outcome: str, reason: str = "", where: str = "", remarks: Iterable[str] = ()) -> dict[str, Any]:
    return {
        "outcome": outcome,
        "misconceptions": [],
        "reason": reason,
        "where": where,
        "remarks": list(remarks),
    }


def _judged(tasks: list[Task], jobs: int, limits: Limits, folder: Path) -> Iterator[tuple[Task, dict[str, Any]]]:
    """Yield each task with the report on it, in order, as soon as it and those before are done."""
    jobs = max(1, min(jobs, len(tasks)))
    with ExitStack() as stack:
        pool = ThreadPoolExecutor(jobs)  # Linux ends what a thread has started with the thread: it ends last
        stack.callback(pool.shutdown, cancel_futures=True)
        free: SimpleQueue[Worker] = SimpleQueue()
        for _ in range(jobs):
            free.put(stack.enter_context(Worker(limits, [folder.resolve()])))

        def judge(task: Task) -> dict[str, Any]:
            worker = free.get()
            try:
                request = {"notebook": str(task.notebook), "numbers": task.numbers, "exercise": task.exercise}
                return worker.judge({**request, "name": task.name})
            except Exception as problem:  # whatever it is, the others are judged
                return {"problem": f"{type(problem).__name__}: {problem}"}
            finally:
                free.put(worker)

        yield from zip(tasks, pool.map(judge, tasks), strict=True)


def _said(said: dict[str, Any]) -> dict[str, Any]:
    """What a report of `judge.main` says, as part of a result."""
    outcome = _OUTCOME.get(said.get("verdict", ""), BROKEN)
    reason = said["problem"] if outcome == BROKEN else ""
    named = said.get("misconceptions", [])
    if outcome == FAIL and not named:
        case = said.get("case")
        reason = f"{case['name']}: {case['differs']}" if case else "no mistake that the course knows"
    return {"outcome": outcome, "misconceptions": named, "reason": reason}


def _fill(
    learner: Learner, own: dict[str, dict[str, Any]], damaged: Collection[DamagedNotebook], wanted: Iterable[str]
) -> None:
    """Say of every exercise without a cell why there is none."""
    for exercise in wanted:
        if exercise in own:
            continue
        home = registry.places()[exercise]
        mine = [problem for problem in damaged if is_called_like(problem.name, home)]
        mine = mine or [one for one in damaged if not any(is_called_like(one.name, name) for name in _names())]
        if mine:
            own[exercise] = _result(BROKEN, str(mine[0]))
        elif not learner.files and learner.problems:
            own[exercise] = _result(BROKEN, learner.problems[0])
        else:
            own[exercise] = _result(OPEN, "no notebook with a cell for it" if not learner.files else "no cell for it")
