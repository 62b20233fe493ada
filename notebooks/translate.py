"""Translates the notebooks: their prose goes out into gettext catalogues, and comes back as a source in another language.

    python notebooks/translate.py extract de 01         write or renew locale/de/LC_MESSAGES/01_attention.po
    python notebooks/translate.py status de             what is translated, and which translations are stale
    python notebooks/translate.py build de 01           write source and notebook into build/notebooks-de
    python notebooks/translate.py build de 01 --execute run its cells, too

A passage is a block of a markdown cell (a heading, a paragraph, a list, a table), also of the prompt of an exercise; the
label in the first line of a folded cell; an `alt=` or `caption=` that is a plain string. Nothing else in a code cell is
touched: a caption that is computed stays English, and so do the words in a drawing. A passage without a translation
stays English, and one whose English has changed since: gettext marks its old translation as fuzzy, and `status` lists
it. A translation must keep the formulas, links, code and kinds of blocks of its passage; `build` refuses another.
"""

import argparse
import ast
import json
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path

import build
import jupytext
from babel import Locale, UnknownLocaleError
from babel.messages.catalog import Catalog
from babel.messages.pofile import PoFileError, read_po, write_po
from markdown_it import MarkdownIt
from mdit_py_plugins.dollarmath import dollarmath_plugin
from nbformat import NotebookNode

from course_lib.files import write_atomic

LOCALE = build.NOTEBOOKS / "locale"
BUILT = build.NOTEBOOKS.parent / "build"
MARKDOWN = MarkdownIt("commonmark").enable("table").use(dollarmath_plugin, double_inline=True)
NO_PROSE = {"fence", "code_block", "math_block", "hr"}
SPOKEN = {"alt", "caption"}

Translate = Callable[[str, str, str], str]
"""From a passage, the id of its cell and its kind ("text", "label", "alt", "caption") to what stands there instead."""


class TranslationError(Exception):
    """What cannot be read, or must not be built; the message names the file and the cell."""


# -- passages ----------------------------------------------------------------------------------------------------------


def structure(passage: str) -> tuple[list[str], Counter[tuple[str, str]]]:
    """Return what a translation must keep: the kinds of blocks in order; and formulas, code, HTML and addresses."""
    blocks = MARKDOWN.parse(passage)
    parts = [part for block in blocks for part in (block, *(block.children or ()))]
    kept = Counter((part.type, part.content) for part in parts if part.content and part.type not in ("inline", "text"))
    kept.update(
        (part.type, str(address)) for part in parts if (address := part.attrs.get("href", part.attrs.get("src")))
    )
    return [block.type + block.tag for block in blocks], kept


def in_markdown(text: str, cell_id: str, translate: Translate) -> str:
    """Return the text of a markdown cell with its blocks translated. A paragraph is one line in its passage."""
    lines = text.split("\n")
    blocks = MARKDOWN.parse(text)
    for number, block in reversed(list(enumerate(blocks))):
        if block.level or block.map is None or block.nesting < 0 or block.type in NO_PROSE:
            continue
        own = slice(*block.map)
        passage = "\n".join(lines[own]).rstrip("\n")
        after = "\n" * ("\n".join(lines[own]).count("\n") - passage.count("\n"))
        if block.type == "paragraph_open" and not any(
            part.type == "hardbreak" for part in blocks[number + 1].children or ()
        ):
            joined = " ".join(passage.split("\n"))
            said = translate(joined, cell_id, "text")
            passage = passage if said == joined else said
        else:
            passage = translate(passage, cell_id, "text")
        lines[own] = (passage + after).split("\n")
    return "\n".join(lines)


def spoken(source: str) -> tuple[list[ast.keyword], int]:
    """Return the `alt=` and `caption=` of a code cell that are plain strings, and the number of those computed."""
    try:
        calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    except SyntaxError:  # a command of the notebook, as %timeit
        return [], 0
    found = [one for call in calls for one in call.keywords if one.arg in SPOKEN]
    plain = [one for one in found if isinstance(one.value, ast.Constant) and isinstance(one.value.value, str)]
    return plain, len(found) - len(plain)


