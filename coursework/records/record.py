"""Results of programs that run too long for a notebook: what was run, where, and every number."""

import json
from pathlib import Path
from typing import Any

MEASURED = Path(__file__).parent / "measured"


def record(name: str) -> dict[str, Any]:
    """Return a recorded result, such as "sweep" of `course sweep` or "minilm-cpu" of `benchmarks/minilm.py`.

    Each says which command made it. Raises ValueError for a name that there is not.
    """
    path = MEASURED / f"{name}.json"
    if not path.is_file():
        raise ValueError(
            f"name: expected one of {sorted(found.stem for found in MEASURED.glob('*.json'))}, got {name!r}"
        )
    return json.loads(path.read_text(encoding="utf-8"))
