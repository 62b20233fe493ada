"""The commands of the program `course`: on the learner's notebooks and answers, and those that train and use models.

Only what is needed to show help is imported before a command runs.
"""

from typing import Any

import typer

from coursework.commands import notebooks
from coursework.commands.answers import check, hint, reset, solution
from coursework.commands.assemble import assemble
from coursework.commands.bench import bench
from coursework.commands.checked import CheckedCommand, Plainly
from coursework.commands.classroom import misconceptions, verify
from coursework.commands.export import export
from coursework.commands.sweep import sweep
from coursework.commands.train import train_app
from coursework.commands.use import classify, evaluate, generate, translate

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the commands to the program."""
    passed_on: dict[str, Any] = {"allow_extra_args": True, "ignore_unknown_options": True}
    app.command(cls=CheckedCommand)(notebooks.start)
    app.command(cls=CheckedCommand, context_settings=passed_on)(notebooks.lab)
    app.command(cls=CheckedCommand)(notebooks.status)
    app.command("next", cls=CheckedCommand)(notebooks.next_exercise)
    for command in (check, hint, solution, reset, assemble, notebooks.update, notebooks.rescue, notebooks.doctor):
        app.command(cls=CheckedCommand)(command)
    app.command(cls=CheckedCommand)(verify)
    app.command(cls=CheckedCommand)(misconceptions)
    app.add_typer(train_app, name="train")
    for plain in (sweep, generate, translate, classify, evaluate, export):
        app.command(cls=Plainly)(plain)
    # What follows the name belongs to the program, `--help` too.
    app.command(cls=Plainly, context_settings=passed_on | {"allow_interspersed_args": False})(bench)
