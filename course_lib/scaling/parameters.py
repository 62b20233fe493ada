"""How many numbers a Transformer holds, by formula, piece by piece.

Letters: D model width, H heads, G key/value heads, E head width, F feed-forward width, V vocabulary.
"""

from collections import Counter
from typing import Literal, get_args

from course_lib.checks import check_choice, checked
from course_lib.config import TransformerConfig
from course_lib.norms import NormKind
from course_lib.positions import SCHEMES

Architecture = Literal["decoder", "encoder", "encoder-decoder"]


@checked
def count_parameters(config: TransformerConfig, architecture: Architecture = "decoder") -> Counter[str]:
    """Parameters of a model by piece; `.total()` is their sum.

    Args:
        config: sizes and switches. With `vocab_size` None the model takes vectors: no table, no head.
        architecture: "decoder" is a `LanguageModel`, "encoder-decoder" a `Transformer`, "encoder" an `Embedding` with a
            `TransformerEncoder` and no head.

    Returns:
        A Counter with the keys "token tables", "positions", "attention", "feed-forward", "norms" and "head"; pieces
        that do not exist are missing. Tied tables count once.

    Raises ValueError for an unknown architecture, and for `inner_attention` and `feed_forward` made by functions.
    """
    check_countable(config, architecture)
    D = config.d_model
    count: Counter[str] = Counter()
    if architecture != "decoder":
        _count_stack(count, config, config.n_encoder_layers, n_attentions=1)
        shared = architecture == "encoder-decoder" and config.share_vocabulary
        _count_embedding(count, config, config.vocab_size or 0, shared=shared)
    if architecture != "encoder":
        _count_stack(count, config, config.n_decoder_layers, n_attentions=1 if architecture == "decoder" else 2)
        V = config.setting("target_vocab_size") or 0
        _count_embedding(count, config, V)
        count["head"] += 0 if config.tie_embeddings else V * D
        count["head"] += V if config.head_bias else 0
    return +count  # without the pieces of size zero


def check_countable(config: TransformerConfig, architecture: str) -> None:
    """Refuse other words, and layers whose parts are given as functions, of which nothing is known."""
    check_choice("architecture", architecture, get_args(Architecture))
    for name in ("inner_attention", "feed_forward"):
        if getattr(config, name) is not None:
            raise ValueError(f"config: expected {name} None, no formula knows what a function makes")


def attention_parameters(config: TransformerConfig) -> int:
    """Parameters of one `MultiHeadAttention`: the maps to queries, keys and values, and back, and norms inside."""
    D, E, H, G = map(config.setting, ("d_model", "d_head", "n_heads", "n_kv_heads"))
    biases = (H * E + 2 * G * E if config.setting("qkv_bias") else 0) + (D if config.setting("attention_bias") else 0)
    return D * H * E + 2 * D * G * E + H * E * D + biases + 2 * _norm_weights(config.qk_norm, E)


def feed_forward_parameters(config: TransformerConfig) -> int:
    """Parameters of one `FeedForward`: two maps, three if gated."""
    D, F = config.d_model, config.setting("d_ff")
    inward = 2 if config.gated else 1
    return (inward + 1) * D * F + (inward * F + D if config.setting("feed_forward_bias") else 0)


def norm_parameters(config: TransformerConfig) -> int:
    """Parameters of one norm of the width D."""
    biases = config.d_model if config.norm == "layer" and config.bias else 0
    return _norm_weights(config.norm, config.d_model) + biases


def _norm_weights(kind: NormKind, width: int) -> int:
    return 0 if kind in ("unit", "none") else width


def _count_stack(count: Counter[str], config: TransformerConfig, n_layers: int, n_attentions: int) -> None:
    """Add the layers and the final norm."""
    count["attention"] += n_layers * n_attentions * attention_parameters(config)
    count["feed-forward"] += n_layers * feed_forward_parameters(config)
    n_norms = n_layers * (n_attentions + 1) * (2 if config.norm_place == "both" else 1) + config.setting("final_norm")
    count["norms"] += n_norms * norm_parameters(config)


def _count_embedding(count: Counter[str], config: TransformerConfig, V: int, *, shared: bool = False) -> None:
    """Add a table of V token vectors unless it is another's, the position scheme's weights, the norm."""
    count["token tables"] += ((0 if shared else V) + config.n_token_types) * config.d_model
    count["positions"] += SCHEMES[config.positions].n_weights(config)  # one copy, here or in the stack
    if config.embedding_norm:
        count["norms"] += norm_parameters(config)
