"""A notebook reads no file of the repository but those of the package, so that it runs from an installed one."""

import ast
import json
import re
from functools import cache

import jupytext
from each import each
from notebook_files import SOURCES, name

from coursework.records import claim, record
from coursework.records.claim import CLAIMS
from coursework.records.record import MEASURED

OUTSIDE = re.compile(r"(^|/)(\.\.|benchmarks|docs|tests|notebooks|sources)(/|$)")
READERS = {"record": record, "claim": claim}


def outside(code: str) -> list[str]:
    """What in a cell looks for a place beside the package: the file of a module, folders above, paths with "..".

    Text that is printed or shown may name such a path; it is only one if something is done with it as a path.
    """
    found = []
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Attribute) and node.attr in ("__file__", "__path__", "parents"):
            found.append(node.attr)
        elif isinstance(node, ast.Name) and node.id == "__file__":
            found.append(node.id)
        elif isinstance(node, ast.Call) and _called(node) in ("Path", "open", "read_text", "loadtxt", "load"):
            texts = [arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
            found += [text for text in texts if OUTSIDE.search(text)]
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) and isinstance(node.right, ast.Constant):
            found += [text for text in [node.right.value] if isinstance(text, str) and OUTSIDE.search(text)]
    return found


def names_read(code: str) -> list[tuple[str, str]]:
    """The records that the code reads: the function, by its own name, and the name of the record."""
    tree = ast.parse(code)
    imported = [one for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for one in node.names]
    known = {one.asname or one.name: one.name for one in imported if one.name in READERS}
    known |= {reader: reader for reader in READERS}
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and _called(node) in known and node.args]
    return [(known[_called(node)], str(node.args[0].value)) for node in calls if isinstance(node.args[0], ast.Constant)]


def _called(node: ast.Call) -> str:
    return getattr(node.func, "id", getattr(node.func, "attr", ""))


@cache
def cells(path) -> list[str]:
    """The code of a source; exercises are built into it later."""
    notebook = jupytext.reads(path.read_text(encoding="utf-8"), fmt="py:percent")
    return [cell.source for cell in notebook.cells if cell.cell_type == "code"]


@each(SOURCES, name)
def test_a_notebook_reads_nothing_beside_the_package(path):
    assert [place for code in cells(path) for place in outside(code)] == []


@each(SOURCES, name)
def test_every_record_that_a_notebook_reads_is_in_the_package(path):
    for function, wanted in names_read("\n".join(cells(path))):
        READERS[function](wanted)


def test_every_measured_record_is_shown_somewhere_and_says_its_command():
    shown = {wanted for path in SOURCES for _, wanted in names_read("\n".join(cells(path)))}
    for path in MEASURED.glob("*.json"):
        text = path.read_text(encoding="utf-8")
        assert re.search(r'"command": "(python benchmarks/|course )', text), path.name
        assert json.loads(text).get("name", path.stem) == path.stem
        assert path.stem in shown, f"no notebook shows {path.stem}: it belongs in benchmarks/results"
    assert CLAIMS.is_dir()


def test_places_beside_the_package_are_found():
    planted = [
        "place = Path(course_lib.__file__).parents[1] / 'benchmarks' / 'results'",
        "json.loads(Path('../benchmarks/results/minilm-cpu.json').read_text())",
        "open('docs/syllabus.csv')",
        "text = (here / 'tests').iterdir()",
    ]
    assert all(outside(code) for code in planted)
    harmless = [
        "print('python benchmarks/variants.py')",
        "folder / 'checkpoints'",
        "half = n / 2",
        "Path(folder, name)",
    ]
    assert not any(outside(code) for code in harmless)
    assert names_read("records.record('sweep')") == [("record", "sweep")]
    assert names_read("from coursework.records import record as old\nold('sweep')") == [("record", "sweep")]
