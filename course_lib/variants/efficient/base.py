"""The one interface of the efficient attentions: that of `scaled_dot_product_attention`, as a module.

Shapes: B batch, H heads, T query positions, S key positions, E width of a head.
"""

from abc import abstractmethod

import torch
from torch import Tensor

from course_lib.attention import Attention, Options, check_inputs, explicit_attention


class EfficientAttention(Attention):
    """What attends in the heads of `MultiHeadAttention(..., inner=...)` or of `TransformerConfig(inner_attention=...)`.

    A subclass says in `form` how, and in its class attributes which arguments it cannot take; those are refused.
    """

    takes_causal = True
    takes_scale = True
    takes_bias = True
    takes_dropout = True
    takes_any_mask = True  # False: only masks that hide keys from all queries alike, such as padding

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        mask: Tensor | None = None,
        causal: bool = False,
        scale: float | None = None,
        dropout: float = 0.0,
        bias: Tensor | None = None,
    ) -> Tensor:
        """Attend: query (B, H, T, E), key (B, H, S, E), value (B, H, S, E') -> (B, H, T, E').

        Arguments as `course_lib.attention.scaled_dot_product_attention`. A pass that `record_weights` records is
        quadratic in memory, and the weights (B, H, T, S) are those that multiply the values in it.

        Raises ValueError for an argument that this attention has no place for.
        """
        check_inputs(query, key, value, mask, bias)
        if query.dim() != 4:
            raise ValueError(f"query: expected (B, H, T, E), got {tuple(query.shape)}")
        name = type(self).__name__
        if causal and not self.takes_causal:
            raise ValueError(f"causal: {name} mixes positions before it attends and cannot hide later ones")
        if scale is not None and not self.takes_scale:
            raise ValueError(f"scale: {name} has no scores to scale, expected None, got {scale!r}")
        if bias is not None and not self.takes_bias:
            raise ValueError(f"bias: {name} has no scores to add it to, expected None")
        if dropout > 0 and not self.takes_dropout:
            raise ValueError(f"dropout: {name} never forms single weights to drop, expected 0, got {dropout!r}")
        if mask is not None and not self.takes_any_mask and (mask.dim() != 4 or mask.size(-2) != 1):
            raise ValueError(f"mask: {name} hides keys from all queries alike, expected (B, 1, 1, S), got {mask.shape}")
        options = Options(mask, causal, query.size(-1) ** -0.5 if scale is None else scale, dropout, bias)
        return self.attend(query, key, value, options)

    @abstractmethod
    def form(self, query: Tensor, key: Tensor, value: Tensor, options: Options) -> Tensor:
        """The efficient form, of arguments that were checked."""

    def explicit(self, query: Tensor, key: Tensor, value: Tensor, options: Options) -> tuple[Tensor, Tensor]:
        """The same by its weights, for passes that are recorded: the output and the weights."""
        weights = self.weights(query, key, options)
        dropped = torch.dropout(weights, options.dropout, True)
        return dropped @ value, weights  # (B, H, T, S) @ (B, H, S, E') -> (B, H, T, E')

    @abstractmethod
    def weights(self, query: Tensor, key: Tensor, options: Options) -> Tensor:
        """The same function written out: what multiplies the values, (B, H, T, S)."""


def softmax_weights(query: Tensor, key: Tensor, options: Options) -> Tensor:
    """The weights (B, H, T, S) of plain attention, before dropout."""
    return explicit_attention(query, key, key, options._replace(dropout=0.0))[1]
