"""The command `course`: the program that the commands are registered with, and what it makes of their errors."""

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from course_lib.commands import register
from course_lib.desk.store import DeskError, reason

WRONG, USAGE, INTERRUPTED = 1, 2, 130


class _Group(TyperGroup):
    """Turns what goes wrong in any command into one line and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except DeskError as problem:
            typer.echo(f"course: {problem}", err=True)
            raise typer.Exit(USAGE) from None
        except KeyboardInterrupt:
            typer.echo("\ncourse: stopped by you. Nothing was lost; run the command again to go on.", err=True)
            raise typer.Exit(INTERRUPTED) from None
        except BrokenPipeError:  # `course status | head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(0) from None
        except OSError as problem:
            where = f" ({problem.filename})" if problem.filename else ""
            typer.echo(f"course: {reason(problem)}{where}. Nothing was lost.", err=True)
            raise typer.Exit(WRONG) from None


app = typer.Typer(
    cls=_Group,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def main(
    context: typer.Context,
    desk: Annotated[Path | None, typer.Option(help="Use the desk in this folder.", show_default=False)] = None,
) -> None:
    """Learn the Transformer by rebuilding it.

    Start with `course start` and `course lab`. Your copies of the notebooks, your answers and your progress lie in one
    folder, the desk (usually `my/`); it is found from the working directory upwards, or through COURSE_DESK.
    """
    context.obj = desk  # the commands hand it to `desk.finding.the_desk`


register(app)

if __name__ == "__main__":
    app()
