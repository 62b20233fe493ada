"""The pages of the site, as a folder that Sphinx reads: every one of them comes from what the repository holds.

The executed notebooks are copied with three changes: solutions stand folded under their exercises, folded cells are
called by their label, and links lead to pages of the site. The other pages are written here: lists of the chapters,
labs and exercises, glossary, notation, benchmarks with pictures, and the reference of the packages.
"""

import functools
import importlib
import importlib.util
import os
import pkgutil
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import nbformat
from nbformat import NotebookNode

from coursework.exercises import registry
from coursework.exercises.engine import cells
from coursework.exercises.spec import Exercise, Question
from coursework.records import claim
from coursework.records.claim import CLAIMS

ROOT = Path(__file__).resolve().parents[2]
OVERVIEW = "notebooks/00_overview.ipynb"
EXERCISES = ("coursework.exercises", "coursework.exercises.handle", "coursework.exercises.spec")  # not all of the room

# Code and formulas, which stay as they are; links, whose words may be code; numbers of arXiv.
TOKEN = re.compile(
    r"^```.*?^```|^~~~.*?^~~~|`+[^`\n]+`+|\$\$.*?\$\$"
    r"|(?P<before>!?\[(?:[^\[\]]|\[[^\]]*\])*\]\()(?P<target>[^()\s]+)\)"
    r"|(?<![\[/\w])arXiv:(?P<arxiv>\d{4}\.\d{4,5})",
    re.MULTILINE | re.DOTALL,
)


class Site:
    """A folder of pages in the making: `write` puts one there, and says where files of the repository have gone."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pages = dict(_pages_of_files())  # path in the repository -> path in the site's sources
        self.written: set[Path] = set()

    def write(self, page: str, text: str) -> None:
        """Write one page; one that is there already stays untouched, so that Sphinx does not read it again."""
        self.write_bytes(page, text.encode())

    def write_bytes(self, page: str, data: bytes) -> None:
        """Write a file that is no text."""
        path = self.folder / page
        self.written.add(path)
        if not path.exists() or path.read_bytes() != data:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)

    def sweep(self) -> None:
        """Remove what an earlier build wrote and this one did not."""
        for path in self.folder.rglob("*"):
            if path.is_file() and path not in self.written:
                path.unlink()

    def linked(self, text: str, *, origin: str, page: str) -> str:
        """Return Markdown from the file `origin` for `page`: links lead into the site, arXiv's numbers are links."""

        def lead(found: re.Match[str]) -> str:
            if found["arxiv"]:
                return f"[{found[0]}](https://arxiv.org/abs/{found['arxiv']})"
            if found["target"]:
                return f"{found['before']}{self._target(found['target'], origin, page)})"
            return found[0]

        return TOKEN.sub(lead, text)

    def _target(self, target: str, origin: str, page: str) -> str:
        path, mark, anchor = target.partition("#")
        if re.match(r"[a-z]+:", target) or not path:
            return target
        file = os.path.normpath(os.path.join(os.path.dirname(origin), path))
        there = self.pages.get(file)
        if there is None:
            if not (ROOT / file).is_file():
                raise ValueError(f"{origin}: links to {target!r}, which is no file of the repository")
            there = f"files/{file}"
            self.write_bytes(there, (ROOT / file).read_bytes())
        return os.path.relpath(there, os.path.dirname(page) or ".") + mark + anchor


def notebooks() -> list[str]:
    """Paths of the notebooks in the repository: the overview, the chapters, the labs."""
    folder = ROOT / "notebooks"
    found = [*sorted(folder.glob("*.ipynb")), *sorted((folder / "labs").glob("*.ipynb"))]
    return [path.relative_to(ROOT).as_posix() for path in found]


def _pages_of_files() -> Iterable[tuple[str, str]]:
    """Which file of the repository becomes which page."""
    for path in notebooks():
        yield path, "index.ipynb" if path == OVERVIEW else path.removeprefix("notebooks/")
    yield "README.md", "start.md"
    yield "CONTRIBUTING.md", "about/contributing.md"
    yield "LICENSE", "about/licence.md"
    yield "LICENSE-TEXT", "about/licence-text.md"
    yield "benchmarks/README.md", "benchmarks/index.md"
    for file in sorted((ROOT / "benchmarks" / "results").glob("*.md")):
        yield f"benchmarks/results/{file.name}", f"benchmarks/{file.name}"
    for file in sorted((ROOT / "docs").glob("*.md")):
        yield f"docs/{file.name}", f"about/{file.name}"


