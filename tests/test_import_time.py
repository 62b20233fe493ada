"""Importing stays cheap: what loads what is read off sys.modules, not off a clock."""

import subprocess
import sys

import pytest

HEAVY = {
    "torch",
    "numpy",
    "matplotlib",
    "seaborn",
    "pandas",
    "ipywidgets",
    "IPython",
    "transformers",
    "requests",
    "pooch",
    "scipy",
}


def loaded(code: str) -> set[str]:
    """The top-level modules that a fresh Python holds after running `code`."""
    code += "\nimport sys; print('\\n'.join({name.partition('.')[0] for name in sys.modules}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    return set(done.stdout.split())


def test_the_measure_sees_what_is_loaded():
    assert loaded("import numpy") & HEAVY == {"numpy"}


@pytest.mark.parametrize(
    ("code", "allowed"),
    [
        ("import course_lib", set()),
        ("import course_lib.files", set()),
        ("import coursework.cli", set()),
        ("import course_lib.masks, course_lib.attention", {"torch", "numpy"}),
        ("import course_lib.testing, course_lib.data, coursework.corpora, course_lib.scaling", set()),
        ("import coursework.pictures, coursework.explorers", set()),
        ("import course_lib.testing.claims", set()),
        ("import course_lib.variants", {"torch", "numpy"}),
        ("import coursework.exercises", set()),
    ],
)
def test_imports_load_no_more_than_they_need(code, allowed):
    assert loaded(code) & HEAVY <= allowed
