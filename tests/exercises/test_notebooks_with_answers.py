"""Notebooks with answers in place of the stubs run to their end, and everything else comes out as it is shipped.

A copy of each notebook gets answers in its exercise cells, a wrong one and then the right one, together with the output
that the check must give, and is run again through the checks of the notebooks' own folder: every cell is compared as
strictly as in the notebook itself.
"""

import copy
import os
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from notebook_files import FOLDER, NOTEBOOKS, name

from coursework.exercises import registry
from coursework.exercises.engine import cells
from coursework.exercises.engine.diagnose import examiner
from coursework.exercises.engine.messages import message
from coursework.exercises.engine.question import judge
from coursework.exercises.spec import Question

WITH_EXERCISES = [path for path in NOTEBOOKS if name(path) in registry.places().values()]


def solved(entry) -> tuple[str, str]:
    """The cell with the solution, and what its check says."""
    if isinstance(entry, Question):
        return cells.solved_cell_source(entry), judge(entry, entry.right)[2]
    finding = examiner(entry).examine(entry.reference)
    return cells.solved_cell_source(entry), message(entry, finding, entry.reference, keep=False)


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


def substituted(notebook, *answers):
    """Put answers, one after the other, and their checks' outputs in the place of every exercise cell."""
    found = []
    for cell in notebook.cells:
        if "exercise" not in cell.metadata:
            found.append(cell)
            continue
        for number, answer in enumerate(answers):
            answered = copy.deepcopy(cell)
            source, text = answer(registry.get(cell.metadata["exercise"]))
            answered.source = source.rstrip("\n")
            answered.outputs = [nbformat.v4.new_output("stream", name="stdout", text=text + "\n")]
            answered.id = f"{cell.id}-{number}"
            found.append(answered)
    notebook.cells = found


def run_again(folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the notebooks of a folder through the checks that lie beside the course's notebooks."""
    shutil.copy(FOLDER / "conftest.py", folder)
    command = [sys.executable, "-m", "pytest", "--nbval", "-q", "-c", os.devnull, "--rootdir", str(folder)]
    command += ["-p", "no:cacheprovider", "-p", "no:xdist", "--no-header", "--tb=short", str(folder)]
    return subprocess.run(command, capture_output=True, text=True, timeout=900, cwd=folder, check=False)


@pytest.mark.slow
@pytest.mark.parametrize("path", WITH_EXERCISES, ids=name)
def test_answers_change_nothing_else(path, tmp_path):
    notebook = nbformat.read(path, as_version=4)
    before = len(notebook.cells)
    substituted(notebook, mistaken, solved)
    assert len(notebook.cells) == before + list(registry.places().values()).count(name(path))
    nbformat.write(notebook, tmp_path / path.name)
    done = run_again(tmp_path)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


def small_notebook():
    """A notebook of one exercise and two cells that use its result, as it would be shipped."""
    new = nbformat.v4
    mask = registry.get("causal_mask")
    sources = [
        (cells.PRELUDE, []),
        (cells.cell_source(mask), []),
        ("print(causal_mask(2, 3).int().tolist())", [[[1, 1, 0], [1, 1, 1]]]),
        ("print(causal_mask(1, 2).int().tolist())", [[[1, 1]]]),
    ]
    notebook = new.new_notebook()
    for number, (source, printed) in enumerate(sources, start=1):
        outputs = [new.new_output("stream", name="stdout", text=f"{value}\n") for value in printed]
        notebook.cells.append(new.new_code_cell(source, outputs=outputs, execution_count=number, id=f"cell-{number}"))
    notebook.cells[1].metadata["exercise"] = "causal_mask"
    return notebook


@pytest.mark.parametrize("answer", [solved, mistaken])
def test_a_small_notebook_with_answers(answer, tmp_path):
    notebook = small_notebook()
    substituted(notebook, answer)
    nbformat.write(notebook, tmp_path / "small.ipynb")
    done = run_again(tmp_path)
    assert done.returncode == 0, done.stdout


def test_an_answer_that_changes_what_follows_is_noticed(tmp_path):
    notebook = small_notebook()
    substituted(notebook, lambda entry: mistaken(entry, keep=True))
    nbformat.write(notebook, tmp_path / "small.ipynb")
    done = run_again(tmp_path)
    assert done.returncode == 1
    assert "small.ipynb::cell-3" in done.stdout
    assert "small.ipynb::cell-2" not in done.stdout