def assemble(folder: Path) -> Site:
    """Write all pages into `folder` and return what was written."""
    site = Site(folder)
    terms = glossary(site)
    for path in notebooks():
        _write_notebook(site, path, labels={cell for notebook, cell in terms if notebook == path})
    for path, page in list(site.pages.items()):
        if path.endswith(".md") and page != "benchmarks/claims.md":
            site.write(page, site.linked((ROOT / path).read_text(encoding="utf-8"), origin=path, page=page))
    _write_benchmarks(site)
    _write_licences(site)
    _write_lists(site)
    _write_notation(site)
    _write_reference(site)
    site.sweep()
    return site


# Notebooks ----------------------------------------------------------------------------------------------------------


def read(path: str) -> NotebookNode:
    """Read a notebook of the repository."""
    return nbformat.read(ROOT / path, as_version=4)


@functools.cache
def title(path: str) -> str:
    """The first heading of a notebook or a page of Markdown."""
    text = read(path).cells[0].source if path.endswith(".ipynb") else (ROOT / path).read_text(encoding="utf-8")
    found = re.search(r"^# (.+)$", text, re.MULTILINE)
    if found is None:
        raise ValueError(f"{path}: expected a heading at the beginning")
    return found[1]


def label(path: str, cell_id: str) -> str:
    """The name by which other pages refer to a cell."""
    return f"{Path(path).with_suffix('').as_posix().removeprefix('notebooks/')}-{cell_id}".replace("/", "-").lower()


def _write_notebook(site: Site, path: str, labels: Iterable[str]) -> None:
    notebook, page = read(path), site.pages[path]
    found: list[NotebookNode] = []
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = site.linked(cell.source, origin=path, page=page)
            if cell.id in labels or cell.id.startswith("exercise-"):
                bare = "&#8203;\n\n" if cell.source.startswith("<") else ""  # a fold can carry no label
                cell.source = f"({label(path, cell.id)})=\n{bare}{cell.source}"
        elif "hide-input" in cell.metadata.get("tags", []):
            first = cell.source.partition("\n")[0].lstrip("# ")
            cell.metadata["mystnb"] = {"code_prompt_show": first, "code_prompt_hide": first}
        found.append(cell)
        if "exercise" in cell.metadata:
            found.append(nbformat.v4.new_markdown_cell(solution(cell.metadata["exercise"]), id=f"{cell.id}-solution"))
    if path == OVERVIEW:
        found.append(nbformat.v4.new_markdown_cell(_toctree([*MENU], hidden=True), id="site-menu"))
    notebook.cells = found
    site.write(page, nbformat.writes(notebook))


def solution(exercise_id: str) -> str:
    """The solution of an exercise in Markdown, folded; of one in code the other right ways as well."""
    spec = registry.get(exercise_id)
    text = cells.solution_text(spec, alternatives=True)
    body = text if isinstance(spec, Question) else f"```python\n{text}\n```"
    return f'<details class="solution">\n<summary>Solution: {spec.title}</summary>\n\n{body}\n\n</details>'


# Lists --------------------------------------------------------------------------------------------------------------

MENU = ("Start <start>", "chapters", "labs", "exercises", "reference/index", "benchmarks/index", "about/index")


def _toctree(pages: Iterable[str], *, hidden: bool = False) -> str:
    lines = [":::{toctree}", ":maxdepth: 1", *[":hidden:"] * hidden, *pages, ":::"]
    return "\n".join(lines) + "\n"


def _documents(site: Site, paths: Iterable[str]) -> list[str]:
    return [site.pages[path].rpartition(".")[0] for path in paths]


def _write_lists(site: Site) -> None:
    chapters = [path for path in notebooks() if "/labs/" not in path and path != OVERVIEW]
    labs = [path for path in notebooks() if "/labs/" in path]
    site.write(
        "chapters.md",
        "# Chapters\n\nEach chapter is one sitting. Here you can read it, move its explorers and look at solutions. "
        "To run it, and to have your own answers checked, [open it on your computer](start.md).\n\n"
        + _toctree(_documents(site, chapters)),
    )
    site.write(
        "labs.md",
        "# Labs\n\nA lab is an optional evening that stands on a chapter and asks one question. The number in its name "
        "is that of the chapter.\n\n" + _toctree(_documents(site, labs)),
    )
    rows = ["| exercise | what you do | difficulty | minutes | where |", "|---|---|--:|--:|---|"]
    for exercise_id, place in registry.places().items():
        path = f"notebooks/{place}.ipynb"
        if path not in site.pages:  # stands in no notebook yet
            continue
        spec: Exercise | Question = registry.get(exercise_id)
        target = label(path, f"exercise-{exercise_id.replace('_', '-')}-prompt")
        where = f"[{title(path)}]({site.pages[path]})"
        kind = cells.KIND[spec.kind].lower()
        rows.append(f"| [{spec.title}](#{target}) | {kind} | {spec.difficulty} of 5 | {spec.minutes} | {where} |")
    site.write(
        "exercises.md",
        f"# Exercises\n\nThe course has {len(rows) - 2} exercises. Each stands where it belongs in a chapter or a lab, "
        "and its solution is folded under it. In your own copy of the notebook the check names the mistake that you "
        "made.\n\n" + "\n".join(rows) + "\n",
    )
    about = [path for path in site.pages if path.startswith("docs/") or path == "CONTRIBUTING.md"]
    site.write(
        "about/index.md",
        "# About\n\n" + _toctree([Path(page).name for page in _documents(site, [*about, "LICENSE", "LICENSE-TEXT"])]),
    )


