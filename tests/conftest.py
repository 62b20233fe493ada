"""Fixtures shared by the tests, and the table of the largest differences from torch at the end of a run."""

import pytest
import torch

from course_lib.testing import Differences

PARITY = "parity"


DEVICES = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}


def pytest_report_header():
    absent = [name for name, there in DEVICES.items() if not there]
    return f"devices tested: {', '.join(name for name in DEVICES if DEVICES[name])}; not here: {', '.join(absent)}"


@pytest.fixture(params=[name for name, there in DEVICES.items() if there])
def device(request) -> str:
    """Each kind of device that this machine has, in turn; the header of a run names those that it lacks."""
    return request.param


@pytest.fixture
def record_parity(record_property):
    """Note differences from torch for the table: record_parity(row, column, differences)."""

    def record(row: str, column: str, found: Differences) -> None:
        record_property(PARITY, [row, column, *found])  # a property of the report travels from xdist's workers

    return record


def pytest_terminal_summary(terminalreporter):
    worst: dict[str, dict[str, tuple[float, float]]] = {}
    for report in terminalreporter.getreports("passed"):
        for name, value in getattr(report, "user_properties", ()):
            if name == PARITY:
                row, column, output, gradient = value
                before = worst.setdefault(column, {}).get(row, (0.0, 0.0))
                worst[column][row] = (max(before[0], output), max(before[1], gradient))
    if not worst:
        return
    rows = list(dict.fromkeys(row for cells in worst.values() for row in cells))
    width = max(map(len, rows))
    terminalreporter.section("largest differences from torch: output, gradient")
    columns = sorted(worst)
    terminalreporter.write_line(" " * width + "".join(f"  {column:>22}" for column in columns))
    for row in rows:
        cells = [worst[column].get(row) for column in columns]
        texts = ["" if cell is None else f"{cell[0]:.1e} {cell[1]:.1e}" for cell in cells]
        terminalreporter.write_line(f"{row:<{width}}" + "".join(f"  {text:>22}" for text in texts))
