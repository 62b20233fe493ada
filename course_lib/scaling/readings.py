"""What a sweep of small models says: the law of size at its largest budget, and the surface of size and tokens."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from course_lib.checks import check_choice
from course_lib.scaling.fits import LossSurface, PowerLawFit, bootstrap_interval, fit_loss_surface, fit_power_law


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
        return bootstrap_interval([getattr(one, name) for one in self.resampled], level)


def law_sizes(name: str, sizes: Iterable[int]) -> list[int]:
    """Return the different sizes in order. Raises ValueError where a law of them predicts nothing."""
    counted = sorted(set(sizes))
    if len(counted) < 4 or counted[-1] < 4 * counted[-2]:
        raise ValueError(f"{name}: expected four sizes or more, the largest four times the next, got {counted}")
    return counted


def read_sweep(rows: Sequence[dict[str, Any]], *, parameters: str = "parameters", n_resamples: int = 100) -> Reading:
    """Fit the law of size to all runs but those of the largest model, at the largest budget, and predict that model.

    Args:
        rows: of `course sweep`, one for each run.
        parameters: the column that counts as size: "parameters" (all, as Hoffmann et al. 2022) or "layer_parameters"
            (without tables and head, as Kaplan et al. 2020).
        n_resamples: bootstrap fits, of runs drawn with replacement.

    Raises ValueError if no model is at least four times larger than all that are left for the fit.
    """
    check_choice("parameters", parameters, ("parameters", "layer_parameters"))
    counted = law_sizes("rows", [row[parameters] for row in rows])
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
