"""A sample of each published family: random tiny models as transformers writes them, and what tests ask of both sides.

A family that is registered in `course_lib.variants` has its row in `FAMILIES`, at the end; every test of families runs
over these rows.
"""

import os
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import transformers
from hypothesis import strategies as st
from published import PAD, SPECIAL
from torch import nn
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    BertModel,
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
    ViTConfig,
    ViTForImageClassification,
    ViTModel,
)
from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm
from transformers.models.mistral.modeling_mistral import MistralRMSNorm
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm
from transformers.models.t5.modeling_t5 import T5LayerNorm

from course_lib.transformer import LanguageModel
from course_lib.variants import BERT, GPT, T5, Gemma3, Llama, Qwen3, ViT

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
os.environ["HF_HUB_OFFLINE"] = "1"

LENGTH = 24
ACTIVATIONS = ("relu", "gelu", "gelu_new", "silu")

widths = st.sampled_from([(1, 8), (2, 6), (3, 4), (4, 2), (4, 10)])  # heads, width of each
layers = st.integers(1, 3)
inner = st.sampled_from([5, 17, 32])
vocabulary = st.sampled_from([11, 29])
eps = st.sampled_from([1e-12, 1e-6, 1e-3])


class Family(NamedTuple):
    """How to draw a model, and how to build and run it on both sides."""

    ours: Any
    draw: st.SearchStrategy  # models of transformers
    tiny: Callable  # changes of the config -> a tiny model of ours
    inputs: Callable  # config of transformers -> inputs
    theirs_of: Callable  # model, inputs -> outputs
    ours_of: Callable
    sized: Callable  # our config -> the model of transformers of these sizes


@st.composite
def gpt(draw) -> nn.Module:
    heads, width = draw(widths)
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=draw(vocabulary),
            n_positions=draw(st.sampled_from([LENGTH, 31])),
            n_embd=heads * width,
            n_head=heads,
            n_layer=draw(layers),
            n_inner=draw(st.sampled_from([None, 5, 32])),
            activation_function=draw(st.sampled_from(ACTIVATIONS)),
            layer_norm_epsilon=draw(eps),
            scale_attn_weights=draw(st.booleans()),
            tie_word_embeddings=draw(st.booleans()),
            **SPECIAL,
        )
    )


def rotary(draw, width: int) -> dict[str, Any]:
    """Entries of a config for a base and a kind of scaling, in the new form or the old."""
    kinds = ["default", "linear", "dynamic", "llama3", "yarn"] if width > 2 else ["default", "linear"]
    kind = draw(st.sampled_from(kinds))
    base = draw(st.sampled_from([100.0, 10000.0, 500000.0]))
    scaling: dict[str, Any] = {"rope_type": kind}
    if kind != "default":
        scaling["factor"] = draw(st.sampled_from([2.0, 8.0]))
    if kind == "llama3":
        scaling |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16}
    if kind == "yarn":
        scaling |= {"original_max_position_embeddings": 16, "beta_fast": 2.0, "beta_slow": 0.5}
    if draw(st.booleans()):
        return {"rope_parameters": {**scaling, "rope_theta": base}}
    return {"rope_theta": base, "rope_scaling": None if kind == "default" else scaling}


@st.composite
def llama(draw) -> nn.Module:
    heads, width = draw(widths)
    mistral = draw(st.booleans()) and draw(st.booleans())
    width_used = draw(st.sampled_from([width, 6]))
    sizes = {
        "vocab_size": draw(vocabulary),
        "hidden_size": heads * width,
        "intermediate_size": draw(inner),
        "num_hidden_layers": draw(layers),
        "num_attention_heads": heads,
        "num_key_value_heads": draw(st.sampled_from([n for n in range(1, heads + 1) if heads % n == 0])),
        "head_dim": width_used,
        "hidden_act": draw(st.sampled_from(ACTIVATIONS)),
        "rms_norm_eps": draw(eps),
        "tie_word_embeddings": draw(st.booleans()),
        "max_position_embeddings": draw(st.sampled_from([6, 2048])),  # the shorter for dynamic scaling to scale
        **rotary(draw, width_used),
        **SPECIAL,
    }
    if mistral:
        return MistralForCausalLM(MistralConfig(**sizes, sliding_window=draw(st.sampled_from([3, None]))))
    return LlamaForCausalLM(LlamaConfig(**sizes, attention_bias=draw(st.booleans()), mlp_bias=draw(st.booleans())))


