"""README.md is true in what can be counted: hours, exercises, labs; its links and its commands exist."""

import re
from functools import cache
from pathlib import Path

import pytest
import typer.main
from notebook_files import FOLDER, NOTEBOOKS, SOURCES, name

from coursework.cli import app
from coursework.desk.chapters import PICTURE, PLAYING, WORDS_PER_MINUTE, total_minutes
from coursework.desk.notebooks import read_notebook
from coursework.exercises import registry

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = {page.name: page.read_text(encoding="utf-8") for page in (*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"))}
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
    return total_minutes(read_notebook(FOLDER / f"{notebook}.ipynb")["cells"]) / 60


def labs_of(chapter: str) -> list[str]:
    return [name(path) for path in NOTEBOOKS if name(path).startswith(f"labs/{chapter[:2]}_")]


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


def test_it_counts_the_exercises():
    reading = f"{WORDS_PER_MINUTE} words a minute and {PICTURE} minutes a picture"
    spent = f"{reading}, the exercises' own minutes and {PLAYING} for playing"
    assert f"{spent}; {len(registry.places())} exercises in all" in " ".join(README.split())


def test_it_is_short():
    assert len(README.splitlines()) <= 110


@pytest.mark.parametrize("link", sorted(set(LINKS)))
def test_what_it_links_to_is_there(link):
    source = ROOT / link
    if link.endswith(".ipynb"):  # the source: a notebook is built from it
        source = (ROOT / "notebooks" / "sources" / source.relative_to(ROOT / "notebooks")).with_suffix(".py")
    assert source.exists()


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_names_is_there(page):
    """Modules of the packages, commands of `course`, targets of `make`."""
    text = PAGES[page]
    for package, module in set(re.findall(r"`(course_lib|coursework)\.(\w+)`", text)):
        path = ROOT / package / module
        assert path.is_dir() or path.with_suffix(".py").exists(), path
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in set(re.findall(r"(?:`|^)make ([a-z-]+)", text, re.MULTILINE)):
        assert f"\n{target}:" in makefile, target
    commands = typer.main.get_command(app).list_commands(None)
    assert set(re.findall(r"(?:`|^)[.\\/]*course ([a-z]+)", text, re.MULTILINE)) <= set(commands)
