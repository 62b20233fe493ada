"""Power laws of the loss, fitted to runs: with the part that no size removes, robustly, and with intervals.

Source of the method: Hoffmann et al. 2022, "Training Compute-Optimal Large Language Models", appendix D.2: a Huber loss
(here its smooth form) on the difference of logarithms, minimised from many starts, the sum of terms as log-sum-exp.
"""

import itertools
import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from course_lib.checks import Positive, check_probability, checked

Array = NDArray[np.float64]
HUBER = 1e-3  # differences of logarithms beyond this count linearly, not squared


class PowerLaw(NamedTuple):
    """y = floor + scale * x ** -exponent."""

    floor: float
    scale: float
    exponent: float

    def predict(self, x: ArrayLike) -> Array:
        """Return y at x, of any shape."""
        return self.floor + self.scale * np.asarray(x, dtype=float) ** -self.exponent


class PowerLawFit(NamedTuple):
    """A fitted `PowerLaw`, the fits of resampled points, and what is left over."""

    law: PowerLaw
    resampled: list[PowerLaw]
    residuals: Array  # log(y) - log(predicted), a number for each point

    @checked
    def interval(self, name: Literal["floor", "scale", "exponent"], level: float = 0.95) -> tuple[float, float]:
        """Bootstrap interval of "floor", "scale" or "exponent"."""
        return bootstrap_interval([getattr(law, name) for law in self.resampled], level)

    def predict_interval(self, x: float, level: float = 0.95) -> tuple[float, float]:
        """Bootstrap interval of the prediction at one x, for the curve; single runs scatter about it."""
        return bootstrap_interval([law.predict(x).item() for law in self.resampled], level)


class LossSurface(NamedTuple):
    """L(N, D) = floor + n_scale / N ** n_exponent + d_scale / D ** d_exponent: parameters N, tokens D.

    Source: Hoffmann et al. 2022, equation 2.
    """

    floor: float
    n_scale: float
    n_exponent: float
    d_scale: float
    d_exponent: float

    def predict(self, parameters: ArrayLike, tokens: ArrayLike) -> Array:
        """Return the loss for N parameters and D tokens, broadcast."""
        N, D = np.asarray(parameters, dtype=float), np.asarray(tokens, dtype=float)
        return self.floor + self.n_scale * N**-self.n_exponent + self.d_scale * D**-self.d_exponent

    @property
    def size_power(self) -> float:
        """The b of N ~ C^b: with which power of the compute the best size grows. Source: the same, equation 4."""
        return self.d_exponent / (self.n_exponent + self.d_exponent)


# Hoffmann et al. 2022, section 3.3, and the corrected fit of the same runs by Besiroglu et al. 2024, table 1.
HOFFMANN = LossSurface(1.69, 406.4, 0.34, 410.7, 0.28)
BESIROGLU = LossSurface(1.8172, 482.01, 0.3478, 2085.43, 0.3658)


class Optimum(NamedTuple):
    """The size and the tokens that give the lowest loss for a compute budget."""

    parameters: float
    tokens: float
    loss: float


def fit_power_law(
    x: ArrayLike, y: ArrayLike, *, floor: bool = True, n_resamples: int = 200, seed: int = 0
) -> PowerLawFit:
    """Fit y = floor + scale * x ** -exponent.

    Args:
        x: what grows, such as parameters: positive numbers (n,).
        y: what falls, such as the loss: positive numbers (n,).
        floor: False fits a straight line through the logarithms, without the irreducible part.
        n_resamples: bootstrap fits, for the intervals; 0 for none.
        seed: of the resampling.

    Raises ValueError for fewer points than unknowns, or numbers that are not positive.
    """
    x, y = _positive("x", x), _positive("y", y)
    if x.shape != y.shape:
        raise ValueError(f"y: expected shape {x.shape} like x, got {y.shape}")
    unknowns = 3 if floor else 2
    if len(np.unique(x)) < unknowns:
        raise ValueError(f"x: expected at least {unknowns} different values for {unknowns} unknowns, got {x.tolist()}")
    law = _fit_line(x, y, floor, None)
    generator = np.random.default_rng(seed)
    resampled: list[PowerLaw] = []
    while len(resampled) < n_resamples:
        rows = generator.integers(len(x), size=len(x))
        if len(np.unique(x[rows])) >= unknowns:
            resampled.append(_fit_line(x[rows], y[rows], floor, law))
    return PowerLawFit(law, resampled, np.log(y) - np.log(law.predict(x)))


def _fit_line(x: Array, y: Array, floor: bool, start: PowerLaw | None) -> PowerLaw:
    """One fit, from a grid of starts or from that of all points."""
    log_x, log_y = np.log(x), np.log(y)

    one, none = np.ones_like(x), np.zeros_like(x)
    design = np.stack([one, -log_x] + ([none] if floor else []), axis=-1)[None]  # (1, n, unknowns)
    if floor:
        design = np.concatenate([design, np.stack([none, none, one], axis=-1)[None]])  # (2, n, 3)

    if start is not None:
        starts = [[np.log(start.scale), start.exponent] + ([np.log(max(start.floor, 1e-6))] if floor else [])]
    else:
        starts = []
        for exponent, share in itertools.product((0.05, 0.2, 0.5, 1.0), (0.2, 0.7, 0.95) if floor else (0.0,)):
            lowest = share * y.min()
            log_scale = float(np.mean(np.log(y - lowest) + exponent * log_x))
            starts.append([log_scale, exponent] + ([np.log(lowest)] if floor else []))
    found = _minimise(design, log_y, starts)
    return PowerLaw(float(np.exp(found[2])) if floor else 0.0, float(np.exp(found[0])), float(found[1]))


