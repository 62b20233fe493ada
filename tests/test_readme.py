"""README.md is true: what it counts is counted again, and each of its sentences has what proves it.

The proofs stand in `readme_facts.md`: for each sentence a test, a file with words that it must hold, or a command with
what it gave; "-" where no fact is stated. A sentence without a row or the reverse fails, and a proof that is gone.
"""

import ast
import re
from functools import cache
from pathlib import Path

import pytest
from each import each
from notebook_files import FIRST_EDITION, FOLDER, NOTEBOOKS, SOURCES, name

from coursework.desk.chapters import total_minutes
from coursework.desk.notebooks import read_notebook
from coursework.exercises import registry

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PACKAGE = (ROOT / "docs" / "package.md").read_text(encoding="utf-8")
LINKS = re.findall(r"\]\(([^)#:]+)\)", README)
CHAPTERS = [name(path) for path in SOURCES if not name(path).startswith("labs/")]
ROWS = {
    row[0]: row
    for row in re.findall(
        r"^\| \[[^\]]+\]\(notebooks/(\w+)\.ipynb\) \| (\S+) \| [^|]+ \|(.*)\| (\S*) ?\|$", README, re.MULTILINE
    )
}
QUARTERS = {"⅓": 1 / 3, "¼": 0.25, "½": 0.5, "¾": 0.75}
WORDS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]


def hours(text: str) -> float:
    """The number that "1½" stands for."""
    fraction = QUARTERS.get(text[-1:], 0.0)
    whole = text[:-1] if fraction else text
    return float(whole or 0) + fraction


@cache
def taken(notebook: str) -> float:
    """The hours that a notebook takes, as `course status` counts them."""
    return total_minutes(notebook, read_notebook(FOLDER / f"{notebook}.ipynb")["cells"]) / 60


def labs_of(chapter: str) -> list[str]:
    return [name(path) for path in NOTEBOOKS if name(path).startswith(f"labs/{chapter[:2]}_")]


# -- what it counts ----------------------------------------------------------------------------------------------------


def test_the_table_has_every_chapter_and_every_lab():
    assert list(ROWS) == CHAPTERS
    for chapter, (_, _, labs, _) in ROWS.items():
        assert sorted(re.findall(r"\(notebooks/(labs/\w+)\.ipynb\)", labs)) == labs_of(chapter)


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_its_hours_are_those_of_course_status(chapter):
    _, own, _, labs = ROWS[chapter]
    assert hours(own) == pytest.approx(taken(chapter), abs=0.26)
    assert hours(labs or "0") == pytest.approx(sum(map(taken, labs_of(chapter))), abs=0.26)


def test_the_beginning_says_who_what_how_long_and_shows_it():
    beginning = " ".join(README.splitlines()[:10])
    least, most, every, labs = re.search(
        r"chapters of (\S+) to (\S+) hours, about (\S+) hours with their exercises\. .* about (\S+) hours more",
        beginning,
    ).groups()
    assert "people who know Python" in beginning
    assert "you have written" in beginning
    assert "](docs/course.png)" in beginning
    assert f"{WORDS[len(CHAPTERS) - 1]} chapters" in beginning
    lengths = [hours(own) for chapter, (_, own, _, _) in ROWS.items() if chapter != CHAPTERS[0]]
    assert (min(lengths), max(lengths)) == (hours(least), hours(most))
    assert hours(every) == pytest.approx(sum(map(taken, CHAPTERS)), abs=0.5)
    assert hours(labs) == pytest.approx(sum(taken(lab) for one in CHAPTERS for lab in labs_of(one)), abs=0.5)
    minutes = re.search(r"an overview \((\d+) minutes\)", beginning)[1]
    assert int(minutes) == pytest.approx(60 * taken(CHAPTERS[0]), abs=5)


def test_it_counts_the_exercises_and_names_the_first_edition():
    assert f"{len(registry.places())} exercises in all" in README
    old = [chapter for chapter in CHAPTERS if chapter in FIRST_EDITION]
    assert f"Chapters {' and '.join(chapter[:2] for chapter in old)} are still in their first edition" in README
    assert not [lab for chapter in old for lab in labs_of(chapter)]


def test_it_is_short():
    assert len(README.splitlines()) <= 110


@each(sorted(set(LINKS)))
def test_what_it_links_to_is_there(link):
    source = ROOT / link
    if link.endswith(".ipynb"):  # the source: a notebook is built from it
        source = (ROOT / "notebooks" / "sources" / source.relative_to(ROOT / "notebooks")).with_suffix(".py")
    assert source.exists()


def test_what_is_named_of_the_package_is_there():
    for module in set(re.findall(r"`(course_lib|coursework)\.(\w+)`", README + PACKAGE)):
        path = ROOT.joinpath(*module)
        assert path.is_dir() or path.with_suffix(".py").exists(), module


# -- what proves each sentence -----------------------------------------------------------------------------------------


def sentences(text: str) -> list[str]:
    """The sentences of the paragraphs and lists of a page; not its headings, tables, pictures and blocks of code."""
    text = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r"^(#|\||!\[).*$", "", text, flags=re.MULTILINE)
    text = re.sub(r"\]\([^)]*\)", "]", text).replace("[", "").replace("]", "").replace("**", "")
    found = []
    for paragraph in re.split(r"\n\s*\n|^- ", text, flags=re.MULTILINE):
        whole = " ".join(paragraph.split())
        found += [part for part in re.split(r"(?<=[.:?]) (?=[A-Z`(])", whole) if part]
    return found


FACTS = [
    tuple(cell.strip() for cell in line.strip("|").split(" | "))
    for line in (ROOT / "tests" / "readme_facts.md").read_text(encoding="utf-8").splitlines()
    if line.startswith("| ") and not line.startswith("| sentence")
]


@cache
def names_in(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}


def trouble(proof: str) -> str:
    """What is wrong with a proof, or nothing."""
    if proof == "-" or re.fullmatch(r"`.+` gave .+", proof):
        return ""
    if test := re.fullmatch(r"`(\S+\.py)::(\w+)`", proof):
        path = ROOT / "tests" / test[1]
        return "" if path.exists() and test[2] in names_in(path) else f"there is no {test[1]}::{test[2]}"
    if words := re.fullmatch(r"`(\S+)` says `(.+)`", proof):
        path = ROOT / words[1]
        return "" if path.exists() and words[2] in path.read_text(encoding="utf-8") else f"{words[1]} does not say it"
    return f"{proof} is no proof"


def test_every_sentence_has_its_row():
    assert [sentence for sentence, _ in FACTS] == sentences(README)


@each(FACTS)
def test_its_proofs_are_there(fact):
    _, proofs = fact
    assert proofs
    assert [trouble(proof) for proof in proofs.split(", ") if trouble(proof)] == []


def test_a_proof_that_is_gone_is_seen():
    assert trouble("`test_readme.py::test_nothing`")
    assert trouble("`nowhere.py::test_nothing`")
    assert trouble("`LICENSE` says `that everything is free of charge`")
    assert trouble("everybody knows")
    assert sentences("# A\n\nOne `x.y` is.\nTwo: [three](z).\n\n- **Four.** Five?\n\n| a |\n") == [
        "One `x.y` is.", "Two: three.", "Four.", "Five?"
    ]  # fmt: skip
