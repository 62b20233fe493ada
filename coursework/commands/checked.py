"""Commands whose parameters are checked as they are declared, before they run.

A number's range stands in its declaration, as in those of settings: `Annotated[int, Within(1, 1000), typer.Option()]`.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperCommand

from course_lib.checks import Within, check_setting
from course_lib.data import DownloadError
from course_lib.reading import one_line

__all__ = ["CheckedCommand", "Plainly", "plainly", "ranges", "refuse_empty"]

LONGEST = 2000  # characters of a message
TEXTS = ("prompt", "texts")  # what may be empty; every other value is a name or a number


class CheckedCommand(TyperCommand):
    """A command that refuses empty names, numbers outside their ranges, and files that cannot be had.

    Each in one line that names the option, with exit code 2.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Refuse empty names, which a path would take for the working directory."""
        refuse_empty(self, ctx, args)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Check the numbers, then run; an error of the system names the option that led there."""
        declared = ranges(self.callback)
        for parameter in self.params:
            value = ctx.params.get(parameter.name)
            if value is not None and parameter.name in declared:
                try:
                    check_setting(shown_name(parameter), value, declared[parameter.name])
                except (ValueError, TypeError) as error:
                    _refuse(error)
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # nobody reads on, as with `| head`
            raise
        except OSError as error:
            path = os.path.abspath(os.fsdecode(error.filename or os.sep))
            for parameter in self.params:
                value = ctx.params.get(parameter.name)
                if isinstance(value, str | Path) and f"{path}/".startswith(f"{os.path.abspath(value)}/"):
                    _refuse(f"{shown_name(parameter)}: {one_line(error.filename, 200)}: {error.strerror}")
            raise


class Plainly(CheckedCommand):
    """One that also turns errors which say what is wrong with the input into one line and exit code 2."""

    def invoke(self, ctx: Any) -> Any:
        """Run."""
        with plainly():
            return super().invoke(ctx)


@contextlib.contextmanager
def plainly() -> Iterator[None]:
    """Turn errors that say what is wrong with the input into one line and exit code 2."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        _refuse(f"{one_line(error.filename, 200)}: {error.strerror}" if error.filename else error)
    except (ValueError, DownloadError, FloatingPointError) as error:
        _refuse(error)
    except TypeError as error:
        if ": expected " not in str(error):  # the wording of our checks
            raise
        _refuse(error)


def ranges(command: Any) -> dict[str, Any]:
    """The declarations of a command's numbers that have a range, by parameter; each without None."""
    found = {}
    for name, hint in get_type_hints(command, include_extras=True).items():
        if get_origin(hint) is Annotated:
            kind, *more = get_args(hint)
            within = next((one for one in more if isinstance(one, Within)), None)
            if within is not None:
                found[name] = Annotated[float if float in (kind, *get_args(kind)) else int, within]
    return found


def refuse_empty(command: Any, ctx: Any, args: list[str]) -> None:
    """End with one line where an option or an argument that names something is empty."""
    if "" not in args and not any(one.startswith("-") and one.endswith("=") for one in args):
        return
    given, _, _ = command.make_parser(ctx).parse_args(args=list(args))
    for parameter in command.params:
        if parameter.name not in TEXTS and any(value == "" for value in _each(given.get(parameter.name))):
            _refuse(f"{shown_name(parameter)}: expected a name or a number, got an empty text")


def shown_name(parameter: Any) -> str:
    """What a parameter is called on the command line."""
    if parameter.param_type_name == "option":
        return max(parameter.opts, key=len)
    return (parameter.metavar or parameter.name).strip("[]…").upper()


def _each(value: Any) -> Iterator[Any]:
    yield from value if isinstance(value, list | tuple) else (value,)


def _refuse(error: object) -> None:
    typer.echo(f"course: {one_line(error, LONGEST)}", err=True)
    raise typer.Exit(2) from None
