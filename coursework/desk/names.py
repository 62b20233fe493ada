"""The names that a piece of Python looks up, and those that it sets."""

import ast
import symtable

UNREADABLE = SyntaxError, ValueError, RecursionError, MemoryError
"""What Python may raise on a text: it is none of its own, has a null byte or half a character, or is far too deep."""


def free_names(source: str) -> set[str]:
    """Return the global names that running this source, and calling what it defines, would look up."""
    return global_names(source) - {name for node in statements(source) for name in bound_names(node)}


def global_names(source: str) -> set[str]:
    """Like `free_names`, with those that it sets itself: it may look one up before."""
    try:
        top = _symbols(source)
    except UNREADABLE:
        return set()
    used: set[str] = set()
    tables = [top]
    while tables:
        table = tables.pop()
        tables += table.get_children()
        used |= {s.get_name() for s in table.get_symbols() if s.is_referenced() and (s.is_global() or table is top)}
    return used


def statements(source: str) -> list[ast.stmt]:
    """The statements of a source; none of what is not Python."""
    try:
        return ast.parse(source).body
    except UNREADABLE:
        return []


def bound_names(node: ast.stmt) -> set[str]:
    """The names that a statement sets."""
    try:
        top = _symbols(ast.unparse(node))
    except UNREADABLE:
        return set()
    return {s.get_name() for s in top.get_symbols() if s.is_assigned() or s.is_imported()}


def _symbols(source: str) -> symtable.SymbolTable:
    return symtable.symtable(ast.unparse(_Generators().visit(ast.parse(source))), "cell", "exec")


class _Generators(ast.NodeTransformer):
    """Makes comprehensions generators: from Python 3.12 on their variables count as those of the scope around them."""

    def visit_ListComp(self, node: ast.ListComp | ast.SetComp) -> ast.AST:
        self.generic_visit(node)
        return ast.GeneratorExp(node.elt, node.generators)

    visit_SetComp = visit_ListComp

    def visit_DictComp(self, node: ast.DictComp) -> ast.AST:
        self.generic_visit(node)
        return ast.GeneratorExp(ast.Tuple([node.key, node.value], ast.Load()), node.generators)
