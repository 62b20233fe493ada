"""`course train`: a translator, a language model, a classifier, or a masked language model."""

import contextlib
import inspect
import json
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from course_lib.checks import MOST, Within
from course_lib.reading import read_toml
from coursework.commands.checked import Plainly
from coursework.commands.recipes import TEXTBOOK, settings
from coursework.commands.tasks import TASKS, Task

if TYPE_CHECKING:
    from course_lib.training import RunFolder

__all__ = ["say_figures", "train_app"]

train_app = typer.Typer(no_args_is_help=True, help="Train a model; an interrupt keeps a checkpoint, --resume goes on.")

Config = Annotated[Path | None, typer.Option("--config", help="A TOML file of settings.", show_default=False)]
Data = Annotated[str | None, typer.Option("--data", help="A name, a file or a folder; see above.", show_default=False)]
Columns = Annotated[
    str | None, typer.Option(help="The columns of a file that count, such as review,stars.", show_default=False)
]
SkipBad = Annotated[bool, typer.Option("--skip-bad", help="Leave out rows that cannot be read, and count them.")]
From = Annotated[
    str | None, typer.Option("--from", help="Go on from this trained model.", metavar="MODEL", show_default=False)
]
Lora = Annotated[
    int | None, Within(1, MOST), typer.Option(help="... by an update of this rank alone.", show_default=False)
]
AllSettings = Annotated[bool, typer.Option("--settings", help="Print every setting, and end.")]
Out = Annotated[Path | None, typer.Option("--out", help="Folder of the result [runs/TASK].", show_default=False)]
Device = Annotated[str | None, typer.Option("--device", help="cpu, cuda or mps [the best].", show_default=False)]
Resume = Annotated[bool, typer.Option("--resume", help="Go on from the last checkpoint, if there is one.")]
Seed = Annotated[int | None, typer.Option("--seed", help="Of weights, data order and dropout [0].", show_default=False)]
Steps = Annotated[int | None, typer.Option("--steps", help="Updates.", show_default=False)]
Rate = Annotated[float | None, typer.Option("--learning-rate", help="The highest.", show_default=False)]
Compile = Annotated[bool | None, typer.Option("--compile/--no-compile", help="torch.compile.", show_default=False)]
BF16 = Annotated[
    bool | None,
    typer.Option("--bf16/--no-bf16", help="Products in bfloat16 [where the processor has them].", show_default=False),
]
Plain = Annotated[bool, typer.Option("--plain", help="The textbook's recipe in place of the fast one.")]
Parallel = Annotated[str | None, typer.Option("--parallel", help="Under torchrun: ddp or fsdp.", show_default=False)]
Recompute = Annotated[
    bool, typer.Option("--recompute", "--checkpoint-activations", help="Less memory, a third more work.")
]
TensorBoard = Annotated[bool, typer.Option("--tensorboard", help="Also write curves for TensorBoard.")]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", help="Any setting, as table.name=value; may be repeated.", metavar="TABLE.NAME=VALUE"),
]


def _set(flags: dict[str, dict[str, Any]], setting: str) -> None:
    """Take in "table.name=value"; the value is read as JSON (numbers, true, false, null, lists), else as text."""
    place, equals, value = setting.partition("=")
    table, dot, name = place.partition(".")
    if not (equals and dot and name):
        raise ValueError(f"--set: expected TABLE.NAME=VALUE, such as model.d_model=256, got {setting!r}")
    read: Any = value
    with contextlib.suppress(ValueError, RecursionError):
        read = json.loads(value)
    flags.setdefault(table, {})[name] = read


def _say(results: dict[str, Any] | None, command: str, folder: "RunFolder") -> None:
    """Say what was measured, or, after an interrupt, how to go on."""
    if results is None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # this is the end; a hasty second one changes nothing
        typer.echo(f"Go on with: course train {command} --out {folder} --resume")
        raise typer.Exit(130)
    say_figures(results)
    if results:
        typer.echo(f"The model is in {folder}")


def say_figures(results: dict[str, Any]) -> None:
    """Print what was measured, a line each."""
    for name, value in results.items():
        if name not in ("task", "command", "first_wrong") and value is not None:
            typer.echo(f"{name.replace('_', ' ')}: {round(value, 4) if isinstance(value, float) else value}")
    for source, target, guess in results.get("first_wrong", ()):
        typer.echo(f"wrong: {source!r} became {guess!r}, not {target!r}")


def _print_settings(task: Task) -> None:
    """Print a line for each setting, to be given by --set: its value here, what is allowed, what it means."""
    rows = list(settings(task.recipe))
    width = [max(len(row[column]) for row in rows) for column in (0, 1)]
    for name, value, allowed, line in rows:
        typer.echo(f"{name:{width[0]}}  {value:{width[1]}}  {allowed}: {line}")


def _add(task: type[Task]) -> None:
    """Make a command of a task."""

    @train_app.command(task.name, cls=Plainly, help=inspect.getdoc(task))
    def command(
        config: Config = None,
        data: Data = None,
        columns: Columns = None,
        skip_bad: SkipBad = False,
        out: Out = None,
        device: Device = None,
        resume: Resume = False,
        start: From = None,
        lora: Lora = None,
        seed: Seed = None,
        steps: Steps = None,
        learning_rate: Rate = None,
        compile: Compile = None,
        bf16: BF16 = None,
        parallel: Parallel = None,
        recompute: Recompute = False,
        tensorboard: TensorBoard = False,
        plain: Plain = False,
        set_: Set = None,
        show_settings: AllSettings = False,
    ) -> None:
        from course_lib.training import RunFolder, list_checkpoints
        from coursework.commands.jobs import begun_recipe, train_job

        training = {
            "seed": seed,
            "steps": steps,
            "learning_rate": learning_rate,
            "compile": compile,
            "precision": None if bf16 is None else "bfloat16" if bf16 else "float32",
            "parallel": parallel,
            "recompute": recompute or None,
            "tensorboard": tensorboard or None,
        }
        told: dict[str, dict[str, Any]] = {
            "data": {"name": data, "columns": columns and columns.split(","), "skip_bad": skip_bad or None},
            "start": {"model": start, "lora": lora},
            "training": training,
        }
        flags = {
            table: {name: value for name, value in values.items() if value is not None}
            for table, values in told.items()
        }
        for setting in set_ or ():
            _set(flags, setting)
        file = {} if config is None else read_toml(config)
        folder = RunFolder(out or Path("runs") / task.name)
        begun = begun_recipe(folder) if resume else None  # what it was told then wins over today's defaults
        if begun and begun.get("task") != task.name:
            raise ValueError(f"--resume: {folder} holds a run of {begun.get('task')}, not of {task.name}")
        before = [{table: begun[table] for table in TEXTBOOK[task.name] if table in begun}] if begun else []
        made = task(*before, file, flags, plain=plain or bool(before), device=device)
        if show_settings:
            return _print_settings(made)
        try:
            results = train_job(made, folder, device=device, resume=resume)
        except KeyboardInterrupt:
            kept = [int(path.stem.partition("-")[2]) for path in list_checkpoints(folder.checkpoints)]
            there = f"is kept up to step {kept[-1]}" if kept else "has no checkpoint yet, and begins anew"
            typer.echo(f"\nStopped at once: the run {there}.", err=True)
            results = None
        _say(results, task.name, folder)


for task in TASKS:
    _add(task)
