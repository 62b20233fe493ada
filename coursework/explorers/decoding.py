"""The three attentions of an encoder-decoder, followed while it writes: source to source, target to target, across."""

from collections.abc import Sequence
from typing import Any, ClassVar

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from course_lib.checks import check_integer
from coursework.explorers.explorer import Explorer, Table
from coursework.explorers.heads import head_weights
from coursework.pictures.arrays import Array, labels, number, plain, shorten
from coursework.pictures.style import palette, styled

LONGEST = 12  # tokens of a map whose cells can be read


class DecodingExplorer(Explorer):
    """Step through what a model wrote: what the encoder, the decoder and the bridge between them read at each step.

    Args:
        encoder: (H, S, S), weights of the source on itself, one example and one layer, numbers from 0 to 1.
        decoder: (H, T, T), weights of the target on itself, zero above the diagonal.
        cross: (H, T, S), weights of the target on the source.
        source: S labels.
        read: T labels of what the decoder read, the start token first.
        written: T labels of what it wrote, the first one after reading the start token.
        probabilities: (T,), how probable each written token was.
        step: how many tokens are written at first; all T unless given.
        head: the head shown at first; the mean of all unless given.
        alt, caption: computed from the numbers unless given.

    Raises:
        ValueError: weights, labels or numbers that do not fit each other, or more than 12 tokens on a side.
    """

    script: ClassVar[str] = "decoding"

    def __init__(
        self,
        encoder: Any,
        decoder: Any,
        cross: Any,
        *,
        source: Sequence[Any],
        read: Sequence[Any],
        written: Sequence[Any],
        probabilities: Any,
        step: int | None = None,
        head: int | None = None,
        alt: str | None = None,
        caption: str | None = None,
    ) -> None:
        self.cross = head_weights("cross", cross)
        H, T, S = self.cross.shape
        self.encoder = head_weights("encoder", encoder, (H, S, S))
        self.decoder = head_weights("decoder", decoder, (H, T, T))
        if max(S, T) > LONGEST:
            raise ValueError(f"cross: expected at most {LONGEST} tokens on a side, got {T} by {S}")
        self.source, self.read = labels("source", source, S), labels("read", read, T)
        self.written = labels("written", written, T)
        self.probabilities = plain("probabilities", probabilities).astype(np.float64)
        if self.probabilities.shape != (T,) or not ((self.probabilities >= 0) & (self.probabilities <= 1)).all():
            raise ValueError(f"probabilities: expected {T} numbers from 0 to 1, got {self.probabilities.tolist()}")
        self.step, self.head = T if step is None else step, -1 if head is None else head
        check_integer("step", self.step, 1, T)
        check_integer("head", self.head, -1, H - 1)
        super().__init__(alt=alt, caption=caption)

    def maps(self, head: int) -> tuple[Array, Array, Array]:
        """Return the three maps of a head, or of the mean of all for -1, with three decimals."""
        parts = (self.encoder, self.decoder, self.cross)
        encoder, decoder, cross = ((w.mean(0) if head < 0 else w[head]).round(3) for w in parts)
        return encoder, decoder, cross

    def state(self) -> dict[str, Any]:
        """Return the weights in thousandths, the mean of all heads first, the labels and where the controls stand."""
        heads = range(-1, len(self.cross))
        return {
            "maps": [[[[_thousandths(x) for x in row] for row in part] for part in self.maps(h)] for h in heads],
            "source": self.source,
            "read": self.read,
            "written": self.written,
            "probabilities": [number(p) for p in self.probabilities],
            "step": self.step,
            "head": self.head + 1,
        }

    def figure(self) -> Figure:
        """Draw the three maps, with what is not yet written left blank, and the newest row framed."""
        encoder, decoder, cross = self.maps(self.head)
        done = self.step
        rows = [f"{a} → {b}" for a, b in zip(self.read, self.written, strict=True)]
        parts = (
            ("encoder: source reads source", encoder, self.source, self.source, len(self.source)),
            ("decoder: target reads target", decoder, rows, self.read, done),
            ("across: target reads source", cross, rows, self.source, done),
        )
        with styled():
            fig = plt.figure(figsize=(7.4, 2.9))
            axes = np.atleast_1d(fig.subplots(1, 3))
            for ax, (title, weights, row_names, column_names, count) in zip(axes, parts, strict=True):
                shown = np.where(np.arange(len(weights))[:, None] < count, weights, np.nan)
                ax.imshow(shown, cmap=palette.sequential, vmin=0, vmax=1, aspect="auto")
                ax.set_title(title, fontsize=8.5)
                ax.set_xticks(range(len(column_names)), [shorten(n) for n in column_names], parse_math=False)
                ax.set_yticks(range(len(row_names)), [shorten(n) for n in row_names], parse_math=False)
                ax.tick_params(labelsize=8, length=0)
                ax.tick_params(axis="x", labelrotation=90 if max(map(len, column_names)) > 2 else 0)
                ax.grid(visible=False)
                if weights is not encoder:
                    width = weights.shape[1]
                    ax.add_patch(
                        Rectangle((-0.5, done - 1.5), width, 1, fill=False, edgecolor="#E69F00", linewidth=2)
                    )  # the row of the newest token
        return fig

    def table(self) -> Table:
        """Return for each step what was read and written, and the decoder's largest weight on either side."""
        _, decoder, cross = self.maps(self.head)
        rows = []
        for t, (read, written) in enumerate(zip(self.read, self.written, strict=True)):
            i, j = int(decoder[t].argmax()), int(cross[t].argmax())
            own, far = f"{self.read[i]} ({number(decoder[t, i], 2)})", f"{self.source[j]} ({number(cross[t, j], 2)})"
            rows.append([str(t + 1), read, written, number(self.probabilities[t]), own, far])
        head = [
            "step",
            "newest token read",
            "written",
            "probability",
            "most read in the target",
            "most read in the source",
        ]
        return Table("what was read and written at each step", head, rows)

    def default_alt(self) -> str:
        """Say what the three maps show at the newest step."""
        row = self.table().rows[self.step - 1]
        S, T = len(self.source), len(self.read)
        return (
            f"Three maps of attention: source on source, {S} by {S}; target on target, {T} by {T}, nothing above the "
            f"diagonal; target on source, {T} by {S}. At step {self.step} the model writes “{row[2]}” and reads most "
            f"from “{row[4]}” in the target and “{row[5]}” in the source."
        )

    def default_caption(self) -> str:
        """Say how sharp the bridge is compared with the attention of the target on itself."""
        _, decoder, cross = self.maps(self.head)
        near, far = decoder[: self.step].max(-1).mean(), cross[: self.step].max(-1).mean()
        return (
            f"The encoder's map never changes while the model writes. The decoder adds a row to each of its two maps "
            f"at every step; the largest weight of a row is {number(far, 2)} on the source and {number(near, 2)} on "
            f"the target, on average."
        )


def _thousandths(x: float) -> int:
    return round(1000 * float(x))
