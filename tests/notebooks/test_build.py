"""The builder: text sources become executed notebooks, and nothing wrong or half done replaces a right one."""

import importlib.util
import json
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest

ROOT = Path(__file__).resolve().parents[2]

GOOD = '''
# %% [markdown] id="title"
# # Title
#
# With a formula $x^2$.

# %% id="define"
def square(x):
    """Return x squared."""
    return x * x

# %% id="use" tags=["tol:0.01"]
print(square(3.0))
square(4)
'''


@pytest.fixture
def write(tmp_path):
    """Write a source; return it and the place of its notebook."""

    def write(text: str) -> tuple[Path, Path]:
        source = tmp_path / "sources" / "01_title.py"
        source.parent.mkdir(exist_ok=True)
        source.write_text(text.lstrip())
        return source, tmp_path / "01_title.ipynb"

    return write


def fake_exercise(exercise_id):
    if exercise_id != "causal_mask":
        raise KeyError(exercise_id)
    prompt = "### Exercise: a mask\n\nBuild it."
    return prompt, "def causal_mask(T, S):\n    raise NotImplementedError  # your code here\n"


def test_cells_keep_their_ids_text_tags_and_order(builder, write):
    notebook = builder.read_source(write(GOOD)[0])
    assert [(cell.id, cell.cell_type) for cell in notebook.cells] == [
        ("title", "markdown"),
        ("define", "code"),
        ("use", "code"),
    ]
    assert notebook.cells[0].source == "# Title\n\nWith a formula $x^2$."
    assert notebook.cells[1].metadata == {}
    assert notebook.cells[2].metadata == {"tags": ["tol:0.01"]}


def test_an_exercise_becomes_a_prompt_and_a_stub(builder, write):
    source, _ = write(GOOD + '\n# %% exercise="causal_mask"\n\n# %% id="last"\nprint(1)\n')
    cells = builder.read_source(source, fake_exercise).cells
    prompt, stub = cells[3:5]
    assert (prompt.id, prompt.cell_type, prompt.metadata) == ("exercise-causal-mask-prompt", "markdown", {})
    assert (stub.id, stub.cell_type, stub.metadata) == ("exercise-causal-mask", "code", {"exercise": "causal_mask"})
    assert prompt.source == "### Exercise: a mask\n\nBuild it."
    assert stub.source == "def causal_mask(T, S):\n    raise NotImplementedError  # your code here"


@pytest.mark.parametrize(
    ("cell", "complaint"),
    [
        ("# %%\nprint(1)", "cell 4 ('print(1)'): has no id"),
        ('# %% id="use"\nprint(1)', "two cells have the id 'use'"),
        ('# %% id="Five Steps"\nprint(1)', "expected an id of a-z"),
        ('# %% id="empty"\n', "is empty"),
        ('# %% id="x" colour="red"\nprint(1)', "got colour"),
        ('# %% id="x" tags=["tol:much"]\nprint(1)', "tag 'tol:much'"),
        ('# %% id="x" tags=["slow"]\nprint(1)', "tag 'slow'"),
        ('# %% id="x" tags=["nbval-skip"]\nprint(1)', "tag 'nbval-skip'"),
        ('# %% [raw] id="x"\nsome text', "got raw"),
        ('# %% exercise="no_such"\n', "cannot load the exercise 'no_such'"),
        ('# %% exercise="causal_mask"\nprint(1)', "an exercise stands alone"),
        ('# %% exercise="causal_mask" id="x"\n', "an exercise stands alone"),
    ],
)
def test_a_bad_source_is_refused_by_name(builder, write, cell, complaint):
    source, target = write(f"{GOOD}\n{cell}\n")
    with pytest.raises(builder.BuildError) as caught:
        builder.build(source, target, fake_exercise)
    assert complaint in str(caught.value)
    assert source.name in str(caught.value)
    assert not target.exists()


def test_text_before_the_first_cell_is_refused(builder, write):
    with pytest.raises(builder.BuildError, match="has no id"):
        builder.read_source(write("import torch\n" + GOOD)[0])


def test_a_published_course_installs_itself_where_it_is_missing(builder, write, tmp_path, monkeypatch):
    source, target = write(GOOD)
    tmp_path.joinpath("pyproject.toml").write_text('[project]\nurls = { Source = "https://example.org/course" }\n')
    cells = builder.read_source(source).cells
    assert [cell.id for cell in cells] == ["title", "install-course", "define", "use"]
    assert cells[1].metadata == {"tags": ["hide-input"], "jupyter": {"source_hidden": True}}
    ran = []
    shell = SimpleNamespace(run_line_magic=lambda *line: ran.append(line))
    exec(cells[1].source, {"get_ipython": lambda: shell})
    assert ran == []  # it is there
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    exec(cells[1].source, {"get_ipython": lambda: shell})
    assert ran == [("pip", "install --quiet 'course-lib[course] @ git+https://example.org/course'")]
    monkeypatch.undo()
    builder.build(source, target)
    assert builder.check(source, target) == []
    assert nbformat.read(target, 4).cells[1].outputs == []


