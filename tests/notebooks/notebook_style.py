"""How a notebook of this course reads: the few rules of style that a machine can judge."""

import re
from collections.abc import Iterator
from typing import Any

FOLDED = "hide-input"
VISIBLE_LINES, VISIBLE_COLUMNS = 15, 88  # of a cell in sight
EXERCISE_COLUMNS = 96  # of a cell that the reader widens anyway
WORDS_FOR_A_LINE = 9  # of explanation, for each visible line of code
WORDS_FOR_A_PICTURE = 400
PICTURES = 12  # of a chapter; labs and the overview may do with fewer
PROOFS_IN_SIGHT, EXERCISES = 5, 10

EMOJI = re.compile("[\U0001f000-\U0001faff☀-➿️]")
FILLER = re.compile(
    r"\b(let['’]?s (dive|explore|get started)|dive (deep )?into|delve|as an ai|in this notebook,? we|buckle up"
    r"|game.changer|without further ado|it['’]?s (important|worth) (to note|noting)|in today['’]s)\b",
    re.IGNORECASE,
)
NOT_PROSE = re.compile(r"```.*?```|`[^`\n]*`|\$\$.*?\$\$|\$[^$\n]*\$|<!--.*?-->|<[^>\n]*>|!\[", re.DOTALL)

Problem = tuple[str, str]  # cell id, what is wrong


def style_problems(notebook: Any, *, chapter: bool = False) -> list[Problem]:
    """Return where a notebook breaks a rule of style; `chapter`: it is one, no lab and not the overview."""
    problems = [(cell.id, what) for cell in notebook.cells for what in _cell_problems(cell)]
    return problems + list(_form_problems(notebook, chapter))


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
    widest = max(map(len, cell.source.splitlines()), default=0)
    most = EXERCISE_COLUMNS if "exercise" in cell.metadata else VISIBLE_COLUMNS
    if widest > most and FOLDED not in cell.metadata.get("tags", []):
        yield f"is {widest} columns wide; at most {most}"


def _form_problems(notebook: Any, chapter: bool) -> Iterator[Problem]:
    """What a machine can judge of teaching: short cells in sight, plumbing folded, words and pictures enough."""
    words = sum(len(NOT_PROSE.sub(" ", cell.source).split()) for cell in notebook.cells if cell.cell_type == "markdown")
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    seen = [cell for cell in code if FOLDED not in cell.metadata.get("tags", [])]
    for cell in code:
        if cell not in seen and not cell.source.startswith("# "):
            yield cell.id, "is folded without a label: its first line says in a comment what it does"
    for cell in seen:
        lines = [line for line in cell.source.splitlines() if line.strip()]
        if len(lines) > VISIBLE_LINES and "exercise" not in cell.metadata:
            yield cell.id, f"has {len(lines)} lines in sight; at most {VISIBLE_LINES}, or fold it"
    visible = sum(bool(line.strip()) for cell in seen for line in cell.source.splitlines())
    pictures = sum("<img" in output.get("data", {}).get("text/html", "") for cell in code for output in cell.outputs)
    proofs = sum(cell.source.count("prove(") for cell in seen)
    exercises = sum("exercise" in cell.metadata for cell in code)
    if words < WORDS_FOR_A_LINE * visible:
        yield "the whole", f"has {words} words for {visible} visible lines; at least {WORDS_FOR_A_LINE} for each"
    if words > WORDS_FOR_A_PICTURE * pictures:
        yield "the whole", f"has {pictures} pictures for {words} words; one for each {WORDS_FOR_A_PICTURE} at least"
    if chapter and pictures < PICTURES:
        yield "the whole", f"has {pictures} pictures; at least {PICTURES}"
    if proofs > PROOFS_IN_SIGHT:
        yield "the whole", f"has {proofs} proofs in sight; at most {PROOFS_IN_SIGHT}, the others folded"
    if exercises > EXERCISES:
        yield "the whole", f"has {exercises} exercises; at most {EXERCISES}"


def _around(text: str, position: int) -> str:
    return text[max(0, position - 30) : position + 1].strip()
