"""The notebooks of the course and their sources: chapters, then labs. Whatever runs over all of them asks here."""

from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / "notebooks"
SOURCES = [*sorted((FOLDER / "sources").glob("*.py")), *sorted((FOLDER / "sources" / "labs").glob("*.py"))]
NOTEBOOKS = [*sorted(FOLDER.glob("*.ipynb")), *sorted((FOLDER / "labs").glob("*.ipynb"))]


def name(path: Path) -> str:
    """The name of a notebook or a source: "01_attention", "labs/05_inside_a_model"."""
    return f"labs/{path.stem}" if path.parent.name == "labs" else path.stem
