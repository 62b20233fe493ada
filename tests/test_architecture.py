"""The plan of the house, read off the source: imports go down the floors, and each room keeps its rules."""

import ast
import graphlib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

from each import each

ROOT = Path(__file__).parents[1]
PACKAGES = ("course_lib", "coursework")
LINES = 400

# Notebooks of earlier editions import from `course_lib` what is in `coursework` now. This module of the library finds
# it for them, so it names `coursework`, as text: it imports nothing of it until an old name is used.
FORWARDING = "course_lib.forwarding"

LIBRARY = [
    {"forwarding", "checks", "reading", "files", "masks", "norms", "testing", "data"},
    # layers read the config, so it lies here
    {"attention", "multi_head", "cache", "layers", "positions", "rotary_scaling", "config"},
    {"encoder", "decoder", "transformer"},
    {"generation", "variants", "training", "scaling"},
]
COURSEWORK = [
    {"pictures", "explorers", "records", "corpora"},
    {"exercises"},
    {"desk", "assembly", "export"},
    {"classroom", "commands", "cli"},
]
FLOORS = [
    {f"{package}.{room}" for room in rooms}
    for package, plan in zip(PACKAGES, (LIBRARY, COURSEWORK), strict=True)
    for rooms in plan
]
FLOOR = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}

# What notebooks import as `ex` joins exercises and desk, so it stands above both, though it is a package's first file.
DOOR = "coursework.exercises"

# What a room may import besides itself, where that is less than its floor allows.
ONLY = {
    FORWARDING: set(),
    "course_lib.checks": set(),
    "course_lib.reading": set(),
    "course_lib.files": {"course_lib.reading"},
    "course_lib.masks": {"course_lib.checks"},
    "course_lib.norms": {"course_lib.checks"},
    "course_lib.positions": {"course_lib.checks", "course_lib.rotary_scaling"},
    "course_lib.rotary_scaling": {"course_lib.checks"},
    "course_lib.testing": {"course_lib.checks"},
    "course_lib.data": {FORWARDING, "course_lib.checks", "course_lib.files", "course_lib.reading"},
    "course_lib.training": {  # no model class
        "course_lib.checks",
        "course_lib.config",
        "course_lib.files",
        "course_lib.masks",
        "course_lib.positions",
        "course_lib.reading",
    },
    "coursework.pictures": set(),
    "coursework.records": {"course_lib.reading", "coursework.pictures"},
    "coursework.desk": {FORWARDING, "course_lib.files", "course_lib.reading", "coursework.exercises"},
}

# What may be imported inside a function because it is slow to load, or not there on every system.
SLOW = {
    "torch": "two seconds, for commands that do without",
    "torch.distributed": "half a second, for runs on several devices only",
    "torch.utils.benchmark": "half a second, to measure only",
    "torch.utils.flop_counter": "loads sympy",
    "torch.utils.tensorboard": "an optional dependency",
    "numpy": "a fifth of a second",
    "scipy": "a third of a second",
    "matplotlib": "half a second, for the curve under a notebook's panel only",
    "seaborn": "loads pandas",
    "sklearn": "a second",
    "sacrebleu": "a third of a second",
    "babel": "locales",
    "num2words": "a module for each of 56 languages",
    "pydoc_data": "half a megabyte of text",
    "pooch": "loads requests",
    "requests": "a fifth of a second",
    "ctranslate2": "an optional dependency",
    "xllamacpp": "an optional dependency",
    "huggingface_hub": "loads httpx; for downloads only",
    "nbformat": "a third of a second",
    "filelock": "a hundredth of a second, for who writes only",
    "rich": "a tenth of a second, and `course --help` draws no table of ours",
    "psutil": "for one line of `course doctor`",
    "IPython": "there in notebooks only",
    "resource": "not there on Windows",
    "importlib": "its metadata, for the first old name only",
}

# The rooms whose functions import other modules of the package as late, and why.
LATE = {
    "course_lib.training": "a recipe's settings are read without torch, which the config of a model loads",
    "coursework.commands": "`course --help` and completion answer at once: torch is loaded when a command is called",
    "coursework.desk": "likewise: making a desk loads no exercise",
    "coursework.exercises": "a list of exercises is read without torch; an alternative shows its import",
}

