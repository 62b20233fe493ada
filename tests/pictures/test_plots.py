"""Figures of single notebooks: each is in a notebook."""

import ast
from pathlib import Path

from notebook_files import SOURCES

from coursework.pictures import plots


def test_every_figure_is_in_a_notebook():
    used = {
        node.id if isinstance(node, ast.Name) else node.attr
        for source in SOURCES
        for node in ast.walk(ast.parse(source.read_text(encoding="utf-8")))
        if isinstance(node, ast.Name | ast.Attribute)
    }
    files = sorted(Path(plots.__path__[0]).glob("*.py"))
    drawn = {
        node.name
        for file in files
        for node in ast.parse(file.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")
    }
    assert len(drawn) > 30
    assert not drawn - used
