"""One claim about training, and every run behind it."""

import html
import itertools
import json
import math
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from coursework.pictures.display import figure_tag, render
from coursework.pictures.style import palette, styled

CLAIMS = Path(__file__).parent / "claims"


@dataclass(frozen=True)
class Claim:
    """A sentence about training, with its runs: each arm at each rate with each seed.

    Attributes:
        name: of the experiment. claim: the sentence. command: what makes the record again.
        arms: the settings of each arm by its label. rates: those tried for each arm; (None,) if nothing was tried.
        seeds: how many. better: "max accuracy" or "min loss": what decides which rate of an arm is its best.
        runs: for each run its arm, rate, seed, cpu_seconds, and the measures.
        environment: where it ran. fingerprint: of the experiment's source when it ran.
    """

    name: str
    claim: str
    arms: dict[str, dict[str, Any]]
    rates: tuple[float | None, ...]
    seeds: int
    better: str
    runs: list[dict[str, Any]]
    environment: dict[str, Any]
    fingerprint: str

    @property
    def command(self) -> str:
        """What makes the record again."""
        return f"python benchmarks/claims.py {self.name}"

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """For each run its arm, rate and seed, then its measures."""
        return [{**{key: run[key] for key in ("arm", "rate", "seed")}, **run["measures"]} for run in self.runs]

    @property
    def measures(self) -> list[str]:
        """The names of what was measured in each run."""
        return list(self.runs[0]["measures"])

    @property
    def cpu_seconds(self) -> float:
        """What all the runs took together, to the last bit, in which `sum` differs between versions of Python."""
        return math.fsum(run["cpu_seconds"] for run in self.runs)

    def values(self, arm: str, measure: str, rate: float | None = None) -> list[float]:
        """One number for each seed, at `rate`, or at the arm's best one.

        Raises ValueError for an arm, a measure or a rate that there is not.
        """
        self._known("arm", arm, list(self.arms))
        self._known("measure", measure, self.measures)
        chosen = self.best_rate(arm) if rate is None else rate
        self._known("rate", chosen, list(self.rates))
        found = [row for row in self.rows if row["arm"] == arm and row["rate"] == chosen]
        return [row[measure] for row in sorted(found, key=lambda row: row["seed"])]

    def range(self, arm: str, measure: str, rate: float | None = None) -> tuple[float, float]:
        """The least and the greatest of `values`."""
        found = self.values(arm, measure, rate)
        return min(found), max(found)

    def spread(self, arm: str, measure: str, rate: float | None = None) -> str:
        """The `range` in words, "0.97 to 0.99", or "0.98" if that is both."""
        low, high = (f"{end:.2f}" for end in self.range(arm, measure, rate))
        return low if low == high else f"{low} to {high}"

    def by_arm(self, *measures: str) -> dict[str, dict[str, list[float]]]:
        """For each arm each of these measures, a number for each seed, at the arm's best rate."""
        return {arm: {measure: self.values(arm, measure) for measure in measures} for arm in self.arms}

    def best_rate(self, arm: str) -> float | None:
        """The rate at which the mean over the seeds is best, as `better` says; None if no rates were tried."""
        if self.rates == (None,):
            return None
        direction, measure = self.better.split(" ", 1)
        sign = 1 if direction == "max" else -1
        return max(self.rates, key=lambda rate: sign * statistics.mean(self.values(arm, measure, rate)))

    def __str__(self) -> str:
        """The table as text: for each arm and rate, each measure as mean (least … greatest)."""
        lines = [self.claim, self._origin(), ""]
        table = list(self._table(self.measures))
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines += ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in table]
        return "\n".join(line.rstrip() for line in lines)

    __repr__ = __str__

    def markdown(self) -> str:
        """The table for a page."""
        head, *body = self._table(self.measures)
        rows = [head, ["---", *["--:"] * (len(head) - 1)], *body]
        return f"{self.claim}\n\n{self._origin()}\n\n" + "\n".join("| " + " | ".join(row) + " |" for row in rows) + "\n"

    def figure(self, measure: str | None = None) -> Figure:
        """A dot for each seed, a line of dots for each arm at its best rate."""
        measure = measure or self.better.split(" ", 1)[1]
        with styled():
            figure, ax = plt.subplots(figsize=(7.0, 0.9 + 0.4 * len(self.arms)))
            for height, arm in enumerate(reversed(self.arms)):
                found = self.values(arm, measure)
                ax.plot([min(found), max(found)], [height, height], color="#8A8A8A", linewidth=2, zorder=1)
                ax.scatter(found, [height] * len(found), color=palette.series[0], alpha=0.75, zorder=2)
            rates = {arm: self.best_rate(arm) for arm in self.arms}
            names = [arm if rate is None else f"{arm} (rate {rate:g})" for arm, rate in rates.items()]
            ax.set_yticks(range(len(names)), names[::-1])
            ax.set_ylim(-0.6, len(names) - 0.4)
            ax.set_xlabel(f"{measure}, a dot for each of {self.seeds} seeds")
        return figure

    def alt(self, measure: str | None = None) -> str:
        """What `figure` shows, for who cannot see it."""
        measure = measure or self.better.split(" ", 1)[1]
        ranges = [
            f"{arm}: {_number(low)} to {_number(high)}" for arm in self.arms for low, high in [self.range(arm, measure)]
        ]
        return (
            f"A row of {self.seeds} dots for each arm, one for each seed, showing {measure}. " + "; ".join(ranges) + "."
        )

    def _repr_html_(self) -> str:
        picture = render(fig := self.figure(), alt=self.alt(), caption=f"{self.claim} {self._origin()}")
        plt.close(fig)
        head, *body = self._table(self.measures)
        row = '<tr><th scope="row" style="text-align:left">{}</th>{}</tr>'.format
        cells = [
            row(html.escape(first), "".join(f"<td>{html.escape(cell)}</td>" for cell in rest)) for first, *rest in body
        ]
        names = "".join(f'<th scope="col">{html.escape(name)}</th>' for name in head)
        return (
            f"{figure_tag(picture)}<details><summary>All rates: mean (least … greatest)</summary>"
            f"<table><tr>{names}</tr>{''.join(cells)}</table></details>"
        )

    def _origin(self) -> str:
        tried = "" if self.rates == (None,) else f", rates tried {', '.join(f'{rate:g}' for rate in self.rates)}"
        return f"({self.seeds} seeds{tried}; {self.command}, {self.cpu_seconds:.0f} s of CPU.)"

    def _table(self, measures: list[str]) -> Iterator[list[str]]:
        """Its cells, the head first."""
        tried = self.rates != (None,)
        yield ["arm", *["rate"] * tried, *measures]
        for arm, rate in itertools.product(self.arms, self.rates):
            best = "*" if tried and rate == self.best_rate(arm) else ""
            cells = []
            for measure in measures:
                found = self.values(arm, measure, rate)
                low, high = min(found), max(found)
                spread = "" if low == high else f" ({_number(low)} … {_number(high)})"
                cells.append(_number(statistics.mean(found)) + spread)
            yield [arm, *([f"{rate:g}{best}"] if tried else []), *cells]

    def _known(self, what: str, value: Any, known: list[Any]) -> None:
        if value not in known:
            raise ValueError(f"{what}: the claim {self.name!r} has {known}, got {value!r}")


