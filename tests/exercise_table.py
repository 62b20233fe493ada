"""The table of what the proofs over all exercises found, printed at the end of a run."""

from collections import Counter, defaultdict
from typing import Any

import pytest

PROPERTY = "exercise"
COLUMNS = {
    "misconceptions": "wrong",
    "rejected": "rejected",
    "named": "named",
    "false": "false",
    "pairs": "pairs",
    "pairs named": "named",
    "alternatives": "others",
    "alternatives accepted": "accepted",
    "garbage rejected": "garbage",
    "mutants": "mutants",
    "killed": "killed",
    "equivalent": "equal",
}


@pytest.hookimpl
def pytest_terminal_summary(terminalreporter):
    found: dict[str, Counter[str]] = defaultdict(Counter)
    seconds: dict[str, float] = {}
    for report in terminalreporter.getreports("passed") + terminalreporter.getreports("failed"):
        for name, value in getattr(report, "user_properties", ()):
            if name == PROPERTY:
                exercise, counts = value
                seconds[exercise] = max(seconds.get(exercise, 0.0), counts.pop("seconds", 0.0))
                found[exercise].update(counts)
    if not found:
        return
    terminalreporter.section("exercises: what their checks reject, name and accept")
    total: Counter[str] = Counter()
    for counts in found.values():
        total.update(counts)
    width = max(map(len, [*found, f"{len(found)} exercises"]))
    terminalreporter.write_line(" " * width + "".join(f"  {text:>8}" for text in COLUMNS.values()) + "  check ms")
    rows: list[tuple[str, Any, float]] = [(name, counts, seconds.get(name, 0.0)) for name, counts in found.items()]
    for name, counts, slowest in [*rows, (f"{len(found)} exercises", total, max(seconds.values()))]:
        cells = "".join(f"  {counts[column]:>8}" for column in COLUMNS)
        terminalreporter.write_line(f"{name:<{width}}{cells}  {slowest * 1e3:8.0f}")
