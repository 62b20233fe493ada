"""The plan of the house, read off the source: imports go down the floors, and each room keeps its rules."""

import ast
import graphlib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "course_lib"
LINES = 400

FLOORS = [
    {"checks", "files", "masks", "norms", "positions", "testing", "data", "viz"},
    {"config", "cache", "attention", "multi_head", "layers"},
    {"encoder", "decoder"},
    {"transformer"},
    {"generation", "variants"},
    {"training", "scaling"},
    {"desk", "exercises"},
    {"commands"},
    {"cli"},
]
FLOOR = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}

# What a room may import of the package besides itself, where that is less than its floor allows.
ONLY = {
    "checks": set(),
    "files": set(),
    "masks": {"checks"},
    "norms": {"checks"},
    "positions": {"checks"},
    "testing": set(),
    "data": {"checks", "files"},
    "viz": {"checks", "files", "masks", "positions"},
    "desk": {"checks", "files", "exercises"},
}


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


SOURCES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}
TREES = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in SOURCES.items()}


def statements(node: ast.AST, at_load: bool) -> Iterator[ast.stmt]:
    """Statements that run, without those for type checkers; with `at_load`, only those that run at import."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
            continue
        if at_load and isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(child, ast.stmt):
            yield child
        yield from statements(child, at_load)


def imports(name: str, tree: ast.AST, at_load: bool = False) -> set[str]:
    """The modules of the package that a module imports, relative imports resolved."""
    is_package = SOURCES[name].name == "__init__.py" if name in SOURCES else False
    found: set[str] = set()
    for node in statements(tree, at_load):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = name.split(".")
                parents = parents[: len(parents) - node.level + is_package]
                base = ".".join([*parents, base] if base else parents)
            whole = {f"{base}.{alias.name}" for alias in node.names}
            found |= {child if child in SOURCES else base for child in whole}
    return {other for other in found if other == "course_lib" or other.startswith("course_lib.")} - {name}


def room(name: str) -> str:
    return name.split(".")[1] if "." in name else ""


def test_every_room_has_a_floor():
    rooms = {room(name) for name in SOURCES} - {""}
    assert rooms <= set(FLOOR), f"give {sorted(rooms - set(FLOOR))} a floor"


@pytest.mark.parametrize("name", SOURCES)
def test_imports_only_go_down(name):
    if not room(name):
        assert not imports(name, TREES[name], at_load=True)  # the package itself loads nothing
        return
    for other in imports(name, TREES[name]):
        if room(other) in ("", room(name)):
            continue
        assert FLOOR[room(other)] <= FLOOR[room(name)], f"{name} imports {other}, which stands above it"
        if room(name) in ONLY:
            assert room(other) in ONLY[room(name)], f"{name} imports {other}; {room(name)} knows nothing of it"


def test_nothing_imports_itself_in_a_circle():
    graph = {name: imports(name, tree, at_load=True) for name, tree in TREES.items()}
    tuple(graphlib.TopologicalSorter(graph).static_order())  # raises CycleError


@pytest.mark.parametrize("path", sorted([*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.js")]), ids=lambda path: path.name)
def test_files_stay_short(path):
    lines = len(path.read_text(encoding="utf-8").splitlines())
    assert lines <= LINES, f"{path.relative_to(ROOT)} has {lines} lines; split it"


@pytest.mark.parametrize("name", SOURCES)
def test_devices_are_arguments(name):
    """Nothing calls .cuda(): the device is an argument or follows the input."""
    for node in ast.walk(TREES[name]):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            assert node.func.attr != "cuda", f"{name} line {node.lineno} calls .cuda()"


@pytest.mark.parametrize("name", [name for name in SOURCES if room(name) != "testing"])
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


@pytest.mark.parametrize("name", SOURCES)
def test_what_is_public_is_explained(name):
    assert ast.get_docstring(TREES[name]), f"{name} has no docstring"
    for node in public_definitions(TREES[name]):
        assert ast.get_docstring(node), f"{name}.{node.name} has no docstring"


@pytest.mark.parametrize("name", [name for name in SOURCES if room(name) in ("viz", "data")])
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
    planted = "from course_lib import masks\nimport course_lib.cli\nfrom ..attention import x\nfrom . import y\n"
    assert imports("course_lib.data.z", ast.parse(planted)) == {
        "course_lib.masks",
        "course_lib.cli",
        "course_lib.attention",
        "course_lib.data",
    }
    lazy = "def f():\n    import course_lib.cli\nif TYPE_CHECKING:\n    import course_lib.viz\n"
    lazy += "class A:\n    import course_lib.data"
    assert imports("course_lib.z", ast.parse(lazy)) == {"course_lib.cli", "course_lib.data"}
    assert imports("course_lib.z", ast.parse(lazy), at_load=True) == {"course_lib.data"}
    undocumented = ast.parse("class A:\n    'Doc.'\n    def f(self): pass\n    def _g(self): pass\ndef h(): 'Doc.'")
    assert [node.name for node in public_definitions(undocumented) if not ast.get_docstring(node)] == ["f"]
