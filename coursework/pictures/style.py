"""The look of every picture of the course: colours, and one matplotlib style sheet."""

from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import matplotlib.pyplot as plt

SHEET = Path(__file__).with_name("course.mplstyle")


@dataclass(frozen=True)
class Palette:
    """Colours by meaning, as "#RRGGBB"; the same thing has the same colour in every figure and explorer.

    Query, key, value and output are colours of Okabe and Ito (2008), chosen to stay apart for colour-blind readers.
    """

    query: str = "#0072B2"
    key: str = "#D55E00"
    value: str = "#009E73"
    output: str = "#CC79A7"
    residual: str = "#6E6E6E"
    series: tuple[str, ...] = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#6E6E6E", "#E69F00", "#56B4E9", "#111111")
    sequential: str = "Blues"
    signed: str = "RdBu_r"


palette = Palette()


def use_style() -> None:
    """Draw all figures made from now on in the course's style."""
    plt.style.use(SHEET)


def styled() -> AbstractContextManager[None]:
    """Draw the figures made inside the `with` block in the course's style, and leave matplotlib as it was."""
    return plt.style.context(SHEET, after_reset=True)
