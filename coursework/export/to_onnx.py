"""Write ONNX graphs: for decoders a step that takes and gives the keys and values of earlier positions.

One graph serves for the prompt and for each token after it: `past_key_values.*` hold no positions at first, and what
comes out as `present.*` goes in as past again. An encoder-decoder has a graph for each half. Names are those that other
exporters use.
"""

import copy
import itertools
import math
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from course_lib.attention import Options
from course_lib.cache import LayerCache
from course_lib.config import TransformerConfig
from course_lib.files import replace_together
from course_lib.layers import Stack
from course_lib.multi_head import MultiHeadAttention
from course_lib.rotary_scaling import DynamicNTKScaling
from course_lib.transformer import Embedding, LanguageModel, Transformer
from course_lib.variants import EncoderModel
from coursework.export.parts import check_plain, package
from coursework.export.vocabulary import Vocabulary

MODEL, ENCODER, DECODER = "model.onnx", "encoder_model.onnx", "decoder_model.onnx"
B, T, PAST, S = (torch.export.Dim(name, min=1) for name in ("batch", "length", "past", "source"))


class _Attend:
    """Attention by its formula, with every mask computed in place: a graph for all lengths has no cases."""

    def __init__(self, window: int | None, scheme: nn.Module | None) -> None:
        self.window, self.scheme = window, scheme
        self.real: Tensor | None = None  # (B, S), True for keys that are no padding

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, options: Options) -> Tensor:
        scores = query @ key.transpose(-2, -1) * options.scale  # (B, H, T, S)
        length, keys = query.size(-2), key.size(-2)
        if self.scheme is not None:
            scores = scores + self.scheme(length, keys)
        distance = torch.arange(keys) - (torch.arange(length)[:, None] + keys - length)  # (T, S)
        if options.causal:
            scores = scores.masked_fill(distance > 0, -math.inf)
        if self.window is not None:
            scores = scores.masked_fill(distance.abs() >= self.window, -math.inf)
        if self.real is not None:
            scores = scores.masked_fill(~self.real[:, None, None], -math.inf)
        return scores.softmax(dim=-1) @ value


