"""`course assemble`: the learner's answers as one module, checked."""

from typing import TYPE_CHECKING, Annotated

import typer

from coursework.desk.finding import the_desk
from coursework.desk.tables import plural

if TYPE_CHECKING:
    from coursework.assembly.assemble import Assembled


def assemble(
    context: typer.Context,
    whole: Annotated[
        bool, typer.Option("--whole", help="Go to the end of chapter 6, whatever you have solved.")
    ] = False,
) -> None:
    """Put your right answers together: `my_transformer.py` in your folder, a Transformer that needs only torch.

    It takes the latest right answer to each exercise that is a part, as far as the last chapter in which you solved
    one, checks the module by the laws and against torch, and says what holds. Where a part is open the course's own
    stands in, marked in the file: there you see that solution. Exit code 0: nothing open and everything holds; 1: not
    yet.

    Examples: `course assemble` · `course assemble --whole` · `python my/my_transformer.py lm --data notes.txt`
    """
    from coursework.assembly import assemble as assembling

    done = assembling.assemble(the_desk(context.obj), assembling.LAST if whole else 1)
    _tell(done)
    if done.open or any(state == "broken" for state, _, _ in done.checks):
        raise typer.Exit(1)


def _tell(done: "Assembled") -> None:
    typer.echo(f"Written: {done.path}, {len(done.text.splitlines())} lines, to the end of chapter {done.chapter}")
    if done.backup:
        typer.echo(f"You had edited it; as it was: {done.backup}")
    typer.echo(f"From your own answers: {plural(len(done.own), 'part')}.")
    if done.open:
        typer.echo("Open; the course's own stands in, marked in the file:")
        for name, why in done.open.items():
            typer.echo(f"  {name}: {why}")
    for state, claim, remark in done.checks:
        typer.echo(f"{state:<7} {claim}" + (f": {remark}" if remark else ""))
    if done.whole:
        typer.echo(f"Train it: python {done.path} lm --data FILE")
