"""`course bench`: the benchmark programs of a checkout."""

import ast
import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

__all__ = ["bench"]


def bench(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="The program; without it they are listed.", metavar="[NAME]")] = "",
) -> None:
    """Measure the package against its peers: list the benchmarks, or run one.

    Whatever follows the name is passed on to the program; `--quick` tries one without writing its results, and `--help`
    shows what else it takes.

    Examples: course bench · course bench training_step --quick
    """
    folder = Path(__file__).resolve().parents[2] / "benchmarks"
    programs = _programs(folder)
    if not name:
        width = max(map(len, programs))
        for program, about in programs.items():
            typer.echo(f"{program:<{width}}  {about}")
        return
    chosen = name.removesuffix(".py").replace("-", "_")
    if chosen not in programs:
        raise ValueError(f"NAME: expected one of {', '.join(programs)}, got {name!r}")
    environment = {"OMP_WAIT_POLICY": "PASSIVE", **os.environ}
    command = [sys.executable, str(Path("benchmarks") / f"{chosen}.py"), *context.args]
    typer.echo(f"Running {command[1]} …", err=True)
    raise typer.Exit(subprocess.run(command, cwd=folder.parent, env=environment).returncode)


def _programs(folder: Path) -> dict[str, str]:
    """The programs in a folder by name, with the first line that each says of itself."""
    found = {}
    for path in sorted(folder.glob("*.py")):
        text = path.read_text(encoding="utf-8")
        if 'if __name__ == "__main__"' in text:  # the others are what the programs share
            found[path.stem] = (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0]
    if not found:
        raise ValueError(
            f"there are no benchmarks in {folder}: they come with a checkout of the course. Get one, and run "
            '`pip install -e ".[test]"` in it'
        )
    return found
