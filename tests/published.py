"""Random tiny checkpoints of `transformers` models, and the same weights in this package's models."""

import re
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

from course_lib.transformer import LanguageModel, Transformer, TransformerConfig

V, D, H, LAYERS, LENGTH = 29, 24, 4, 2, 64
PAD = 2
SPECIAL = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": PAD}


def shake(model: nn.Module) -> None:
    """Give every weight a size that matters: published initial values leave biases at zero and logits flat."""
    torch.manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            nn.init.normal_(parameter, mean=1.0 if re.search(r"(norm|ln_?\w*)\.weight$", name) else 0.0, std=0.2)
    model.eval()


def load(ours: nn.Module, state: dict[str, torch.Tensor]) -> None:
    """Load; the only name that may be missing is one that is tied."""
    missing, unexpected = ours.load_state_dict(state, strict=False)
    tied = {"head.weight", "source_embedding.tokens.weight"} if ours.config.tie_embeddings else set()
    assert set(missing) <= tied, missing
    assert not unexpected, unexpected
    ours.eval()


class Pair(NamedTuple):
    """One model twice, and the map from their names and layouts to ours."""

    theirs: nn.Module
    ours: LanguageModel | Transformer
    translate: Callable[[dict[str, torch.Tensor]], dict[str, torch.Tensor]]

    def gradient_gap(self) -> float:
        """Largest difference of the gradients that both hold now, over all parameters, relative to the largest one."""
        expected = self.translate({n: p.grad for n, p in self.theirs.named_parameters()})
        found = {n: p.grad for n, p in self.ours.named_parameters()}
        for name in [n for n in expected if re.search(r"self_attention\.query", n)]:
            parts = [name.replace("query", part) for part in ("query", "key", "value")]
            expected[name.replace("query", "qkv")] = torch.cat([expected.pop(part) for part in parts])
        assert found.keys() == expected.keys(), found.keys() ^ expected.keys()
        largest = max(gradient.abs().max().item() for gradient in expected.values())
        return max((found[name] - expected[name]).abs().max().item() for name in found) / largest


def renamed(state: dict[str, torch.Tensor], *rules: tuple[str, str]) -> dict[str, torch.Tensor]:
    """Apply (pattern, replacement) rules in turn to each name."""
    found = {}
    for name, tensor in state.items():
        for pattern, replacement in rules:
            name = re.sub(pattern, replacement, name)
        found[name] = tensor
    return found


GPT2_NAMES = (
    (r"^transformer\.", ""),
    (r"^wte", "embedding.tokens"),
    (r"^wpe", "embedding.positions"),
    (r"^h\.", "decoder.layers."),
    (r"^ln_f", "decoder.final_norm"),
    (r"ln_1", "self_attention_residual.norm"),
    (r"ln_2", "feed_forward_residual.norm"),
    (r"attn\.c_attn", "self_attention.qkv"),
    (r"attn\.c_proj", "self_attention.output"),
    (r"mlp\.c_fc", "feed_forward.up"),
    (r"mlp\.c_proj", "feed_forward.down"),
    (r"^lm_head", "head"),
)


def gpt2() -> Pair:
    theirs = GPT2LMHeadModel(
        GPT2Config(vocab_size=V, n_positions=LENGTH, n_embd=D, n_layer=LAYERS, n_head=H, **SPECIAL)
    )
    shake(theirs)
    ours = LanguageModel(
        TransformerConfig(
            d_model=D,
            n_heads=H,
            n_decoder_layers=LAYERS,
            vocab_size=V,
            max_length=LENGTH,
            positions="learned",
            activation="gelu_tanh",
            norm_place="pre",
            scale_embeddings=False,
        )
    )

    def translate(state):
        state = renamed(state, *GPT2_NAMES)
        transposed = re.compile(r"(qkv|output|up|down)\.weight$")  # their Conv1D holds (in, out)
        return {name: tensor.T if transposed.search(name) else tensor for name, tensor in state.items()}

    load(ours, translate(theirs.state_dict()))
    return Pair(theirs, ours, translate)


LLAMA_NAMES = (
    (r"^model\.embed_tokens", "embedding.tokens"),
    (r"^model\.layers", "decoder.layers"),
    (r"^model\.norm", "decoder.final_norm"),
    (r"input_layernorm", "self_attention_residual.norm"),
    (r"post_attention_layernorm", "feed_forward_residual.norm"),
    (r"self_attn\.q_proj", "self_attention.query"),
    (r"self_attn\.k_proj", "self_attention.key"),
    (r"self_attn\.v_proj", "self_attention.value"),
    (r"self_attn\.o_proj", "self_attention.output"),
    (r"mlp\.(gate|up|down)_proj", r"feed_forward.\1"),
    (r"^lm_head", "head"),
)


