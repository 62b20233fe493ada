"""How many floating-point operations a pass takes, by formula.

A product of matrices (m, k) and (k, n) counts 2 m k n: a multiplication and an addition each. Like
`torch.utils.flop_counter`, the count is of matrix products alone: norms, activations, softmax and biases are left out,
a few per cent at usual widths.

Letters: B batch, T target positions, S source positions, D model width, H heads, E head width, F feed-forward width.
"""

from collections import Counter
from typing import Annotated

from course_lib.checks import Count, Within, checked
from course_lib.config import TransformerConfig
from course_lib.scaling.parameters import Architecture, check_countable


@checked
def count_flops(
    config: TransformerConfig,
    batch: Count,
    length: Count,
    *,
    architecture: Architecture = "decoder",
    source_length: Count | None = None,
    backward: bool = False,
    recompute: bool = False,
    halve_causal: bool = False,
) -> Counter[str]:
    """Operations of one pass over token ids, by piece; `.total()` is their sum.

    Args:
        config: sizes and switches.
        batch: B, sequences.
        length: T, tokens of each; for "encoder-decoder" those of the target.
        architecture: as for `count_parameters`.
        source_length: S, for "encoder-decoder"; T unless given.
        backward: count a training step. The backward pass costs twice the forward: one product for the gradient of the
            input, one for that of the weights.
        recompute: with `backward`, add a second forward pass of the layers, as activation checkpointing does.
        halve_causal: count only the visible half of the score table, T (T + 1) / 2 of T * T, for kernels that skip the
            rest. The explicit form computes all of it.

    Returns:
        A Counter with the keys "projections", "scores and mixing", "feed-forward" and "head".
    """
    check_countable(config, architecture)
    B, T = batch, length
    S = T if source_length is None else source_length
    layers: Counter[str] = Counter()
    if architecture != "decoder":
        tokens = S if architecture == "encoder-decoder" else T
        _count_layers(layers, config, config.n_encoder_layers, B, tokens, tokens * tokens)
    if architecture != "encoder":
        pairs = T * (T + 1) // 2 if halve_causal else T * T
        _count_layers(layers, config, config.n_decoder_layers, B, T, pairs)
    if architecture == "encoder-decoder":
        _count_cross_attention(layers, config, B, T, S)

    times = 3 + recompute if backward else 1
    count = Counter({piece: times * flops for piece, flops in layers.items()})
    if architecture != "encoder":
        V = config.setting("target_vocab_size") or 0
        count["head"] = (3 if backward else 1) * 2 * B * T * config.d_model * V
    return +count


def _count_layers(count: Counter[str], config: TransformerConfig, n_layers: int, B: int, T: int, pairs: int) -> None:
    """Self-attention with `pairs` of query and key, and feed-forward."""
    D, E, H, G, F = map(config.setting, ("d_model", "d_head", "n_heads", "n_kv_heads", "d_ff"))
    weights = 2 * D * H * E + 2 * D * G * E  # to queries and back, to keys and values
    count["projections"] += n_layers * 2 * B * T * weights
    count["scores and mixing"] += n_layers * 2 * 2 * B * H * pairs * E
    count["feed-forward"] += n_layers * 2 * B * T * (3 if config.gated else 2) * D * F


def _count_cross_attention(count: Counter[str], config: TransformerConfig, B: int, T: int, S: int) -> None:
    """T target queries over S source keys, in each decoder layer."""
    D, E, H, G = map(config.setting, ("d_model", "d_head", "n_heads", "n_kv_heads"))
    n_layers = config.n_decoder_layers
    count["projections"] += n_layers * 2 * B * (T * 2 * D * H * E + S * 2 * D * G * E)
    count["scores and mixing"] += n_layers * 2 * 2 * B * H * T * S * E


@checked
def six_n_d(parameters: Annotated[int, Within(0)], tokens: Annotated[int, Within(0)]) -> int:
    """The usual estimate of training, 6 N D: six operations for each parameter and token.

    It leaves the score table out. N is to count the weights that are multiplied with: without the token and position
    tables, but with the head. Source: Kaplan et al. 2020, section 2.1, whose N leaves out the head, too.
    """
    return 6 * parameters * tokens