class _Past:
    """Keys and values of one layer, joined with the new ones in place of being written to a buffer."""

    window = None

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        self.keys, self.values = keys, values

    def append(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """All keys and values (B, G, S, E)."""
        self.keys, self.values = torch.cat([self.keys, key], dim=2), torch.cat([self.values, value], dim=2)
        return self.keys, self.values


class _Half(nn.Module):
    """A stack with what leads to it, its attention replaced by `_Attend`."""

    def __init__(self, embedding: Embedding, stack: Any, config: TransformerConfig) -> None:
        super().__init__()
        self.embedding, self.stack, self.config = embedding, stack, config
        self.own: list[_Attend] = []
        self.cross: list[_Attend] = []
        scheme = stack.positions if stack.positions is not None and stack.positions.acts_on == "scores" else None
        for layer in stack.layers:
            self.own.append(_replace(layer.self_attention, scheme))
            if getattr(layer, "cross_attention", None) is not None:
                self.cross.append(_replace(layer.cross_attention, None))

    def begin(self, tokens: Tensor, offset: Any) -> tuple[Tensor, list[Any]]:
        """The vectors that enter the first layer, and the rotation of each layer."""
        positions = torch.arange(tokens.size(1)) + offset
        x = self.embedding(tokens, positions)
        stack: Stack = self.stack
        rotations: list[Any] = [None] * len(stack.layers)
        if stack.positions is not None and stack.positions.acts_on == "queries and keys":
            rotations, _ = stack.position_inputs(x, positions, 0, 0)
        return x, rotations


def _replace(attention: MultiHeadAttention, scheme: nn.Module | None) -> _Attend:
    attend = _Attend(attention.window, scheme)
    attention.form, attention.window = attend, None
    return attend


class _Encoder(_Half):
    """input_ids (B, S), attention_mask (B, S) -> vectors (B, S, D), or what the head makes of them."""

    def __init__(self, model: Any, config: TransformerConfig) -> None:
        whole = isinstance(model, EncoderModel)
        super().__init__(model.embedding if whole else model.source_embedding, model.encoder, config)
        self.model = model if whole else None

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Encode."""
        x, rotations = self.begin(input_ids, 0)
        for layer, attend, rotation in zip(self.stack.layers, self.own, rotations, strict=True):
            attend.real = attention_mask != 0
            x = layer(x, rotation=rotation)
        x = self.stack.final_norm(x)
        if self.model is None:
            return x
        if self.model.classifier is not None:
            return self.model.classify(x, attention_mask != 0)
        return x if self.model.masked_lm is None else self.model.masked_lm(x)


class _Decoder(_Half):
    """input_ids (B, T) and what came before -> logits (B, T, V) and what the next step needs."""

    def __init__(self, model: Any, config: TransformerConfig) -> None:
        super().__init__(model.embedding, model.decoder, config)
        self.head = model.head

    def forward(
        self, input_ids: Tensor, past: list[Tensor], context: Tensor | None = None, real: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """Decode; `past` holds keys and values of each layer in turn, (B, G, S, E)."""
        x, rotations = self.begin(input_ids, past[0].size(2))
        caches = [_Past(*pair) for pair in zip(past[::2], past[1::2], strict=True)]
        for number, layer in enumerate(self.stack.layers):
            if self.cross and real is not None:
                self.cross[number].real = real != 0
            cache: Any = LayerCache(caches[number], None)  # type: ignore[arg-type]
            x = layer(x, context, rotation=rotations[number], cache=cache)
        logits = self.head(self.stack.final_norm(x) * self.config.logit_scale)
        return logits, *itertools.chain.from_iterable((cache.keys, cache.values) for cache in caches)


def write(model: LanguageModel | Transformer | EncoderModel, vocabulary: Vocabulary, out: Path, dtype: str) -> Path:
    """Write the folder; see `coursework.export.export`."""
    for name in ("onnx", "onnxscript"):
        package(name)
    config = check_plain(model)
    if config.positions == "rotary" and isinstance(config.rotary_scaling, DynamicNTKScaling):
        raise ValueError("rotary_scaling: expected one that does not depend on the length, got a DynamicNTKScaling")
    if config.n_token_types > 1:
        raise ValueError("n_token_types: expected 0 or 1 for a graph that takes ids and a mask, got 2 or more")
    with replace_together(out) as staged, torch.no_grad():
        for file, half in _halves(copy.deepcopy(model).float().cpu().eval(), config):
            _save(half, config, staged / file)
        if vocabulary.json is not None:
            (staged / "tokenizer.json").write_text(vocabulary.json, encoding="utf-8")
    return out


def _halves(model: Any, config: TransformerConfig) -> Iterator[tuple[str, _Half]]:
    if isinstance(model, EncoderModel):
        yield MODEL, _Encoder(model, config)
    elif isinstance(model, Transformer):
        yield ENCODER, _Encoder(model, config)
        yield DECODER, _Decoder(model, config)
    else:
        yield MODEL, _Decoder(model, config)


def _save(half: _Half, config: TransformerConfig, path: Path) -> None:
    """Trace a half with sizes that stand for any, and write it."""
    ids, mask = torch.zeros(2, 3, dtype=torch.long), torch.ones(2, 4, dtype=torch.long)
    if isinstance(half, _Encoder):
        inputs: tuple[Any, ...] = (torch.zeros_like(mask), mask)
        shapes: tuple[Any, ...] = ({0: B, 1: S}, {0: B, 1: S})
        names, outputs = ["input_ids", "attention_mask"], ["logits" if half.model else "encoder_hidden_states"]
    else:
        kept = [f"{number}.{part}" for number in range(len(half.stack.layers)) for part in ("key", "value")]
        past = [torch.zeros(2, config.setting("n_kv_heads"), 5, config.setting("d_head")) for _ in kept]
        inputs, shapes = (ids, past), ({0: B, 1: T}, [{0: B, 2: PAST} for _ in kept])
        names = ["input_ids", *(f"past_key_values.{name}" for name in kept)]
        outputs = ["logits", *(f"present.{name}" for name in kept)]
        if half.cross:
            inputs, shapes = (*inputs, torch.zeros(2, 4, config.d_model), mask), (*shapes, {0: B, 1: S}, {0: B, 1: S})
            names += ["encoder_hidden_states", "encoder_attention_mask"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of deprecations inside the exporter
        torch.onnx.export(
            half,
            inputs,
            str(path),
            input_names=names,
            output_names=outputs,
            dynamic_shapes=shapes,
            dynamo=True,
            verbose=False,
        )
