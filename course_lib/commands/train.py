"""`course train`: a translator, a language model, a classifier, or a masked language model."""

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from course_lib.commands.recipes import assemble, read_toml
from course_lib.data import DownloadError

__all__ = ["train_app"]

train_app = typer.Typer(no_args_is_help=True, help="Train a model; an interrupt keeps a checkpoint, --resume goes on.")

Config = Annotated[Path | None, typer.Option("--config", help="A TOML file of settings.", show_default=False)]
Data = Annotated[str | None, typer.Option("--data", help="What to train on: a name or a path.", show_default=False)]
Out = Annotated[Path | None, typer.Option("--out", help="Folder of the result [runs/TASK].", show_default=False)]
Device = Annotated[str | None, typer.Option("--device", help="cpu, cuda or mps [the best].", show_default=False)]
Resume = Annotated[bool, typer.Option("--resume", help="Go on from the last checkpoint, if there is one.")]
Seed = Annotated[int | None, typer.Option("--seed", help="Of weights, data order and dropout [0].", show_default=False)]
Steps = Annotated[int | None, typer.Option("--steps", help="Updates.", show_default=False)]
Rate = Annotated[float | None, typer.Option("--learning-rate", help="The highest.", show_default=False)]
Compile = Annotated[bool | None, typer.Option("--compile/--no-compile", help="torch.compile.", show_default=False)]
BF16 = Annotated[bool, typer.Option("--bf16", help="Matrix products in bfloat16.")]
Parallel = Annotated[str | None, typer.Option("--parallel", help="Under torchrun: ddp or fsdp.", show_default=False)]
Recompute = Annotated[
    bool, typer.Option("--recompute", "--checkpoint-activations", help="Less memory, a third more work.")
]
TensorBoard = Annotated[bool, typer.Option("--tensorboard", help="Also write curves for TensorBoard.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", help="Any setting, as table.name=value; may be repeated.", metavar="TABLE.NAME=VALUE"),
]


def plainly(command: Callable[..., Any]) -> Callable[..., Any]:
    """Turn errors that say what is wrong with the input into one line and exit code 2."""

    @functools.wraps(command)
    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            return command(*args, **kwargs)
        except (ValueError, DownloadError, ConnectionError, FileNotFoundError, FloatingPointError) as error:
            typer.echo(f"course: {error}", err=True)
            raise typer.Exit(2) from None

    return run


def _value(text: str) -> Any:
    """Read a value as JSON (numbers, true, false, null, lists), else take the text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _flags(settings: list[str] | None, flags: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Gather the settings that flags name; those not given are left out."""
    found = {
        table: {name: value for name, value in values.items() if value is not None} for table, values in flags.items()
    }
    for setting in settings or ():
        place, equals, value = setting.partition("=")
        table, dot, name = place.partition(".")
        if not (equals and dot and name):
            raise ValueError(f"--set: expected TABLE.NAME=VALUE, such as model.d_model=256, got {setting!r}")
        found.setdefault(table, {})[name] = _value(value)
    return found


def _train(task: str, config: Path | None, out: Path | None, device: str | None, resume: bool, flags: dict) -> None:
    from course_lib.commands.jobs import train_job

    layers = [] if config is None else [read_toml(config)]
    recipe = assemble(task, *layers, flags)
    folder = Path("runs") / task if out is None else out
    results = train_job(task, recipe, folder, device=device, resume=resume)
    if results is None:
        typer.echo(f"Go on with: course train {task} --out {folder} --resume and the other options as before")
        raise typer.Exit(130)
    for name, value in results.items():
        if name not in ("task", "command", "first_wrong"):
            typer.echo(f"{name.replace('_', ' ')}: {round(value, 4) if isinstance(value, float) else value}")
    for source, target, guess in results.get("first_wrong", ()):
        typer.echo(f"wrong: {source!r} became {guess!r}, not {target!r}")
    if results:
        typer.echo(f"The model is in {folder}")


def _command(task: str, explanation: str) -> None:
    @train_app.command(task, help=explanation)
    @plainly
    def command(
        config: Config = None,
        data: Data = None,
        out: Out = None,
        device: Device = None,
        resume: Resume = False,
        seed: Seed = None,
        steps: Steps = None,
        learning_rate: Rate = None,
        compile: Compile = None,
        bf16: BF16 = False,
        parallel: Parallel = None,
        recompute: Recompute = False,
        tensorboard: TensorBoard = False,
        settings: Settings = None,
    ) -> None:
        training = {
            "seed": seed,
            "steps": steps,
            "learning_rate": learning_rate,
            "compile": compile,
            "precision": "bfloat16" if bf16 else None,
            "parallel": parallel,
            "recompute": recompute or None,
            "tensorboard": tensorboard or None,
        }
        _train(task, config, out, device, resume, _flags(settings, {"data": {"name": data}, "training": training}))


_command(
    "translate",
    """Train an encoder-decoder on pairs of texts and measure exact matches and BLEU on held-out ones.

    --data numbers+dates (the default), numbers, dates, multi30k, or a folder with train.tsv, validation.tsv, test.tsv.

    Example: course train translate --out runs/dates --set data.name=dates""",
)
_command(
    "lm",
    """Train a language model on text.

    --data tinyshakespeare (the default, downloaded), reference (Python's own manual, no network), a text file, or a
    folder with train.npy, validation.npy (ids on the disk) and tokenizer.json.

    Example: course train lm --data reference --steps 500""",
)
_command(
    "classify",
    """Train a classifier of texts and measure its accuracy on held-out ones.

    --data languages (the default: of which language is a number in words?), or a folder with train.tsv,
    validation.tsv, test.tsv, each line a text and its label, apart by a tab.

    Example: course train classify""",
)
_command(
    "mlm",
    """Train an encoder to fill in masked tokens; data as for `lm`.

    Example: course train mlm --data reference""",
)
