"""What learners read calls their folder a folder: "desk" is a name in the code, and no word of theirs."""

import ast
import re
from pathlib import Path

import typer.main
from each import each

from coursework.cli import app

ROOT = Path(__file__).resolve().parents[2]
DESK = re.compile(r"\bdesks?\b", re.IGNORECASE)
NAMES = {"desk", "coursework.desk.judge", "coursework.desk.answering"}  # a key, and modules that are run
PROSE = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "notebooks" / "sources").rglob("*.py")),
    *sorted((ROOT / "coursework").rglob("*.js")),
]


def spoken(tree: ast.AST) -> list[ast.Constant]:
    """The texts of a module that are no docstrings."""
    silent = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    return [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in silent
    ]


def test_no_message_of_the_package_says_it() -> None:
    said = [
        (path.name, text.lineno, text.value)
        for path in sorted(ROOT.glob("course*/**/*.py"))
        for text in spoken(ast.parse(path.read_text(encoding="utf-8")))
        if DESK.search(text.value) and text.value not in NAMES
    ]
    assert said == []
    assert DESK.search(spoken(ast.parse("def f():\n    '''doc'''\n    g(f'no desk in {x}')"))[0].value)


def test_no_help_says_it() -> None:
    group = typer.main.get_command(app)
    commands = {"": group, **group.commands}
    said = {name: command.help for name, command in commands.items() if command.help and DESK.search(command.help)}
    said |= {
        f"{name} {option.name}": option.help
        for name, command in commands.items()
        for option in command.params
        if DESK.search(f"{' '.join(option.opts)} {getattr(option, 'help', '')}")
    }
    assert said == {}


@each(PROSE)
def test_no_page_says_it(path: Path) -> None:
    assert DESK.findall(path.read_text(encoding="utf-8").replace("coursework.desk", "")) == []
