"""The linter, the formatter, the type checker and the spelling checker pass."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROSE = ["README.md", "CONTRIBUTING.md", "docs", "notebooks/sources", "course_lib", "coursework", "benchmarks", "tests"]


@pytest.mark.parametrize(
    "command",
    [
        ["ruff", "check", "."],
        ["ruff", "format", "--check", "."],
        ["mypy"],
        ["codespell_lib", *PROSE],
    ],
    ids=["ruff", "ruff format", "mypy", "codespell"],
)
def test_style(command):
    done = subprocess.run([sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