def _write_licences(site: Site) -> None:
    for name, heading in (
        ("LICENSE", "Licence of the code: Apache 2.0"),
        ("LICENSE-TEXT", "Licence of the text: CC BY 4.0"),
    ):
        text = (ROOT / name).read_text(encoding="utf-8")
        site.write(site.pages[name], f"# {heading}\n\n```text\n{text}\n```\n")


def _write_benchmarks(site: Site) -> None:
    """The results; each claim about training with the picture that its record draws."""
    plt.rcParams["svg.hashsalt"] = "site"  # the same picture gives the same bytes
    origin, page = "benchmarks/results/claims.md", "benchmarks/claims.md"
    parts = re.split(
        r"^(## \w+)$", site.linked((ROOT / origin).read_text("utf-8"), origin=origin, page=page), flags=re.M
    )
    text = parts[0]
    for heading, body in zip(parts[1::2], parts[2::2], strict=True):
        name = heading.removeprefix("## ")
        said, _, table = body.partition("\n| ")
        text += f"{heading}{said}\n![{_picture(site, name)}](claims/{name}.svg)\n\n| {table}"
    site.write(page, text)
    site.write(
        "benchmarks/index.md",
        (site.folder / "benchmarks/index.md").read_text("utf-8")
        + "\n"
        + _toctree([Path(p).stem for p in site.pages if p.startswith("benchmarks/results/")], hidden=True),
    )


def _picture(site: Site, name: str) -> str:
    """Draw the record of a claim, once for each state of it, and return its alternative text."""
    record = claim(name)
    file = site.folder / "benchmarks" / "claims" / f"{name}.svg"
    site.written.add(file)
    if not file.exists() or file.stat().st_mtime < (CLAIMS / f"{name}.json").stat().st_mtime:
        file.parent.mkdir(parents=True, exist_ok=True)
        figure = record.figure()
        figure.savefig(file, metadata={"Date": None}, facecolor="white")
        plt.close(figure)
    return record.alt().replace("[", "(").replace("]", ")")


# Glossary and notation ----------------------------------------------------------------------------------------------

# Terms of chapters 04 to 08 and of labs, as written where they are explained; those before are held by the tests.
LATER_TERMS = """
multi-head attention, residual connection, layer normalisation, RMSNorm, post-norm, pre-norm, rank collapse,
equivariance, masked-language pre-training, fine-tuning, autoregressive, greedy, shift right, teacher forcing,
exposure bias, key–value cache, top-k, top-p, beam search, length penalty, byte-pair encoding,
loss per token, perplexity, SGD, Adam, AdamW, Muon, weight decay, warm-up, checkpoint, BLEU, over-fitting,
mixture of experts, router, LoRA, latent attention, scaling law, roofline, isoFLOP, activation patching, probe, hook,
forget gate, position interpolation, rejection sampling, verifier, bfloat16"""


def _prose_rules() -> Any:
    """Load the tests' module on prose: which terms are explained where they are used first is its rule."""
    folder = ROOT / "tests" / "notebooks"
    sys.path.insert(0, str(folder))
    try:
        spec = importlib.util.spec_from_file_location("prose", folder / "prose.py")
        if spec is None or spec.loader is None:
            raise ImportError(f"cannot load {folder / 'prose.py'}")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(folder))
    return module


