"""Other people's GPT-2, for `training_step.py`: the same shape and, where the library allows it, the same weights.

Shapes: B batch, T positions, D model width, H heads, E head width, V vocabulary.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import GPT2Config, GPT2LMHeadModel
from x_transformers import Decoder, TransformerWrapper

__all__ = ["SHAPES", "NaiveTutorial", "NanoStyle", "Shape", "TorchEncoder", "Transformers", "XTransformers"]


@dataclass(frozen=True)
class Shape:
    """A GPT-2 and the batches that it is trained on."""

    layers: int
    width: int  # D
    heads: int  # H
    vocabulary: int  # V
    context: int  # T
    batch: int  # B
    steps: int  # of one round

    @property
    def tokens(self) -> int:
        """Tokens of a step."""
        return self.batch * self.context


SHAPES = {
    "4x128": Shape(4, 128, 4, 65, 64, 12, 20),
    "6x384": Shape(6, 384, 6, 65, 256, 8, 1),
    "gpt2": Shape(12, 768, 12, 50257, 256, 2, 1),
}


def gelu(x: Tensor) -> Tensor:
    """GPT-2's."""
    return F.gelu(x, approximate="tanh")


def published(shape: Shape) -> GPT2LMHeadModel:
    """A GPT-2 of transformers with new weights, drawn from seed 0."""
    torch.manual_seed(0)
    sizes = {"n_layer": shape.layers, "n_embd": shape.width, "n_head": shape.heads, "n_positions": shape.context}
    ends = {"bos_token_id": None, "eos_token_id": None}
    config = GPT2Config(
        **sizes, **ends, vocab_size=shape.vocabulary, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False
    )
    return GPT2LMHeadModel(config)


class Transformers(nn.Module):
    """`GPT2LMHeadModel` of transformers, with its default attention, which is torch's fused one."""

    def __init__(self, shape: Shape, weights: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.model = published(shape)
        self.model.load_state_dict(weights)

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens (B, T) to logits (B, T, V)."""
        return self.model(input_ids=tokens, use_cache=False).logits


class XTransformers(nn.Module):
    """x-transformers with its fused attention, learned positions and a tied head; its weights are its own.

    Its attention and its norms have no biases, so it has a few parameters less.
    """

    def __init__(self, shape: Shape, weights: Mapping[str, Tensor]) -> None:
        super().__init__()
        layers = Decoder(
            dim=shape.width,
            depth=shape.layers,
            heads=shape.heads,
            attn_dim_head=shape.width // shape.heads,
            attn_flash=True,
        )
        self.model = TransformerWrapper(
            num_tokens=shape.vocabulary, max_seq_len=shape.context, attn_layers=layers, tie_embedding=True
        )

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens (B, T) to logits (B, T, V)."""
        return self.model(tokens)


class _GPT(nn.Module):
    """What those below share: embeddings, some body, and a tied head."""

    def __init__(self, shape: Shape, body: nn.Module) -> None:
        super().__init__()
        self.tokens = nn.Embedding(shape.vocabulary, shape.width)
        self.positions = nn.Embedding(shape.context, shape.width)
        self.body = body
        self.final = nn.LayerNorm(shape.width)

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens (B, T) to logits (B, T, V)."""
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.size(1), device=tokens.device))
        return F.linear(self.final(self.body(x)), self.tokens.weight)

    def take(self, weights: Mapping[str, Tensor]) -> None:
        """Take over the embeddings and the last norm of GPT-2."""
        self.tokens.weight.copy_(weights["transformer.wte.weight"])
        self.positions.weight.copy_(weights["transformer.wpe.weight"])
        self.final.load_state_dict(_part(weights, "transformer.ln_f."))


def _part(weights: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in weights.items() if name.startswith(prefix)}


def _linear(weights: Mapping[str, Tensor], name: str) -> dict[str, Tensor]:
    """A linear map of GPT-2, whose weights are published as (in, out)."""
    return {"weight": weights[f"{name}.weight"].T, "bias": weights[f"{name}.bias"]}


class TorchEncoder(_GPT):
    """`torch.nn.TransformerEncoder` with a causal mask, norms first."""

    def __init__(self, shape: Shape, weights: Mapping[str, Tensor]) -> None:
        options = {"dropout": 0.0, "activation": gelu, "batch_first": True, "norm_first": True}
        layer = nn.TransformerEncoderLayer(shape.width, shape.heads, 4 * shape.width, **options)
        super().__init__(shape, nn.TransformerEncoder(layer, shape.layers, enable_nested_tensor=False))
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(shape.context), persistent=False)
        with torch.no_grad():
            self.take(weights)
            for number, layer in enumerate(self.body.layers):
                of = _part(weights, f"transformer.h.{number}.")
                fused = _linear(of, "attn.c_attn")
                layer.self_attn.in_proj_weight.copy_(fused["weight"])
                layer.self_attn.in_proj_bias.copy_(fused["bias"])
                layer.self_attn.out_proj.load_state_dict(_linear(of, "attn.c_proj"))
                layer.linear1.load_state_dict(_linear(of, "mlp.c_fc"))
                layer.linear2.load_state_dict(_linear(of, "mlp.c_proj"))
                layer.norm1.load_state_dict(_part(of, "ln_1."))
                layer.norm2.load_state_dict(_part(of, "ln_2."))

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens (B, T) to logits (B, T, V)."""
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.size(1), device=tokens.device))
        return F.linear(self.final(self.body(x, mask=self.mask, is_causal=True)), self.tokens.weight)


