"""The commands that train, use and measure models: `course train`, `sweep`, `generate`, `translate` and `bench`.

Only what is needed to show help is imported before a command runs.
"""

import typer

from course_lib.commands.bench import bench
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
    # What follows the name belongs to the program, `--help` too.
    passed_on = {"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False}
    app.command(context_settings=passed_on)(bench)