def claim(name: str, folder: Path = CLAIMS) -> Claim:
    """Load the record of a claim; its arms, rates and seeds are complete.

    Raises ValueError, with the command that makes the record again, if it is missing, damaged or not complete.
    """
    path, remedy = folder / f"{name}.json", f"make it with: python benchmarks/claims.py {name}"
    if not path.is_file():
        known = sorted(found.stem for found in folder.glob("*.json"))
        raise ValueError(f"name: there is no record of {name!r}, only of {known}; {remedy}")
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        record = Claim(**{**found, "rates": tuple(found["rates"])})
        wanted = list(itertools.product(record.arms, record.rates, range(record.seeds)))
        done = [(run["arm"], run["rate"], run["seed"]) for run in record.runs]
        numbers = [run["measures"][measure] for run in record.runs for measure in record.measures]
        record.better.split(" ", 1)[1]
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise ValueError(f"{path} is damaged ({type(error).__name__}: {error}); {remedy}") from error
    if not all(isinstance(number, int | float) and math.isfinite(number) for number in numbers):
        raise ValueError(f"{path} is damaged: it has a measure that is no finite number; {remedy}")
    if set(done) != set(wanted) or len(done) != len(wanted):
        raise ValueError(f"{path} is not complete: it has {len(done)} of {len(wanted)} runs; {remedy}")
    return record


def _number(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"
