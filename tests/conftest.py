"""Fixtures shared by the tests, and tables of what they measured at the end of a run: parity, and laws obeyed."""

import math
import os
import re
import shutil
import signal
import tempfile
from collections import defaultdict

import pytest
import torch
from browsers import MISSING, browser, find_chromium, firefox  # noqa: F401 (fixtures)
from thorough import ALL

from course_lib.testing import Differences

PARITY = "parity"


def pytest_configure(config):
    import exercise_table  # printed by the process that the parallel workers report to, which loads only this file

    config.pluginmanager.register(exercise_table)
    # A run that a script starts in the background ignores interrupts, and so would all that the tests start.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if not hasattr(config, "workerinput"):
        _own_temporary_folder(config)


def _own_temporary_folder(config):
    """Give this run a temporary folder of its own, which goes with it: browsers and torchrun leave things behind.

    It stays, and its name is printed, if a test failed.
    """
    before = os.environ.get("TMPDIR")
    folder = os.environ["TMPDIR"] = tempfile.mkdtemp(prefix="course-tests-")
    tempfile.tempdir = None  # forget the one chosen before

    def end():
        os.environ.pop("TMPDIR")
        if before is not None:
            os.environ["TMPDIR"] = before
        tempfile.tempdir = None
        reporter = config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None and (reporter.stats.get("failed") or reporter.stats.get("error")):
            print(f"What the failed tests wrote: {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)

    config.add_cleanup(end)


# Files whose tests take minutes, one after the other in one process: they begin first, so that none is waited for.
LONG = ("test_notebooks_with_answers.py", "test_lab.py", "test_site.py", "test_assemble.py")
OF_AN_EXERCISE = re.compile(r"tests/exercises/\w+\.py::\w+\[(\w+)\]")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Whoever is free takes the next file, whole, for what its tests share is costly; or the next exercise."""
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid):
            of_one = OF_AN_EXERCISE.fullmatch(nodeid)
            return of_one[1] if of_one else nodeid.partition("::")[0]

    return Scheduling(config, log)


def pytest_collection_modifyitems(config, items):
    if not ALL:
        config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker("thorough")])
        items[:] = [item for item in items if not item.get_closest_marker("thorough")]
    items.sort(key=lambda item: LONG.index(item.path.name) if item.path.name in LONG else len(LONG))
    no_chromium = pytest.mark.skip(reason=MISSING) if find_chromium() is None else None
    for item in items:
        wanted = {"browser", "firefox"} & set(getattr(item, "fixturenames", ()))
        if wanted:
            item.add_marker(pytest.mark.browser)
        if no_chromium and "browser" in wanted:
            item.add_marker(no_chromium)


DEVICES = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}


def pytest_report_header():
    tried = "all" if ALL else "a part of what is random or slow; all with make test-all"
    absent = [name for name, there in DEVICES.items() if not there]
    devices = f"devices tested: {', '.join(name for name in DEVICES if DEVICES[name])}; not here: {', '.join(absent)}"
    return [devices, f"tried: {tried}"]


@pytest.fixture(params=[name for name, there in DEVICES.items() if there])
def device(request) -> str:
    """Each kind of device that this machine has, in turn; the header of a run names those that it lacks."""
    return request.param


@pytest.fixture(autouse=True)
def _seed() -> None:
    """Every test draws the same numbers, whichever ran before it."""
    torch.manual_seed(0)


@pytest.fixture
def record_parity(record_property):
    """Note differences from torch for the table: record_parity(row, column, differences)."""

    def record(row: str, column: str, found: Differences) -> None:
        record_property(PARITY, [row, column, *found])  # a property of the report travels from xdist's workers

    return record


@pytest.fixture
def parity(record_property):
    """Note a comparison with another library: parity(block, against, (outputs, gradients), dtype); NaN means none."""

    def record(block: str, against: str, found: tuple[float, float], dtype: object = "float32") -> None:
        record_property("block parity", [block, against, str(dtype).removeprefix("torch."), *map(float, found)])

    return record


@pytest.fixture
def obeys(record_property):
    """Note, once a law has passed, that a block obeys it: obeys(block, law)."""

    def record(block: str, law: str) -> None:
        record_property("law", [block, law])

    return record


@pytest.fixture
def note(record_property):
    """Print one line at the end of the run: note(text)."""
    return lambda text: record_property("note", text)


def pytest_terminal_summary(terminalreporter):
    _attention_table(terminalreporter)
    rows = [row for report in terminalreporter.getreports("passed") for row in getattr(report, "user_properties", ())]
    _parity_table(terminalreporter, [row for name, row in rows if name == "block parity"])
    _law_table(terminalreporter, [row for name, row in rows if name == "law"])
    for text in (text for name, text in rows if name == "note"):
        terminalreporter.write_line(text)


def _parity_table(terminalreporter, rows):
    groups = defaultdict(list)
    for block, against, dtype, output, gradient in rows:
        groups[block, against, dtype].append((output, gradient))
    if not groups:
        return
    terminalreporter.section("parity of blocks: largest absolute differences")
    terminalreporter.write_line(f"{'block':<42}{'against':<44}{'dtype':<9}{'cases':>6}{'outputs':>9}{'gradients':>10}")
    for (block, against, dtype), found in sorted(groups.items()):
        output, gradient = (max(values) for values in zip(*found, strict=True))
        words = "-" if math.isnan(gradient) else f"{gradient:.1e}"
        terminalreporter.write_line(f"{block:<42}{against:<44}{dtype:<9}{len(found):>6}{output:>9.1e}{words:>10}")


def _law_table(terminalreporter, rows):
    groups = defaultdict(lambda: defaultdict(int))
    for block, law in rows:
        groups[block][law] += 1
    if not groups:
        return
    laws = sorted({law for _, law in rows})
    terminalreporter.section("laws: tests in which each block obeyed them")
    terminalreporter.write_line(f"{'block':<42}" + "".join(f"{law:>{len(law) + 2}}" for law in laws))
    for block in sorted(groups):
        cells = "".join(f"{groups[block][law] or '-':>{len(law) + 2}}" for law in laws)
        terminalreporter.write_line(f"{block:<42}" + cells)


def _attention_table(terminalreporter):
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