def llama(window: int | None = None) -> Pair:
    """Llama; with a window, Mistral, which differs in nothing else."""
    sizes = {"hidden_size": D, "intermediate_size": 40, "num_hidden_layers": LAYERS, "num_attention_heads": H}
    sizes |= {"vocab_size": V, "num_key_value_heads": 2, "max_position_embeddings": LENGTH, **SPECIAL}
    if window is None:
        theirs: nn.Module = LlamaForCausalLM(LlamaConfig(**sizes))
    else:
        theirs = MistralForCausalLM(MistralConfig(**sizes, sliding_window=window))
    shake(theirs)
    ours = LanguageModel(
        TransformerConfig(
            d_model=D,
            n_heads=H,
            n_kv_heads=2,
            d_ff=40,
            n_decoder_layers=LAYERS,
            vocab_size=V,
            positions="rotary",
            window=window,
            activation="silu",
            gated=True,
            norm="rms",
            norm_place="pre",
            norm_eps=theirs.config.rms_norm_eps,
            bias=False,
            scale_embeddings=False,
            tie_embeddings=False,
        )
    )

    def translate(state):
        return renamed(state, *LLAMA_NAMES)

    load(ours, translate(theirs.state_dict()))
    return Pair(theirs, ours, translate)


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


def bloom() -> Pair:
    theirs = BloomForCausalLM(BloomConfig(vocab_size=V, hidden_size=D, n_layer=LAYERS, n_head=H, **SPECIAL))
    shake(theirs)
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

    def translate(state):
        state = renamed(state, *BLOOM_NAMES)
        for name, tensor in state.items():  # theirs holds query, key and value of each head in turn
            if "qkv" in name:
                state[name] = tensor.unflatten(0, (H, 3, D // H)).transpose(0, 1).flatten(0, 2)
        return state

    load(ours, translate(theirs.state_dict()))
    return Pair(theirs, ours, translate)


T5_NAMES = (
    (r"^shared", "embedding.tokens"),
    (r"^encoder\.embed_tokens", "source_embedding.tokens"),
    (r"^decoder\.embed_tokens", "embedding.tokens"),
    (r"\.block\.0\.layer\.0\.SelfAttention\.relative_attention_bias", ".positions"),
    (r"\.block\.", ".layers."),
    (r"final_layer_norm", "final_norm"),
    (r"layer\.\d\.(DenseReluDense|SelfAttention|EncDecAttention)", r"\1"),
    (r"layer\.0\.layer_norm", "self_attention_residual.norm"),
    (r"^(decoder.*)layer\.1\.layer_norm", r"\1cross_attention_residual.norm"),
    (r"layer\.\d\.layer_norm", "feed_forward_residual.norm"),
    (r"SelfAttention", "self_attention"),
    (r"EncDecAttention", "cross_attention"),
    (r"DenseReluDense\.wi_0", "feed_forward.gate"),
    (r"DenseReluDense\.(wi_1|wi)\.", "feed_forward.up."),
    (r"DenseReluDense\.wo", "feed_forward.down"),
    (r"attention\.q\.", "attention.query."),
    (r"attention\.k\.", "attention.key."),
    (r"attention\.v\.", "attention.value."),
    (r"attention\.o\.", "attention.output."),
    (r"^lm_head", "head"),
)


def t5(gated: bool = True) -> Pair:
    """T5; gated as in version 1.1, whose logits are not scaled, or as first published."""
    theirs = T5ForConditionalGeneration(
        T5Config(
            vocab_size=V,
            d_model=D,
            d_kv=7,
            d_ff=40,
            num_layers=LAYERS,
            num_decoder_layers=LAYERS + 1,
            num_heads=H,
            relative_attention_num_buckets=8,
            relative_attention_max_distance=12,
            feed_forward_proj="gated-gelu" if gated else "relu",
            tie_word_embeddings=not gated,
            decoder_start_token_id=2,
            **SPECIAL,
        )
    )
    shake(theirs)
    ours = Transformer(
        TransformerConfig(
            d_model=D,
            n_heads=H,
            d_head=7,
            d_ff=40,
            n_encoder_layers=LAYERS,
            n_decoder_layers=LAYERS + 1,
            vocab_size=V,
            pad_id=2,
            positions="relative",
            relative_buckets=8,
            relative_max_distance=12,
            activation="gelu_tanh" if gated else "relu",
            gated=gated,
            norm="rms",
            norm_place="pre",
            norm_eps=1e-6,
            bias=False,
            attention_scale=1.0,
            scale_embeddings=False,
            share_vocabulary=True,
            logit_scale=D**-0.5 if theirs.config.scale_decoder_outputs else 1.0,
        )
    )

    def translate(state):
        return renamed(state, *T5_NAMES)

    load(ours, translate(theirs.state_dict()))
    return Pair(theirs, ours, translate)


LANGUAGE_MODELS = {"GPT-2": gpt2, "Llama": llama, "Mistral": lambda: llama(window=5), "BLOOM": bloom}
