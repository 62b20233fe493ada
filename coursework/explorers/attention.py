"""One query at a time: its scores, its weights, and the average of the values that they make."""

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.figure import Figure

from course_lib.attention import scaled_dot_product_attention
from course_lib.checks import check_integer
from coursework.explorers.explorer import Explorer, Table, floats
from coursework.pictures.arrays import Array, labels, mask_matrix, matrix, number, shorten
from coursework.pictures.figures import attention_map, frame
from coursework.pictures.style import palette, styled


class AttentionExplorer(Explorer):
    """Choose a query, switch the scaling, turn the temperature, and follow the numbers from scores to output.

    Args:
        query: (T, E). key: (S, E). value: (S, E'). Shown as float32.
        tokens: T labels of the queries.
        key_tokens: S labels of the keys; `tokens` if T = S, else positions, unless given.
        mask: boolean (T, S), True = may attend.
        selected: index of the query shown at first, the last one unless given.
        alt, caption: computed from the numbers unless given.

    Raises:
        ValueError: tensors, labels, mask or index that do not fit each other, or too many numbers for one output.

    Source of the formula: Vaswani et al. 2017, equation 1.
    """

    script: ClassVar[str] = "attention"

    def __init__(
        self,
        query: Any,
        key: Any,
        value: Any,
        tokens: Sequence[Any],
        *,
        key_tokens: Sequence[Any] | None = None,
        mask: Any = None,
        selected: int | None = None,
        alt: str | None = None,
        caption: str | None = None,
    ) -> None:
        self.query, self.key, self.tokens, self.key_tokens = query_and_key(query, key, tokens, key_tokens)
        self.value = matrix("value", value).astype(np.float32).astype(np.float64)
        if len(self.value) != len(self.key):
            raise ValueError(f"value: expected length S={len(self.key)} like key, got {len(self.value)}")
        self.mask = mask_matrix("mask", mask, (len(self.query), len(self.key)))
        self.selected = len(self.query) - 1 if selected is None else selected
        check_integer("selected", self.selected, 0, len(self.query) - 1)
        super().__init__(alt=alt, caption=caption)

    def weights(self, *, scaled: bool = True) -> Array:
        """Return the weights (T, S), of scores divided by sqrt(E) or not; a row that sees nothing is zero."""
        query, key, value = (torch.from_numpy(x) for x in (self.query, self.key, self.value))
        mask = None if self.mask is None else torch.from_numpy(self.mask)
        scale = None if scaled else 1.0
        _, weights = scaled_dot_product_attention(query, key, value, mask=mask, scale=scale, return_weights=True)
        return weights.numpy()

    def state(self) -> dict[str, Any]:
        """Return the tensors, the labels and where the controls stand."""
        return {
            "query": floats(self.query),
            "key": floats(self.key),
            "value": floats(self.value),
            "tokens": self.tokens,
            "keyTokens": self.key_tokens,
            "mask": None
            if self.mask is None
            else ["".join("01"[cell] for cell in row) for row in self.mask.astype(int)],
            "selected": self.selected,
            "scaled": True,
            "temperature": 1.0,
        }

    def figure(self) -> Figure:
        """Draw the whole map, and the row of the chosen query beside what it would be without the scaling."""
        T, S = len(self.query), len(self.key)
        with styled():
            fig = plt.figure(figsize=(7.2, min(6.0, max(2.2, 1.1 + 0.3 * max(T, S)))))
            left, right = fig.subplots(1, 2, width_ratios=[1.15, 1])
            attention_map(
                self.weights(), queries=self.tokens, keys=self.key_tokens, mask=self.mask, ax=left, title="Weights"
            )
            left.add_patch(frame((0, self.selected), S, 1))
            scaled, raw = self.weights()[self.selected], self.weights(scaled=False)[self.selected]
            places = np.arange(S)
            right.barh(places, scaled, color=palette.query, height=0.62)
            right.plot(raw, places, "|", color=palette.key, markersize=11, markeredgewidth=2.2)
            right.set(xlim=(0, 1.0), ylim=(S - 0.4, -0.6), xlabel="weight (bar: scores ÷ √E, tick: not divided)")
            right.set_yticks(places, [shorten(token) for token in self.key_tokens], parse_math=False)
            right.grid(axis="y", visible=False)
            right.set_title(f"Query “{shorten(self.tokens[self.selected])}”", parse_math=False)
        return fig

    def table(self) -> Table:
        """Return the weights of every query."""
        rows = [[token, *map(number, row)] for token, row in zip(self.tokens, self.weights(), strict=True)]
        return Table("weights, one row per query, scores divided by √E", ["query", *self.key_tokens], rows)

    def default_alt(self) -> str:
        """Say what the chosen query reads, key by key."""
        row = self.weights()[self.selected]
        order = np.argsort(-row, kind="stable")[:4]
        parts = ", ".join(f"{number(row[j], 2)} on “{self.key_tokens[j]}”" for j in order)
        more = f", {len(row) - 4} more below" if len(row) > 4 else ""
        return (
            f"Attention of {len(self.query)} queries over {len(self.key)} keys. "
            f"Query “{self.tokens[self.selected]}” puts {parts}{more}."
        )

    def default_caption(self) -> str:
        """Say what the chosen query reads most, and what the scaling does to it."""
        token, scaled, raw = (
            self.tokens[self.selected],
            self.weights()[self.selected],
            self.weights(scaled=False)[self.selected],
        )
        best, root = int(scaled.argmax()), math.sqrt(self.query.shape[1])
        if scaled[best] == 0:
            return f"“{token}” may attend to nothing, so its weights and its output are zero."
        text = f"“{token}” reads “{self.key_tokens[best]}” most: {number(scaled[best], 2)} of its weight."
        if abs(raw.max() - scaled.max()) < 0.005:
            return text
        sharper = "sharpens" if raw.max() > scaled.max() else "flattens"
        return (
            f"{text} Without the division by √E = {number(root, 2)} the largest weight would be "
            f"{number(raw.max(), 2)}: larger scores, and the softmax {sharper}."
        )


def query_and_key(
    query: Any, key: Any, tokens: Sequence[Any], key_tokens: Sequence[Any] | None
) -> tuple[Array, Array, list[str], list[str]]:
    """Check the two tensors that make the scores and their labels; numbers are rounded to float32.

    Raises ValueError naming the argument that does not fit.
    """
    q, k = (matrix(name, x).astype(np.float32).astype(np.float64) for name, x in (("query", query), ("key", key)))
    if k.shape[1] != q.shape[1]:
        raise ValueError(f"key: expected width E={q.shape[1]} like query, got {k.shape[1]}")
    rows = labels("tokens", tokens, len(q))
    columns = labels("key_tokens", rows if key_tokens is None and len(q) == len(k) else key_tokens, len(k))
    return q, k, rows, columns
