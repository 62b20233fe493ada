"""`course sweep`: train a grid of small models, fit the law of size, and check its prediction on a larger one."""

import contextlib
import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from course_lib import scaling
from course_lib.checks import Count, Positive, check_declared
from course_lib.data import CharTokenizer
from course_lib.files import write_atomic

__all__ = ["sweep"]

# Layers x width: 12 thousand to 690 thousand parameters in the layers, each about twice the one before; the last one,
# 3.1 million, is more than four times larger than any of them and is not shown to the fit.
SHAPES = "1x32,2x32,2x48,3x64,3x96,4x120,4x256"
TOKENS = "200000,400000,800000,1600000"

# The learning rate, times the width. Of 0.16, 0.32, 0.64 and 1.28 the one with the lowest training loss, averaged over
# models of the fit at the smallest budget (2.297, 2.250, 2.277 and 2.452 on Python's standard library, by `course sweep
# --learning-rate RATE --shapes 1x32,2x48,3x96 --tokens 200000 --seeds 1`); no held-out loss had a part in the choice.
RATE = 0.32


def sweep(
    out: Annotated[Path, typer.Option("--out", help="Folder of the points and of the table.")] = Path("runs/sweep"),
    data: Annotated[str, typer.Option("--data", help="library, reference, tinyshakespeare, or a file.")] = "library",
    tokens: Annotated[str, typer.Option("--tokens", help="Budgets, with commas.")] = TOKENS,
    shapes: Annotated[
        str, typer.Option("--shapes", help="Layers x width; the last is four times larger, and predicted.")
    ] = SHAPES,
    seeds: Annotated[Count, typer.Option("--seeds", help="Runs of each point.")] = 2,
    rate: Annotated[Positive, typer.Option("--learning-rate", help="The highest, times the model's width.")] = RATE,
) -> None:
    """Train small language models of many sizes on one text and read the scaling law from them.

    Stop it at any time: it writes the table of what is there, and the same command goes on where it stopped, inside a
    model too. Two processes:
    torchrun --standalone --nproc-per-node 2 -m coursework.cli sweep.

    Example: course sweep --data mytext.txt --seeds 3
    """
    import torch

    from coursework.commands.corpora import read_text
    from coursework.commands.points import grid, no_law, read_rows, run_sweep

    budgets, sizes = _numbers("--tokens", tokens), _shapes(shapes)
    text = read_text(data)
    cut = len(text) - len(text) // 10
    tokenizer = CharTokenizer.train([text[:cut]])
    train, validation = (torch.tensor(tokenizer.encode(part)) for part in (text[:cut], text[cut:]))
    points = grid(sizes, budgets, range(seeds))
    if too_few := no_law(points, tokenizer.vocab_size):  # the table alone may be wanted
        typer.echo(f"No law will be read from this, only the table written: {too_few}.")
    if "RANK" in os.environ or not os.environ.get("OMP_NUM_THREADS"):
        torch.set_num_threads(1)  # small models gain nothing from more
    rows = run_sweep(points, train, validation, tokenizer.vocab_size, out, rate=rate, say=typer.echo)
    interrupted = rows is None
    rows = read_rows(out) if rows is None else rows
    if len(rows) < len(points) and not interrupted:
        typer.echo(f"{len(rows)} of {len(points)} points are there; the process that ends last writes the table")
        return
    if rows:
        result = {"command": " ".join(["course", *sys.argv[1:]]), **_origin(), "characters": len(text)}
        result |= {"learning_rate": rate, "points": max(len(points), len(rows)), "rows": rows}
        page = table(result)
        write_atomic(out / "sweep.json", json.dumps(result, indent=1) + "\n")
        write_atomic(out / "sweep.md", page)
        typer.echo(page)
    if interrupted:
        raise typer.Exit(130)


