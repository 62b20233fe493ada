"""The parts of a layer beside attention: residual connections, feed-forward, embeddings; and what stacks share.

Shapes: B batch, T positions, D model width, F feed-forward width, V vocabulary.
"""

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from course_lib.checks import (
    Count,
    Share,
    check_choice,
    check_positions,
    check_probability,
    check_token_ids,
    check_width,
    checked,
)
from course_lib.config import Activation, NormPlace, TransformerConfig
from course_lib.multi_head import MultiHeadAttention
from course_lib.norms import build_norm
from course_lib.positions import PositionScheme, Rotation, build_scheme

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "relu2": lambda x: F.relu(x).square(),  # So et al. 2021 (Primer)
}


class Residual(nn.Module):
    """The residual connection of a sublayer f, attention or a feed-forward: `x = add(x, f(read(x)))`.

    "post" is the original: norm(x + f(x)). "pre" leaves the stream x itself alone: x + f(norm(x)). "both" also norms
    what is added, by a second norm: x + norm_after(f(norm(x))). Without `residual`, f's output stands alone.

    Sources: Vaswani et al. 2017, section 3.1; Xiong et al. 2020 for "pre"; Ding et al. 2021 (CogView) for "both".
    """

    def __init__(
        self,
        norm: nn.Module,
        *,
        place: NormPlace,
        norm_after: nn.Module | None = None,
        dropout: float = 0.0,
        residual: bool = True,
    ) -> None:
        super().__init__()
        check_probability("dropout", dropout)
        check_choice("place", place, get_args(NormPlace))
        if (norm_after is None) == (place == "both"):
            raise ValueError("norm_after: expected a second norm with place='both' only")
        self.norm, self.norm_after = norm, norm_after
        self.place, self.dropout, self.residual = place, dropout, residual

    def read(self, x: Tensor) -> Tensor:
        """What the sublayer reads of the stream (B, T, D)."""
        return x if self.place == "post" else self.norm(x)

    def add(self, x: Tensor, update: Tensor) -> Tensor:
        """The stream (B, T, D) with the sublayer's output (B, T, D) added."""
        if self.norm_after is not None:
            update = self.norm_after(update)
        update = F.dropout(update, self.dropout, self.training)
        x = x + update if self.residual else update
        return self.norm(x) if self.place == "post" else x


