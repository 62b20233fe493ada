"""How a notebook of this course reads: the few rules of style that a machine can judge."""

import ast
import re
from collections.abc import Iterator
from typing import Any

MAX_LINES = 18  # of a code cell, without blank ones and prose; the tag long-cell lifts it
WORDS_BEFORE_CODE = 80

EMOJI = re.compile("[\U0001f000-\U0001faff☀-➿️]")
FILLER = re.compile(
    r"\b(let['’]?s (dive|explore|get started)|dive (deep )?into|delve|as an ai|in this notebook,? we|buckle up"
    r"|game.changer|without further ado|it['’]?s (important|worth) (to note|noting)|in today['’]s)\b",
    re.IGNORECASE,
)
NOT_PROSE = re.compile(r"```.*?```|`[^`\n]*`|\$\$.*?\$\$|\$[^$\n]*\$|<!--.*?-->|<[^>\n]*>|!\[", re.DOTALL)
# A line that is blank or holds nothing but text for readers: of an alt, of a caption, a docstring.
PROSE_LINE = re.compile(r"""\s*((alt|caption)=)?f?("{1,3}[^"]*"{1,3})?,?\s*""")

Problem = tuple[str, str]  # cell id, what is wrong


def style_problems(notebook: Any) -> list[Problem]:
    """Return where a notebook breaks a rule of style."""
    problems = [(cell.id, what) for cell in notebook.cells for what in _cell_problems(cell)]
    words, first = _before_code(notebook)
    if words > WORDS_BEFORE_CODE:
        problems.append((first, f"comes after {words} words; the first code that does something, after at most 80"))
    return problems


def _cell_problems(cell: Any) -> Iterator[str]:
    if found := EMOJI.search(cell.source):
        yield f"has an emoji: {found[0]!r}"
    if cell.cell_type == "markdown":
        prose = NOT_PROSE.sub(" ", cell.source)
        if "!" in prose:
            yield f"has an exclamation mark: {_around(prose, prose.index('!'))!r}"
        if found := FILLER.search(prose):
            yield f"says nothing: {found[0]!r}"
        return
    if re.search(r"\bplt\.show\(", cell.source):
        yield "calls plt.show(): use show(fig, alt=…, caption=…)"
    lines = sum(not PROSE_LINE.fullmatch(line) for line in cell.source.splitlines())
    if lines > MAX_LINES and "long-cell" not in cell.metadata.get("tags", []) and "exercise" not in cell.metadata:
        yield f"has {lines} lines of code; at most {MAX_LINES}"


def _before_code(notebook: Any) -> tuple[int, str]:
    """Return the number of words before the first code cell that does more than import, and its id."""
    words = 0
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            words += sum(any(letter.isalnum() for letter in word) for word in cell.source.split())
        elif any(not isinstance(statement, ast.Import | ast.ImportFrom) for statement in ast.parse(cell.source).body):
            return words, cell.id
    return words, "the end"


def _around(text: str, position: int) -> str:
    return text[max(0, position - 30) : position + 1].strip()