def glossary(site: Site) -> dict[tuple[str, str], str]:
    """Write the glossary: each term with the sentence that explains it. Return (notebook, cell) -> a term there.

    Raises ValueError for a term that no notebook explains.
    """
    rules = _prose_rules()
    later = {term: rules.form(term) for term in (" ".join(term.split()) for term in LATER_TERMS.split(","))}
    entries, places = [], {}
    uses = [(path, cell.id, *use) for path in notebooks() for cell in read(path).cells for use in _stressed(cell)]
    for term, form in sorted((rules.FORMS | later).items(), key=lambda item: item[0].lower()):
        first = _first_use(form, uses)
        if first is None and term in later:
            raise ValueError(f"glossary: {term!r} stands nowhere in bold or italic type")
        if first is None:  # a term of the tests that no notebook uses today
            continue
        path, cell_id, sentence = first
        places[path, cell_id] = term
        sentence = site.linked(sentence, origin=path, page="reference/glossary.md")
        entries.append(f"**{term}**\n: {sentence} ([{title(path)}](#{label(path, cell_id)}))\n")
    site.write(
        "reference/glossary.md",
        "# Glossary\n\nEach term with the sentence of the course that explains it first, and the way there.\n\n"
        + "\n".join(entries),
    )
    return places


def _first_use(form: re.Pattern[str], uses: list[tuple[str, str, str, str]]) -> tuple[str, str, str] | None:
    """The notebook, the cell and the sentence in which a term stands in bold or italic type first, alone if it does."""
    for fits in (form.fullmatch, form.search):
        for path, cell_id, words, sentence in uses:
            if fits(words):
                return path, cell_id, sentence
    return None


def _stressed(cell: NotebookNode) -> Iterator[tuple[str, str]]:
    """Each few words in bold or italic type, with the sentence that they stand in."""
    if cell.cell_type != "markdown" or cell.id in ("title", "map", "formulas"):
        return
    for block in re.split(r"\n\s*\n|\n(?=[-*] |\d+\. )", cell.source):
        if block.startswith(("#", "|", "$$")):
            continue
        text = " ".join(re.sub(r"^[-*>] |^\d+\. ", "", block).split())
        for stressed in re.finditer(r"(\*{1,2})(?=\S)([^*]+?)(?<=\S)\1", text):
            if len(stressed[2].split()) < 5:
                yield stressed[2].strip("."), _sentence(text, stressed.start())


def _sentence(text: str, position: int) -> str:
    """The sentence of a paragraph around a position; with its neighbour if alone it says too little."""
    ends = [
        0,
        *(found.end() for found in re.finditer(r"(?<=[.?])[\"”’*_)]*\s+(?=[\"“*_(]*[A-ZÀ-Ý$`])", text)),
        len(text),
    ]
    here = next(number for number, end in enumerate(ends[1:]) if position < end)
    first, last = here, here + 1
    if re.match(r"(This|That|These|It|So|The memory)\b", text[ends[here] :]):
        first = max(0, here - 1)
    elif len(text[ends[here] : ends[here + 1]].split()) < 10:
        last = min(len(ends) - 1, here + 2)
    return text[ends[first] : ends[last]].strip()


def _write_notation(site: Site) -> None:
    page = "reference/notation.md"
    cell = next(cell for cell in read(OVERVIEW).cells if cell.id == "formulas")
    text = re.sub(r"^##? .*$", "# Notation and formulas", cell.source, count=1, flags=re.MULTILINE)
    site.write(page, site.linked(text, origin=OVERVIEW, page=page))


# Reference ----------------------------------------------------------------------------------------------------------


def modules() -> dict[str, list[str]]:
    """The public modules by room: "data" -> ["course_lib.data", "course_lib.data.batches", ...].

    All of the library, and of the coursework what notebooks import.
    """
    code = "\n".join(path.read_text("utf-8") for path in (ROOT / "notebooks" / "sources").rglob("*.py"))
    met = sorted({"course_lib", *EXERCISES, *re.findall(r"^from (coursework\.[\w.]+) import", code, re.MULTILINE)})
    found: dict[str, list[str]] = {}
    for start in met:
        folder = () if start in EXERCISES else getattr(importlib.import_module(start), "__path__", ())
        for name in [start, *(module.name for module in pkgutil.walk_packages(folder, f"{start}."))]:
            _, *inner = name.split(".")
            if inner and not any(part.startswith("_") for part in inner) and name not in found.setdefault(inner[0], []):
                found[inner[0]].append(name)
    return dict(sorted(found.items()))


def _write_reference(site: Site) -> None:
    for room, names in modules().items():
        title = ".".join(names[0].split(".")[:2])
        parts = [f"{title}\n{'=' * len(title)}\n"]
        for name in names:
            if name != title:
                parts.append(f"{name}\n{'-' * len(name)}\n")
            parts.append(f".. automodule:: {name}\n   :ignore-module-all:\n")
        site.write(f"reference/{room}.rst", "\n".join(parts))
    site.write(
        "reference/index.md",
        "# Reference\n\nThe words, the signs, the modules of the library `course_lib`, and what a learner meets of "
        "`coursework`.\n\n" + _toctree(["glossary", "notation", *modules()]),
    )
