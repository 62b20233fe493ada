"""The encoder: each position reads the whole sequence, layer after layer.

Shapes: B batch, T positions, H heads, D model width. Source: Vaswani et al. 2017, section 3.1.
"""

from torch import Tensor, nn

from course_lib.checks import check_vectors, checked
from course_lib.config import TransformerConfig
from course_lib.layers import (
    Stack,
    build_attention,
    build_feed_forward,
    build_residual,
    config_from_torch,
    init_weights,
)
from course_lib.multi_head import MultiHeadAttention
from course_lib.positions import Rotation


class EncoderLayer(nn.Module):
    """Self-attention, then a feed-forward, each with its residual connection and norm.

    Initial weights are those of the parts; a stack draws them as its config says.
    """

    @checked
    def __init__(self, config: TransformerConfig, number: int = 0) -> None:
        super().__init__()
        self.self_attention = build_attention(config, number)
        self.self_attention_residual = build_residual(config)
        self.feed_forward = build_feed_forward(config)
        self.feed_forward_residual = build_residual(config)

    def forward(
        self, x: Tensor, *, mask: Tensor | None = None, rotation: Rotation | None = None, bias: Tensor | None = None
    ) -> Tensor:
        """x (B, T, D) -> (B, T, D); arguments as `MultiHeadAttention`."""
        residual = self.self_attention_residual
        x = residual.add(x, self.self_attention(residual.read(x), mask=mask, rotation=rotation, bias=bias))
        residual = self.feed_forward_residual
        return residual.add(x, self.feed_forward(residual.read(x)))

    @classmethod
    @checked
    def from_torch(cls, module: nn.TransformerEncoderLayer) -> "EncoderLayer":
        """Take over a `torch.nn.TransformerEncoderLayer`; ours is always batch-first, its masks True = may attend."""
        layer = cls(config_from_torch(module)).to(module.linear1.weight)
        layer.self_attention = MultiHeadAttention.from_torch(module.self_attn, fused=True)
        layer.self_attention_residual.norm.load_state_dict(module.norm1.state_dict())
        layer.feed_forward.up.load_state_dict(module.linear1.state_dict())
        layer.feed_forward.down.load_state_dict(module.linear2.state_dict())
        layer.feed_forward_residual.norm.load_state_dict(module.norm2.state_dict())
        return layer.train(module.training)


class TransformerEncoder(Stack):
    """A stack of encoder layers over vectors (B, T, D); `config.n_encoder_layers` of them.

    It knows nothing of tokens: `Transformer` adds embedding and the position schemes that belong to it.
    """

    @checked
    def __init__(self, config: TransformerConfig) -> None:
        layers: list[nn.Module] = [EncoderLayer(config, number) for number in range(config.n_encoder_layers)]
        super().__init__(config, layers, bidirectional=True)
        init_weights(self, config, n_residuals=2 * len(layers))

    def forward(self, x: Tensor, *, mask: Tensor | None = None, positions: Tensor | None = None) -> Tensor:
        """Encode: (B, T, D) -> (B, T, D).

        Args:
            x: (B, T, D).
            mask: boolean, True = may attend, (T, T) or broadcastable to (B, H, T, T); padding is (B, 1, 1, T).
            positions: integers (T,) or (B, T) for rotary positions, 0, 1, ... unless given.
        """
        check_vectors("x", x, self.config.d_model)
        rotations, bias = self.position_inputs(x, positions, 0, x.size(1))
        for layer, rotation in zip(self.layers, rotations, strict=True):
            x = layer(x, mask=mask, rotation=rotation, bias=bias)
        return self.final_norm(x)

    @classmethod
    @checked
    def from_torch(cls, module: nn.TransformerEncoder) -> "TransformerEncoder":
        """Take over a `torch.nn.TransformerEncoder`; see `EncoderLayer.from_torch`."""
        others = {"n_encoder_layers": len(module.layers), "final_norm": module.norm is not None}
        first: nn.TransformerEncoderLayer = module.layers[0]  # type: ignore[assignment]
        encoder = cls(config_from_torch(first, **others)).to(first.linear1.weight)
        encoder.layers = nn.ModuleList(EncoderLayer.from_torch(layer) for layer in module.layers)  # type: ignore[arg-type]
        if module.norm is not None:
            encoder.final_norm.load_state_dict(module.norm.state_dict())
        return encoder.train(module.training)
