"""The commands that train and use models: `course train`, `course sweep`, `course generate`, `course translate`.

Only what is needed to show help is imported before a command runs.
"""

import typer

from course_lib.commands.sweep import sweep
from course_lib.commands.train import train_app
from course_lib.commands.use import generate, translate

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the commands to the program."""
    app.add_typer(train_app, name="train")
    app.command()(sweep)
    app.command()(generate)
    app.command()(translate)
