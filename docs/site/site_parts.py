"""What the site adds to Sphinx: formulas as MathML, cells of tables, docstrings in the text that the package writes."""

import itertools
import re
from typing import Any

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx


def setup(app: Sphinx) -> dict[str, bool]:
    """Register them."""
    app.add_html_math_renderer("mathml", (visit_math, None), (visit_displaymath, None))  # type: ignore[arg-type]
    app.add_node(nodes.entry, override=True, html=(visit_entry, depart_entry))
    app.connect("autodoc-process-docstring", plain_docstring)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def mathml(formula: str, *, block: bool = False) -> str:
    """Return a formula of TeX as MathML. Raises docutils' MathError for what it does not know."""
    return tex2mathml(re.sub(r"\\dots(?![a-z])", r"\\ldots", formula), as_block=block)


def visit_math(writer: Any, node: nodes.math) -> None:
    """Write a formula in a line of text."""
    writer.body.append(f'<span class="math">{mathml(node.astext())}</span>')
    raise nodes.SkipNode


def visit_displaymath(writer: Any, node: nodes.math_block) -> None:
    """Write a formula that stands alone; one that is wider than the screen can be scrolled, by keyboard too."""
    formula = mathml(node.astext(), block=True)
    writer.body.append(f'<div class="math" tabindex="0" role="group" aria-label="Formula">{formula}</div>\n')
    raise nodes.SkipNode


def visit_entry(writer: Any, node: nodes.entry) -> None:
    """Write a cell of a table as the theme does; a head says what it heads, and an empty corner is no head."""
    type(writer).visit_entry(writer, node)
    if isinstance(node.parent.parent, nodes.thead):
        if node.astext():
            writer.body[-1] = writer.body[-1].replace("<th", '<th scope="col"', 1)
        else:
            writer.body[-1] = writer.body[-1].replace("<th", "<td", 1)
            writer.context[-1] = writer.context[-1].replace("</th", "</td", 1)


def depart_entry(writer: Any, node: nodes.entry) -> None:
    """End the cell."""
    type(writer).depart_entry(writer, node)


def plain_docstring(app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """Let stars and bars outside code stand for themselves, and turn tables of Markdown into tables."""
    groups = [(table, [*group]) for table, group in itertools.groupby(lines, key=lambda line: line.startswith("|"))]
    lines[:] = [line for table, group in groups for line in (_list_table(group) if table else map(_escaped, group))]


def _escaped(line: str) -> str:
    parts = re.split(r"(`[^`]*`)", line)
    return "".join(part if number % 2 else re.sub(r"(?<!\\)([*|])", r"\\\1", part) for number, part in enumerate(parts))


def _list_table(lines: list[str]) -> list[str]:
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if set(line) - set("|-: ")]
    cells = [f"{'   * - ' if column == 0 else '     - '}{cell}" for row in rows for column, cell in enumerate(row)]
    return ["", ".. list-table::", "   :header-rows: 1", "", *cells, ""]
