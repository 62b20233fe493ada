"""The text of the module: the course's frame with a part in each of its places."""

import ast
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from coursework.assembly.extract import GIVEN, Extract, renamed
from coursework.assembly.parts import FUNCTIONS, LAST, up_to

FRAME = Path(__file__).with_name("my_transformer.txt").read_text(encoding="utf-8")
"""The module without its parts. What stands behind `#: chapter 3` belongs to a module that has come to chapter 3. A
line that ends with `#: 2-4` belongs to one that has come to chapter 2, 3 or 4; with `#: 5-`, to 5 or further."""

_PLACE = re.compile(r"^#: part (\w+)\n", re.MULTILINE)
_SPAN = re.compile(r"(.*?)  #: (\d)-(\d?)$")


@dataclass(frozen=True)
class Part:
    """What stands in one place: a remark on where it comes from, and its text."""

    remark: str
    extract: Extract


def compose(parts: Mapping[str, Part], chapter: int = LAST) -> str:
    """Return the module as it stands after a chapter, with these parts, by exercise."""
    frame = _frame(chapter)
    taken = _names_of(frame) | set(FUNCTIONS.values())
    bound: dict[str, str] = {}
    texts = {one: _text(one, parts[one], taken, bound) for one in up_to(chapter)}
    text = _PLACE.sub(lambda place: f"\n\n{texts[place[1]]}\n\n", frame)
    used = {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}
    bound = {name: _IMPORTS[name] for name in sorted(used & set(_IMPORTS))} | bound
    text = text.replace("#: imports\n", _sorted(bound.values()))
    text = re.sub(r"\n{4,}", "\n\n\n", text)
    return re.sub(r"(-{20}\n)\n+", r"\1", text).rstrip() + "\n"  # a banner stands right above what it heads


_IMPORTS = GIVEN | {
    "argparse": "import argparse",
    "random": "import random",
    "sys": "import sys",
    "dataclass": "from dataclasses import dataclass",
    "fields": "from dataclasses import fields",
    "Path": "from pathlib import Path",
    "SimpleNamespace": "from types import SimpleNamespace",
}
"""What the frame may use, by name."""


def _frame(chapter: int) -> str:
    """The lines of the frame that belong to a module which has come to this chapter."""
    lines = []
    for line in FRAME.split("\n"):
        if line.startswith("#: chapter "):
            if int(line.split()[-1]) > chapter:
                break
            continue
        span = _SPAN.match(line)
        if span is None:
            lines.append(line)
        elif int(span[2]) <= chapter <= int(span[3] or LAST):
            lines.append(span[1].rstrip())
    return "\n".join([*lines, ""])


def _text(exercise_id: str, part: Part, taken: set[str], bound: dict[str, str]) -> str:
    """The text of a part, its names made to differ from those of all others; what it binds is added to the sets."""
    other: dict[str, str] = {}
    for name, statement in part.extract.imports.items():
        if name in taken or bound.get(name, _IMPORTS.get(name, statement)) != statement:
            other[name] = f"{name}_of_{exercise_id}"
            statement = _imported_as(statement, other[name])
        bound[other.get(name, name)] = statement
    for name in part.extract.helpers:
        if name in taken or name in bound:
            other[name] = f"{name}_of_{exercise_id}"
        taken.add(other.get(name, name))
    source = renamed(part.extract.source, other) if other else part.extract.source
    return f"# {part.remark}\n{source}"


def _names_of(frame: str) -> set[str]:
    found = set()
    for node in ast.parse(frame).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        found |= {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(node, ast.Assign)}
    return found


def _name(statement: str) -> str:
    """The name that an import of one name binds."""
    return re.split(r"\s", statement)[-1].partition(".")[0]


def _imported_as(statement: str, name: str) -> str:
    node = ast.parse(statement).body[0]
    if isinstance(node, ast.Import | ast.ImportFrom):
        node.names[0].asname = name
    return ast.unparse(node)


def _sorted(statements: Iterable[str]) -> str:
    """The imports in two blocks, the standard library first; those from one module in one line."""
    whole = {one for one in statements if one.startswith("import ")}
    named: dict[str, list[str]] = {}
    for one in sorted(set(statements) - whole):
        module, _, name = one.removeprefix("from ").partition(" import ")
        named.setdefault(module, []).append(name)
    every = sorted(whole) + [f"from {module} import {', '.join(names)}" for module, names in sorted(named.items())]
    theirs = [one for one in every if re.match(r"(import|from) torch\b", one)]
    return "\n".join([*(one for one in every if one not in theirs), "", *theirs]) + "\n"
