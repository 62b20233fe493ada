"""The notebooks as shipped: each agrees with its text source, was executed, and reads as the course reads."""

from functools import cache

import matplotlib
import nbformat
import pytest
from each import each
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from notebook_files import FOLDER, NOTEBOOKS, SOURCES, name
from notebook_style import style_problems
from prose import captions, prose_problems, relapses, unexplained

from coursework.exercises import registry
from coursework.exercises.spec import Question


@cache
def read(builder, source):
    """A source as a notebook, which several tests look at."""
    return builder.read_source(source)


def is_chapter(path):
    return name(path) != "00_overview" and not name(path).startswith("labs/")


def test_every_notebook_has_a_source_and_every_source_a_notebook():
    assert SOURCES
    assert [name(path) for path in SOURCES] == [name(path) for path in NOTEBOOKS]


def test_the_package_knows_where_the_sources_place_the_exercises(builder):
    assert builder.PLACES.read_text(encoding="utf-8") == builder.places(), "build.py writes it"


@each(SOURCES, name)
def test_a_notebook_agrees_with_its_source(source, builder):
    assert builder.check(source, FOLDER / f"{name(source)}.ipynb") == []


@each(NOTEBOOKS, name)
def test_pictures_are_drawn_with_the_versions_that_ci_installs(notebook, builder):
    """So that CI compares them finely, and a changed digit is seen."""
    pins = (FOLDER.parent / "constraints.txt").read_text(encoding="utf-8")
    if f"matplotlib=={matplotlib.__version__}\n" not in pins:
        pytest.skip(f"matplotlib {matplotlib.__version__} is not the pinned one: pictures are compared coarsely")
    drawn, wanted = nbformat.read(notebook, 4).metadata.get("drawn_with"), builder.rules.drawing_library()
    assert drawn == wanted, f"{name(notebook)}: drawn with {drawn}, CI installs {wanted}; build it again"


def test_every_picture_keeps_what_it_says(builder):
    """Else only its pixels are compared, and a number that training wobbles on one processor may hide a false one."""
    rules = builder.rules
    silent = {
        f"{name(path)}: {cell.id}"
        for path in NOTEBOOKS
        for cell in nbformat.read(path, 4).cells
        for output in cell.get("outputs", ())
        if any(rules.content_of(rules.open_picture(data)) is None for data in rules.pictures_of(output))
    }
    assert silent == set()


@each(SOURCES, name)
def test_a_notebook_reads_as_the_course_reads(source, builder):
    notebook = read(builder, source)
    paths = [(cell.id, what) for cell in notebook.cells for what in builder.rules.path_problems(cell.source)]
    assert paths == []


@each(NOTEBOOKS, name)
def test_a_notebook_has_its_form(notebook):
    assert style_problems(nbformat.read(notebook, 4), chapter=is_chapter(notebook)) == []


@each(SOURCES, name)
def test_a_notebook_is_written_in_plain_sentences(source, builder):
    assert list(prose_problems(read(builder, source), source.stem[:2])) == []


def exercise_texts(entry):
    """What a learner reads of an exercise beside its code."""
    texts = [entry.title, entry.what, entry.why, *entry.hints[:2]]
    if isinstance(entry, Question):
        texts += [entry.explanation, *(entry.choices or {}).values()]
        return texts + [text for wrong in entry.wrong for text in (wrong.statement, wrong.question)]
    texts += [text for one in entry.misconceptions for text in (one.statement, one.question)]
    return texts + [case.name for case in entry.cases] + [one.law for one in entry.properties]


@each(registry.all_exercises(), lambda entry: entry.id)
def test_an_exercise_is_written_as_the_chapters_are(entry):
    chapter = registry.places()[entry.id].removeprefix("labs/")[:2]
    assert [what for text in exercise_texts(entry) for what in relapses(text, chapter=chapter)] == []


PICTURES = sorted((FOLDER.parent / "coursework" / "pictures").rglob("*.py"))


@each(PICTURES, lambda path: path.stem)
def test_a_drawing_is_written_as_the_chapters_are(path):
    said = captions(path.read_text(encoding="utf-8"))
    assert [what for text in said for what in relapses(text, chapter="04")] == []


PAGES = [FOLDER.parent / name for name in ("README.md", "CONTRIBUTING.md")]
PAGES += sorted((FOLDER.parent / "docs").glob("*.md"))


@each(PAGES, lambda path: path.stem)
def test_a_page_is_written_as_the_chapters_are(path):
    assert list(relapses(path.read_text(encoding="utf-8"))) == []


@each(SOURCES, name)
def test_a_term_is_explained_where_it_is_first_used(source, builder):
    """In the notebook, or in a chapter that comes before it: a lab stands on the chapters up to its own."""
    chapters = [path for path in SOURCES if not name(path).startswith("labs/")]
    last = source.stem[:2] + ("~" if name(source).startswith("labs/") else "")
    before = [read(builder, path) for path in chapters if path.stem[: len(last)] < last]
    assert list(unexplained(name(source), read(builder, source), before)) == []


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("There is one a head.", "'one a head'"),
        ("Keep three short vectors a token.", "'three short vectors a token'"),
        ("It writes texts a\nlanguage.", "'texts a language'"),
        ("So the the score grows.", "'the the'"),
        ("Word, " * 41 + "word.", "a sentence of 42 words"),
        ("It is the best\nthat can be had.", "'that can be had'"),
        ("*The check also looks at* float64.", "'The check also looks at'"),
        ("Two heads (of eight) (or of four) look.", "two parentheses in a row"),
        ("Look three places back.", "'places back'"),
        ("Each place is looked at.", "'Each place'"),
    ],
)
def test_the_rules_of_prose_bite(text, complaint):
    assert any(complaint in what for _, what in prose_problems(new_notebook(cells=[new_markdown_cell(text)])))


