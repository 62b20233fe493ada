"""Figures of the lab on bugs of training."""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from coursework.pictures.style import palette


def who_uses_which_batch(ends: Mapping[str, Sequence[int]], batches: int) -> Figure:
    """Micro-batches in a row for each rule, coloured by the update that uses them; an update is made at each end."""
    fig, ax = plt.subplots(figsize=(6.6, 2.2))
    for row, stops in enumerate(ends.values()):
        for step in range(batches):
            number = sum(stop < step for stop in stops)
            used = number < len(stops)
            ax.barh(row, 0.9, left=step, color=palette.series[number] if used else "#DDDDDD", height=0.55)
            ax.text(step + 0.45, row, str(step), ha="center", va="center", color="white" if used else "k")
    ax.set_yticks(range(len(ends)), list(ends))
    ax.set(xlabel="micro-batches, in the order in which they come", xticks=[])
    ax.invert_yaxis()
    ax.grid(False)
    return fig