def test_one_line_of_the_project_gives_every_notebook_that_cell(builder, tmp_path):
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    line = 'urls = { Source = "https://example.org/course" }'
    project, count = re.subn(r"^(# )?urls = .*$", line, project, flags=re.MULTILINE)
    assert count == 1
    (tmp_path / "pyproject.toml").write_text(project, encoding="utf-8")
    shutil.copytree(builder.NOTEBOOKS / "sources", tmp_path / "notebooks" / "sources")
    pairs = builder.sources((), tmp_path / "notebooks")
    assert len(pairs) == len(builder.sources())
    for source, _ in pairs:
        first = next(cell for cell in builder.read_source(source).cells if cell.cell_type == "code")
        assert first.id == "install-course", source.name
        assert "'course-lib[course] @ git+https://example.org/course'" in first.source


def test_a_built_notebook_is_executed_clean_and_the_same_again(builder, write):
    source, target = write(GOOD)
    seconds = builder.build(source, target)
    first = target.read_bytes()
    notebook = nbformat.reads(first.decode(), 4)
    assert (notebook.nbformat, notebook.nbformat_minor) == (4, 5)
    assert [cell.get("execution_count") for cell in notebook.cells] == [None, 1, 2]
    assert notebook.cells[2].outputs[0].text == "9.0\n"
    assert notebook.cells[2].outputs[1].data["text/plain"] == "16"
    assert set(notebook.metadata) == {"kernelspec", "language_info", "drawn_with"}
    assert "version" not in notebook.metadata.language_info
    assert all(cell.metadata == {} for cell in notebook.cells[:2])
    assert set(seconds) == {"define", "use"}
    builder.build(source, target)
    assert target.read_bytes() == first
    assert builder.check(source, target) == []


def test_widget_state_is_not_saved(builder, write):
    source, target = write('# %% id="slider"\nimport ipywidgets\nipywidgets.IntSlider(3)\n')
    builder.build(source, target)
    assert "widgets" not in json.loads(target.read_text())["metadata"]


def test_the_kernel_is_told_to_save_nothing(builder, write, monkeypatch):
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setenv("COURSE_DESK", "elsewhere")
    source, target = write('# %% id="ask"\nimport os\nos.environ["CI"], "COURSE_DESK" in os.environ, os.listdir()\n')
    builder.build(source, target)
    text = nbformat.read(target, 4).cells[0].outputs[0].data["text/plain"]
    assert text.startswith("('true', False, ")
    assert "sources" not in text
    assert ".course" not in text


@pytest.mark.parametrize(
    ("cell", "complaint"),
    [
        ("1 / 0", "ZeroDivisionError"),
        ("import sys; print('careful', file=sys.stderr)", "wrote to stderr: careful"),
        ("import warnings; warnings.warn('old')", "wrote to stderr"),
        ("import sys; print(sys.prefix)", "path of one machine"),
        ("print('x' * 300_000)", "bytes long"),
        ("from IPython.display import HTML; HTML('<img src=a.png alt=short>')", "alternative text 'short'"),
    ],
)
def test_a_bad_cell_is_named_and_the_old_notebook_stays(builder, write, cell, complaint):
    source, target = write(f'{GOOD}\n# %% id="culprit"\n{cell}\n\n# %% id="after"\nprint(1)\n')
    target.write_text("the old notebook")
    with pytest.raises(builder.BuildError) as caught:
        builder.build(source, target)
    assert "'culprit'" in str(caught.value)
    assert complaint in str(caught.value)
    assert target.read_text() == "the old notebook"
    assert sorted(path.name for path in target.parent.iterdir()) == ["01_title.ipynb", "sources"]


def test_a_cell_that_must_raise_stores_the_error_without_folders(builder, write):
    source, target = write('# %% id="fails" tags=["raises-exception"]\nimport json\njson.loads("{")\n')
    builder.build(source, target)
    (error,) = nbformat.read(target, 4).cells[0].outputs
    assert error.ename == "JSONDecodeError"
    assert error.traceback == [f"{error.ename}: {error.evalue}"]


