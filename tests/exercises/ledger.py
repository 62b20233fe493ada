"""What was proved of each exercise, so that nothing is proved again in vain: `ledger.txt`, one line an exercise.

A line has the exercise's id, a hash, and what the tests marked `proof` counted. The hash covers those counts, the
version of torch, and all code that the proof rests on: the exercise's module, the tests, and every module
of this repository that they import, directly or not, as syntax, without comments, docstrings and layout.

`make test` proves an exercise again when its line is missing or has another hash. Whatever the hashes say, it proves
every tenth exercise, and what is counted there must be what the line says. `make test-all` proves all of them.

    python tests/exercises/ledger.py               proves what has no line that holds, and writes the ledger
    python tests/exercises/ledger.py causal_mask   proves these exercises alone
    python tests/exercises/ledger.py --all         proves all
"""

import ast
import functools
import hashlib
import os
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from coursework.exercises import bank

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(HERE.parent))

from thorough import ALL  # noqa: E402

LEDGER = HERE / "ledger.txt"

Counts = dict[str, int]


def files_of(module: str) -> list[Path]:
    """The files that importing a module of this repository runs, its packages' included; none for another's.

    None for the desk, either, to which the door of the exercises hands answers: no proof goes through it.
    """
    if module.startswith("coursework.desk"):
        return []
    found = []
    parts = module.split(".")
    for folder in (ROOT, HERE):
        for end in range(1, len(parts) + 1):
            path = folder.joinpath(*parts[:end])
            found += [path.with_suffix(".py"), path / "__init__.py", path / "__init__.pyi"]
    return [path for path in found if path.is_file()]


def modules_in(path: Path, tree: ast.AST) -> Iterator[str]:
    """The names that a file imports, at its head or later, relative ones resolved."""
    package = path.relative_to(ROOT).parts[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = [*package[: len(package) - node.level + 1]] if node.level else []
            base += node.module.split(".") if node.module else []
            yield from (".".join([*base, alias.name]) for alias in node.names)


@functools.cache
def read(path: Path) -> tuple[str, frozenset[Path]]:
    """The hash of a file's syntax, and the files that it imports."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
            and ast.get_docstring(node, clean=False) is not None
        ):
            node.body[0] = ast.Pass()
    imported = frozenset(found for module in modules_in(path, tree) for found in files_of(module))
    return hashlib.sha256(repr(syntax(tree)).encode()).hexdigest(), imported


def syntax(node: Any) -> Any:
    """A tree as plain values, the same in every version of Python: fields that hold nothing are left out."""
    if isinstance(node, ast.AST):
        filled = ((name, value) for name, value in ast.iter_fields(node) if value is not None and value != [])
        return type(node).__name__, [(name, syntax(value)) for name, value in filled]
    return [syntax(one) for one in node] if isinstance(node, list) else node


def rests_on(*paths: Path) -> set[Path]:
    """These files and all that they import."""
    found, new = set(paths), list(paths)
    while new:
        more = read(new.pop())[1] - found
        found |= more
        new += more
    return found


@functools.cache
def proofs() -> tuple[Path, ...]:
    """The tests that the ledger stands for."""
    return tuple(path for path in sorted(HERE.glob("test_*.py")) if "\n@proof\n" in path.read_text(encoding="utf-8"))


def digest(name: str, counts: Counts) -> str:
    """The hash of a line: of what was counted for an exercise, and of all that this rests on."""
    path = Path(bank.__path__[0]) / f"{name}.py"
    texts = [read(one)[0] for one in sorted(rests_on(path, *proofs()))]
    texts += [torch.__version__.partition("+")[0], written(counts)]
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]


def written(counts: Counts) -> str:
    return " ".join(f"{name.replace(' ', '-')}={counts[name]}" for name in sorted(counts))


@functools.cache
def lines() -> dict[str, tuple[str, Counts]]:
    """What the ledger says: id -> (hash, counts)."""
    found = {}
    for line in LEDGER.read_text(encoding="utf-8").splitlines() if LEDGER.exists() else []:
        name, hashed, *cells = line.split()
        pairs = (cell.partition("=") for cell in cells)
        found[name] = hashed, {key.replace("-", " "): int(value) for key, _, value in pairs}
    return found


@functools.cache
def proved(name: str) -> Counts | None:
    """What was counted for an exercise, if its line is there and nothing has changed since."""
    hashed, counts = lines().get(name, ("", {}))
    return counts if hashed and hashed == digest(name, counts) else None


def made_again(name: str) -> bool:
    """Whether a proof is made though it was made before."""
    return (ALL and "COURSE_LEDGER" not in os.environ) or name in list(lines())[::10]


class Clerk:
    """Collects what a run of the proofs counts."""

    def __init__(self) -> None:
        self.counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self.failed: set[str] = set()

    def pytest_runtest_logreport(self, report) -> None:
        if report.failed:
            self.failed.add(report.nodeid.partition("[")[2].rstrip("]"))
        for kind, value in report.user_properties:
            name, counts = value
            if kind == "ledger":
                self.counts[name] = Counter(counts)
            elif report.when == "call" and report.passed:
                self.counts[name].update({key: n for key, n in counts.items() if key != "seconds"})


def main() -> int:
    """Prove, and write what was counted."""
    chosen, everything = [one for one in sys.argv[1:] if one != "--all"], "--all" in sys.argv
    os.environ["COURSE_TESTS"] = "all"
    if not chosen and not everything:
        os.environ["COURSE_LEDGER"] = "what has changed"
    clerk = Clerk()
    named = ["-k", " or ".join(chosen)] if chosen else []
    code = pytest.main([str(HERE), "-m", "proof", "-q", "-n", "2", *named], plugins=[clerk])
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):  # interrupted: proofs may be missing
        return int(code)
    found = {name: (digest(name, counts), counts) for name, counts in clerk.counts.items() if name not in clerk.failed}
    if chosen or code != pytest.ExitCode.OK:
        found = lines() | {name: line for name, line in found.items() if not chosen or name in chosen}
    text = [f"{name} {hashed} {written(counts)}\n" for name, (hashed, counts) in sorted(found.items())]
    LEDGER.write_text("".join(text), encoding="utf-8")
    return int(code)


if __name__ == "__main__":
    sys.exit(main())
