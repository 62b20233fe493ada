"""A sweep: small language models of many sizes, token budgets and seeds on one text, to read scaling laws from.

Each point of the grid is a `Run` of its own with checkpoints, and its result a file: a sweep that was stopped goes on
where it stopped, inside a point too. Under torchrun the processes take turns with the points, each training alone.
"""

import itertools
import json
import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from course_lib.config import TransformerConfig
from course_lib.data import TokenWindows
from course_lib.files import write_atomic
from course_lib.scaling.fits import LossSurface, PowerLawFit, fit_loss_surface, fit_power_law
from course_lib.scaling.flops import count_flops
from course_lib.scaling.parameters import count_parameters
from course_lib.training import Run, Silent, TrainingConfig, tasks
from course_lib.transformer import LanguageModel

# Layers and width, 12 thousand to 790 thousand parameters in the layers, each about twice the one before; the last one,
# 3.1 million, is four times larger than any of them and is not shown to the fit.
SHAPES = ((1, 32), (2, 32), (2, 48), (3, 64), (3, 96), (4, 128))
HELD_OUT = (4, 256)
TOKENS = (200_000, 400_000, 800_000, 1_600_000)
LENGTH, BATCH = 64, 16


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


def grid(
    shapes: Sequence[tuple[int, int]] = (*SHAPES, HELD_OUT), tokens: Sequence[int] = TOKENS, seeds: Sequence[int] = (0,)
) -> list[Point]:
    """Every combination, the cheap ones first."""
    points = [Point(*shape, budget, seed) for seed, shape, budget in itertools.product(seeds, shapes, tokens)]
    return sorted(points, key=lambda point: (point.layers * point.width**2 * point.tokens, point.seed))


def model_config(point: Point, vocab_size: int) -> TransformerConfig:
    """The model of a point: rotary positions, RMSNorm before each part, heads of width 16 or 32, no dropout."""
    return TransformerConfig(
        d_model=point.width,
        n_heads=max(2, point.width // 32),
        n_encoder_layers=0,
        n_decoder_layers=point.layers,
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


def training_config(point: Point) -> TrainingConfig:
    """The training of a point: the rate falls to zero over exactly its tokens, and is the lower the wider the model."""
    steps = max(1, point.tokens // (LENGTH * BATCH))
    return TrainingConfig(
        steps=steps,
        learning_rate=0.64 / point.width,
        warmup=min(50, steps // 10),
        schedule="linear",
        betas=(0.9, 0.95),
        eps=1e-8,
        weight_decay=0.1,
        checkpoint_every=500,
        keep=1,
        seed=point.seed,
    )


def run_point(point: Point, train: Tensor, validation: Tensor, vocab_size: int, folder: Path) -> dict[str, Any] | None:
    """Train one point, or go on with it, and return its row; None if it was interrupted."""
    torch.manual_seed(point.seed)
    config = model_config(point, vocab_size)
    began = time.process_time()
    run = Run(
        LanguageModel(config),
        tasks.LanguageModelling(),
        TokenWindows(train, length=LENGTH, batch_size=BATCH, seed=point.seed),
        training_config(point),
        folder=folder / "runs" / point.name,
        evaluation=TokenWindows(validation, length=LENGTH, batch_size=BATCH, shuffle=False),
        shown=Silent(),
    ).train(resume=True)
    if run.interrupted:
        return None
    count = count_parameters(config)
    return {
        **asdict(point),
        "parameters": count.total(),
        "layer_parameters": count.total() - count["token tables"] - count["head"],
        "tokens": run.tokens,
        "flops": count_flops(config, 1, LENGTH, backward=True).total() * run.tokens // LENGTH,
        "loss": run.history[-1]["evaluation"],
        "cpu_seconds": round(time.process_time() - began, 1),
    }


def run_sweep(
    points: Sequence[Point], train: Tensor, validation: Tensor, vocab_size: int, folder: Path, say: Any = print
) -> list[dict[str, Any]] | None:
    """Run those points whose result is not there yet; return the rows of all, or None if it was interrupted.

    Under torchrun each process takes every so many-th of the points; rows are those there when it has finished.
    """
    (folder / "points").mkdir(parents=True, exist_ok=True)
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    for number, point in enumerate(points):
        path = folder / "points" / f"{point.name}.json"
        if number % world != rank or path.exists():
            continue
        row = run_point(point, train, validation, vocab_size, folder)
        if row is None:
            say(f"stopped inside {point.name}; the same command goes on")
            return None
        write_atomic(path, json.dumps(row))
        shutil.rmtree(folder / "runs" / point.name, ignore_errors=True)
        spent = f"{row['cpu_seconds']:,.0f} CPU seconds"
        say(f"{number + 1} of {len(points)}: {point.name}, loss {row['loss']:.4f}, {spent}")
    return read_rows(folder)


def read_rows(folder: Path) -> list[dict[str, Any]]:
    """The rows of the points that are finished, the smallest first."""
    rows = [json.loads(path.read_text()) for path in (folder / "points").glob("*.json")]
    return sorted(rows, key=lambda row: (row["parameters"], row["tokens"], row["seed"]))


@dataclass(frozen=True)
class Reading:
    """What a sweep says: the law of size at the largest budget, its prediction, and the surface of size and tokens."""

    fit: PowerLawFit
    sizes: list[int]  # of the models in the fit
    losses: list[float]  # their means over seeds
    held_out_size: int
    held_out_loss: float
    predicted: float
    interval: tuple[float, float]
    surface: LossSurface

    @property
    def error(self) -> float:
        """Of the prediction, as a share of the held-out loss."""
        return self.predicted / self.held_out_loss - 1


def read_sweep(rows: Sequence[dict[str, Any]], *, parameters: str = "parameters") -> Reading:
    """Fit the law of size to all models but those four times larger than the others, and predict the largest.

    Args:
        rows: of `run_sweep`.
        parameters: the column that counts as size: "parameters" (all, as Hoffmann et al. 2022) or "layer_parameters"
            (without tables and head, as Kaplan et al. 2020).

    Raises ValueError if no model is at least four times larger than all that are left for the fit.
    """
    if parameters not in ("parameters", "layer_parameters"):
        raise ValueError(f"parameters: expected 'parameters' or 'layer_parameters', got {parameters!r}")
    layers = sorted({row["layer_parameters"] for row in rows})
    if len(layers) < 4 or layers[-1] < 3.99 * layers[-2]:
        raise ValueError(f"rows: expected four sizes or more, the largest four times the next, got {layers}")
    budget = max(row["tokens"] for row in rows)
    means = {}
    for size in layers:
        found = [row for row in rows if row["layer_parameters"] == size and row["tokens"] == budget]
        if found:
            means[found[0][parameters]] = float(np.mean([row["loss"] for row in found]))
    *sizes, held_out = sorted(means)
    fit = fit_power_law(sizes, [means[size] for size in sizes])
    seen = [row for row in rows if row["layer_parameters"] < layers[-1]]
    surface = fit_loss_surface(*([row[name] for row in seen] for name in (parameters, "tokens", "loss")))
    return Reading(
        fit,
        sizes,
        [means[size] for size in sizes],
        held_out,
        means[held_out],
        fit.law.predict(held_out).item(),
        fit.predict_interval(held_out),
        surface,
    )