def test_a_dead_kernel_is_named_and_the_old_notebook_stays(builder, write):
    source, target = write('# %% id="culprit"\nimport os\nos._exit(1)\n')
    target.write_text("the old notebook")
    with pytest.raises(builder.BuildError, match="'culprit'"):
        builder.build(source, target)
    assert target.read_text() == "the old notebook"


def test_an_interrupt_leaves_the_old_notebook(tmp_path, write):
    started = tmp_path / "started"
    _, target = write(f'# %% id="long"\nopen("{started}", "w").close()\nimport time; time.sleep(60)\n')
    target.write_text("the old notebook")
    for name in ("build.py", "conftest.py"):
        (tmp_path / name).write_bytes((ROOT / "notebooks" / name).read_bytes())
    process = subprocess.Popen([sys.executable, tmp_path / "build.py"], stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not started.exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130, errors
    assert "interrupted, the old notebook stays" in errors
    assert "Traceback" not in errors
    assert target.read_text() == "the old notebook"


def test_check_finds_every_way_to_disagree(builder, write):
    source, target = write(GOOD)
    assert builder.check(source, target) == ["01_title.ipynb: missing; build it"]
    builder.build(source, target)
    built = target.read_text()

    def complaints(change) -> str:
        notebook = nbformat.reads(built, 4)
        change(notebook)
        target.write_text(nbformat.writes(notebook))
        return "\n".join(builder.check(source, target))

    def swap(notebook):
        notebook.cells[0], notebook.cells[1] = notebook.cells[1], notebook.cells[0]

    assert complaints(lambda n: None) == ""
    assert "define: source differs" in complaints(lambda n: n.cells[1].update(source="x = 1"))
    assert "title: source differs" in complaints(lambda n: n.cells[0].update(source="# Other"))
    assert "use: metadata differs" in complaints(lambda n: n.cells[2].metadata.update(tags=["tol:0.02"]))
    assert "use: in the source, not in the notebook" in complaints(lambda n: n.cells.pop())
    assert "renamed: in the notebook, not in the source" in complaints(lambda n: n.cells[2].update(id="renamed"))
    assert "another order" in complaints(swap)
    assert "not executed" in complaints(lambda n: n.cells[1].update(execution_count=None))
    assert "not run top to bottom" in complaints(lambda n: n.cells[1].update(execution_count=7))
    assert "widget state" in complaints(lambda n: n.metadata.update(widgets={}))


def test_the_command_line_names_what_it_cannot_find_and_reports_failures(builder, write, tmp_path, capsys, monkeypatch):
    source, target = write('# %% id="culprit"\n1 / 0\n')
    monkeypatch.setattr(builder, "sources", lambda names, folder=None: [(source, target)])
    monkeypatch.setattr(builder, "PLACES", tmp_path / "places.json")
    (tmp_path / "places.json").write_text("{}")
    assert builder.main(["01"]) == 1
    assert "'culprit'" in capsys.readouterr().err
    source.write_text('# %% id="fine"\nprint(1)\n')
    assert builder.main(["01", "--timings"]) == 0
    out = capsys.readouterr().out
    assert "1 code cells" in out
    assert "s  fine" in out
    assert builder.main(["--check"]) == 0
    target.write_text(target.read_text().replace("print(1)", "print(2)"))
    assert builder.main(["--check"]) == 1
    assert "fine: source differs" in capsys.readouterr().out


def test_names_select_sources(builder, tmp_path):
    (tmp_path / "sources").mkdir()
    for stem in ("01_attention", "02_heads"):
        (tmp_path / "sources" / f"{stem}.py").write_text("")
    assert [source.stem for source, _ in builder.sources(["02"], tmp_path)] == ["02_heads"]
    assert [target.name for _, target in builder.sources([], tmp_path)] == ["01_attention.ipynb", "02_heads.ipynb"]
    (tmp_path / "sources" / "labs").mkdir()
    (tmp_path / "sources" / "labs" / "01_look.py").write_text('# %% exercise="causal_mask"\n')
    ((source, target),) = builder.sources(["labs/01"], tmp_path)
    assert (source.name, target) == ("01_look.py", tmp_path / "labs" / "01_look.ipynb")
    assert [source.stem for source, _ in builder.sources(["01"], tmp_path)] == ["01_attention"]
    assert json.loads(builder.places(tmp_path)) == {"01_attention": [], "02_heads": [], "labs/01_look": ["causal_mask"]}
    with pytest.raises(builder.BuildError, match="no source is called '09'; there are: 01_attention, 02_heads, labs/"):
        builder.sources(["09"], tmp_path)
