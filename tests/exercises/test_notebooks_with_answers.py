"""Answers in a notebook, right or wrong, change nothing else in it.

That a right one does not is seen where the notebooks are run: below each exercise's cell runs its solution. Here a copy
of each notebook has a wrong answer there, so that it goes on as it does from the stub; and a small notebook shows that
an answer which changes what follows is noticed. Copies are run through the checks of the notebooks' own folder: every
cell is compared as strictly as in the notebook itself.
"""

import copy
import os
import shutil
import subprocess
import sys

import nbformat
import pytest
from notebook_files import FOLDER, NOTEBOOKS, name
from proofs import run_cell

from coursework.exercises import registry
from coursework.exercises.engine import cells
from coursework.exercises.engine.diagnose import examiner
from coursework.exercises.engine.messages import message
from coursework.exercises.engine.question import judge
from coursework.exercises.spec import Question

WITH_EXERCISES = [path for path in NOTEBOOKS if name(path) in registry.places().values()]


def mistaken(entry, keep: bool = False) -> tuple[str, str]:
    """The cell with a wrong answer, and what its check says; the answer is a misconception of the exercise."""
    if isinstance(entry, Question):
        value = entry.wrong[0].value
        return f"answer = {value!r}\n{cells.last_line(entry)}\n", judge(entry, value)[2]
    misconception = entry.misconceptions[0]
    name = entry.function_name
    source = (
        f"from coursework.exercises import registry\n\n"
        f"{name} = registry.get({entry.id!r}).model(**{dict(misconception.knobs)!r})\n"
        f"{name} = ex.{entry.id}.check({name}, keep={keep})\n"
    ).replace("-inf", "-math.inf")
    candidate = entry.model(**misconception.knobs)
    finding = examiner(entry).examine(candidate)
    assert finding.misconceptions == (misconception,)
    return source, message(entry, finding, candidate, keep=keep)


def with_mistakes(notebook, keep: bool = False):
    """Put a wrong answer, and what its check says of it, below the stub of every exercise."""
    found = []
    for cell in notebook.cells:
        found.append(cell)
        if exercise := cell.metadata.pop("exercise", ""):  # without it, no right answer is put there
            answered = copy.deepcopy(cell)
            source, text = mistaken(registry.get(exercise), keep)
            answered.source = source.rstrip("\n")
            answered.outputs = [nbformat.v4.new_output("stream", name="stdout", text=text + "\n")]
            answered.id = f"{cell.id}-mistaken"
            found.append(answered)
    notebook.cells = found
    return notebook


def run(folder, **notebooks) -> subprocess.CompletedProcess[str]:
    """Run notebooks in a folder through the checks that lie beside the course's notebooks."""
    for stem, notebook in notebooks.items():
        nbformat.write(notebook, folder / f"{stem}.ipynb")
    shutil.copy(FOLDER / "conftest.py", folder)
    command = [sys.executable, "-m", "pytest", "--nbval", "-q", "-c", os.devnull, "--rootdir", str(folder)]
    command += ["-p", "no:cacheprovider", "-p", "no:xdist", "--no-header", "--tb=short", str(folder)]
    return subprocess.run(command, capture_output=True, text=True, timeout=900, cwd=folder, check=False)


@pytest.mark.thorough
@pytest.mark.parametrize("path", WITH_EXERCISES, ids=name)
def test_wrong_answers_change_nothing_else(path, tmp_path):
    notebook = nbformat.read(path, as_version=4)
    before = len(notebook.cells)
    with_mistakes(notebook)
    assert len(notebook.cells) == before + list(registry.places().values()).count(name(path))
    done = run(tmp_path, **{path.stem: notebook})
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


def small_notebook(module: str):
    """A notebook of one exercise and two cells that use its result, which comes from this module."""
    new = nbformat.v4
    mask = registry.get("causal_mask")
    sources = [
        (cells.PRELUDE, ""),
        (cells.cell_source(mask), run_cell(cells.cell_source(mask))[1].rstrip()),
        ("print(causal_mask(2, 3).int().tolist())", "[[1, 1, 0], [1, 1, 1]]"),
        ("print(causal_mask.__module__)", module),
    ]
    notebook = new.new_notebook()
    for number, (source, printed) in enumerate(sources, start=1):
        outputs = [new.new_output("stream", name="stdout", text=f"{printed}\n")] if printed else []
        notebook.cells.append(new.new_code_cell(source, outputs=outputs, execution_count=number, id=f"cell-{number}"))
    notebook.cells[1].metadata["exercise"] = "causal_mask"
    return notebook


def test_small_notebooks_with_answers(tmp_path):
    """Below the stub: the solution, a wrong answer, and one that stays; the last cells see whose mask is there."""
    ours = registry.get("causal_mask").reference.__module__
    done = run(
        tmp_path,
        right=small_notebook("__main__"),
        wrong=with_mistakes(small_notebook(ours)),
        stays=with_mistakes(small_notebook(ours), keep=True),
    )
    failed = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("FAILED")]
    assert failed == ["stays.ipynb::cell-3"], done.stdout
    assert "17 passed" in done.stdout.splitlines()[-1]
