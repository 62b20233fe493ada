"""Importing stays cheap: what loads what is read off sys.modules, not off a clock."""

import subprocess
import sys
from pathlib import Path

import pytest

import course_lib

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


COURSE = ("assembly", "classroom", "cli", "commands", "desk", "exercises", "explorers", "export", "records")
ALONE = """
import importlib, sys
sys.modules |= dict.fromkeys({blocked!r})  # as if they were not installed
for name in {modules!r}:
    importlib.import_module(name)
import torch
from course_lib.generation import generate
from course_lib.training import Run, TrainingConfig, tasks
from course_lib.training.curves import curve_html
from course_lib.transformer import LanguageModel, TransformerConfig
model = LanguageModel(TransformerConfig(d_model=8, n_heads=2, n_decoder_layers=1, vocab_size=9))
batch = {{"tokens": torch.randint(9, (2, 8))}}
run = Run(model, tasks.LanguageModelling(), [batch], TrainingConfig(steps=10, log_every=1)).train()
print(generate(model, batch["tokens"], max_new_tokens=2).shape, repr(curve_html(run.history)))
"""


def test_the_library_works_without_what_only_the_course_needs():
    blocked = ["matplotlib", "IPython", "ipywidgets", "typer", "rich", "pandas", "sklearn", "seaborn"]
    root = Path(course_lib.__file__).parent
    paths = [path.relative_to(root).with_suffix("") for path in sorted(root.rglob("[!_]*.py"))]
    modules = [".".join(("course_lib", *path.parts)) for path in paths if path.parts[0] not in COURSE]
    code = ALONE.format(blocked=blocked, modules=modules)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 12  # an estimate, ten steps, and what was generated
    assert lines[-1] == "torch.Size([2, 10]) ''"
