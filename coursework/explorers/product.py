"""The product of queries and keys, cell by cell: where each score comes from."""

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from coursework.explorers.attention import query_and_key
from coursework.explorers.explorer import Explorer, Table, floats
from coursework.pictures.arrays import LONGEST, number
from coursework.pictures.figures import draw_matrix, frame
from coursework.pictures.style import palette, styled

LISTED = 12  # components shown one by one


class ProductExplorer(Explorer):
    """Choose a cell of Q K^T and see the two vectors, the products of their components, the sum, and the scaled score.

    Args:
        query: (T, E). key: (S, E). Shown as float32.
        tokens: T labels of the queries.
        key_tokens: S labels of the keys; `tokens` if T = S, else positions, unless given.
        selected: (row, column) of the cell shown at first, the largest score unless given.
        alt, caption: computed from the numbers unless given.

    Raises:
        ValueError: tensors, labels or cell that do not fit each other, or too many numbers for one output.
    """

    script: ClassVar[str] = "product"

    def __init__(
        self,
        query: Any,
        key: Any,
        tokens: Sequence[Any],
        *,
        key_tokens: Sequence[Any] | None = None,
        selected: tuple[int, int] | None = None,
        alt: str | None = None,
        caption: str | None = None,
    ) -> None:
        self.query, self.key, self.tokens, self.key_tokens = query_and_key(query, key, tokens, key_tokens)
        self.scores = self.query @ self.key.T  # (T, E) @ (E, S) -> (T, S)
        largest = np.unravel_index(self.scores.argmax(), self.scores.shape)
        self.row, self.column = (int(largest[0]), int(largest[1])) if selected is None else selected
        if not (0 <= self.row < len(self.query) and 0 <= self.column < len(self.key)):
            raise ValueError(f"selected: expected a cell of the {self.scores.shape} scores, got {selected!r}")
        super().__init__(alt=alt, caption=caption)

    def state(self) -> dict[str, Any]:
        """Return the tensors, the labels and the chosen cell."""
        return {
            "query": floats(self.query),
            "key": floats(self.key),
            "tokens": self.tokens,
            "keyTokens": self.key_tokens,
            "row": self.row,
            "column": self.column,
            "scaled": False,
        }

    def figure(self) -> Figure:
        """Draw the product as on paper if all its numbers can be read, else what makes the chosen score."""
        with styled():
            return self._on_paper() if max(self.scores.shape + self.query.shape) <= 8 else self._products()

    def _on_paper(self) -> Figure:
        """Q at the left, K transposed above, the scores where they cross; all sizes in inches."""
        (T, E), S = self.query.shape, len(self.key)
        longest = min(LONGEST, max(map(len, [*self.tokens, *self.key_tokens])))
        names, gap, head, tall = 0.2 + 0.075 * longest, 0.3, 0.3, 0.28
        wide = min(0.5, (7.4 - names - gap) / (E + S))
        foot = 0.3 if 0.085 * longest <= wide else 0.2 + 0.075 * longest
        width, height = names + (E + S) * wide + gap, (E + T) * tall + 2 * head + 0.1 + foot
        fig = plt.figure(figsize=(width, height), layout="none")

        def place(x: float, y: float, columns: int, rows: int) -> Axes:
            """Axes whose top left corner is `x` and `y` inches from that of the figure."""
            return fig.add_axes(
                (x / width, 1 - (y + rows * tall) / height, columns * wide / width, rows * tall / height)
            )

        right, low = names + E * wide + gap / 2, 2 * head + E * tall + 0.1
        key, query, scores = place(right, head, S, E), place(names, low, E, T), place(right, low, S, T)
        draw_matrix(key, self.key.T)
        draw_matrix(query, self.query, rows=self.tokens)
        draw_matrix(scores, self.scores, columns=self.key_tokens)
        for ax, title, color, corner, columns, rows in (
            (key, "Kᵀ", palette.key, (self.column, 0), 1, E),
            (query, "Q", palette.query, (0, self.row), E, 1),
            (scores, "Q Kᵀ", "#111111", (self.column, self.row), 1, 1),
        ):
            ax.set_title(title, color=color, pad=4)
            ax.add_patch(frame(corner, columns, rows))
        return fig

    def _products(self) -> Figure:
        """The scores, and the largest products behind the chosen one."""
        fig = plt.figure(figsize=(7.2, min(5.5, max(2.8, 1.1 + 0.3 * len(self.query)))))
        left, right = fig.subplots(1, 2, width_ratios=[1.3, 1])
        draw_matrix(left, self.scores, rows=self.tokens, columns=self.key_tokens)
        left.add_patch(frame((self.column, self.row), 1, 1))
        left.set(title="Q Kᵀ", xlabel="key", ylabel="query")
        products = self.query[self.row] * self.key[self.column]
        order = np.argsort(-np.abs(products), kind="stable")[:LISTED]
        places = np.arange(len(order))
        right.barh(
            places, products[order], color=["#D6604D" if products[e] > 0 else "#4393C3" for e in order], height=0.7
        )
        right.axvline(0, color="#444444", linewidth=0.8)
        right.set_yticks(places, [str(e) for e in order])
        right.invert_yaxis()
        right.grid(axis="y", visible=False)
        right.set(title=f"The {len(order)} largest of {len(products)} products", xlabel="q × k", ylabel="component")
        return fig

    def table(self) -> Table:
        """Return the scores before the scaling."""
        rows = [[token, *map(number, row)] for token, row in zip(self.tokens, self.scores, strict=True)]
        return Table("scores Q Kᵀ before the scaling, one row per query", ["query", *self.key_tokens], rows)

    def default_alt(self) -> str:
        """Say which cell is chosen and what makes it."""
        score = self.scores[self.row, self.column]
        (T, E), S = self.query.shape, len(self.key)
        return (
            f"Product of {T} queries and {S} keys of width {E}. The cell of query “{self.tokens[self.row]}” and key "
            f"“{self.key_tokens[self.column]}” is framed: {number(score, 2)}, the sum of {E} products; "
            f"divided by √{E} it is {number(score / math.sqrt(E), 2)}."
        )

    def default_caption(self) -> str:
        """Say why the chosen score is as large as it is."""
        q, k, score = self.query[self.row], self.key[self.column], float(self.scores[self.row, self.column])
        lengths = float(np.linalg.norm(q) * np.linalg.norm(k))
        largest = "is the largest score" if score == self.scores.max() else "is the framed score"
        text = (
            f"{number(score, 2)} {largest}: query “{self.tokens[self.row]}” with key “{self.key_tokens[self.column]}”."
        )
        if lengths == 0:
            return f"{text} One of the two vectors is zero, so the score is zero."
        return (
            f"{text} It is the product of their lengths, {number(lengths, 2)}, and the cosine of their angle, "
            f"{number(score / lengths, 2)}: a score grows with both."
        )
