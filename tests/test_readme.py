"""README.md says what is there: its chapters, their editions, its labs and its files."""

import re
from pathlib import Path

import pytest
from notebook_files import FIRST_EDITION, SOURCES, name

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
LINKS = re.findall(r"\]\(([^)#:]+)\)", README)
ROWS = re.findall(r"^\| \[\d\d [^\]]+\]\(notebooks/(\w+)\.ipynb\) \| (\w+) \|", README, re.MULTILINE)


def test_the_table_has_every_chapter_with_its_edition():
    chapters = [name(path) for path in SOURCES if not name(path).startswith("labs/")]
    assert [(chapter, "first" if chapter in FIRST_EDITION else "second") for chapter in chapters] == ROWS


@pytest.mark.parametrize("link", sorted(set(LINKS)))
def test_what_it_links_to_is_there(link):
    source = (ROOT / link).with_suffix(".py") if link.endswith(".ipynb") else ROOT / link
    if link.endswith(".ipynb"):  # the source: a notebook is built from it
        source = ROOT / "notebooks" / "sources" / source.relative_to(ROOT / "notebooks")
    assert source.exists()


def test_what_it_names_of_the_package_is_there():
    for module in set(re.findall(r"`course_lib\.(\w+)`", README)):
        assert any((ROOT / "course_lib" / part).exists() for part in (module, f"{module}.py")), module
