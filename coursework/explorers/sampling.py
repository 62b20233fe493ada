"""From logits to the next token: what temperature, top-k, top-p and min-p keep and what they cut."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.figure import Figure

from course_lib.checks import check_integer
from course_lib.generation import Sampling
from coursework.explorers.explorer import Explorer, Table, floats
from coursework.pictures.arrays import Array, labels, matrix, number, shorten
from coursework.pictures.style import palette, styled

SHOWN = 16  # tokens with a bar of their own
MOST = 4000  # numbers in one output


class SamplingExplorer(Explorer):
    """Choose a context and the settings of a sampler; see which tokens are kept, and how probable each becomes.

    The settings apply in the order of `course_lib.generation.Sampling`: temperature, top-k, top-p, min-p.

    Args:
        logits: (N, V), one row for each of N contexts; shown as float32.
        tokens: V labels.
        contexts: N labels of what stood before.
        selected: the context shown at first.
        temperature: 0 to 2; 0 takes the most likely token.
        top_k: 1 to V, all unless given. top_p: over 0 to 1, where 1 cuts nothing.
        min_p: 0 (cuts nothing) to 1; None shows no control for it.
        alt, caption: computed from the numbers unless given.

    Raises:
        ValueError: numbers, labels or settings that do not fit, or more than 4000 logits.
    """

    script: ClassVar[str] = "sampling"

    def __init__(
        self,
        logits: Any,
        tokens: Sequence[Any],
        *,
        contexts: Sequence[Any] | None = None,
        selected: int = 0,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float = 1.0,
        min_p: float | None = 0.0,
        alt: str | None = None,
        caption: str | None = None,
    ) -> None:
        self.logits = matrix("logits", logits).astype(np.float32).astype(np.float64)
        N, V = self.logits.shape
        if N * V > MOST:
            raise ValueError(f"logits: expected at most {MOST} numbers, got {N} rows of {V}; show fewer contexts")
        self.tokens, self.contexts = labels("tokens", tokens, V), labels("contexts", contexts, N, prefix="context ")
        self.top_k = V if top_k is None else top_k
        check_integer("selected", selected, 0, N - 1)
        check_integer("top_k", self.top_k, 1, V)
        for name, value, high in (
            ("temperature", temperature, 2.0),
            ("top_p", top_p, 1.0),
            ("min_p", min_p or 0.0, 1.0),
        ):
            if not 0.0 <= value <= high or (name == "top_p" and value == 0):
                raise ValueError(f"{name}: expected a number from 0 to {high}, got {value!r}")
        self.selected, self.temperature, self.top_p, self.min_p = selected, temperature, top_p, min_p
        super().__init__(alt=alt, caption=caption)

    def probabilities(self) -> tuple[Array, Array]:
        """Return the chosen context's probabilities at the temperature, and after the filters: (V,) and (V,)."""
        row = torch.from_numpy(self.logits[self.selected])
        before = Sampling(temperature=self.temperature)
        after = replace(before, top_k=self.top_k, top_p=self.top_p, min_p=self.min_p or None)
        return before.probabilities(row).numpy(), after.probabilities(row).numpy()

    def state(self) -> dict[str, Any]:
        """Return the logits, the labels and where the controls stand."""
        return {
            "logits": floats(self.logits),
            "tokens": self.tokens,
            "contexts": self.contexts,
            "selected": self.selected,
            "temperature": self.temperature,
            "topK": self.top_k,
            "topP": self.top_p,
            "minP": self.min_p,
            "shown": SHOWN,
        }

    def figure(self) -> Figure:
        """Draw the most likely tokens: bars before the filters, kept ones in colour, and points after them."""
        before, after = self.probabilities()
        order = np.argsort(-before, kind="stable")[:SHOWN]
        kept = after[order] > 0
        places = np.arange(len(order))
        with styled():
            fig = plt.figure(figsize=(6.6, 2.9))
            ax = fig.subplots()
            ax.bar(places[kept], before[order][kept], color=palette.query, label="kept")
            ax.bar(places[~kept], before[order][~kept], color="#C8C8C8", hatch="////", edgecolor="white", label="cut")
            ax.plot(places[kept], after[order][kept], "o", color=palette.key, label="after the filters")
            ax.set_xticks(places, [shorten(self.tokens[i]) for i in order], parse_math=False)
            ax.set(ylabel="probability", ylim=(0, 1.05 * max(before.max(), after.max())))
            ax.set_title(f"after {self.contexts[self.selected]}", parse_math=False)
            ax.grid(visible=False, axis="x")
            ax.legend()
        return fig

    def table(self) -> Table:
        """Return the most likely tokens with both probabilities."""
        before, after = self.probabilities()
        order = np.argsort(-before, kind="stable")[:SHOWN]
        rows = [
            [self.tokens[i], number(before[i]), number(after[i]) if after[i] > 0 else "cut"] for i in order
        ]  # the most likely first
        return Table("the most likely tokens", ["token", "at the temperature", "after the filters"], rows)

    def default_alt(self) -> str:
        """Say which tokens lead and how many are kept."""
        before, after = self.probabilities()
        order = np.argsort(-before, kind="stable")[:3]
        leading = ", ".join(f"“{self.tokens[i]}” {number(before[i], 2)}" for i in order)
        return (
            f"Bars of the probabilities of the next token after {self.contexts[self.selected]}: {leading} lead. "
            f"{int((after > 0).sum())} of {len(after)} tokens are kept."
        )

    def default_caption(self) -> str:
        """Say what the settings keep, and how much probability that was."""
        before, after = self.probabilities()
        kept = after > 0
        return (
            f"These settings keep {int(kept.sum())} of {len(after)} tokens, which have probability "
            f"{number(before[kept].sum(), 2)} together; what is cut is shared out among them in proportion."
        )