@pytest.mark.parametrize(
    "text",
    [
        "One per head, three vectors for each token, and each word a second time.",
        "| one a head | the the |\n|---|---|",
        "# one a head\n\n`one a head` and $one a head$",
        "Queries (B, T, D) (or keys) take the place of values. A good place to stop, in each place where it stands.",
        "- " + "a word " * 15 + "\n- " + "word, " * 30 + "\n\nHe said that that was half of a head.",
    ],
)
def test_the_rules_of_prose_leave_the_rest_alone(text):
    assert list(prose_problems(new_notebook(cells=[new_markdown_cell(text)]))) == []


def missing(text, *before):
    notebooks = [new_notebook(cells=[new_markdown_cell(one)]) for one in (text, *before)]
    return [what.split("'")[1] for _, what in unexplained("09_new", notebooks[0], notebooks[1:])]


def test_a_term_that_is_used_before_it_is_explained_is_named():
    assert missing("Each query has a score.") == ["query", "score"]
    assert missing("We call it **rotary\nembedding**.") == []
    assert missing("Each *query*, a vector of numbers, has a **score**.") == ["vector"]
    assert missing("Two queries are masked.", "A **query** asks.", "*Masks* hide.") == []
    assert missing("# Queries\n\n`query` and | `keys` |\n\n| keys |\n|---|\n\nKeyboards.") == []
    assert missing("*The query is compared with each of all the keys.*") == ["query", "key"]  # stressed, not explained


def folded(source):
    return new_code_cell(source, metadata={"tags": ["hide-input"]})


@pytest.mark.parametrize(
    ("cells", "complaint"),
    [
        ([folded("import math")], "folded without a label"),
        ([new_code_cell("x = 1\n" * 16)], "16 lines in sight"),
        ([new_code_cell("x = 1" + " " * 83 + "+ 2")], "91 columns wide"),
        ([new_code_cell("x = 1"), new_markdown_cell("Eight words do not explain one line enough.")], "8 words for 1"),
        ([new_markdown_cell("word " * 401)], "0 pictures for 401 words"),
        ([new_markdown_cell("A chapter without a picture.")], "0 pictures; at least 12"),
        ([new_code_cell("prove(1 == 1, 'one')\n" * 3)] * 2, "6 proofs in sight"),
        ([new_code_cell("x", metadata={"exercise": f"e{number}"}) for number in range(11)], "11 exercises"),
    ],
)
def test_the_rules_of_form_bite(cells, complaint):
    found = style_problems(new_notebook(cells=cells), chapter=True)
    assert any(complaint in what for _, what in found)


def test_plumbing_may_be_long_when_it_is_folded():
    assert style_problems(new_notebook(cells=[folded("# A figure\n" + "x = 1\n" * 40)])) == []


@each(SOURCES, name)
def test_every_picture_is_shown_with_alternative_text(source):
    """A bare picture has none in JupyterLab; `show` puts it inside HTML that has."""
    notebook = nbformat.read(FOLDER / f"{name(source)}.ipynb", 4)
    outputs = [(cell.id, output) for cell in notebook.cells for output in cell.get("outputs", [])]
    bare = {cell_id for cell_id, output in outputs for kind in output.get("data", {}) if kind.startswith("image/")}
    assert bare == set()


@each(SOURCES, name)
def test_no_cell_ends_by_chance_in_the_text_of_an_object(source):
    """The last expression of a cell is an explorer or nothing: `model.train()` there prints all its layers."""
    notebook = nbformat.read(FOLDER / f"{name(source)}.ipynb", 4)
    outputs = [(cell.id, output) for cell in notebook.cells for output in cell.get("outputs", [])]
    results = [(cell_id, output.data) for cell_id, output in outputs if output.output_type == "execute_result"]
    assert [cell_id for cell_id, data in results if "text/html" not in data] == []


@pytest.mark.parametrize(
    ("cell", "complaint"),
    [
        (new_markdown_cell("Wonderful!"), "exclamation mark"),
        (new_markdown_cell("Done ✅"), "emoji"),
        (new_markdown_cell("Let's dive in."), "says nothing"),
        (new_code_cell("plt.show()"), "plt.show"),
        (new_code_cell("x = 1" + " " * 83 + "+ 2"), "91 columns wide"),
        (new_code_cell("print('\N{PARTY POPPER}')"), "emoji"),
    ],
)
def test_the_rules_of_style_bite(cell, complaint):
    notebook = new_notebook(cells=[cell, new_code_cell("x = 1")])
    assert any(complaint in what for _, what in style_problems(notebook))


@pytest.mark.parametrize(
    "cell",
    [
        new_markdown_cell("The factorial $n!$, `a != b`, ![a picture](a.png) and <!-- a note -->."),
        new_markdown_cell("```python\nprint('hello!')\n```"),
        new_markdown_cell("Queries → keys, a × b, √d, naïve."),
        new_code_cell("x = 1\n" * 19, metadata={"exercise": "causal_mask"}),
        new_code_cell("assert x != 1"),
    ],
)
def test_the_rules_of_style_leave_the_rest_alone(cell):
    found = style_problems(new_notebook(cells=[cell, new_code_cell("x = 1")]))
    assert [problem for problem in found if problem[0] != "the whole"] == []  # too few words, pictures
