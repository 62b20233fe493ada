"""Figures of the lab on serving."""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from coursework.pictures.style import palette


def slots_over_passes(passes: Sequence[Mapping[int, int]], n_slots: int, *, longest: int | None = None) -> Figure:
    """A row for each slot, a column for each pass, the letter of the request that wrote; hatched where none did.

    `passes` says for each pass which request was in which slot; the figure is `longest` passes wide.
    """
    width = longest or len(passes)
    fig, ax = plt.subplots(figsize=(7.2, 0.5 * n_slots + 0.6))
    for t, held in enumerate(passes):
        for slot in range(n_slots):
            if slot in held:
                colour = palette.series[held[slot] % len(palette.series)]
                ax.barh(slot, 0.94, left=t + 0.03, height=0.8, color=colour)
                ax.text(t + 0.5, slot, "ABCDEFGH"[held[slot]], ha="center", va="center", color="white", fontsize=10)
            else:
                ax.barh(slot, 0.94, left=t + 0.03, height=0.8, color="white", edgecolor=palette.residual, hatch="////")
    ax.set(xlim=(0, width), ylim=(n_slots - 0.5, -0.5), xlabel="pass of the model", yticks=range(n_slots))
    ax.set_yticklabels([f"slot {slot}" for slot in range(n_slots)])
    ax.set_xticks([t + 0.5 for t in range(width)], [str(t + 1) for t in range(width)])
    ax.tick_params(length=0)
    ax.grid(visible=False)
    return fig
