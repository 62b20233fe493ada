"""The process that tries answers, each with the course's own version of all other parts.

It leaves a report after each answer, so that one which ends the process or never ends is known by name.
"""

import contextlib
import io
import json
import sys
from pathlib import Path
from typing import Any

from course_lib.files import write_atomic
from coursework.assembly.parts import FUNCTIONS
from coursework.exercises import registry
from coursework.exercises.engine.cells import PRELUDE
from coursework.exercises.engine.diagnose import diagnose
from coursework.exercises.engine.finding import RIGHT
from coursework.exercises.engine.guard import memory_cap
from coursework.exercises.spec import Exercise

MEMORY = 4 << 30


def main(request: dict[str, str], report: Path) -> None:
    """Judge the sources of the request, by exercise."""
    known = [one for one in FUNCTIONS if one in registry.places()]
    said: dict[str, Any] = {"judged": {}, "now": ""}
    for exercise_id, text in request.items():
        said["now"] = exercise_id
        write_atomic(report, json.dumps(said))
        said["judged"][exercise_id] = _judge(exercise_id, text, known)
    said["now"] = ""
    write_atomic(report, json.dumps(said))


def _judge(exercise_id: str, text: str, known: list[str]) -> str:
    """Return "" if the answer is right, else why not."""
    spec = registry.get(exercise_id)
    namespace: dict[str, Any] = {"__name__": "answer"}
    exec(PRELUDE, namespace)
    for one in known:
        other = registry.get(one)
        if isinstance(other, Exercise):
            namespace[FUNCTIONS[one]] = other.reference
    if not isinstance(spec, Exercise):
        return "it is no exercise in code any more"
    namespace |= spec.parts
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            with memory_cap(MEMORY):
                exec(compile(text, f"<{exercise_id}>", "exec"), namespace)
            verdict = diagnose(spec, namespace[FUNCTIONS[exercise_id]]).verdict
    except KeyboardInterrupt:
        raise
    except BaseException as problem:  # whatever an answer raises
        return f"running it raised {type(problem).__name__}: {str(problem)[:100]}"
    return "" if verdict == RIGHT else "it does not pass the check of today"


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")), Path(sys.argv[2]))
