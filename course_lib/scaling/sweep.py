"""A sweep: small language models of many sizes, token budgets and seeds on one text, to read scaling laws from.

Each point of the grid is a `Run` of its own with checkpoints, and its result a file: a sweep that was stopped goes on
where it stopped, inside a point too. Under torchrun the processes take turns with the points, each training alone.
"""

import itertools
import json
import os
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
from course_lib.scaling.fits import LossSurface, PowerLawFit, fit_loss_surface, fit_power_law
from course_lib.scaling.flops import count_flops
from course_lib.scaling.parameters import count_parameters
from course_lib.training import Run, Silent, TrainingConfig, tasks
from course_lib.transformer import LanguageModel

# Layers and width, 12 thousand to 690 thousand parameters in the layers, each about twice the one before; the last one,
# 3.1 million, is more than four times larger than any of them and is not shown to the fit.
SHAPES = ((1, 32), (2, 32), (2, 48), (3, 64), (3, 96), (4, 120))
HELD_OUT = (4, 256)
TOKENS = (200_000, 400_000, 800_000, 1_600_000)
LENGTH, BATCH = 64, 16
HELD_OUT_TOKENS = 131_072  # of the held-out text that are enough to compare models: all are measured on the same

# The learning rate, times the width. Of 0.16, 0.32, 0.64 and 1.28 the one with the lowest training loss, averaged over
# models of the fit at the smallest budget (2.297, 2.250, 2.277 and 2.452 on Python's standard library, by `course sweep
# --learning-rate RATE --shapes 1x32,2x48,3x96 --tokens 200000 --seeds 1`); no held-out loss had a part in the choice.
RATE = 0.32


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
    """Every combination, the cheap ones first; the last shape, which is to be predicted, at the largest budget only."""
    points = [
        Point(*shape, budget, seed)
        for seed, shape, budget in itertools.product(seeds, shapes, tokens)
        if shape != shapes[-1] or budget == max(tokens)
    ]
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


def training_config(point: Point, rate: float = RATE) -> TrainingConfig:
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
    point: Point, train: Tensor, validation: Tensor, vocab_size: int, folder: Path, *, rate: float = RATE
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
    rate: float = RATE,
    say: Callable[[str], Any] = print,
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
        row = run_point(point, train, validation, vocab_size, folder, rate=rate)
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
    sizes: list[int]  # of the runs in the fit
    losses: list[float]
    held_out_size: int
    held_out_loss: float  # the mean over seeds
    predicted: float
    interval: tuple[float, float]
    surface: LossSurface  # of the same models at all budgets
    resampled: list[LossSurface]
    surface_predicted: float  # by the surface, of the held-out model

    @property
    def error(self) -> float:
        """Of the prediction, as a share of the held-out loss."""
        return self.predicted / self.held_out_loss - 1

    @property
    def surface_error(self) -> float:
        """Of the surface's prediction, as a share of the held-out loss."""
        return self.surface_predicted / self.held_out_loss - 1

    def interval_of(self, name: str, level: float = 0.95) -> tuple[float, float]:
        """Bootstrap interval of a number of the surface, such as "n_exponent" or "size_power"."""
        low, high = np.quantile([getattr(one, name) for one in self.resampled], [(1 - level) / 2, (1 + level) / 2])
        return float(low), float(high)


def read_sweep(rows: Sequence[dict[str, Any]], *, parameters: str = "parameters", n_resamples: int = 100) -> Reading:
    """Fit the law of size to all runs but those of the largest model, at the largest budget, and predict that model.

    Args:
        rows: of `run_sweep`.
        parameters: the column that counts as size: "parameters" (all, as Hoffmann et al. 2022) or "layer_parameters"
            (without tables and head, as Kaplan et al. 2020).
        n_resamples: bootstrap fits, of runs drawn with replacement.

    Raises ValueError if no model is at least four times larger than all that are left for the fit.
    """
    if parameters not in ("parameters", "layer_parameters"):
        raise ValueError(f"parameters: expected 'parameters' or 'layer_parameters', got {parameters!r}")
    counted = sorted({row[parameters] for row in rows})
    if len(counted) < 4 or counted[-1] < 4 * counted[-2]:
        raise ValueError(f"rows: expected four sizes or more, the largest four times the next, got {counted}")
    budget = max(row["tokens"] for row in rows)
    seen = [row for row in rows if row[parameters] < counted[-1]]
    fitted = [row for row in seen if row["tokens"] == budget]
    held_out = [row["loss"] for row in rows if row[parameters] == counted[-1] and row["tokens"] == budget]
    if not held_out:
        raise ValueError(f"rows: expected the model of {counted[-1]:,} at the largest budget, {budget:,} tokens")
    sizes, losses = [row[parameters] for row in fitted], [row["loss"] for row in fitted]
    fit = fit_power_law(sizes, losses, n_resamples=n_resamples)
    columns = np.array([[row[name] for name in (parameters, "tokens", "loss")] for row in seen]).T  # (3, n)
    surface = fit_loss_surface(*columns)
    return Reading(
        fit,
        sizes,
        losses,
        counted[-1],
        float(np.mean(held_out)),
        fit.law.predict(counted[-1]).item(),
        fit.predict_interval(counted[-1]),
        surface,
        _resampled(columns, surface, n_resamples),
        surface.predict(counted[-1], budget).item(),
    )


def _resampled(columns: np.ndarray, surface: LossSurface, n_resamples: int) -> list[LossSurface]:
    """Surfaces of runs drawn with replacement."""
    draw = np.random.default_rng(0)
    found: list[LossSurface] = []
    while len(found) < n_resamples:
        drawn = columns[:, draw.integers(columns.shape[1], size=columns.shape[1])]  # (3, n)
        if min(len(np.unique(column)) for column in drawn[:2]) >= 3:
            found.append(fit_loss_surface(*drawn, start=surface))
    return found
