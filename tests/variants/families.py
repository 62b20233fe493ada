"""Random tiny models of each published family, written by transformers and drawn by Hypothesis."""

import os
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import transformers
from hypothesis import strategies as st
from torch import nn
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    BertModel,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
    ViTConfig,
    ViTForImageClassification,
    ViTModel,
)

from course_lib.variants import BERT, GPT, T5, Llama, ViT

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
os.environ["HF_HUB_OFFLINE"] = "1"

PAD = 2
SPECIAL = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": PAD}
LENGTH = 24
ACTIVATIONS = ("relu", "gelu", "gelu_new", "silu")

widths = st.sampled_from([(1, 8), (2, 6), (3, 4), (4, 2), (4, 10)])  # heads, width of each
layers = st.integers(1, 3)
inner = st.sampled_from([5, 17, 32])
vocabulary = st.sampled_from([11, 29])
eps = st.sampled_from([1e-12, 1e-6, 1e-3])


class Family(NamedTuple):
    """How to draw a model, and how to run it on both sides."""

    ours: Any
    draw: st.SearchStrategy
    inputs: Callable
    theirs_of: Callable
    ours_of: Callable


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
    kind = draw(st.sampled_from(["default", "linear", "dynamic", "llama3"] if width > 2 else ["default", "linear"]))
    base = draw(st.sampled_from([100.0, 10000.0, 500000.0]))
    scaling: dict[str, Any] = {"rope_type": kind}
    if kind != "default":
        scaling["factor"] = draw(st.sampled_from([2.0, 8.0]))
    if kind == "llama3":
        scaling |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 16}
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


def shake(model: nn.Module) -> nn.Module:
    """Give every weight a size that matters: published initial values leave biases at zero and logits flat."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            is_norm = "norm" in name.lower() or "ln_" in name
            mean = 1.0 if is_norm and name.endswith("weight") else 0.0
            nn.init.normal_(parameter, mean=mean, std=0.2)
    for part in model.modules():
        if isinstance(part, nn.Embedding):
            part.padding_idx = None  # theirs keeps gradients from the vector of padding
    return model.eval()


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


FAMILIES = {
    "GPT": Family(GPT, gpt(), lambda c: (tokens(c),), lambda m, ids: m(ids).logits, lambda m, ids: m(ids)),
    "Llama": Family(Llama, llama(), lambda c: (tokens(c),), lambda m, ids: m(ids).logits, lambda m, ids: m(ids)),
    "T5": Family(
        T5,
        t5(),
        lambda c: (padded(c, 9), tokens(c, 7)),
        lambda m, s, t: m(input_ids=s, attention_mask=(s != PAD).long(), decoder_input_ids=t).logits,
        lambda m, s, t: m(s, t),
    ),
    "BERT": Family(BERT, bert(), _bert_inputs, _bert_theirs, lambda m, ids, types: _ours(m, ids, token_types=types)),
    "ViT": Family(ViT, vit(), _images, lambda m, images: _everything(m(images)), _ours),
}
