"""Translations: prose goes out and comes back as it was, stale passages fall back, structure and code are kept."""

import ast
import importlib
from pathlib import Path
from types import ModuleType

import pytest
from babel.messages.pofile import read_po, write_po

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"
ATTENTION = NOTEBOOKS / "sources" / "01_attention.py"

SOURCE = """\
# %% [markdown] id="title"
# # One
#
# A paragraph of two lines with a formula $x^2$, `code`
# and a [link](02_two.ipynb).
#
# $$\\sum_i x_i$$
#
# - a list
# - of two
#
# ```python
# not = "prose"
# ```

# %% id="figure" tags=["hide-input"]
# Figure: a line
show(figure, alt="A line — from left " "to right.", caption=f"Computed {1}.")

# %% exercise="causal_mask"
"""


@pytest.fixture(scope="module")
def translate() -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(NOTEBOOKS))
        return importlib.import_module("translate")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "sources" / "01_one.py"
    path.parent.mkdir()
    path.write_text(SOURCE, encoding="utf-8")
    return path


def put(translate: ModuleType, source: Path, locale: Path, said: dict[str, str]) -> None:
    """Translate passages in a stored catalogue."""
    path = translate.extract("de", source, locale)
    with path.open("rb") as stream:
        catalog = read_po(stream)
    for passage, text in said.items():
        catalog[passage].string = text
    with path.open("wb") as stream:
        write_po(stream, catalog)


