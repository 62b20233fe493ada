"""Exercise cells: finding an answer, what must run before it, the stub and back."""

from pathlib import Path

import pytest
from desk_simulation import course_cell, notebook_of
from desk_tools import edit, exercise_cells, load, save, texts

from coursework.desk import answers, code, names, notebooks, running
from coursework.desk.notebooks import parse_notebook
from coursework.desk.store import Desk, DeskError
from coursework.exercises import registry

ONE = "01_attention.ipynb"


def place_in(*cells: str | tuple[str, str]) -> answers.Place:
    """A place whose last cell is the answer; a pair is (exercise, source)."""
    made = []
    for number, cell in enumerate(cells):
        name, source = cell if isinstance(cell, tuple) else (None, cell)
        made.append(course_cell("code", f"c{number}", source, **({"exercise": name} if name else {})))
    return answers.Place(Path("x.ipynb"), "x", notebook_of(made), [len(made) - 1])


def test_reset_keeps_the_answer_and_the_rest(desk: Desk) -> None:
    path = desk.folder / ONE
    name, cell = next(iter(exercise_cells(path).items()))
    before = texts(path)
    assert answers.reset(desk, [name]) == []
    edit(path, cell, "never checked")
    assert answers.reset(desk, [name]) == [name]
    assert texts(path) == before
    assert desk.latest_answer(name) == "never checked\n"
    assert desk.attempts(name) == 0
    assert len(list((desk.private / "backup").rglob(ONE))) == 1


def test_an_unknown_exercise_says_what_to_do(desk: Desk) -> None:
    with pytest.raises(DeskError, match="course update"):
        answers.find(desk, "nowhere")


def test_a_damaged_notebook_is_named(desk: Desk) -> None:
    name = next(iter(exercise_cells(desk.folder / ONE)))
    (desk.folder / ONE).write_text('{"cells": [')
    with pytest.raises(DeskError, match="course rescue"):
        answers.find(desk, name)


def test_a_copied_cell_is_no_part_of_the_answer_and_a_split_one_is(desk: Desk) -> None:
    path = desk.folder / ONE
    name, cell_id = next(iter(exercise_cells(path).items()))
    notebook = load(path)
    number = next(n for n, cell in enumerate(notebook["cells"]) if cell["id"] == cell_id)
    cell = notebook["cells"][number]
    whole = f"def {name}(x):\n    return x\n\n\n{name} = ex.{name}.check({name})"
    cell["source"] = whole
    notebook["cells"].insert(number + 1, {**cell, "id": "copied", "source": whole.replace("return x", "return 2")})
    save(path, notebook)
    assert answers.find(desk, name).source == whole

    head, tail = whole.split("\n\n\n")
    notebook["cells"][number]["source"] = head
    notebook["cells"][number + 1]["source"] = tail
    save(path, notebook)
    assert answers.find(desk, name).source == f"{head}\n\n{tail}"
    answers.reset(desk, [name])
    assert "copied" not in texts(path)
    assert "raise NotImplementedError" in texts(path)[cell_id]
    assert desk.latest_answer(name) == f"{head}\n\n{tail}\n"


def test_the_prelude_is_imports_and_what_the_answer_uses() -> None:
    place = place_in(
        "%matplotlib inline\nimport math\nfrom os import path as p\nprint('must not run')",
        "import torch\nLIMIT = 3\nunused = 4\nscores = torch.rand(3)",
        "def used(x):\n    return inner(x) + LIMIT\n\ndef inner(x):\n    return x\n\ndef idle():\n    pass",
        ("earlier", "def earlier(x):\n    return used(x)\n\n\nearlier = ex.earlier.check(earlier)"),
        ("now", "def now(x):\n    return earlier(x) * scores + undefined"),
    )
    found = code.needs(place.above, place.source)
    before, missing = found.text, found.missing
    assert "must not run" not in before
    for text in (
        "import math",
        "from os import path",
        "import torch",
        "LIMIT = 3",
        "def used",
        "def inner",
        "def earlier",
    ):
        assert text in before, text
    for text in ("unused", "idle", "scores", "check("):
        assert text not in before, text
    assert missing == {"scores": "c1"}
    exec(compile(before.replace("import torch", ""), "prelude", "exec"), {})