MOST_LATE = 88  # imports inside functions, outside the exercises


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
SOURCES = {module_name(path): path for path in FILES}
TREES = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in SOURCES.items()}


class Import(NamedTuple):
    """One imported module, and when the import runs.

    That is at "load", inside a function ("late"), when a name of a "stub" is used, or never: for "types" only.
    """

    module: str
    when: str
    line: int


def statements(node: ast.AST, when: str = "load") -> Iterator[tuple[ast.stmt, str]]:
    """Every statement of a tree, and when it runs."""
    for child in ast.iter_child_nodes(node):
        inner = when
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
            inner = "types"
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) and when == "load":
            inner = "late"
        if isinstance(child, ast.stmt):
            yield child, inner
        yield from statements(child, inner)


def imports(name: str, tree: ast.AST) -> Iterator[Import]:
    """All that a module imports, relative imports resolved; a module of the package stands for its names."""
    is_package = SOURCES[name].name == "__init__.py" if name in SOURCES else False
    for node, when in statements(tree):
        if isinstance(node, ast.Import):
            found = {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = name.split(".")
                parents = parents[: len(parents) - node.level + is_package]
                base = ".".join([*parents, base] if base else parents)
            whole = {f"{base}.{alias.name}" for alias in node.names}
            found = {child if child in SOURCES else base for child in whole}
        else:
            continue
        yield from (Import(module, when, node.lineno) for module in sorted(found - {name}))


IMPORTS = {name: list(imports(name, tree)) for name, tree in TREES.items()}
for name, path in SOURCES.items():
    stub = path.with_suffix(".pyi")
    if stub.exists():
        found = imports(name, ast.parse(stub.read_text(encoding="utf-8")))
        IMPORTS[name] += [one._replace(when="stub") for one in found]


def ours(name: str) -> bool:
    return name.partition(".")[0] in PACKAGES


def room(name: str) -> str:
    """The package and the room of a module: "course_lib.data" for "course_lib.data.bpe"; empty for a package itself."""
    return ".".join(name.split(".")[:2]) if "." in name else ""


def under(name: str, prefixes: Collection[str]) -> str | None:
    """Return the longest of the prefixes that `name` is, or lies in."""
    return max((one for one in prefixes if f"{name}.".startswith(f"{one}.")), key=len, default=None)


def test_the_library_knows_nothing_of_the_coursework():
    """Whoever imports `course_lib` gets the library alone, at import time or later."""
    for name in [name for name in SOURCES if name.startswith("course_lib")]:
        for other, _, line in IMPORTS[name]:
            assert not other.startswith("coursework"), f"{name}:{line} imports {other}"
        if name != FORWARDING:
            assert "coursework" not in SOURCES[name].read_text(encoding="utf-8"), f"{name} speaks of coursework"


def test_every_room_has_a_floor():
    rooms = {room(name) for name in SOURCES} - {""}
    assert rooms <= set(FLOOR), f"give {sorted(rooms - set(FLOOR))} a floor"


@each(SOURCES)
def test_imports_only_go_down(name):
    """All of them: those inside functions and those for type checkers too."""
    for other, _, line in IMPORTS[name]:
        assert other != DOOR, f"{name}:{line} imports the door of the exercises, which only notebooks do"
        if not ours(other) or room(other) == room(name):
            continue
        if not room(name):
            assert other == FORWARDING, f"{name}/__init__.py imports {other}; the package itself loads nothing"
            continue
        if not room(other):
            continue
        floor = FLOOR["coursework.commands"] if name == DOOR else FLOOR[room(name)]
        assert FLOOR[room(other)] <= floor, f"{name}:{line} imports {other}, which stands above it"
        if room(name) in ONLY:
            assert room(other) in ONLY[room(name)], f"{name}:{line} imports {other}; {room(name)} knows nothing of it"


def test_a_specification_knows_nothing_of_what_is_done_with_it():
    """In the room of the exercises: spec, engine, learner, handle; each exercise imports only what is lowest."""
    storeys = [{"draw", "spec", "tensors"}, {"engine"}, {"registry", "learner"}, {"handle", "guesses", "capstones"}]
    height = {part: number for number, parts in enumerate(storeys) for part in parts}
    for name in [name for name in SOURCES if name.startswith(f"{DOOR}.")]:
        for other, _, line in IMPORTS[name]:
            if other.startswith(f"{DOOR}."):
                own, below = ([*one.split("."), ""][2] for one in (name, other))
                assert height.get(below, 0) <= height.get(own, 0), f"{name}:{line} imports {other}"


def test_nothing_imports_itself_in_a_circle():
    """Imports inside functions and for type checkers count: two modules that need each other are one."""
    graph = {name: {other for other, _, _ in found if ours(other)} for name, found in IMPORTS.items()}
    tuple(graphlib.TopologicalSorter(graph).static_order())  # raises CycleError


@each(SOURCES)
def test_a_late_import_has_a_reason(name):
    """An import inside a function saves start-up time; without that it only hides what a module needs."""
    for other, when, line in IMPORTS[name]:
        if when == "late":
            reason = LATE.get(room(name)) if ours(other) else under(other, SLOW)
            assert reason, f"{name}:{line} imports {other} inside a function; move it to the head of the module"


def test_late_imports_do_not_grow():
    late = [
        f"{name}:{one.line} {one.module}"
        for name, found in IMPORTS.items()
        for one in found
        if one.when == "late" and room(name) != "coursework.exercises"
    ]
    assert len(late) <= MOST_LATE, "\n".join(late)


@each(sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.[pj][ys]")))
def test_files_stay_short(path):
    lines = len(path.read_text(encoding="utf-8").splitlines())
    assert lines <= LINES, f"{path.relative_to(ROOT)} has {lines} lines; split it"


@each(SOURCES)
def test_devices_are_arguments(name):
    """Nothing calls .cuda(): the device is an argument or follows the input."""
    for node in ast.walk(TREES[name]):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            assert node.func.attr != "cuda", f"{name} line {node.lineno} calls .cuda()"


# Formulas are the course's own data, no input.
@each([one for one in SOURCES if room(one) != "course_lib.testing" and one != "coursework.exercises.engine.formula"])
def test_bad_input_is_never_an_assert(name):
    for node in ast.walk(TREES[name]):
        assert not isinstance(node, ast.Assert), f"{name} line {node.lineno}: raise an error that names the argument"


def public_definitions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.ClassDef]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            if any("overload" in ast.dump(decorator) for decorator in node.decorator_list):
                continue
            yield node
            if isinstance(node, ast.ClassDef):
                yield from public_definitions(node)


@each(SOURCES)
def test_what_is_public_is_explained(name):
    assert ast.get_docstring(TREES[name]), f"{name} has no docstring"
    for node in public_definitions(TREES[name]):
        assert ast.get_docstring(node), f"{name}.{node.name} has no docstring"


@each([name for name in SOURCES if room(name) in ("coursework.pictures", "coursework.corpora", "course_lib.data")])
def test_views_and_data_take_no_model(name):
    """Every view works on the learner's own tensors, so nothing there needs torch.nn's modules."""
    for node in ast.walk(TREES[name]):
        if isinstance(node, ast.Attribute):
            assert node.attr != "Module", f"{name} line {node.lineno} speaks of a model class"
        if isinstance(node, ast.ImportFrom | ast.Import):
            names = {alias.name for alias in node.names} | {getattr(node, "module", "")}
            assert not {"nn", "torch.nn", "Module"} & names, f"{name} line {node.lineno} imports torch.nn"


def test_these_tests_bite():
    """The readers above see what they are meant to see."""
    planted = """
from course_lib import masks
from ..attention import x
from . import y
def f():
    import coursework.cli
    class B:
        from torch import nn
if TYPE_CHECKING:
    from coursework.pictures import show
class A:
    import course_lib.data
"""
    assert list(imports("course_lib.scaling.z", ast.parse(planted))) == [
        Import("course_lib.masks", "load", 2),
        Import("course_lib.attention", "load", 3),
        Import("course_lib.scaling", "load", 4),
        Import("coursework.cli", "late", 6),
        Import("torch", "late", 8),
        Import("coursework.pictures", "types", 10),
        Import("course_lib.data", "load", 12),
    ]
    assert under("torch.distributed.tensor", SLOW) == "torch.distributed"
    assert under("torchvision", SLOW) is None
    undocumented = ast.parse("class A:\n    'Doc.'\n    def f(self): pass\n    def _g(self): pass\ndef h(): 'Doc.'")
    assert [node.name for node in public_definitions(undocumented) if not ast.get_docstring(node)] == ["f"]
