"""The text of the module: the course's frame with a part in each of its places."""

import ast
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from coursework.assembly.extract import GIVEN, Extract, renamed
from coursework.assembly.parts import FUNCTIONS, PARTS

FRAME = Path(__file__).with_name("my_transformer.txt").read_text(encoding="utf-8")
_IMPORTS = ("argparse", "math", "random", "sys")
_PLACE = re.compile(r"^#: part (\w+)\n", re.MULTILINE)


@dataclass(frozen=True)
class Part:
    """What stands in one place: a remark on where it comes from, and its text; None leaves the part open."""

    remark: str
    extract: Extract | None


def compose(parts: Mapping[str, Part]) -> str:
    """Return the module with these parts, by exercise."""
    imports = [*(f"import {name}" for name in _IMPORTS), *(GIVEN[name] for name in ("torch", "nn"))]
    imports += ["from dataclasses import dataclass", "from pathlib import Path"]
    taken = _names_of_the_frame() | set(FUNCTIONS.values())
    bound = {_name(one): one for one in imports}
    texts = {}
    for exercise_id in PARTS:
        part = parts[exercise_id]
        texts[exercise_id] = _text(exercise_id, part, taken, bound)
    text = _PLACE.sub(lambda place: f"\n{texts[place[1]]}\n", FRAME)
    text = text.replace("#: imports\n", _sorted(bound.values()))
    return re.sub(r"\n{4,}", "\n\n\n", text)


def _text(exercise_id: str, part: Part, taken: set[str], bound: dict[str, str]) -> str:
    """The text of a part, its names made to differ from those of all others; what it binds is added to the sets."""
    function = FUNCTIONS[exercise_id]
    if part.extract is None:
        stub = f'raise NotImplementedError("{function} is open: {part.remark}")'
        return f"# Open: {part.remark}.\ndef {function}(*arguments, **options):\n    {stub}\n"
    other: dict[str, str] = {}
    for name, statement in part.extract.imports.items():
        if name in taken or bound.get(name, statement) != statement:
            other[name] = f"{name}_of_{exercise_id}"
            statement = _imported_as(statement, other[name])
        bound[other.get(name, name)] = statement
    for name in part.extract.helpers:
        if name in taken or name in bound:
            other[name] = f"{name}_of_{exercise_id}"
        taken.add(other.get(name, name))
    source = renamed(part.extract.source, other) if other else part.extract.source
    return f"# {part.remark}\n{source}"


def _names_of_the_frame() -> set[str]:
    found = set()
    for node in ast.parse(FRAME).body:
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