def test_a_definition_replaced_by_running_counts_as_elsewhere() -> None:
    place = place_in("x = 1", "x = compute()", ("now", "def now():\n    return x"))
    assert code.needs(place.above, place.source).missing == {"x": "c1"}
    place = place_in("x = compute()", "x = 1", ("now", "def now():\n    return x"))
    assert code.needs(place.above, place.source).missing == {}


def test_what_other_exercises_are_given_and_what_parts_give_is_there() -> None:
    place = place_in(
        "my = so_far(chapter=3)\nAttention = my.Attention\nother = my.other",
        ("layer", "class Layer:\n    def __init__(self):\n        self.attention = Attention, other"),
        "split, mask = ex.split_heads.part(), ex.causal_mask.part()\nidle = ex.gpt.part()",
        ("now", "def now():\n    return Layer(), mask, split"),
    )
    found = code.needs(place.above, place.source)
    assert found.exercises == ["layer"]
    assert found.handed == {"split": "split_heads", "mask": "causal_mask"}
    answer = running.from_place(place)
    assert answer.missing == {"other": "c0"}
    given = running.parts("now", answer)
    assert given["mask"] is registry.get("causal_mask").reference
    assert given["Attention"] is registry.get("layer").parts["Attention"]
    whole = code.needs(place.above, place.source, whole=True).stand_ins
    assert sorted(whole.values()) == ["causal_mask", "gpt", "split_heads"]


def test_the_variable_of_a_comprehension_replaces_no_definition() -> None:
    place = place_in("def x():\n    return 1", "rows = [x for x in range(3)]", ("now", "def now():\n    return x()"))
    found = code.needs(place.above, place.source)
    before, missing = found.text, found.missing
    assert "def x" in before
    assert missing == {}


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        ("def f(a, b=k):\n    c = a\n    return c + g(b)", {"k", "g"}),
        ("class A(B):\n    x = y\n    def m(self):\n        return z", {"B", "y", "z"}),
        ("f = [i for i in range(n)]", {"range", "n"}),
        ("f = [i for i in range(n)]\ng = {i: j for i in n for j in i}\ndef h():\n    return i", {"range", "n", "i"}),
        ("import os\nos.getcwd()", set()),
        ("def f():\n    def g():\n        return outer\n    return g", {"outer"}),
        ("this is no python", set()),
    ],
)
def test_free_names(source: str, wanted: set[str]) -> None:
    assert names.free_names(source) == wanted


def test_notebook_commands_are_commented_out() -> None:
    assert code.runnable("%time x = 1\ny = 2") == "pass  # %time x = 1\ny = 2"
    assert code.runnable("%%time\nx = 1") == "# %%time\nx = 1"
    assert code.runnable("x = 5 \\\n  % 3") == "x = 5 \\\n  % 3"
    compile(code.runnable("!ls\nif True:\n    !ls -l\nfoo?"), "x", "exec")


def test_the_check_line_is_added_once() -> None:
    blank = "def f(x):\n    raise NotImplementedError\n\n\nf = ex.task.check(f)\n"
    answer = "def f(x):\n    return x\n"
    whole = notebooks.with_check(answer, blank, "task")
    assert whole == "def f(x):\n    return x\n\n\nf = ex.task.check(f)"
    assert notebooks.with_check(whole, blank, "task") == whole


def test_reading_notebooks_of_every_kind() -> None:
    old = b'{"metadata": {}, "nbformat": 3, "nbformat_minor": 0, "worksheets": [{"cells": [{"cell_type": "code", '
    old += b'"collapsed": false, "input": ["x = 1"], "language": "python", "metadata": {}, "outputs": []}]}]}'
    notebook = parse_notebook(old, "old.ipynb")
    assert notebook["cells"][0]["source"] == "x = 1"
    assert notebook["nbformat"] == 4
    twice = (
        b'{"cells": [{"cell_type": "raw", "id": "a", "source": "1"}, {"cell_type": "raw", "id": "a", "source": "2"}]}'
    )
    ids = [cell["id"] for cell in parse_notebook(twice, "twice.ipynb")["cells"]]
    assert ids[0] == "a"
    assert len(set(ids)) == 2