def table(result: dict[str, Any]) -> str:
    """The result as a page of Markdown."""
    rows = result["rows"]
    most, minutes = max(row["epochs"] for row in rows), sum(row["cpu_seconds"] for row in rows) / 60
    lines = [
        "# Loss against size",
        "",
        f"`{result['command']}`, commit {result['commit']}, on {result['machine']}, torch {result['torch']}, one "
        f"thread: {len(rows)} of {result['points']} runs, {minutes:.0f} CPU minutes. Losses are in nats a "
        f"character of held-out text. The text has {result['characters']:,} characters, nine tenths of them to train "
        f"on; the longest run reads {most:.2f} of those, "
        + ("so that none is read twice." if most <= 1 else "so that some are read more than once."),
        "",
        f"The learning rate rises to {result['learning_rate']:g} over the width and falls to zero at the last token.",
        "",
        "| parameters | in layers | tokens | seed | FLOP | training loss | loss | CPU seconds |",
        "|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    lines += [
        f"| {row['parameters']:,} | {row['layer_parameters']:,} | {row['tokens']:,} | {row['seed']} "
        f"| {row['flops']:.2e} | {row['training_loss']:.4f} | {row['loss']:.4f} | {row['cpu_seconds']:,.0f} |"
        for row in rows
    ]
    for name, words in (("parameters", "all parameters"), ("layer_parameters", "the parameters in layers alone")):
        try:
            lines += ["", f"## Counting {words}", "", *_read(rows, name)]
        except ValueError as too_few:
            return "\n".join([*lines, f"No law: {too_few}."]) + "\n"
    return "\n".join(lines) + "\n"


def _read(rows: list[dict[str, Any]], parameters: str) -> list[str]:
    """Law, residuals, prediction and surface, in sentences."""
    reading = scaling.read_sweep(rows, parameters=parameters)
    law, (low, high) = reading.fit.law, reading.fit.interval("exponent")
    residuals = ", ".join(
        f"{size:,}: {residual:+.2%}" for size, residual in zip(reading.sizes, reading.fit.residuals, strict=True)
    )
    surface, sides = reading.surface, [reading.interval_of(name) for name in ("n_exponent", "d_exponent", "size_power")]
    return [
        f"At the largest budget: loss = {law.floor:.3f} + {law.scale:.3g} N^-{law.exponent:.3f}, exponent "
        f"{low:.3f} to {high:.3f}, floor {_range(reading.fit.interval('floor'))} (95 %, bootstrap over runs).",
        "",
        f"Residuals of the logarithm: {residuals}.",
        "",
        f"For the model of {reading.held_out_size:,}, more than four times larger than any in the fit, it predicts "
        f"{reading.predicted:.4f} ({_range(reading.interval, 4)}); measured {reading.held_out_loss:.4f}: "
        f"{reading.error:+.2%}.",
        "",
        f"At all budgets, for N parameters and D tokens: loss = {surface.floor:.3f} + {surface.n_scale:.3g} "
        f"N^-{surface.n_exponent:.3f} + {surface.d_scale:.3g} D^-{surface.d_exponent:.3f}; exponents "
        f"{_range(sides[0])} and {_range(sides[1])}. It predicts {reading.surface_predicted:.4f} for the same model: "
        f"{reading.surface_error:+.2%}. The best size for a compute budget C would grow as "
        f"C^{surface.size_power:.2f} ({_range(sides[2], 2)}).",
    ]


def _range(interval: tuple[float, float], digits: int = 3) -> str:
    return f"{interval[0]:.{digits}f} to {interval[1]:.{digits}f}"


def _origin() -> dict[str, str]:
    """What the numbers depend on: the commit where there is one, the machine, torch."""
    import torch

    place = Path(__file__).parent
    command, commit = ["git", "rev-parse", "--short", "HEAD"], ""
    with contextlib.suppress(OSError):  # no git here
        commit = subprocess.run(command, cwd=place, capture_output=True, encoding="utf-8").stdout.strip()
    cpu = platform.processor() or platform.machine()
    if (known := Path("/proc/cpuinfo")).exists():
        names = [line for line in known.read_text(encoding="utf-8").splitlines() if line.startswith("model name")]
        cpu = names[0].split(":", 1)[1].strip() if names else cpu
    return {"commit": commit or "unknown", "machine": cpu, "torch": torch.__version__}


def _numbers(name: str, text: str) -> list[int]:
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(f"{name}: expected whole numbers with commas, got {text!r}") from None
    for number in found:
        check_declared(name, number, Count)
    if len(set(found)) < len(found):
        raise ValueError(f"{name}: expected each once, got {text}")
    return found


def _shapes(text: str) -> list[tuple[int, int]]:
    try:
        found = [(int(layers), int(width)) for layers, width in (part.split("x") for part in text.split(","))]
    except ValueError:
        raise ValueError(f"--shapes: expected LAYERSxWIDTH with commas, got {text!r}") from None
    for number in (number for shape in found for number in shape):
        check_declared("--shapes", number, Count)
    if len(set(found)) < len(found):
        raise ValueError(f"--shapes: expected each once, got {text}")
    return found
