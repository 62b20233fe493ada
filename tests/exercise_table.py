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
    before: dict[str, Counter[str]] = {}
    reports = [report for kind in ("passed", "failed", "skipped") for report in terminalreporter.getreports(kind)]
    for report in reports:
        for name, value in getattr(report, "user_properties", ()):
            if name == "ledger":
                before[value[0]] = Counter(value[1])
            if name == PROPERTY:
                exercise, counts = value
                seconds[exercise] = max(seconds.get(exercise, 0.0), counts.pop("seconds", 0.0))
                found[exercise].update(counts)
    for exercise, counts in before.items():
        found[exercise] |= counts
    if not found:
        return
    terminalreporter.section("exercises: what their checks reject, name and accept")
    if before:
        terminalreporter.write_line(
            f"of {len(before)} of them as tests/exercises/ledger.txt says: nothing has changed since"
        )
    total: Counter[str] = Counter()
    for counts in found.values():
        total.update(counts)
    width = max(map(len, [*found, f"{len(found)} exercises"]))
    terminalreporter.write_line(" " * width + "".join(f"  {text:>8}" for text in COLUMNS.values()) + "  check ms")
    rows: list[tuple[str, Any, float]] = [(name, counts, seconds.get(name, 0.0)) for name, counts in found.items()]
    for name, counts, slowest in [*rows, (f"{len(found)} exercises", total, max(seconds.values()))]:
        cells = "".join(f"  {counts[column]:>8}" for column in COLUMNS)
        terminalreporter.write_line(f"{name:<{width}}{cells}  {slowest * 1e3:8.0f}")