def fit_loss_surface(
    parameters: ArrayLike, tokens: ArrayLike, loss: ArrayLike, *, start: LossSurface | None = None
) -> LossSurface:
    """Fit `LossSurface` to runs: parameters, tokens and losses, (n,) each; from a grid of starts, or from one.

    Raises ValueError for fewer than five runs, fewer than three sizes or token counts, or numbers not positive.
    """
    N, D, L = _positive("parameters", parameters), _positive("tokens", tokens), _positive("loss", loss)
    if not N.shape == D.shape == L.shape:
        raise ValueError(f"loss: expected shape {N.shape} like parameters and tokens, got {D.shape} and {L.shape}")
    for name, values in (("parameters", N), ("tokens", D)):
        if len(N) < 5 or len(np.unique(values)) < 3:
            raise ValueError(f"{name}: expected at least five runs with three different values, got {values.tolist()}")
    log_n, log_d, log_l = np.log(N), np.log(D), np.log(L)

    one, none = np.ones_like(N), np.zeros_like(N)
    rows = [[one, -log_n, none, none, none], [none, none, one, -log_d, none], [none, none, none, none, one]]
    design = np.stack([np.stack(row, axis=-1) for row in rows])  # (3 terms, n, 5 unknowns)

    starts = []
    if start is not None:
        e, a, alpha, b, beta = start
        starts.append([math.log(a), alpha, math.log(b), beta, math.log(max(e, 1e-6))])
    for alpha, beta, share in () if starts else itertools.product((0.1, 0.3, 0.7), (0.1, 0.3, 0.7), (0.3, 0.8)):
        rest = np.log((L - share * L.min()) / 2)
        starts.append(
            [np.mean(rest + alpha * log_n), alpha, np.mean(rest + beta * log_d), beta, np.log(share * L.min())]
        )
    a, alpha, b, beta, e = _minimise(design, log_l, starts)
    floor, n_scale, d_scale = np.exp(np.minimum([e, a, b], 700))  # finite, whatever the runs are
    return LossSurface(float(floor), float(n_scale), float(alpha), float(d_scale), float(beta))


@checked
def compute_optimal(surface: LossSurface, flops: Positive) -> Optimum:
    """Return the model size and tokens with the lowest loss among those with 6 N D = `flops`.

    Source: Hoffmann et al. 2022, equation 4. Raises ValueError if `flops` is not positive.
    """
    alpha, beta = surface.n_exponent, surface.d_exponent
    balance = (alpha * surface.n_scale / (beta * surface.d_scale)) ** (1 / (alpha + beta))
    N = balance * (flops / 6) ** surface.size_power
    D = flops / (6 * N)
    return Optimum(N, D, surface.predict(N, D).item())


def _minimise(design: Array, log_y: Array, starts: Sequence[Sequence[float]]) -> Array:
    """The unknowns (U,) whose terms exp(design @ unknowns), summed over (K, n, U), are nearest to y."""
    from scipy.optimize import least_squares

    def differences(unknowns: Array) -> Array:
        return np.logaddexp.reduce(design @ unknowns, axis=0) - log_y

    def slopes(unknowns: Array) -> Array:
        logs = design @ unknowns
        shares = np.exp(logs - np.logaddexp.reduce(logs, axis=0))  # (K, n), of each term in the sum
        return np.einsum("kn,knu->nu", shares, design)

    settings = {"loss": "soft_l1", "f_scale": HUBER, "x_scale": "jac", "xtol": 1e-10, "ftol": 1e-10}
    if len(starts) == 1:  # near the answer: what takes longer has none
        settings["max_nfev"] = 100
    with np.errstate(divide="ignore", invalid="ignore"):  # its steps where a term has vanished
        found = [least_squares(differences, start, slopes, **settings) for start in starts]
    return min(found, key=lambda result: result.cost).x


def _positive(name: str, values: ArrayLike) -> Array:
    try:
        array = np.asarray(values, dtype=float)
    except (TypeError, ValueError):
        raise TypeError(f"{name}: expected positive numbers (n,), got {str(values)[:80]}") from None
    if array.ndim != 1 or not np.isfinite(array).all() or not (array > 0).all():
        raise ValueError(f"{name}: expected positive numbers (n,), got {array.tolist()}")
    return array


def bootstrap_interval(values: Sequence[float], level: float) -> tuple[float, float]:
    """The middle `level` of the values, from resampled points."""
    if not values:
        raise ValueError("n_resamples: expected at least 1 for an interval, got 0")
    check_probability("level", level, "(0, 1)")
    low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)
