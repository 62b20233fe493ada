"""The points of a sweep: small language models of many sizes, token budgets and seeds on one text.

Each point of the grid is a `Run` of its own with checkpoints, and its result a file: a sweep that was stopped goes on
where it stopped, inside a point too. Under torchrun the processes take turns with the points, each training alone.
"""

import itertools
import json
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from course_lib.config import TransformerConfig
from course_lib.data import TokenWindows
from course_lib.files import write_atomic
from course_lib.reading import read_json
from course_lib.scaling import count_flops, count_parameters
from course_lib.scaling.readings import law_sizes
from course_lib.training import Run, Silent, TrainingConfig, tasks
from course_lib.training.distributed import told_processes
from course_lib.transformer import LanguageModel

LENGTH, BATCH = 64, 16
HELD_OUT_TOKENS = 131_072  # of the held-out text that are enough to compare models: all are measured on the same


@dataclass(frozen=True)
class Point:
    """One run of a sweep."""

    layers: int
    width: int
    tokens: int
    seed: int

    @property
    def name(self) -> str:
        """Its file name."""
        return f"layers{self.layers}-width{self.width}-tokens{self.tokens}-seed{self.seed}"


def grid(shapes: Sequence[tuple[int, int]], tokens: Sequence[int], seeds: Sequence[int]) -> list[Point]:
    """Every combination, the cheap ones first; the last shape, which is to be predicted, at the largest budget only."""
    points = [
        Point(*shape, budget, seed)
        for seed, shape, budget in itertools.product(seeds, shapes, tokens)
        if shape != shapes[-1] or budget == max(tokens)
    ]
    return sorted(points, key=lambda point: (point.layers * point.width**2 * point.tokens, point.seed))


def model_config(point: Point, vocab_size: int) -> TransformerConfig:
    """The model of a point: heads of width 16 or 32."""
    return gpt_config(point.layers, point.width, max(2, point.width // 32), vocab_size)


def no_law(points: Sequence[Point], vocab_size: int) -> str:
    """Why no law of size can be read from these points, in words; "" if one can."""
    try:
        law_sizes("--shapes", (count_parameters(model_config(one, vocab_size)).total() for one in points))
    except ValueError as problem:
        return str(problem)
    return ""


def gpt_config(layers: int, width: int, n_heads: int, vocab_size: int) -> TransformerConfig:
    """A GPT of which losses are compared by size: rotary positions, RMSNorm before each part, no dropout."""
    return TransformerConfig(
        d_model=width,
        n_heads=n_heads,
        n_encoder_layers=0,
        n_decoder_layers=layers,
        vocab_size=vocab_size,
        positions="rotary",
        norm="rms",
        norm_place="pre",
        activation="gelu",
        bias=False,
        scale_embeddings=False,
        tie_embeddings=False,
        init="normal",
        zero_residual_init=True,
        dropout=0.0,
    )


def training_config(point: Point, rate: float) -> TrainingConfig:
    """The training of a point: the rate falls to zero over exactly its tokens, from `rate` over the model's width."""
    steps = max(1, point.tokens // (LENGTH * BATCH))
    return TrainingConfig(
        steps=steps,
        learning_rate=rate / point.width,
        warmup=min(50, steps // 10),
        schedule="linear",
        betas=(0.9, 0.95),
        eps=1e-8,
        weight_decay=0.1,
        checkpoint_every=500,
        keep=1,
        seed=point.seed,
    )


def run_point(
    point: Point, train: Tensor, validation: Tensor, vocab_size: int, folder: Path, *, rate: float
) -> dict[str, Any] | None:
    """Train one point, or go on with it, and return its row; None if it was interrupted."""
    torch.manual_seed(point.seed)
    config = model_config(point, vocab_size)
    began = time.process_time()
    run = Run(
        LanguageModel(config),
        tasks.LanguageModelling(),
        TokenWindows(train, length=LENGTH, batch_size=BATCH, seed=point.seed),
        training_config(point, rate),
        folder=folder / "runs" / point.name,
        evaluation=TokenWindows(validation[:HELD_OUT_TOKENS], length=LENGTH, batch_size=BATCH, shuffle=False),
        shown=Silent(),
    ).train(resume=True)
    if run.interrupted:
        return None
    count = count_parameters(config)
    late = [record for record in run.history if record["step"] > 0.9 * run.step]
    return {
        **asdict(point),
        "parameters": count.total(),
        "layer_parameters": count.total() - count["token tables"] - count["head"],
        "tokens": run.tokens,
        "flops": count_flops(config, 1, LENGTH, backward=True).total() * run.tokens // LENGTH,
        "epochs": round(run.tokens / len(train), 3),
        "loss": run.history[-1]["evaluation"],
        "training_loss": float(np.mean([record["loss"] for record in late])),
        "cpu_seconds": round(time.process_time() - began, 1),
    }


def run_sweep(
    points: Sequence[Point],
    train: Tensor,
    validation: Tensor,
    vocab_size: int,
    folder: Path,
    *,
    rate: float,
    say: Callable[[str], Any] = print,
) -> list[dict[str, Any]] | None:
    """Run those points whose result is not there yet; return the rows of all, or None if it was interrupted.

    Under torchrun each process takes every so many-th of the points; rows are those there when it has finished.
    """
    (folder / "points").mkdir(parents=True, exist_ok=True)
    rank, world = told_processes() or (0, 1)
    for number, point in enumerate(points):
        path = folder / "points" / f"{point.name}.json"
        if number % world != rank or path.exists():
            continue
        row = run_point(point, train, validation, vocab_size, folder, rate=rate)
        if row is None:
            say(f"stopped inside {point.name}; the same command goes on")
            return None
        write_atomic(path, json.dumps(row))
        shutil.rmtree(folder / "runs" / point.name, ignore_errors=True)
        spent = f"{row['cpu_seconds']:,.0f} CPU seconds"
        say(f"{number + 1} of {len(points)}: {point.name}, loss {row['loss']:.4f}, {spent}")
    return read_rows(folder)


_ROW: dict[str, type] = dict.fromkeys(("parameters", "layer_parameters", "tokens", "seed"), int)
_ROW |= dict.fromkeys(("flops", "training_loss", "loss", "cpu_seconds", "epochs"), float)


def read_rows(folder: Path) -> list[dict[str, Any]]:
    """The rows of the points that are finished, the smallest first."""
    rows = [read_json(path, _ROW, "a point of the sweep", "delete it") for path in (folder / "points").glob("*.json")]
    return sorted(rows, key=lambda row: (row["parameters"], row["tokens"], row["seed"]))
