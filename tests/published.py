"""Random tiny checkpoints of `transformers` models, and the same weights in this package's models."""

import re
import tempfile
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import nn
from transformers import (
    BloomConfig,
    BloomForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)
from transformers.models.gemma3.modeling_gemma3 import Gemma3RMSNorm

from course_lib.transformer import LanguageModel, Transformer, TransformerConfig
from course_lib.variants import from_pretrained

V, D, H, LAYERS, LENGTH = 29, 24, 4, 2, 64
PAD = 2
SPECIAL = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": PAD}


def shake(model: nn.Module) -> nn.Module:
    """Give every weight a size that matters: published initial values leave biases at zero and logits flat."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            is_norm = "norm" in name.lower() or "ln_" in name
            mean = 1.0 if is_norm and name.endswith("weight") else 0.0
            nn.init.normal_(parameter, mean=mean, std=0.2)
        for part in model.modules():
            if isinstance(part, Gemma3RMSNorm):
                part.weight -= 1  # kept as the difference from 1
    for part in model.modules():
        if isinstance(part, nn.Embedding):
            part.padding_idx = None  # theirs keeps gradients from the vector of padding
    return model.eval()


def through_folder(theirs: nn.Module) -> nn.Module:
    """Their model, written by them, read by us."""
    with tempfile.TemporaryDirectory() as folder:
        theirs.save_pretrained(folder)
        return from_pretrained(folder)


def gradient_gap(theirs: nn.Module, ours: nn.Module, read: Callable[[nn.Module], nn.Module] = through_folder) -> float:
    """Largest difference of the gradients that both hold now, over all parameters, relative to the largest one."""
    # Their gradients in place of weights go the way of the weights into our names and layouts.
    with torch.no_grad():
        kept = {name: parameter.clone() for name, parameter in theirs.named_parameters()}
        for parameter in theirs.parameters():
            parameter.copy_(torch.zeros_like(parameter) if parameter.grad is None else parameter.grad)
        gradients = dict(read(theirs).named_parameters())
        for name, parameter in theirs.named_parameters():
            parameter.copy_(kept[name])
    largest = max(gradient.abs().max().item() for gradient in gradients.values())
    gap = 0.0
    for name, parameter in ours.named_parameters():
        gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        gap = max(gap, (gradient - gradients.pop(name)).abs().max().item())
    assert not gradients
    return gap / largest


class Pair(NamedTuple):
    """One model twice, and what makes ours of theirs."""

    theirs: nn.Module
    ours: LanguageModel | Transformer
    read: Callable[[nn.Module], nn.Module]


def pair(theirs: nn.Module, read: Callable[[nn.Module], nn.Module] = through_folder) -> Pair:
    torch.manual_seed(0)
    return Pair(shake(theirs), read(theirs), read)


def gpt2() -> Pair:
    sizes = {"n_positions": LENGTH, "n_embd": D, "n_layer": LAYERS, "n_head": H}
    return pair(GPT2LMHeadModel(GPT2Config(vocab_size=V, **sizes, **SPECIAL)))


def llama(window: int | None = None) -> Pair:
    """Llama; with a window, Mistral, which differs in nothing else."""
    sizes = {"hidden_size": D, "intermediate_size": 40, "num_hidden_layers": LAYERS, "num_attention_heads": H}
    sizes |= {"vocab_size": V, "num_key_value_heads": 2, "max_position_embeddings": LENGTH, **SPECIAL}
    if window is None:
        return pair(LlamaForCausalLM(LlamaConfig(**sizes)))
    return pair(MistralForCausalLM(MistralConfig(**sizes, sliding_window=window)))


BLOOM_NAMES = (
    (r"^transformer\.", ""),
    (r"^word_embeddings_layernorm", "embedding.norm"),
    (r"^word_embeddings", "embedding.tokens"),
    (r"^h\.", "decoder.layers."),
    (r"^ln_f", "decoder.final_norm"),
    (r"input_layernorm", "self_attention_residual.norm"),
    (r"post_attention_layernorm", "feed_forward_residual.norm"),
    (r"self_attention\.query_key_value", "self_attention.qkv"),
    (r"self_attention\.dense", "self_attention.output"),
    (r"mlp\.dense_h_to_4h", "feed_forward.up"),
    (r"mlp\.dense_4h_to_h", "feed_forward.down"),
    (r"^lm_head", "head"),
)


def read_bloom(theirs: nn.Module) -> LanguageModel:
    """Which is no family of this package, so that its names are translated here."""
    ours = LanguageModel(
        TransformerConfig(
            d_model=D,
            n_heads=H,
            n_decoder_layers=LAYERS,
            vocab_size=V,
            positions="alibi",
            activation="gelu_tanh",
            norm_place="pre",
            scale_embeddings=False,
            embedding_norm=True,
        )
    )
    state = theirs.state_dict()
    for pattern, replacement in BLOOM_NAMES:
        state = {re.sub(pattern, replacement, name): tensor for name, tensor in state.items()}
    for name, tensor in state.items():  # theirs holds query, key and value of each head in turn
        if "qkv" in name:
            state[name] = tensor.unflatten(0, (H, 3, D // H)).transpose(0, 1).flatten(0, 2)
    ours.load_state_dict(state)
    return ours.eval()


def bloom() -> Pair:
    sizes = {"hidden_size": D, "n_layer": LAYERS, "n_head": H}
    return pair(BloomForCausalLM(BloomConfig(vocab_size=V, **sizes, **SPECIAL)), read_bloom)


def t5(gated: bool = True) -> Pair:
    """T5; gated as in version 1.1, whose logits are not scaled, or as first published."""
    sizes = {"d_model": D, "d_kv": 7, "d_ff": 40, "num_layers": LAYERS, "num_decoder_layers": LAYERS + 1}
    sizes |= {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 12, "num_heads": H}
    kind = {"feed_forward_proj": "gated-gelu" if gated else "relu", "tie_word_embeddings": not gated}
    config = T5Config(vocab_size=V, **sizes, **kind, decoder_start_token_id=PAD, **SPECIAL)
    return pair(T5ForConditionalGeneration(config))


LANGUAGE_MODELS = {"GPT-2": gpt2, "Llama": llama, "Mistral": lambda: llama(window=5), "BLOOM": bloom}