@st.composite
def qwen3(draw) -> nn.Module:
    heads, width = draw(widths)
    width = draw(st.sampled_from([width, 6]))
    return Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=draw(st.integers(11, 40)),
            hidden_size=draw(st.integers(5, 30)),
            intermediate_size=draw(st.integers(5, 32)),
            num_hidden_layers=draw(layers),
            num_attention_heads=heads,
            num_key_value_heads=draw(st.sampled_from([n for n in range(1, heads + 1) if heads % n == 0])),
            head_dim=width,
            hidden_act=draw(st.sampled_from(ACTIVATIONS)),
            max_position_embeddings=draw(st.sampled_from([6, 2048])),
            rms_norm_eps=draw(eps),
            attention_bias=draw(st.booleans()),
            tie_word_embeddings=draw(st.booleans()),
            **rotary(draw, width),
            **SPECIAL,
        )
    )


@st.composite
def gemma3(draw) -> nn.Module:
    heads, width = draw(widths)
    n_layers = draw(layers)
    linear = {"rope_type": "linear", "factor": 8.0}
    scaling = draw(st.sampled_from([{"rope_type": "default"}, linear]))
    bases = {"full_attention": {**scaling, "rope_theta": 1000.0}, "sliding_attention": {"rope_theta": 50.0}}
    old = {"rope_theta": 1000.0, "rope_local_base_freq": 50.0, "rope_scaling": draw(st.sampled_from([None, linear]))}
    kinds = st.sampled_from(["sliding_attention", "full_attention"])
    listed = {"layer_types": draw(st.lists(kinds, min_size=n_layers, max_size=n_layers))}
    return Gemma3ForCausalLM(
        Gemma3TextConfig(
            vocab_size=draw(st.integers(11, 40)),
            hidden_size=heads * draw(st.integers(2, 8)),
            intermediate_size=draw(inner),
            num_hidden_layers=n_layers,
            num_attention_heads=heads,
            num_key_value_heads=draw(st.sampled_from([n for n in range(1, heads + 1) if heads % n == 0])),
            head_dim=width,
            query_pre_attn_scalar=draw(st.sampled_from([width, 5])),
            sliding_window=draw(st.sampled_from([2, 3, 30])),  # with 1, their cache forgets nothing
            hidden_activation=draw(st.sampled_from(["gelu_pytorch_tanh", "silu"])),
            rms_norm_eps=draw(eps),
            attention_bias=draw(st.booleans()),
            tie_word_embeddings=draw(st.booleans()),
            **draw(st.sampled_from([listed, {"sliding_window_pattern": 2}])),
            **draw(st.sampled_from([{"rope_parameters": bases}, old])),
            **SPECIAL,
        )
    )


@st.composite
def t5(draw) -> nn.Module:
    heads, width = draw(widths)
    buckets, reach = draw(st.sampled_from([(8, 10), (12, 20), (32, 40), (32, 128)]))
    config = T5Config(
        vocab_size=draw(vocabulary),
        d_model=draw(st.sampled_from([8, 13, 24])),
        d_kv=draw(st.sampled_from([width, 3])),
        d_ff=draw(inner),
        num_layers=draw(layers),
        num_decoder_layers=draw(layers),
        num_heads=heads,
        relative_attention_num_buckets=buckets,
        relative_attention_max_distance=reach,
        feed_forward_proj=draw(st.sampled_from(["relu", "gated-gelu", "gated-silu", "gelu"])),
        layer_norm_epsilon=draw(eps),
        tie_word_embeddings=draw(st.booleans()),
        decoder_start_token_id=PAD,
        **SPECIAL,
    )
    model = T5ForConditionalGeneration(config)
    if not config.scale_decoder_outputs and draw(st.booleans()):  # version 1.1 was published with a head of its own
        model.lm_head.weight = nn.Parameter(torch.empty_like(model.shared.weight))
    return model


