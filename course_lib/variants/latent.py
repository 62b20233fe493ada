"""Multi-head latent attention: one small vector per position, from which every head makes its key and its value.

Shapes: B batch, T query positions, S key positions, H heads, D model width, E width of a head, C width of the latent
vector, R width of the rotary part.
Source: DeepSeek-AI 2024, "DeepSeek-V2", arXiv:2405.04434, section 2.1; the norms of the latent vectors, section 3.1.2.
"""

from dataclasses import replace

import torch
from torch import Tensor, nn

from course_lib.attention import Attention, Options, check_mask_and_bias
from course_lib.cache import KVCache
from course_lib.checks import Count, Share, check_vectors, checked
from course_lib.layers import Stack, init_weights
from course_lib.multi_head import merge_heads, split_heads
from course_lib.norms import RMSNorm
from course_lib.positions import Rotation, apply_rotary


class LatentAttention(Attention):
    """Causal or bidirectional self-attention with keys and values compressed into one latent vector per position.

    A position's latent vector c is (C,), norm(x W_down); each head's key and value are linear maps of it. Were such a
    key turned by its position, its map could not be absorbed into the query (below), so the position stands in a part
    of its own: R more numbers of each query, and one rotary key (R,) that all heads share. A cache holds c and the
    rotary key, C + R numbers, where `MultiHeadAttention` holds 2 G E.

    While decoding, the keys and values need not be made at all. q · (W_k c) = (W_k^T q) · c, so the map of the keys is
    absorbed into the query, that of the values is applied to the weighted sum of the latents, and what is left is
    attention of H queries to the one "key" that is cached.

    Args:
        d_model: D.
        n_heads: H.
        d_latent: C, the width that keys and values are compressed to.
        d_rotary: R, even.
        d_head: E, of keys without their rotary part and of values; D / H unless given.
        d_query_latent: width that queries are compressed to, which saves activations in training; they are not
            compressed unless given.
        dropout: probability of dropping an attention weight in training.
        norm_eps: of the norms of the latent vectors.

    `absorbed` says which form runs: None (the absorbed one where a cache holds earlier positions), True or False.
    """

    @checked
    def __init__(
        self,
        d_model: Count,
        n_heads: Count,
        *,
        d_latent: Count,
        d_rotary: Count,
        d_head: Count | None = None,
        d_query_latent: Count | None = None,
        dropout: Share = 0.0,
        norm_eps: float = 1e-6,
    ) -> None:
        super().__init__()
        if d_rotary % 2:
            raise ValueError(f"d_rotary: expected an even width, got {d_rotary}")
        if d_head is None and d_model % n_heads:
            raise ValueError(f"d_model: expected a multiple of n_heads={n_heads}, got {d_model}")
        self.d_model, self.n_heads, self.d_latent, self.d_rotary = d_model, n_heads, d_latent, d_rotary
        self.d_head = d_model // n_heads if d_head is None else d_head
        self.dropout = dropout
        self.absorbed: bool | None = None

        d_query = n_heads * (self.d_head + d_rotary)
        if d_query_latent is None:
            self.query_down = self.query_norm = None
        else:
            self.query_down = nn.Linear(d_model, d_query_latent, bias=False)
            self.query_norm = RMSNorm(d_query_latent, eps=norm_eps)
        self.query = nn.Linear(d_query_latent or d_model, d_query, bias=False)
        self.down = nn.Linear(d_model, d_latent + d_rotary, bias=False)  # the latent vector and the rotary key
        self.norm = RMSNorm(d_latent, eps=norm_eps)
        self.up = nn.Linear(d_latent, n_heads * 2 * self.d_head, bias=False)  # a key and a value for each head
        self.output = nn.Linear(n_heads * self.d_head, d_model, bias=False)
        for part in self.modules():
            if isinstance(part, nn.Linear):
                nn.init.xavier_uniform_(part.weight)

    def forward(
        self,
        x: Tensor,
        *,
        mask: Tensor | None = None,
        causal: bool = False,
        bias: Tensor | None = None,
        rotation: Rotation | None = None,
        cache: KVCache | None = None,
    ) -> Tensor:
        """Attend: x (B, T, D) -> (B, T, D); arguments as `MultiHeadAttention`.

        `rotation`, of width R, is needed. In the cache, the latent vectors and the rotary keys stand side by side as
        the keys (B, 1, S, C + R) of one head; its values are empty.
        """
        check_vectors("x", x, self.d_model)
        if cache is not None and cache.window is not None:
            raise ValueError(f"cache: forgets after {cache.window} positions, this attention has no window")
        if rotation is None:
            raise ValueError(f"rotation: needed, what `RotaryEmbedding({self.d_rotary})` gives for the positions of x")
        compressed = x
        if self.query_down is not None and self.query_norm is not None:
            compressed = self.query_norm(self.query_down(x))
        query = split_heads(self.query(compressed), self.n_heads)  # (B, T, H * (E + R)) -> (B, H, T, E + R)
        query, turned_query = query.split([self.d_head, self.d_rotary], dim=-1)
        turned_query = apply_rotary(turned_query, rotation)
        latent, shared_key = self.down(x).split([self.d_latent, self.d_rotary], dim=-1)
        turned_key = apply_rotary(shared_key[:, None], rotation)  # (B, T, R) -> (B, 1, T, R), alike in every head
        # Under autocast a norm gives float32; what is stored has the dtype of the queries, or the cache's own.
        stored = torch.cat([self.norm(latent)[:, None], turned_key], dim=-1).to(query.dtype)  # (B, 1, T, C + R)
        if cache is not None:
            stored, _ = cache.append(stored, stored[..., :0])

        absorbed = stored.size(2) > x.size(1) if self.absorbed is None else self.absorbed
        if absorbed:
            # The rows of `up` are those of head 0's key, head 0's value, head 1's key, ...
            to_key, to_value = self.up.weight.view(self.n_heads, 2 * self.d_head, -1).chunk(2, dim=1)  # (H, E, C) each
            query = query @ to_key  # (B, H, T, E) @ (H, E, C) -> (B, H, T, C)
            key = stored.expand(-1, self.n_heads, -1, -1)  # one key for all heads, not copied
            value = key[..., : self.d_latent]
        else:
            latent, turned_key = stored.to(query.dtype).split([self.d_latent, self.d_rotary], dim=-1)
            key, value = split_heads(self.up(latent[:, 0]), self.n_heads).chunk(2, dim=-1)  # (B, H, S, E) each
            key = torch.cat([key, turned_key.expand(-1, self.n_heads, -1, -1)], dim=-1)  # (B, H, S, E + R)
        dtype, query = query.dtype, torch.cat([query, turned_query], dim=-1).to(key.dtype)
        check_mask_and_bias(query, key, mask, bias)
        scale = (self.d_head + self.d_rotary) ** -0.5  # that of the plain form in both
        dropout = self.dropout if self.training else 0.0
        heads = self.attend(query, key, value, Options(mask, causal, scale, dropout, bias))
        if absorbed:
            heads = heads.to(dtype) @ to_value.mT  # (B, H, T, C) @ (H, C, E) -> (B, H, T, E)
        return self.output(merge_heads(heads))


