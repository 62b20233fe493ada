"""`course sweep`: train a grid of small models, fit the law of size, and check its prediction on a larger one."""

from pathlib import Path
from typing import Annotated, Any

import typer

from course_lib.commands.train import plainly

__all__ = ["sweep"]


@plainly
def sweep(
    out: Annotated[Path, typer.Option("--out", help="Folder of the points and of the table.")] = Path("runs/sweep"),
    data: Annotated[str, typer.Option("--data", help="reference, tinyshakespeare, or a text file.")] = "reference",
    tokens: Annotated[str, typer.Option("--tokens", help="Budgets, with commas.")] = "200000,400000,800000,1600000",
    shapes: Annotated[
        str, typer.Option("--shapes", help="Layers x width; the last is four times larger, and predicted.")
    ] = "1x32,2x32,2x48,3x64,3x96,4x128,4x256",
    seeds: Annotated[int, typer.Option("--seeds", help="Runs of each point.")] = 2,
) -> None:
    """Train small language models of many sizes on one text and read the scaling law from them.

    Stop it at any time: the same command goes on where it stopped, inside a model too. Two processes:
    torchrun --standalone --nproc-per-node 2 -m course_lib.cli sweep.

    Example: course sweep --data reference --seeds 3
    """
    import os

    import torch

    from course_lib.commands.corpora import read_text
    from course_lib.data import CharTokenizer
    from course_lib.files import write_atomic
    from course_lib.scaling.sweep import grid, run_sweep

    text = read_text(data)
    cut = len(text) - len(text) // 10
    tokenizer = CharTokenizer.train([text[:cut]])
    train, validation = (torch.tensor(tokenizer.encode(part)) for part in (text[:cut], text[cut:]))
    points = grid(_shapes(shapes), _numbers("--tokens", tokens), range(seeds))
    if "RANK" in os.environ or not os.environ.get("OMP_NUM_THREADS"):
        torch.set_num_threads(1)  # small models gain nothing from more
    rows = run_sweep(points, train, validation, tokenizer.vocab_size, out, say=typer.echo)
    if rows is None:
        raise typer.Exit(130)
    if len(rows) < len(points):
        typer.echo(f"{len(rows)} of {len(points)} points are there; the process that ends last writes the table")
        return
    page = table(rows, data)
    write_atomic(out / "sweep.md", page)
    typer.echo(page)


def table(rows: list[dict[str, Any]], data: str) -> str:
    """The result as a page of Markdown."""
    from course_lib.scaling.sweep import read_sweep

    lines = [
        "# Loss against size",
        "",
        f"`course sweep --data {data}`: {len(rows)} runs; held-out loss in nats a character.",
        "",
        "| parameters | in layers | tokens | seed | FLOP | loss | CPU seconds |",
        "|--:|--:|--:|--:|--:|--:|--:|",
    ]
    lines += [
        f"| {row['parameters']:,} | {row['layer_parameters']:,} | {row['tokens']:,} | {row['seed']} "
        f"| {row['flops']:.2e} | {row['loss']:.4f} | {row['cpu_seconds']:,.0f} |"
        for row in rows
    ]
    for name, words in (("parameters", "all parameters"), ("layer_parameters", "parameters of the layers alone")):
        try:
            reading = read_sweep(rows, parameters=name)
        except ValueError as too_few:
            return "\n".join([*lines, "", f"No law: {too_few}."]) + "\n"
        law, (low, high) = reading.fit.law, reading.fit.interval("exponent")
        worst = max(abs(residual) for residual in reading.fit.residuals)
        lines += [
            "",
            f"Counting {words}, at the largest budget: loss = {law.floor:.3f} + {law.scale:.3g} N^-{law.exponent:.3f} "
            f"(exponent {low:.3f} to {high:.3f}), largest residual {worst:.2%}. For the model of "
            f"{reading.held_out_size:,}, four times larger than any in the fit, it predicts {reading.predicted:.4f} "
            f"({reading.interval[0]:.4f} to {reading.interval[1]:.4f}); measured {reading.held_out_loss:.4f}, "
            f"{reading.error:+.2%}.",
        ]
    return "\n".join(lines) + "\n"


def _numbers(name: str, text: str) -> list[int]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"{name}: expected whole numbers with commas, got {text!r}") from None


def _shapes(text: str) -> list[tuple[int, int]]:
    try:
        return [(int(layers), int(width)) for layers, width in (part.split("x") for part in text.split(","))]
    except ValueError:
        raise ValueError(f"--shapes: expected LAYERSxWIDTH with commas, got {text!r}") from None