def in_code(cell: NotebookNode, cell_id: str, translate: Translate) -> str:
    """Return a code cell with its label, and its plain `alt=` and `caption=`, translated."""
    raw = cell.source.encode()  # ast counts bytes
    starts = [0]
    for line in raw.split(b"\n"):
        starts.append(starts[-1] + len(line) + 1)
    for one in sorted(spoken(cell.source)[0], key=lambda one: -starts[one.value.lineno - 1] - one.value.col_offset):
        value = one.value
        text = value.value  # type: ignore[attr-defined]  # a Constant, says `spoken`
        said = translate(text, cell_id, str(one.arg))
        if said != text:
            end = starts[(value.end_lineno or 0) - 1] + (value.end_col_offset or 0)
            begin = starts[value.lineno - 1] + value.col_offset
            raw = raw[:begin] + json.dumps(said, ensure_ascii=False).encode() + raw[end:]
    source = raw.decode()
    first, newline, rest = source.partition("\n")
    if build.rules.FOLDED in cell.metadata.get("tags", ()) and first.startswith("# "):
        return "# " + translate(first[2:], cell_id, "label") + newline + rest
    return source


def translated(text: str, translate: Translate) -> str:
    """Return the text of a notebook's source, translated."""
    notebook = jupytext.reads(text, fmt="py:percent")
    for cell in notebook.cells:
        if "exercise" not in cell.metadata:
            put = in_markdown(cell.source, cell.metadata["id"], translate) if cell.cell_type == "markdown" else None
            cell.source = in_code(cell, cell.metadata["id"], translate) if put is None else put
    notebook.metadata["jupytext"] = {"notebook_metadata_filter": "-all", "cell_metadata_filter": "all"}
    return str(jupytext.writes(notebook, fmt="py:percent"))


def exercises_in(translate: Translate) -> build.FindExercise:
    """Return `build.registered_exercise` with prompts translated."""

    def find(exercise_id: str) -> tuple[str, str]:
        prompt, stub = build.registered_exercise(exercise_id)
        return in_markdown(prompt, build.prompt_id(exercise_id), translate), stub

    return find


# -- catalogues --------------------------------------------------------------------------------------------------------


def path_of(language: str, name: str, locale: Path = LOCALE) -> Path:
    """Return the catalogue of a notebook."""
    return locale / language / "LC_MESSAGES" / f"{name}.po"


def template(source: Path) -> Catalog:
    """Return the passages of a source and of its exercises, untranslated, in the order of the notebook."""
    text = source.read_text(encoding="utf-8")
    found: list[tuple[str, str, str]] = []

    def collect(passage: str, cell_id: str, kind: str) -> str:
        found.append((passage, cell_id, kind))
        return passage

    translated(text, collect)
    find = exercises_in(collect)
    for exercise_id in build.EXERCISE.findall(text):
        find(exercise_id)
    order = {cell.id: number for number, cell in enumerate(build.read_source(source).cells)}
    catalog = Catalog(project=build.name_of(source))
    found.reverse()  # the passages of a cell are found from its last to its first
    for passage, cell_id, kind in sorted(found, key=lambda one: order[one[1]]):
        comments = [] if kind == "text" else [kind]
        catalog.add(passage, locations=[(cell_id, 0)], auto_comments=comments)
    return catalog


def catalogue(language: str, source: Path, locale: Path = LOCALE) -> Catalog:
    """Return the stored catalogue, renewed by the present source; an empty one where there is none."""
    try:
        known = Locale.parse(language)
    except (UnknownLocaleError, ValueError) as error:
        raise TranslationError(f"LANG must be a language such as de or pt_BR, got {language!r}: {error}") from None
    name, present = build.name_of(source), template(source)
    path = path_of(language, name, locale)
    if path.exists():
        try:
            with path.open("rb") as stream:
                stored = read_po(stream, locale=known, abort_invalid=True)
        except (PoFileError, ValueError) as error:
            raise TranslationError(f"{path} is not a gettext catalogue: {error}") from None
        present.creation_date = stored.creation_date  # so that nothing differs where no passage does
        before = _previous(path)
    else:
        about = f"# {name} in {known.english_name}.\n# Translated text is licensed as the course's own, CC BY 4.0."
        stored, before = Catalog(known, project=name, header_comment=about, fuzzy=False), {}
    stored.update(present)
    for message in stored:
        if message.fuzzy and not message.previous_id and message.id in before:
            message.previous_id = [before[message.id]]
    for key in [key for key, message in stored.obsolete.items() if not message.string]:
        del stored.obsolete[key]
    return stored


