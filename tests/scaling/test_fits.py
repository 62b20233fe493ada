"""Fits find the law that made the points, say how sure they are, and predict what they have not seen."""

import numpy as np
import pytest
from scipy.stats import linregress

from course_lib.scaling import (
    BESIROGLU,
    HOFFMANN,
    LossSurface,
    PowerLaw,
    compute_optimal,
    fit_loss_surface,
    fit_power_law,
)

SIZES = np.logspace(4, 6.5, 12)
LAW = PowerLaw(floor=1.5, scale=20.0, exponent=0.3)


def test_exact_points_give_the_law_back():
    fit = fit_power_law(SIZES, LAW.predict(SIZES), n_resamples=0)
    np.testing.assert_allclose(fit.law, LAW, rtol=1e-6)
    assert np.abs(fit.residuals).max() < 1e-9


def test_without_a_floor_the_fit_is_the_line_through_the_logarithms():
    losses = 3 * SIZES**-0.07 * np.exp(1e-4 * np.random.default_rng(0).standard_normal(12))
    line = linregress(np.log(SIZES), np.log(losses))
    fit = fit_power_law(SIZES, losses, floor=False, n_resamples=0)
    assert fit.law.floor == 0
    np.testing.assert_allclose(-fit.law.exponent, line.slope, rtol=1e-3)


def test_one_outlier_does_not_pull_the_fit():
    losses = LAW.predict(SIZES)
    losses[3] *= 1.1
    fit = fit_power_law(SIZES, losses, n_resamples=0)
    assert abs(fit.law.predict(1e8) / LAW.predict(1e8) - 1) < 0.02
    assert fit.residuals[3] == pytest.approx(np.log(1.1), abs=0.02)
    assert np.abs(np.delete(fit.residuals, 3)).max() < 0.005


def test_intervals_cover_the_truth_about_as_often_as_they_say():
    covered = 0
    for seed in range(12):
        noise = np.exp(0.003 * np.random.default_rng(seed).standard_normal(12))
        low, high = fit_power_law(SIZES, LAW.predict(SIZES) * noise, n_resamples=40, seed=seed).interval("exponent")
        covered += low <= LAW.exponent <= high
    assert covered >= 8  # of 12 at 95 %: a bootstrap over 12 points is a little too sure


def test_the_interval_of_a_prediction_widens_beyond_the_points():
    noise = np.exp(0.003 * np.random.default_rng(1).standard_normal(12))
    fit = fit_power_law(SIZES, LAW.predict(SIZES) * noise, n_resamples=50)
    widths = [np.ptp(fit.predict_interval(size)) for size in (1e7, 1e8, 1e9)]
    assert widths == sorted(widths)


def test_the_loss_surface_of_published_constants_comes_back():
    n, d = (axis.ravel() for axis in np.meshgrid(np.logspace(7, 10, 5), np.logspace(8, 11, 5)))
    for surface in (HOFFMANN, BESIROGLU):
        np.testing.assert_allclose(fit_loss_surface(n, d, surface.predict(n, d)), surface, rtol=1e-4)


@pytest.mark.parametrize("surface", [HOFFMANN, BESIROGLU, LossSurface(1.0, 5.0, 0.2, 300.0, 0.5)])
def test_no_other_split_of_the_compute_is_better(surface):
    flops = 5.76e23
    best = compute_optimal(surface, flops)
    assert 6 * best.parameters * best.tokens == pytest.approx(flops)
    others = best.parameters * np.logspace(-2, 2, 401)
    assert best.loss <= surface.predict(others, flops / (6 * others)).min() + 1e-12


def test_published_readings():
    """GPT-3 (175 B, 300 B tokens) is worse than 13 B on 2 T by the surface; Chinchilla's ratio is near 20 tokens."""
    assert HOFFMANN.predict(175e9, 300e9).item() == pytest.approx(2.002, abs=5e-4)
    assert HOFFMANN.predict(13e9, 2e12).item() == pytest.approx(1.986, abs=5e-4)
    optimum = compute_optimal(BESIROGLU, 5.76e23)
    assert 15 < optimum.tokens / optimum.parameters < 25


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: fit_power_law([1.0, 2.0], [3.0, 2.0]), "x"),
        (lambda: fit_power_law([1.0, 2.0, 3.0], [3.0, 2.0]), "y"),
        (lambda: fit_power_law([1.0, 2.0, -3.0], [3.0, 2.0, 1.0]), "x"),
        (lambda: fit_power_law([1.0, 2.0, 3.0], [3.0, float("nan"), 1.0]), "y"),
        (lambda: fit_loss_surface([1.0] * 5, [1.0, 2, 3, 4, 5], [5.0, 4, 3, 2, 1]), "parameters"),
        (lambda: compute_optimal(HOFFMANN, 0), "flops"),
        (lambda: fit_power_law(SIZES, LAW.predict(SIZES), n_resamples=0).interval("floor"), "n_resamples"),
    ],
)
def test_errors_name_the_argument(call, name):
    with pytest.raises(ValueError, match=f"^{name}:"):
        call()
