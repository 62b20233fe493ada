"""Small helpers for the tests of the desk."""

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Notebook = dict[str, Any]


def save(path: Path, notebook: Notebook) -> None:
    path.write_text(json.dumps(notebook, ensure_ascii=False, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def load(path: Path) -> Notebook:
    return json.loads(path.read_text(encoding="utf-8"))


def text_of(cell: dict[str, Any]) -> str:
    return "".join(cell["source"])


def edit(path: Path, cell_id: str, source: str) -> None:
    """Replace one cell's source in a file."""
    notebook = load(path)
    cell = next(cell for cell in notebook["cells"] if cell["id"] == cell_id)
    cell["source"] = source
    save(path, notebook)


def texts(path: Path) -> dict[str, str]:
    return {cell["id"]: text_of(cell) for cell in load(path)["cells"]}


def exercise_cells(path: Path) -> dict[str, str]:
    """Exercise id -> cell id."""
    cells = load(path)["cells"]
    return {cell["metadata"]["exercise"]: cell["id"] for cell in cells if "exercise" in cell["metadata"]}


def snapshot(folder: Path) -> dict[str, bytes]:
    """Every file under a folder, but the lock, with its content."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "lock")
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


class Fault:
    """Makes the n-th step of writing files fail; counts the steps."""

    STEPS = ((tempfile, "mkstemp"), (os, "fsync"), (os, "chmod"), (os, "replace"))

    def __init__(self, monkeypatch: pytest.MonkeyPatch, at: int, problem: Callable[[], BaseException]) -> None:
        self.count, self.at, self.problem = 0, at, problem
        for module, name in self.STEPS:
            monkeypatch.setattr(module, name, self._wrap(getattr(module, name)))

    def _wrap(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def step(*arguments: Any, **options: Any) -> Any:
            self.count += 1
            if self.count == self.at:
                raise self.problem()
            return real(*arguments, **options)

        return step

    @property
    def happened(self) -> bool:
        return self.count >= self.at