class _Head(nn.Module):
    """One head as tutorials write it."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        E = shape.width // shape.heads
        self.query, self.key, self.value = (nn.Linear(shape.width, E) for _ in range(3))
        self.register_buffer("tril", torch.tril(torch.ones(shape.context, shape.context)))

    def forward(self, x: Tensor) -> Tensor:
        T = x.size(1)
        query, key, value = self.query(x), self.key(x), self.value(x)  # (B, T, E)
        scores = query @ key.transpose(-2, -1) * key.size(-1) ** -0.5  # (B, T, T)
        scores = scores.masked_fill(self.tril[:T, :T] == 0, float("-inf"))
        return F.softmax(scores, dim=-1) @ value


class _Layer(nn.Module):
    """Norm, attention, norm, feed-forward, with weights from GPT-2."""

    def __init__(self, shape: Shape, of: Mapping[str, Tensor]) -> None:
        super().__init__()
        D = shape.width
        self.norm1, self.norm2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.up, self.down, self.output = nn.Linear(D, 4 * D), nn.Linear(4 * D, D), nn.Linear(D, D)
        for mine, theirs in (("up", "mlp.c_fc"), ("down", "mlp.c_proj"), ("output", "attn.c_proj")):
            getattr(self, mine).load_state_dict(_linear(of, theirs))
        self.norm1.load_state_dict(_part(of, "ln_1."))
        self.norm2.load_state_dict(_part(of, "ln_2."))

    def attend(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.output(self.attend(self.norm1(x)))
        return x + self.down(gelu(self.up(self.norm2(x))))


class _NaiveLayer(_Layer):
    """Heads one after the other, each with three maps of its own, and an explicit softmax."""

    def __init__(self, shape: Shape, of: Mapping[str, Tensor]) -> None:
        super().__init__(shape, of)
        self.heads = nn.ModuleList(_Head(shape) for _ in range(shape.heads))
        fused = _linear(of, "attn.c_attn")
        for kind in ("weight", "bias"):
            parts = fused[kind].chunk(3)  # (3 D, ...) -> 3 times (D, ...)
            for name, part in zip(("query", "key", "value"), parts, strict=True):
                for head, piece in zip(self.heads, part.chunk(shape.heads), strict=True):
                    getattr(getattr(head, name), kind).data.copy_(piece)

    def attend(self, x: Tensor) -> Tensor:
        return torch.cat([head(x) for head in self.heads], dim=-1)


class _NanoLayer(_Layer):
    """One map for queries, keys and values, and torch's fused attention, as in nanoGPT."""

    def __init__(self, shape: Shape, of: Mapping[str, Tensor]) -> None:
        super().__init__(shape, of)
        self.n_heads = shape.heads
        self.qkv = nn.Linear(shape.width, 3 * shape.width)
        self.qkv.load_state_dict(_linear(of, "attn.c_attn"))

    def attend(self, x: Tensor) -> Tensor:
        B, T, D = x.shape
        query, key, value = (
            part.view(B, T, self.n_heads, D // self.n_heads).transpose(1, 2)  # (B, T, D) -> (B, H, T, E)
            for part in self.qkv(x).split(D, dim=2)
        )
        heads = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return heads.transpose(1, 2).contiguous().view(B, T, D)  # (B, H, T, E) -> (B, T, D)


class _Layers(_GPT):
    layer: type[_Layer]

    def __init__(self, shape: Shape, weights: Mapping[str, Tensor]) -> None:
        layers = (self.layer(shape, _part(weights, f"transformer.h.{number}.")) for number in range(shape.layers))
        super().__init__(shape, nn.Sequential(*layers))
        with torch.no_grad():
            self.take(weights)


class NaiveTutorial(_Layers):
    """A GPT-2 as tutorials write it."""

    layer = _NaiveLayer


class NanoStyle(_Layers):
    """A GPT-2 as nanoGPT writes it."""

    layer = _NanoLayer
