"""How many bytes a training step keeps for its backward pass, by formula, operation by operation.

Each operation keeps what its derivative needs, and a tensor that two of them keep counts once: a linear map its input;
a norm its input and a number or two for each position; attention queries, keys, values, output and a number for each
query and head; an activation its input, or its output if that is enough (ReLU); the loss its log-probabilities.

Letters: B batch, T positions, S source positions, D model width, H heads, G key/value heads, E head width,
F feed-forward width, V vocabulary.
"""

import torch

from course_lib.checks import Count, checked
from course_lib.config import TransformerConfig
from course_lib.norms import NormKind
from course_lib.positions import SCHEMES
from course_lib.scaling.parameters import Architecture, check_countable


@checked
def activation_bytes(
    config: TransformerConfig,
    batch: Count,
    length: Count,
    *,
    architecture: Architecture = "decoder",
    source_length: int | None = None,
    dtype: torch.dtype = torch.float32,
    recompute: bool = False,
) -> int:
    """Bytes kept from the forward pass for the backward pass, with fused attention, without dropout and token ids.

    Args:
        config: sizes and switches. Its dropouts are taken to be off; a mask of bytes for each would come on top.
        batch: B.
        length: T; source_length: S, for "encoder-decoder".
        architecture: as for `count_parameters`; "encoder" has no head and no loss.
        dtype: of the activations; the numbers that norms and softmax keep for each position are float32.
        recompute: keep only the input of each layer; the rest of one layer at a time is computed again.

    Raises ValueError as `count_parameters`.
    """
    check_countable(config, architecture)
    count = _Kept(config, batch, dtype.itemsize)
    S = length if source_length is None else source_length
    total = 0
    if architecture != "decoder":
        tokens = S if architecture == "encoder-decoder" else length
        layers = [count.encoder_layer(layer, tokens) for layer in range(config.n_encoder_layers)]
        total += count.stack(layers, tokens, recompute)
    if architecture != "encoder":
        source = S if architecture == "encoder-decoder" else None
        layers = [count.decoder_layer(layer, length, source) for layer in range(config.n_decoder_layers)]
        total += count.stack(layers, length, recompute)
        total += batch * length * (config.setting("target_vocab_size") or 0) * dtype.itemsize
    return total


class _Kept:
    """The bytes that each part keeps."""

    def __init__(self, config: TransformerConfig, batch: int, width: int) -> None:
        self.config, self.batch, self.width = config, batch, width  # width: bytes of a number
        self.scheme = SCHEMES[config.positions]

    def stack(self, layers: list[int], T: int, recompute: bool) -> int:
        """Embedding, layers and final norm."""
        c, stream = self.config, self.batch * T * self.config.d_model * self.width
        total = len(layers) * stream + max(layers, default=0) if recompute else sum(layers)
        total += stream  # ... and what the head reads, or the layers after this stack
        if c.setting("final_norm") and c.norm != "none":
            total += self.norm(T)
        if c.embedding_norm and c.norm != "none":
            total += self.norm(T)
        total += (1 if c.local_rotary_base is None else 2) * self.scheme.kept_bytes(c, T)
        return total

    def norm(self, T: int) -> int:
        """What a norm of the stream keeps."""
        return self.batch * T * self.normed(self.config.norm, self.config.d_model)

    def normed(self, kind: NormKind, size: int) -> int:
        """What a norm keeps of each vector: input, statistics and, for RMSNorm, the vector before its weights."""
        if kind == "none":
            return 0
        return (2 if kind in ("rms", "rms_offset") else 1) * size * self.width + (2 if kind == "layer" else 1) * 4

    def sublayer(self, T: int) -> int:
        """What is kept around attention or feed-forward: what it reads, and the norm's part."""
        norms = 2 if self.config.norm_place == "both" else 1
        return self.batch * T * self.config.d_model * self.width + norms * self.norm(T)

    def encoder_layer(self, layer: int, T: int) -> int:
        """Self-attention to both sides, feed-forward."""
        return 2 * self.sublayer(T) + self.self_attention(layer, T, causal=False) + self.feed_forward(T)

    def decoder_layer(self, layer: int, T: int, S: int | None) -> int:
        """Causal self-attention, cross-attention over S positions if given, feed-forward."""
        total = 2 * self.sublayer(T) + self.self_attention(layer, T, causal=True) + self.feed_forward(T)
        return total if S is None else total + self.sublayer(T) + self.cross_attention(T, S)

    def self_attention(self, layer: int, T: int, *, causal: bool) -> int:
        """Projections, one number per query and head, the output, and tables of scores where a kernel needs them."""
        c, n = self.config, self.batch * T
        E, H, G = map(c.setting, ("d_head", "n_heads", "n_kv_heads"))
        heads = n * H * E * self.width
        projections = n * (H + 2 * G) * E * self.width
        copies = 2 * heads if G < H else 0  # keys and values for each head of a group
        normed = c.qk_norm != "none"
        norms = n * (H + G) * (self.normed(c.qk_norm, E) - E * self.width) if normed else 0  # beside the projections
        turned, biased = (self.scheme.acts_on == place for place in ("queries and keys", "scores"))
        reordered = turned or c.qk_norm == "layer"  # queries, and with them the output, head by head in memory
        if biased and self.scheme.n_weights(c):  # fused kernels cannot train a bias: the weights are formed
            kept = 4 * heads + n * H * T * self.width + (T * T + T if causal else 0)
            return kept + (projections + norms if normed else 0)
        if turned or normed:  # queries and keys are not what the projections gave
            kept = heads + (copies or heads) + (projections if normed or G == H else 0) + norms
            kept += heads if reordered else 0  # the output in the order that merging needs
        else:
            kept = projections + copies
        window = c.window_of(layer)
        masked = (window is not None and window < T) or (biased and causal)
        table = 0
        if masked:
            table = (H if biased else 1) * T * T * self.width + T
            table += 0 if reordered else heads  # the output before rows without a key are set to zero
        return kept + n * H * 4 + heads + table

    def cross_attention(self, T: int, S: int) -> int:
        """Queries of T positions, keys and values of S."""
        c = self.config
        E, H, G = map(c.setting, ("d_head", "n_heads", "n_kv_heads"))
        kv = self.batch * S * (H if G < H else G) * E * self.width
        kept = 2 * kv + self.batch * T * (2 * H * E * self.width + H * 4)
        if c.qk_norm == "layer":
            kept += self.batch * T * H * E * self.width  # the output in the order that merging needs
        return kept + self.batch * (T * H + S * G) * self.normed(c.qk_norm, E)

    def feed_forward(self, T: int) -> int:
        """The inner vectors: before and after the activation, and the gate's."""
        n = (4 if self.config.gated else 2) - (self.config.activation == "relu")
        return n * self.batch * T * self.config.setting("d_ff") * self.width
