"""Results of programs that run too long for a notebook: what was run, where, and every number."""

import json
from pathlib import Path
from typing import Any

RECORDS = Path(__file__).parent


def record(name: str) -> dict[str, Any]:
    """Return a recorded result: "sweep" of `course sweep`, "speed-ladder-cpu" of `benchmarks/speed_ladder.py`.

    Raises ValueError for a name that there is not.
    """
    path = RECORDS / f"{name}.json"
    if not path.is_file():
        raise ValueError(
            f"name: expected one of {sorted(found.stem for found in RECORDS.glob('*.json'))}, got {name!r}"
        )
    return json.loads(path.read_text(encoding="utf-8"))