@st.composite
def bert(draw) -> nn.Module:
    heads, width = draw(widths)
    kind = draw(st.sampled_from([BertModel, BertForMaskedLM, BertForSequenceClassification]))
    config = BertConfig(
        vocab_size=draw(vocabulary),
        hidden_size=heads * width,
        num_hidden_layers=draw(layers),
        num_attention_heads=heads,
        intermediate_size=draw(inner),
        hidden_act=draw(st.sampled_from(ACTIVATIONS)),
        max_position_embeddings=draw(st.sampled_from([LENGTH, 31])),
        type_vocab_size=draw(st.integers(1, 3)),
        layer_norm_eps=draw(eps),
        tie_word_embeddings=draw(st.booleans()),
        num_labels=draw(st.integers(1, 4)),
        pad_token_id=PAD,
    )
    return kind(config, add_pooling_layer=draw(st.booleans())) if kind is BertModel else kind(config)


@st.composite
def vit(draw) -> nn.Module:
    heads, width = draw(widths)
    kind = draw(st.sampled_from([ViTModel, ViTForImageClassification]))
    patch = draw(st.sampled_from([2, 3, (2, 4)]))
    height, width_of_patch = (patch, patch) if isinstance(patch, int) else patch
    image = (height * draw(st.integers(1, 3)), width_of_patch * draw(st.integers(1, 3)))
    config = ViTConfig(
        hidden_size=heads * width,
        num_hidden_layers=draw(layers),
        num_attention_heads=heads,
        intermediate_size=draw(inner),
        hidden_act=draw(st.sampled_from(ACTIVATIONS)),
        layer_norm_eps=draw(eps),
        image_size=image[0] if image[0] == image[1] else list(image),
        patch_size=patch if isinstance(patch, int) else list(patch),
        num_channels=draw(st.integers(1, 3)),
        qkv_bias=draw(st.booleans()),
        num_labels=draw(st.integers(1, 4)),
    )
    return kind(config, add_pooling_layer=draw(st.booleans())) if kind is ViTModel else kind(config)


def _norm(self, x):
    return self.weight * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.variance_epsilon)


# Norms of transformers that compute in float32 whatever they are given -> the same in the precision of the input.
NORMS = dict.fromkeys((LlamaRMSNorm, MistralRMSNorm, Qwen3RMSNorm, T5LayerNorm), _norm)
NORMS[Gemma3RMSNorm] = lambda self, x: self._norm(x) * (1 + self.weight)


def tokens(config, T: int = 11) -> torch.Tensor:
    return torch.randint(3, config.vocab_size, (3, T))


def padded(config, T: int) -> torch.Tensor:
    found = tokens(config, T)
    found[0, T - 3 :] = PAD
    return found


def _bert_inputs(config):
    return padded(config, 11), torch.randint(0, config.type_vocab_size, (3, 11))


def _bert_theirs(model, ids, types):
    return _everything(model(ids, attention_mask=(ids != PAD).long(), token_type_ids=types))


def _everything(out):
    """Their logits, or their vectors and what the pooler made of them."""
    if hasattr(out, "logits"):
        return out.logits
    vectors = out.last_hidden_state
    return vectors if out.pooler_output is None else torch.cat([vectors, out.pooler_output[:, None]], dim=1)


def _ours(model, *inputs, **options):
    out = model(*inputs, **options)
    return torch.cat([out, model.pool(out)[:, None]], dim=1) if is_body(model) and model.pooler is not None else out


def is_body(model) -> bool:
    return getattr(model, "classifier", None) is None and getattr(model, "masked_lm", None) is None


def _images(config):
    sizes = config.image_size if isinstance(config.image_size, list | tuple) else [config.image_size] * 2
    return (torch.randn(3, config.num_channels, *sizes),)


SMALL = {"d_model": 16, "n_heads": 4, "d_ff": 20, "vocab_size": 23, "max_length": 32}