def _previous(path: Path) -> dict[str, str]:
    """Return by passage the English that its fuzzy translation was made for; babel writes it, but does not read it."""
    found = {}
    for entry in path.read_text(encoding="utf-8").split("\n\n"):
        old = [line[2:].strip().removeprefix("msgid ") for line in entry.splitlines() if line.startswith("#| ")]
        for message in read_po(BytesIO(entry.encode())) if old else ():
            if message.id:
                found[str(message.id)] = "".join(map(ast.literal_eval, old))
    return found


def lookup(catalog: Catalog, name: str) -> Translate:
    """Return the translation of a catalogue; it falls back to English, and refuses what keeps no structure."""

    def translate(passage: str, cell_id: str, kind: str) -> str:
        message = catalog.get(passage)
        if message is None or not message.string or message.fuzzy:
            return passage
        said = str(message.string)
        wanted, got = structure(passage), structure(said)
        if wanted != got:
            missing, added = wanted[1] - got[1], got[1] - wanted[1]
            what = "; ".join(
                f"{text} {', '.join(content for _, content in part)}"
                for text, part in (("lacks", missing), ("adds", added))
                if part
            )
            kinds = f"has the blocks {' '.join(got[0])}, expected {' '.join(wanted[0])}"
            raise TranslationError(f"{name}, cell {cell_id}: the translation {what or kinds}: {said[:60]!r}")
        return said

    return translate


# -- commands ----------------------------------------------------------------------------------------------------------


def extract(language: str, source: Path, locale: Path = LOCALE) -> Path:
    """Write or renew a catalogue; return its path."""
    text = BytesIO()
    write_po(text, catalogue(language, source, locale), include_previous=True, include_lineno=False)
    path = path_of(language, build.name_of(source), locale)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, text.getvalue().decode())
    return path


def status(language: str, source: Path, locale: Path = LOCALE) -> list[str]:
    """Return one line of counts, and one for each stale translation."""
    name = build.name_of(source)
    messages = [message for message in catalogue(language, source, locale) if message.id]
    stale = [message for message in messages if message.fuzzy]
    done = sum(bool(message.string) for message in messages) - len(stale)
    cells = jupytext.reads(source.read_text(encoding="utf-8"), fmt="py:percent").cells
    computed = sum(spoken(cell.source)[1] for cell in cells if cell.cell_type == "code")
    counts = f"{done} of {len(messages)} passages translated, {len(stale)} stale"
    return [
        f"{name}: {counts}; {computed} computed captions and alt texts stay English",
        *(f"  STALE {message.locations[0][0]}: {str(message.id)[:80]!r}" for message in stale),
    ]


def write_notebook(
    language: str, source: Path, folder: Path | None = None, locale: Path = LOCALE, execute: bool = False
) -> Path:
    """Write the translated source and its notebook into `folder` (default `build/notebooks-LANG`); return the notebook."""
    name = build.name_of(source)
    folder = folder or BUILT / f"notebooks-{language}"
    if not path_of(language, name, locale).exists():
        raise TranslationError(f"{path_of(language, name, locale)} is missing; `extract {language} {name}` writes it")
    translate = lookup(catalogue(language, source, locale), name)
    put, target = folder / "sources" / f"{name}.py", folder / f"{name}.ipynb"
    text = translated(source.read_text(encoding="utf-8"), translate)
    for path in (put, target):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(put, text)
    find = exercises_in(translate)
    if execute:
        build.build(put, target, find)
    else:
        write_atomic(target, build.serialise(build.read_source(put, find)))
    return target


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return 0 if it could be done."""
    parser = argparse.ArgumentParser(description="Translate the notebooks by gettext catalogues.")
    parser.add_argument("command", choices=("extract", "status", "build"))
    parser.add_argument("language", metavar="LANG", help="a language, as de or pt_BR")
    parser.add_argument("names", nargs="*", metavar="NAME", help="start of a source's name, as 01 (default: all)")
    parser.add_argument("--execute", action="store_true", help="build: run the cells, too")
    options = parser.parse_args(arguments)
    try:
        for source, _ in build.sources(options.names):
            stored = path_of(options.language, build.name_of(source)).exists()
            if not (stored or options.names or options.command == "extract"):
                continue  # nobody has begun it
            if options.command == "extract":
                print(extract(options.language, source))
            elif options.command == "status":
                print(*status(options.language, source), sep="\n")
            else:
                print(write_notebook(options.language, source, execute=options.execute))
    except (TranslationError, build.BuildError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
