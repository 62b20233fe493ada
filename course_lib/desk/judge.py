"""The process that `isolated.check` starts: it runs one answer, judges it, and leaves a report of the verdict."""

import contextlib
import io
import json
import sys
from pathlib import Path
from typing import Any

from course_lib.desk import running
from course_lib.desk.store import Desk, DeskError
from course_lib.exercises.engine.diagnose import RIGHT
from course_lib.exercises.engine.guard import memory_cap
from course_lib.files import write_atomic

MEMORY = 4 << 30
"""Bytes that the answer's cell may allocate before the check, which has limits of its own."""


def main(request: dict[str, Any], report: Path) -> None:
    """Run the answer, judge it, and leave the report."""
    result = {"problem": "", "text": "", "right": False}
    said = io.StringIO()
    try:
        desk = request["desk"] and Desk(request["desk"])
        handle = running.handle(request["exercise"], desk)
        if request["file"]:
            answer, folder = running.from_file(Path(request["file"])), Path.cwd()
        else:
            answer, folder = running.from_notebook(desk, handle.spec.id), desk.folder
        with running.working_in(folder):
            with memory_cap(MEMORY):
                value = running.evaluate(handle, answer)
            with contextlib.redirect_stdout(said):
                result["right"] = handle.judge(value) == RIGHT
        if not result["right"] and answer.missing:
            print(running.explain_missing(answer.missing), file=said)
    except DeskError as problem:
        result["problem"] = str(problem)
    except Exception as problem:  # an answer strange enough to break what reads it
        result["problem"] = f"the answer could not be judged ({type(problem).__name__}: {str(problem)[:200]})."
    result["text"] = said.getvalue()
    write_atomic(report, json.dumps(result))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), Path(sys.argv[2]).absolute())