def decoder(ours, draw, sized, **small) -> Family:
    """The row of a family that is a `LanguageModel`."""
    return Family(
        ours,
        draw,
        lambda **changes: ours(ours.configure(**{**SMALL, "n_decoder_layers": 2, **small, **changes})),
        lambda config: (tokens(config),),
        lambda model, ids: model(ids).logits,
        lambda model, ids: model(ids),
        sized,
    )


def tiny_t5(**changes) -> nn.Module:
    sizes = {name: size for name, size in SMALL.items() if name != "max_length"}
    stacks = {"n_encoder_layers": 2, "n_decoder_layers": 2, "relative_buckets": 8}
    return T5(T5.configure(**{**sizes, **stacks, **changes}))


def tiny_bert(**options) -> nn.Module:
    return BERT(BERT.configure(**SMALL, n_encoder_layers=2), **options)


def tiny_vit(**options) -> nn.Module:
    sizes = {"image_size": (8, 12), "patch_size": 4}
    config = ViT.configure(d_model=16, n_heads=4, d_ff=20, n_encoder_layers=2, **sizes)
    return ViT(config, **sizes, n_channels=2, **options)


def sized_decoder(c) -> dict[str, Any]:
    """Sizes of a decoder as configs of transformers name them."""
    return {
        "hidden_size": c.d_model,
        "num_attention_heads": c.n_heads,
        "num_key_value_heads": c.setting("n_kv_heads"),
        "head_dim": c.setting("d_head"),
        "intermediate_size": c.setting("d_ff"),
        "num_hidden_layers": c.n_decoder_layers,
        "vocab_size": c.vocab_size,
        "tie_word_embeddings": c.tie_embeddings,
    }


def sized_encoder(c) -> dict[str, Any]:
    sizes = {"hidden_size": c.d_model, "num_attention_heads": c.n_heads, "intermediate_size": c.setting("d_ff")}
    return {**sizes, "num_hidden_layers": c.n_encoder_layers}


def sized_t5(c) -> nn.Module:
    sizes = {"d_model": c.d_model, "d_kv": c.setting("d_head"), "d_ff": c.setting("d_ff"), "num_heads": c.n_heads}
    return T5ForConditionalGeneration(T5Config(**sizes, num_layers=c.n_encoder_layers))


FAMILIES = {
    "GPT": decoder(
        GPT,
        gpt(),
        lambda c: GPT2LMHeadModel(GPT2Config(n_embd=c.d_model, n_layer=c.n_decoder_layers, n_head=c.n_heads)),
    ),
    "Llama": decoder(Llama, llama(), lambda c: LlamaForCausalLM(LlamaConfig(**sized_decoder(c))), n_kv_heads=2),
    "Qwen3": decoder(
        Qwen3,
        qwen3(),
        lambda c: Qwen3ForCausalLM(Qwen3Config(**sized_decoder(c))),
        n_kv_heads=2,
        d_head=6,
    ),
    "Gemma3": decoder(
        Gemma3,
        gemma3(),
        lambda c: Gemma3ForCausalLM(Gemma3TextConfig(**sized_decoder(c))),
        n_kv_heads=2,
        window=4,
        local_layers=(True, False),
    ),
    "T5": Family(
        T5,
        t5(),
        tiny_t5,
        lambda c: (padded(c, 9), tokens(c, 7)),
        lambda m, s, t: m(input_ids=s, attention_mask=(s != PAD).long(), decoder_input_ids=t).logits,
        lambda m, s, t: m(s, t),
        sized_t5,
    ),
    "BERT": Family(
        BERT,
        bert(),
        tiny_bert,
        _bert_inputs,
        _bert_theirs,
        lambda m, ids, types: _ours(m, ids, token_types=types),
        lambda c: BertModel(BertConfig(**sized_encoder(c))),
    ),
    "ViT": Family(
        ViT,
        vit(),
        tiny_vit,
        _images,
        lambda m, images: _everything(m(images)),
        _ours,
        lambda c: ViTForImageClassification(ViTConfig(**sized_encoder(c), num_labels=1000)),
    ),
}
DECODERS = [name for name, family in FAMILIES.items() if issubclass(family.ours, LanguageModel)]
SAMPLES = {family.ours: family for family in FAMILIES.values()}