@checked
def use_latent_attention(
    stack: Stack, *, d_latent: int, d_rotary: int, d_head: int | None = None, d_query_latent: int | None = None
) -> None:
    """Give every layer of an encoder or decoder with rotary positions a `LatentAttention` with new weights.

    Such as `use_latent_attention(model.decoder, d_latent=64, d_rotary=16)` of a `Llama`; all else stays as its config
    says. The widths are those of `LatentAttention`. Raises ValueError if the stack has other positions, or a window.
    """
    config = stack.config
    if stack.positions is None or stack.positions.acts_on != "queries and keys":
        raise ValueError(f"stack: expected one with rotary positions, got {config.positions!r}")
    if config.window is not None:
        raise ValueError(f"stack: latent attention has no window, this one has window={config.window}")
    for layer in stack.layers:
        attention = LatentAttention(
            config.d_model,
            config.n_heads,
            d_latent=d_latent,
            d_rotary=d_rotary,
            d_head=config.setting("d_head") if d_head is None else d_head,
            d_query_latent=d_query_latent,
            dropout=config.setting("attention_dropout"),
            norm_eps=config.norm_eps,
        )
        init_weights(attention, config, n_residuals=1)
        layer.self_attention = attention.to(next(layer.parameters()))
    positions = type(stack.positions).from_config(replace(config, d_head=d_rotary), bidirectional=False)
    stack.positions = positions.to(next(stack.parameters()).device)