class FeedForward(nn.Module):
    """Two linear maps with an activation between, applied to each position by itself.

    Args:
        d_model: width D.
        d_ff: width F inside, 4 D unless given.
        activation: "relu" (the paper), "gelu" (BERT), "gelu_tanh" (GPT-2), "silu" (Llama, with `gated`).
        gated: multiply a second map of the input by the activated one; with "silu" this is SwiGLU.
        bias: whether the maps add a bias.
        dropout: probability of dropping an activation in training.

    Sources: Vaswani et al. 2017, section 3.3, equation 2; Shazeer 2020 for the gated forms.
    """

    @checked
    def __init__(
        self,
        d_model: Count,
        d_ff: Count | None = None,
        *,
        activation: Activation = "relu",
        gated: bool = False,
        bias: bool = True,
        dropout: Share = 0.0,
    ) -> None:
        super().__init__()
        d_ff = 4 * d_model if d_ff is None else d_ff
        self.d_model = d_model
        self.activation, self.dropout = activation, dropout
        self.gate = nn.Linear(d_model, d_ff, bias=bias) if gated else None
        self.up = nn.Linear(d_model, d_ff, bias=bias)
        self.down = nn.Linear(d_ff, d_model, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """Transform each position: (..., D) -> (..., D)."""
        check_width("x", x, self.d_model)
        activate = ACTIVATIONS[self.activation]
        if self.gate is None:
            inner = activate(self.up(x))  # (..., D) -> (..., F)
        else:
            inner = activate(self.gate(x)) * self.up(x)
        return self.down(F.dropout(inner, self.dropout, self.training))  # (..., F) -> (..., D)


class TokenEmbedding(nn.Module):
    """A table with one trained vector per token.

    The table starts with standard deviation D^-0.5. Used as the head too (tied), it then gives logits of about unit
    variance from normed vectors, so that the first loss is near ln V; and times sqrt(D), as the paper does, the token
    vectors have unit variance beside positional encodings of about the same size.

    Args:
        vocab_size: V, rows of the table.
        d_model: width D.
        scale: multiply the vectors by sqrt(D).

    Source: Vaswani et al. 2017, section 3.4.
    """

    decays = False  # under weight decay

    @checked
    def __init__(self, vocab_size: Count, d_model: Count, *, scale: bool = True) -> None:
        super().__init__()
        self.vocab_size = vocab_size
        self.factor = d_model**0.5 if scale else 1.0
        self.weight = nn.Parameter(torch.empty(vocab_size, d_model))
        nn.init.normal_(self.weight, std=d_model**-0.5)

    def draw_weights(self, config: TransformerConfig) -> None:
        """Start the table as the config says."""
        nn.init.normal_(self.weight, std=config.table_std)

    def forward(self, tokens: Tensor) -> Tensor:
        """Look up integer token ids: (B, T) -> (B, T, D). Raises ValueError (on a CPU) for an id not in the table."""
        check_token_ids("tokens", tokens)
        try:
            vectors = F.embedding(tokens, self.weight)
        except IndexError:
            raise ValueError(
                f"tokens: expected ids 0 to {self.vocab_size - 1} for vocab_size={self.vocab_size}, "
                f"got {tokens.min().item()} to {tokens.max().item()}"
            ) from None
        if self.factor == 1.0:
            return vectors
        return vectors * vectors.new_full((), self.factor)  # rounded as the vectors are, as published models do


@checked
def build_attention(config: TransformerConfig, layer: int = 0, *, cross: bool = False) -> MultiHeadAttention:
    """Return the self-attention or the cross-attention that the config describes for the layer of this number."""
    return MultiHeadAttention(
        config.d_model,
        config.n_heads,
        n_kv_heads=config.setting("n_kv_heads"),
        d_head=config.setting("d_head"),
        bias=config.setting("qkv_bias"),
        output_bias=config.setting("attention_bias"),
        dropout=config.setting("attention_dropout"),
        scale=config.attention_scale,
        qk_norm=config.qk_norm,
        norm_eps=config.norm_eps,
        window=None if cross else config.window_of(layer),
        fused=not cross,
        inner=None if cross or config.inner_attention is None else config.inner_attention(),
    )


@checked
def build_feed_forward(config: TransformerConfig) -> FeedForward:
    """Return the feed-forward that the config describes, or the module that stands in for it."""
    if config.feed_forward is not None:
        return config.feed_forward(config)
    return FeedForward(
        config.d_model,
        config.setting("d_ff"),
        activation=config.activation,
        gated=config.gated,
        bias=config.setting("feed_forward_bias"),
        dropout=config.setting("activation_dropout"),
    )


@checked
def build_residual(config: TransformerConfig) -> Residual:
    """Return the residual connection, with its norm, that the config describes."""
    norm = functools.partial(build_norm, config.norm, config.d_model, eps=config.norm_eps, bias=config.bias)
    return Residual(
        norm(),
        place=config.norm_place,
        norm_after=norm() if config.norm_place == "both" else None,
        dropout=config.dropout,
        residual=config.residual,
    )


class Stack(nn.Module):
    """What encoder and decoder share: the position scheme inside attention, layers, and the final norm."""

    def __init__(self, config: TransformerConfig, layers: list[nn.Module], *, bidirectional: bool) -> None:
        super().__init__()
        self.config = config
        self.positions = build_scheme(config, "queries and keys", "scores", bidirectional=bidirectional)
        self.local_positions = None
        if config.local_rotary_base is not None:
            local = replace(config, rotary_base=config.local_rotary_base, rotary_scaling=None)
            self.local_positions = build_scheme(local, "queries and keys", bidirectional=bidirectional)
        self.layers = nn.ModuleList(layers)
        kind = config.norm if config.setting("final_norm") else "none"
        self.final_norm = build_norm(kind, config.d_model, eps=config.norm_eps, bias=config.bias)

    def position_inputs(
        self, x: Tensor, positions: Tensor | None, offset: int, S: int
    ) -> tuple[list[Rotation | None], Tensor | None]:
        """The rotation of each layer, and the bias of all, for queries x (B, T, D) after `offset` others, over S keys.

        `positions`, (T,) or (B, T), replaces offset, offset + 1, ...
        """
        T, n_layers = x.size(1), len(self.layers)
        check_positions(positions, T)
        if self.positions is None:
            return [None] * n_layers, None
        if self.positions.acts_on == "scores":
            return [None] * n_layers, self.positions(T, S, device=x.device).to(x.dtype)
        if positions is None:
            positions = torch.arange(offset, offset + T, device=x.device)
        everywhere = self.positions(positions)
        if self.local_positions is None:
            return [everywhere] * n_layers, None
        local, config = self.local_positions(positions), self.config
        return [everywhere if config.window_of(layer) is None else local for layer in range(n_layers)], None


def init_weights(module: nn.Module, config: TransformerConfig, *, n_residuals: int) -> None:
    """Draw the weights of all linear maps and token tables in `module` as the config says; biases become zero.

    With `scale_residual_init`, maps that write to the residual stream start smaller by sqrt(n_residuals), the number
    of sublayers that add to it. Source: Glorot and Bengio 2010 for "xavier"; Radford et al. 2019 (GPT-2), section 2.3.
    """
    for part in module.modules():
        if isinstance(part, nn.Linear):
            if config.init == "xavier":
                nn.init.xavier_uniform_(part.weight)
            else:
                nn.init.normal_(part.weight, std=config.init_std)
            if part.bias is not None:
                nn.init.zeros_(part.bias)
    for part in module.modules():
        if isinstance(part, MultiHeadAttention) and config.init == "xavier":
            part.reset_parameters()  # fused projections keep the fan of each
        if isinstance(part, MultiHeadAttention | FeedForward):
            written = part.output if isinstance(part, MultiHeadAttention) else part.down
            with torch.no_grad():
                if config.zero_residual_init:
                    written.weight.zero_()
                elif config.scale_residual_init:
                    written.weight.mul_(n_residuals**-0.5)
    for part in module.modules():  # last: a tied head must start as its table does
        if isinstance(part, TokenEmbedding | PositionScheme):
            part.draw_weights(config)


def config_from_torch(
    layer: nn.TransformerEncoderLayer | nn.TransformerDecoderLayer, **others: Any
) -> TransformerConfig:
    """Return the switches of a `torch.nn` layer, which knows neither tokens nor positions; `others` are more fields."""
    functions = {F.relu: "relu", F.gelu: "gelu", F.silu: "silu"}
    activation: Any = layer.activation
    name = functions.get(activation)
    if isinstance(activation, nn.ReLU):
        name = "relu"
    elif isinstance(activation, nn.GELU):
        name = "gelu" if activation.approximate == "none" else "gelu_tanh"
    elif isinstance(activation, nn.SiLU):
        name = "silu"
    if name is None:
        raise ValueError(f"layer: expected a ReLU, GELU or SiLU activation, got {activation!r}")
    fields = {
        "d_model": layer.linear1.in_features,
        "n_heads": layer.self_attn.num_heads,
        "d_ff": layer.linear1.out_features,
        "activation": name,
        "norm_place": "pre" if layer.norm_first else "post",
        "norm_eps": layer.norm1.eps,
        "bias": layer.linear1.bias is not None,
        "positions": "none",
        "dropout": layer.dropout1.p,
        "attention_dropout": layer.self_attn.dropout,
        "activation_dropout": layer.dropout.p,
    }
    return TransformerConfig(**{**fields, **others})
