"""The command `course`: the program that the commands are registered with, and what it makes of their errors."""

import importlib.abc
import io
import os
import re
import sys
import traceback
from pathlib import Path
from typing import Annotated, Any

try:
    import typer
    from typer.core import TyperGroup
except ModuleNotFoundError:
    raise SystemExit("course: only the library is here; the rest comes by pip install 'course-lib[course]'") from None

from course_lib.reading import Unreadable, one_line
from coursework.commands import register
from coursework.commands.checked import refuse_empty
from coursework.desk.store import DeskError, reason

WRONG, USAGE, UNFORESEEN, INTERRUPTED = 1, 2, 70, 130
_NO_MEMORY = re.compile("can't allocate memory|out of memory|Storage size calculation overflowed")  # as torch says it
LONGEST = 2000  # characters of a message


def _unforeseen(problem: Exception) -> str:
    if isinstance(problem, MemoryError) or _NO_MEMORY.search(str(problem)):
        return "there is not enough memory for this. Nothing that was saved before is lost."
    frames = traceback.extract_tb(problem.__traceback__)
    place = f" at {Path(frames[-1].filename).name}, line {frames[-1].lineno}" if frames else ""
    return (
        f"this should not have happened: {type(problem).__name__}{place}: {one_line(problem) or 'it says no more'}. "
        "To report it, run the command again with COURSE_DEBUG=1 and open an issue with what it prints."
    )


class _SaysTorch(importlib.abc.MetaPathFinder):
    """Says that PyTorch is loaded, when it is: that takes a second or more, in which nothing else would be said."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> None:
        if fullname == "torch":
            sys.meta_path.remove(self)
            typer.echo("Loading PyTorch …", err=True)


class _Group(TyperGroup):
    """Turns what goes wrong in any command into one line and an exit code."""

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run the program; what no command foresaw is one line, too, and the traceback where COURSE_DEBUG asks."""
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
                stream.reconfigure(errors="backslashreplace")  # half characters, and terminals that know few
        if "torch" not in sys.modules and not any(isinstance(one, _SaysTorch) for one in sys.meta_path):
            sys.meta_path.insert(0, _SaysTorch())
        try:
            return super().main(*args, **kwargs)
        except Exception as problem:
            if os.environ.get("COURSE_DEBUG", "") not in ("", "0"):
                traceback.print_exc()
            typer.echo(f"course: {_unforeseen(problem)}", err=True)
            raise SystemExit(UNFORESEEN) from None

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        refuse_empty(self, ctx, args)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except (DeskError, Unreadable) as problem:
            typer.echo(f"course: {one_line(problem, LONGEST)}", err=True)
            raise typer.Exit(USAGE) from None
        except KeyboardInterrupt:
            typer.echo("\ncourse: stopped by you. Nothing was lost; run the command again to go on.", err=True)
            raise typer.Exit(INTERRUPTED) from None
        except BrokenPipeError:  # `course status | head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(0) from None
        except OSError as problem:
            where = f" ({one_line(problem.filename)})" if problem.filename else ""
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
    folder: Annotated[
        Path | None, typer.Option(help="Your folder, where it is not found by itself.", show_default=False)
    ] = None,
) -> None:
    """Learn the Transformer by rebuilding it.

    Start with `course start` and `course lab`. Your copies of the notebooks, your answers and your progress lie in one
    folder of yours, usually `my/`. It is found from the working directory upwards.
    """
    context.obj = folder  # the commands hand it to `desk.finding.the_desk`


register(app)

if __name__ == "__main__":
    app()
