"""One dataclass with every switch of a Transformer: the original, BERT, GPT-2, T5 and Llama are rows of its table."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor, nn

from course_lib.checks import Count, CountOrZero, Positive, Share, check_choice, check_fields
from course_lib.norms import NormKind
from course_lib.positions import SCHEMES, RotaryLayout

Activation = Literal["relu", "gelu", "gelu_tanh", "silu", "relu2"]
NormPlace = Literal["pre", "post", "both"]
Init = Literal["xavier", "normal"]

# Fields that stand as another does, unless given.
FALLBACKS = {"n_kv_heads": "n_heads", "target_vocab_size": "vocab_size"}
FALLBACKS |= {"attention_bias": "bias", "qkv_bias": "attention_bias", "feed_forward_bias": "bias"}
FALLBACKS |= dict.fromkeys(["embedding_dropout", "attention_dropout", "activation_dropout"], "dropout")


@dataclass(frozen=True, kw_only=True)
class TransformerConfig:
    """Sizes and switches; the defaults are the base model of Vaswani et al. 2017, table 3.

    Raises ValueError or TypeError that names the field.
    """

    # Sizes
    d_model: Count = 512  # D, width of the vectors
    n_heads: Count = 8  # H, heads of attention
    n_kv_heads: Count | None = None  # G, heads of keys and values; H unless given
    d_head: Count | None = None  # E, width of a head; D / H unless given
    d_ff: Count | None = None  # F, width inside the feed-forward; 4 D unless given
    n_encoder_layers: CountOrZero = 6  # 0 without an encoder
    n_decoder_layers: CountOrZero = 6  # 0 without a decoder
    vocab_size: Count | None = None  # V; None: the model takes vectors (B, T, D) in place of token ids
    target_vocab_size: Count | None = None  # that of the decoder, V unless given
    max_length: Count = 1024  # positions of a learned table
    pad_id: int | None = None  # source tokens with this id are hidden unless a mask is given

    # Order of the tokens
    positions: str = "sinusoidal"  # how it enters, a key of `course_lib.positions.SCHEMES`
    rotary_base: Positive = 10000.0  # the larger, the slower the pairs turn
    rotary_layout: RotaryLayout = "half"  # which two numbers of a vector are turned together
    rotary_scaling: Callable[[Tensor], Tensor] | None = None
    relative_buckets: Count = 32  # distances that "relative" tells apart
    relative_max_distance: Count = 128  # ... the last of them for all that is further
    window: Count | None = None  # self-attention sees this many latest positions, all unless given
    local_layers: tuple[bool, ...] | None = None  # in which layers it does, repeated over the depth; all unless given
    local_rotary_base: Positive | None = None  # rotary base of those layers; as the others' unless given

    # Layers
    activation: Activation = "relu"  # inside the feed-forward
    gated: bool = False  # act(gate(x)) * up(x), such as SwiGLU with activation "silu"
    norm: NormKind = "layer"  # LayerNorm, RMSNorm, one whose weight is added to 1, one without weights, or none
    norm_place: NormPlace = "post"  # before or after each sublayer, or both
    norm_eps: Positive = 1e-5  # added below the root
    final_norm: bool | None = None  # after the last layer; unless norm_place is "post", if not given
    bias: bool = True  # in linear maps and LayerNorm
    attention_bias: bool | None = None  # in the maps of attention; `bias` unless given
    qkv_bias: bool | None = None  # in those of queries, keys and values; `attention_bias` unless given
    feed_forward_bias: bool | None = None  # in the maps of the feed-forward; `bias` unless given
    attention_scale: Positive | None = None  # factor on the scores, 1 / sqrt(E) unless given
    qk_norm: NormKind = "none"  # of the queries and keys of each head: "unit", or one with trained weights
    residual: bool = True  # x + sublayer(x); False only to see what breaks
    inner_attention: Callable[[], nn.Module] | None = None  # makes what attends in the heads of self-attention
    feed_forward: Callable[["TransformerConfig"], Any] | None = None  # makes what stands in for `FeedForward`

    # Embeddings and head
    scale_embeddings: bool = True  # token vectors times sqrt(D)
    embedding_norm: bool = False  # a norm on them
    n_token_types: CountOrZero = 0  # rows of a table added to the token vectors, such as first and second sentence
    share_vocabulary: bool = False  # source and target have one table
    tie_embeddings: bool = True  # the head's weights are the target table
    head_bias: bool = False  # in the map to the scores of tokens
    logit_scale: float = 1.0  # factor on the input of the head

    # Dropout
    dropout: Share = 0.1  # of each sublayer's output
    embedding_dropout: Share | None = None  # of embeddings; `dropout` unless given
    attention_dropout: Share | None = None  # of attention weights; `dropout` unless given
    activation_dropout: Share | None = None  # inside the feed-forward; `dropout` unless given

    # Initial weights of linear maps and tables
    init: Init = "xavier"  # "normal" draws from N(0, init_std)
    init_std: Positive = 0.02  # standard deviation of "normal"
    scale_residual_init: bool = False  # maps that write to the residual stream start smaller, by sqrt of their number
    zero_residual_init: bool = False  # ... or at zero, so that each layer starts as the identity

    def __post_init__(self) -> None:
        """Refuse fields that make no sense."""
        check_fields(self)
        check_choice("positions", self.positions, SCHEMES)
        self._check_fit()

    def _check_fit(self) -> None:
        """Refuse fields that do not fit each other."""
        if self.d_head is None and self.d_model % self.n_heads:
            raise ValueError(f"d_model: expected a multiple of n_heads={self.n_heads}, got {self.d_model}")
        if self.n_kv_heads is not None and self.n_heads % self.n_kv_heads:
            raise ValueError(f"n_kv_heads: expected a divisor of n_heads={self.n_heads}, got {self.n_kv_heads}")
        SCHEMES[self.positions].check_config(self)
        for name in ("local_layers", "local_rotary_base"):
            if getattr(self, name) is not None and self.window is None:
                raise ValueError(f"{name}: expected None without a window, got {str(getattr(self, name))[:80]}")
        if self.local_layers is not None and not self.local_layers:
            raise ValueError("local_layers: expected True or False for each layer, got none")
        if self.local_rotary_base is not None and self.positions != "rotary":
            raise ValueError(f"local_rotary_base: expected None with positions {self.positions!r}")
        if self.target_vocab_size is not None and self.vocab_size is None:
            raise ValueError("target_vocab_size: expected None like vocab_size")
        if self.share_vocabulary and self.target_vocab_size not in (None, self.vocab_size):
            raise ValueError(
                f"share_vocabulary: expected target_vocab_size={self.vocab_size}, got {self.target_vocab_size}"
            )
        if self.pad_id is not None and not 0 <= self.pad_id < (self.vocab_size or 0):
            raise ValueError(f"pad_id: expected a token id below vocab_size={self.vocab_size}, got {self.pad_id!r}")

    def window_of(self, layer: int) -> int | None:
        """The window of the layer with this number in its stack, None where it sees everything."""
        local = self.local_layers is None or self.local_layers[layer % len(self.local_layers)]
        return self.window if local else None

    def setting(self, name: str) -> Any:
        """What a field comes to: its own value, or what stands for it where it is None.

        This is found when it is asked for, and not when a config is made: with another `d_model` the widths follow.
        """
        value = getattr(self, name)
        if value is not None:
            return value
        if name == "d_head":
            return self.d_model // self.n_heads
        if name == "d_ff":
            return 4 * self.d_model
        if name == "final_norm":
            return self.norm_place != "post"
        return self.setting(FALLBACKS[name]) if name in FALLBACKS else None

    @property
    def table_std(self) -> float:
        """The standard deviation with which tables of tokens and positions start."""
        return self.d_model**-0.5 if self.init == "xavier" else self.init_std
