"""`course assemble`: the learner's answers as one module, checked."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from coursework.desk.finding import the_desk
from coursework.desk.tables import plural

if TYPE_CHECKING:
    from coursework.assembly.assemble import Assembled


def assemble(
    context: typer.Context,
    fill: Annotated[bool, typer.Option("--fill", help="Take the course's own version where yours is missing.")] = False,
) -> None:
    """Put your right answers together: `my_transformer.py` in your folder, a whole Transformer that needs only torch.

    It takes the latest right answer to each exercise that is a part, checks the module by the laws and against torch,
    and says what holds. Parts that you have not solved stay open and say so when they are called. `--fill` takes the
    course's own versions of them, marked as such; it is not the default because it shows you their solutions. Exit
    code 0: nothing open and everything holds; 1: not yet.

    Examples: `course assemble` · `course assemble --fill` · `python my/my_transformer.py translate --steps 300`
    """
    from coursework.assembly.assemble import assemble as put_together

    done = put_together(the_desk(context.obj), fill=fill)
    _tell(done)
    if done.open or any(state == "broken" for state, _, _ in done.checks):
        raise typer.Exit(1)


def _tell(done: "Assembled") -> None:
    typer.echo(f"Written: {done.path}")
    if done.backup:
        typer.echo(f"You had edited it; as it was: {done.backup}")
    typer.echo(f"From your own answers: {plural(len(done.own), 'part')}.")
    _list("The course's own version, marked in the file", done.filled)
    _list("Open", done.open)
    for state, claim, remark in done.checks:
        typer.echo(f"{state:<7} {claim}" + (f": {remark}" if remark else ""))
    waits = sum(state == "waits" for state, _, _ in done.checks)
    if waits:
        typer.echo(f"{plural(waits, 'check')} cannot be made before the open parts are there.")
    typer.echo(f"Train it: python {done.path} translate --steps 300")


def _list(heading: str, parts: Mapping[str, str]) -> None:
    if parts:
        typer.echo(f"{heading}:")
        for name, why in parts.items():
            typer.echo(f"  {name}: {why}")
