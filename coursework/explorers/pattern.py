"""Attention patterns block by block, with what they cost: operations of a pass, bytes of a cache."""

from dataclasses import replace
from typing import Any, ClassVar

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.figure import Figure

from course_lib.checks import check_choice, check_integer
from course_lib.config import TransformerConfig
from course_lib.masks import causal_mask, sliding_window_mask
from course_lib.scaling import count_flops, kv_cache_bytes
from coursework.explorers.explorer import Explorer, Table
from coursework.pictures.arrays import Array
from coursework.pictures.style import palette, styled

BLOCKS = 16  # blocks a side, drawn as cells
UNITS = (1, 16, 64, 256, 1024, 8192)  # tokens in a block
SHARED = (32, 8, 1)  # heads of keys and values to choose from
MODEL = TransformerConfig(d_model=4096, n_heads=32, n_decoder_layers=32)  # whose costs are shown
A_PAIR = count_flops(MODEL, 1, 1)["scores and mixing"]  # operations of one query and key, in all layers and heads


class PatternExplorer(Explorer):
    """Put a sparse pattern together from a window, global blocks and random ones; read pairs, operations and cache.

    The picture has 16 by 16 blocks; a block holds `tokens` positions. Costs are those of a model with 32 layers of 32
    heads of width 128 in bfloat16: 4 operations a visible pair, head and number of a head's width, and a cache of the
    positions that a later query can still see.

    Args:
        window: blocks that a query's block sees, its own included, on either side unless causal; None for all.
        n_global: first blocks that see all and are seen by all.
        n_random: blocks drawn for each block of queries.
        causal: whether later positions are hidden.
        tokens: positions in a block, one of 1, 16, 64, 256, 1024, 8192.
        kv_heads: heads of keys and values, one of 32, 8, 1.
        alt, caption: computed unless given.

    Raises:
        ValueError: a number outside its range.
    """

    script: ClassVar[str] = "pattern"

    def __init__(
        self,
        *,
        window: int | None = 3,
        n_global: int = 0,
        n_random: int = 0,
        causal: bool = True,
        tokens: int = 256,
        kv_heads: int = 8,
        alt: str | None = None,
        caption: str | None = None,
    ) -> None:
        self.windowed = window is not None
        self.window = 3 if window is None else window
        check_integer("window", self.window, 1, BLOCKS)
        check_integer("n_global", n_global, 0, 4)
        check_integer("n_random", n_random, 0, 4)
        check_choice("tokens", tokens, UNITS)
        check_choice("kv_heads", kv_heads, SHARED)
        self.n_global, self.n_random = n_global, n_random
        self.causal, self.tokens, self.kv_heads = bool(causal), tokens, kv_heads
        super().__init__(alt=alt, caption=caption)

    def pattern(self) -> Array:
        """Which blocks of keys (columns) each block of queries sees: bool (16, 16)."""
        size = self.window if self.windowed else BLOCKS
        visible = sliding_window_mask(BLOCKS, window=size, causal=False).numpy()
        visible[: self.n_global] = True
        visible[:, : self.n_global] = True
        for i in range(BLOCKS):
            for r in range(self.n_random):
                visible[i, (7 * i + 5 * r + i * i) % (i + 1 if self.causal else BLOCKS)] = True
        return visible & causal_mask(BLOCKS).numpy() if self.causal else visible

    def costs(self) -> dict[str, int]:
        """Visible pairs, all pairs, operations of a pass, and bytes of the cache (0 where nothing is written)."""
        u, n = self.tokens, self.tokens * BLOCKS
        cells = int(self.pattern().sum())
        diagonal = BLOCKS if self.causal else 0  # half visible
        pairs = cells * u * u - diagonal * (u * (u - 1) // 2)
        every = n * (n + 1) // 2 if self.causal else n * n
        kept = min(n, (self.window + self.n_global) * u) if self.windowed and not self.n_random else n
        return {"pairs": pairs, "every": every, "operations": A_PAIR * pairs, "cache": self._cache(kept)}

    def _cache(self, positions: int) -> int:
        if not self.causal:
            return 0
        return kv_cache_bytes(replace(MODEL, n_kv_heads=self.kv_heads), 1, positions, dtype=torch.bfloat16)

    def state(self) -> dict[str, Any]:
        """Return where the controls stand, and the sizes of the model."""
        return {
            "windowed": self.windowed,
            "window": self.window,
            "n_global": self.n_global,
            "n_random": self.n_random,
            "causal": self.causal,
            "unit": UNITS.index(self.tokens),
            "shared": SHARED.index(self.kv_heads),
            "units": list(UNITS),
            "heads": list(SHARED),
            "blocks": BLOCKS,
            "operation": A_PAIR,
            "kept": kv_cache_bytes(replace(MODEL, n_kv_heads=1), 1, 1, dtype=torch.bfloat16),
        }

    def figure(self) -> Figure:
        """Draw the blocks."""
        with styled():
            fig, ax = plt.subplots(figsize=(3.4, 3.5), layout="constrained")
            ax.imshow(self.pattern(), cmap="Blues", vmin=0, vmax=1.4)
            ax.set_xticks(np.arange(-0.5, BLOCKS), minor=True)
            ax.set_yticks(np.arange(-0.5, BLOCKS), minor=True)
            ax.grid(visible=False)
            ax.grid(which="minor", color=palette.residual, linewidth=0.3)
            ax.tick_params(which="both", length=0)
            ax.set(xticks=[0, BLOCKS - 1], yticks=[0, BLOCKS - 1], xlabel="block of keys", ylabel="block of queries")
        return fig

    def rows(self) -> list[list[str]]:
        """Return the costs as words: of this pattern, and of all pairs."""
        costs = self.costs()
        n = self.tokens * BLOCKS
        return [
            ["this pattern", amount(costs["pairs"]), amount(costs["operations"]), _bytes(costs["cache"])],
            ["all pairs", amount(costs["every"]), amount(A_PAIR * costs["every"]), _bytes(self._cache(n))],
        ]

    def table(self) -> Table:
        """Return the costs."""
        return Table("the costs in numbers", ["which", "visible pairs", "operations", "cache"], self.rows())

    def default_alt(self) -> str:
        """Say what is visible."""
        parts = [f"a window of {self.window} blocks" if self.windowed else "no window"]
        parts += [f"{self.n_global} global"] * (self.n_global > 0) + [f"{self.n_random} random"] * (self.n_random > 0)
        order = "causal" if self.causal else "in both directions"
        return (
            f"A grid of {BLOCKS} by {BLOCKS} blocks, {order}, with {', '.join(parts)}: "
            f"{int(self.pattern().sum())} of {BLOCKS * BLOCKS} blocks are visible."
        )

    def default_caption(self) -> str:
        """Say what share is left and what that means."""
        costs = self.costs()
        share = 100 * costs["pairs"] / costs["every"]
        kept = f", with a cache of {_bytes(costs['cache'])}" if self.causal else ""
        return f"At {self.tokens * BLOCKS:,} positions {share:.0f} % of the pairs are computed{kept}."


def amount(value: float) -> str:
    """Three digits and a prefix: 12345678 -> "12.3 M"."""
    prefixes = ["", " k", " M", " G", " T", " P", " E"]
    size = 0
    while value >= 999.5 and size < len(prefixes) - 1:
        value, size = value / 1000, size + 1
    if size == 0:
        return str(int(value))
    return f"{value:.{2 if value < 9.995 else 1 if value < 99.95 else 0}f}{prefixes[size]}"


def _bytes(value: int) -> str:
    """Bytes in words; none where nothing is written."""
    return "none" if value == 0 else amount(value) + ("B" if value >= 999.5 else " B")