@pytest.mark.parametrize("path", sorted((NOTEBOOKS / "sources").rglob("0[0123]*.py")), ids=lambda path: path.stem)
def test_an_identity_gives_the_same_source(translate: ModuleType, path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    passages = []
    assert translate.translated(text, lambda passage, *_: passages.append(passage) or passage) == text
    assert len(passages) > 10


def test_every_kind_of_passage_goes_out_and_nothing_else(translate: ModuleType, source: Path) -> None:
    found = {str(message.id): message.locations[0][0] for message in translate.template(source) if message.id}
    mine = {passage: cell for passage, cell in found.items() if cell != "exercise-causal-mask-prompt"}
    assert mine == {
        "# One": "title",
        "A paragraph of two lines with a formula $x^2$, `code` and a [link](02_two.ipynb).": "title",
        "- a list\n- of two": "title",
        "Figure: a line": "figure",
        "A line — from left to right.": "figure",
    }
    assert len(found) > len(mine)


def test_translations_come_back_in_their_places(translate: ModuleType, source: Path, tmp_path: Path) -> None:
    said = {
        "A line — from left to right.": 'Eine „Linie" von links nach rechts.',
        "Figure: a line": "Bild: eine Linie",
        "- a list\n- of two": "- eine Liste\n- von zweien",
    }
    (prompt,) = (str(one.id) for one in translate.template(source) if str(one.id).startswith("### Exercise"))
    put(translate, source, tmp_path / "locale", {**said, prompt: "### Aufgabe: eine Maske"})
    made = translate.write_notebook("de", source, tmp_path / "out", tmp_path / "locale")
    cells = {cell.id: cell.source for cell in translate.build.nbformat.read(made, as_version=4).cells}
    assert "- eine Liste\n- von zweien\n\n```python" in cells["title"]
    assert cells["figure"].startswith("# Bild: eine Linie\n")
    assert ast.literal_eval(ast.parse(cells["figure"]).body[0].value.keywords[0].value) == next(iter(said.values()))
    assert 'caption=f"Computed {1}."' in cells["figure"]
    assert cells["exercise-causal-mask-prompt"].startswith("### Aufgabe: eine Maske\n\n*Build")
    assert cells["exercise-causal-mask"] == translate.build.registered_exercise("causal_mask")[1].strip("\n")


def test_a_changed_passage_is_stale_and_english(translate: ModuleType, source: Path, tmp_path: Path) -> None:
    passage = "A paragraph of two lines with a formula $x^2$, `code` and a [link](02_two.ipynb)."
    put(translate, source, tmp_path, {passage: "Ein Absatz: $x^2$, `code`, [Verweis](02_two.ipynb)."})
    (counts,) = translate.status("de", source, tmp_path)
    assert "1 of" in counts
    assert "0 stale; 1 computed" in counts
    source.write_text(SOURCE.replace("of two lines", "of three lines"), encoding="utf-8")
    for _ in range(2):  # also in the stored catalogue, once it is renewed
        counts, stale = translate.status("de", source, tmp_path)
        assert "0 of" in counts
        assert "1 stale" in counts
        assert stale.startswith("  STALE title: 'A paragraph of three lines")
        path = translate.extract("de", source, tmp_path)
    assert "#, fuzzy" in path.read_text(encoding="utf-8")
    assert '#| msgid "" "A paragraph of two lines' in path.read_text(encoding="utf-8")
    made = translate.write_notebook("de", source, tmp_path / "out", tmp_path)
    assert "A paragraph of three lines" in made.read_text(encoding="utf-8")
    assert "Absatz" not in made.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("said", "says"),
    [
        ("Ein Absatz: $x^3$, `code`, [Verweis](02_two.ipynb).", "lacks x^2; adds x^3"),
        ("Ein Absatz: $x^2$, `Code`, [Verweis](02_two.ipynb).", "lacks code; adds Code"),
        ("Ein Absatz: $x^2$, `code`, [Verweis](02_zwei.ipynb).", "lacks 02_two.ipynb; adds 02_zwei.ipynb"),
        ("- Ein Absatz: $x^2$, `code`, [Verweis](02_two.ipynb).", "has the blocks bullet_list_open"),
    ],
)
def test_a_translation_that_loses_structure_is_refused(translate, source, tmp_path, said, says) -> None:
    passage = "A paragraph of two lines with a formula $x^2$, `code` and a [link](02_two.ipynb)."
    put(translate, source, tmp_path, {passage: said})
    with pytest.raises(translate.TranslationError, match="01_one, cell title: ") as caught:
        translate.write_notebook("de", source, tmp_path / "out", tmp_path)
    assert says in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_the_german_skeleton_builds(translate: ModuleType, tmp_path: Path) -> None:
    """Every stored translation keeps its passage's structure, and code differs in labels, alt and caption only."""
    (counts, *stale) = translate.status("de", ATTENTION)
    assert int(counts.split()[1]) >= 10 - len(stale)
    made = translate.build.nbformat.read(translate.write_notebook("de", ATTENTION, tmp_path), as_version=4)
    ours = translate.build.read_source(ATTENTION)
    assert [cell.id for cell in made.cells] == [cell.id for cell in ours.cells]
    assert sum(one.source != other.source for one, other in zip(made.cells, ours.cells, strict=True)) >= 3
    for one, other in zip(made.cells, ours.cells, strict=True):
        assert one.metadata == other.metadata
        assert translate.structure(one.source) == translate.structure(other.source) or one.cell_type == "code"
        if one.cell_type == "code":
            assert bare(one.source) == bare(other.source)


def bare(source: str) -> str:
    """The program of a cell without the strings that may be translated."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg in ("alt", "caption"):
            node.value = ast.Constant("")
    return ast.dump(tree)


def test_what_cannot_be_read_is_said(translate, source, tmp_path, capsys) -> None:
    with pytest.raises(translate.TranslationError, match="LANG must be a language"):
        translate.extract("klingon", source, tmp_path)
    with pytest.raises(translate.TranslationError, match="`extract de 01_one` writes it"):
        translate.write_notebook("de", source, tmp_path / "out", tmp_path)
    translate.extract("de", source, tmp_path).write_text('msgid "broken', encoding="utf-8")
    with pytest.raises(translate.TranslationError, match="is not a gettext catalogue"):
        translate.status("de", source, tmp_path)
    assert translate.main(["status", "de", "99"]) == 1
    assert "no source is called '99'" in capsys.readouterr().err
