"""Sizes of the published models, counted three ways and against what is stated; the table of switches."""

import pytest
import torch
from transformers import (
    BertConfig,
    BertModel,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
    ViTConfig,
    ViTForImageClassification,
)

from course_lib import testing as laws
from course_lib.transformer import TransformerConfig
from course_lib.variants import BERT, GPT, T5, ViT
from course_lib.variants.table import PUBLISHED, family_configs, switch_table

# How far the count may be from the stated number: publishers round, two of them downright.
ROUNDED = {"bert-large-uncased": 0.015, "t5-large": 0.045, "llama-2-7b": 0.04, "t5-3b": 0.02, "t5-11b": 0.03}
EXACT = {
    "bert-base-uncased": 109_482_240,
    "gpt2": 124_439_808,
    "t5-small": 60_506_624,
    "llama-2-7b": 6_738_415_616,
    "llama-3-8b": 8_030_261_248,
}


def formula(name):
    """The parameters by arithmetic on the published sizes."""
    published = PUBLISHED[name]
    c, family = published.config(), published.family
    D, F, V = c.d_model, c.ff_width, c.vocab_size or 0
    heads, groups = c.n_heads * c.head_width, (c.n_kv_heads or c.n_heads) * c.head_width
    if family is BERT:
        layer = 4 * (D * D + D) + (D * F + F) + (F * D + D) + 2 * 2 * D
        return (V + 512 + 2) * D + 2 * D + c.n_encoder_layers * layer + D * D + D
    if family is GPT:
        layer = (D * 3 * D + 3 * D) + (D * D + D) + (D * F + F) + (F * D + D) + 2 * 2 * D
        return (V + 1024) * D + c.n_decoder_layers * layer + 2 * D
    if family is T5:
        attention, feed_forward = 4 * D * heads, 2 * D * F
        encoder = c.n_encoder_layers * (attention + feed_forward + 2 * D)
        decoder = c.n_decoder_layers * (2 * attention + feed_forward + 3 * D)
        return V * D + encoder + decoder + 2 * D + 2 * 32 * c.n_heads
    if family is ViT:
        layer = 4 * (D * D + D) + (D * F + F) + (F * D + D) + 2 * 2 * D
        return 3 * 16 * 16 * D + D + D + 197 * D + c.n_encoder_layers * layer + 2 * D + 1000 * D + 1000
    layer = 2 * D * heads + 2 * D * groups + 3 * D * F + 2 * D
    return (1 if c.tie_embeddings else 2) * V * D + c.n_decoder_layers * layer + D


def of_transformers(name):
    """The same sizes in transformers, counted on the meta device."""
    published = PUBLISHED[name]
    c = published.config()
    sizes = {"hidden_size": c.d_model, "num_attention_heads": c.n_heads, "intermediate_size": c.ff_width}
    encoder = {**sizes, "num_hidden_layers": c.n_encoder_layers}
    with torch.device("meta"):
        if published.family is BERT:
            model = BertModel(BertConfig(**encoder))
        elif published.family is GPT:
            model = GPT2LMHeadModel(GPT2Config(n_embd=c.d_model, n_layer=c.n_decoder_layers, n_head=c.n_heads))
        elif published.family is T5:
            model = T5ForConditionalGeneration(
                T5Config(
                    d_model=c.d_model, d_kv=c.head_width, d_ff=c.ff_width, num_layers=c.n_encoder_layers,
                    num_heads=c.n_heads,
                )
            )  # fmt: skip
        elif published.family is ViT:
            model = ViTForImageClassification(ViTConfig(**encoder, num_labels=1000))
        else:
            decoder = {**sizes, "num_hidden_layers": c.n_decoder_layers, "num_key_value_heads": c.n_kv_heads}
            words = {"vocab_size": c.vocab_size, "tie_word_embeddings": c.tie_embeddings, "head_dim": c.head_width}
            model = LlamaForCausalLM(LlamaConfig(**decoder, **words))
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("name", PUBLISHED)
def test_counts(name, note):
    published = PUBLISHED[name]
    count = laws.assert_counts(published.build(), parameters=formula(name)).parameters
    assert count == of_transformers(name) == EXACT.get(name, count)
    off = count / published.stated - 1
    if published.family is ViT:  # stated to the last parameter
        assert off == 0
    assert abs(off) <= ROUNDED.get(name, 0.015)
    note(f"{name:<24}{count:>16,} parameters, stated {published.stated:>16,.0f} ({off:+.1%}): {published.source}")


def test_switch_table():
    table = switch_table()
    rows = table.rows
    assert [row["stacks"] for row in rows.values()] == [
        "both",
        "encoder",
        "decoder",
        "both",
        "both",
        "decoder",
        "encoder",
    ]
    assert {name: row["positions"] for name, row in rows.items()} == {
        "Transformer": "sinusoidal",
        "BERT": "learned",
        "GPT-2": "learned",
        "T5": "relative",
        "T5 1.1": "relative",
        "Llama": "rotary",
        "ViT": "learned",
    }
    for switch in rows["BERT"]:
        assert len({repr(row[switch]) for row in rows.values()}) > 1, switch
    configs = family_configs()
    differing = {"norm", "norm_place", "activation", "gated", "bias", "tie_embeddings", "attention_scale", "final_norm"}
    assert differing <= rows["BERT"].keys()
    assert not {"d_model", "vocab_size", "residual", "window"} & rows["BERT"].keys()
    assert rows["T5"]["logit_scale"] == "D^-0.5"
    assert configs["T5"].logit_scale == 768**-0.5
    lines = str(table).splitlines()
    assert len(lines) == 1 + len(rows["BERT"])
    assert lines[0].split() == ["Transformer", "BERT", "GPT-2", "T5", "T5", "1.1", "Llama", "ViT"]
    assert next(line for line in lines if line.startswith("norm ")).split()[1:] == [
        "layer", "layer", "layer", "rms", "rms", "rms", "layer",
    ]  # fmt: skip


def test_switch_table_of_own_configs():
    rows = switch_table({"a": TransformerConfig(), "b": TransformerConfig(gated=True, d_model=8, n_heads=2)}).rows
    assert rows == {"a": {"stacks": "both", "gated": False}, "b": {"stacks": "both", "gated": True}}
    with pytest.raises(ValueError, match="configs: expected at least one"):
        switch_table({})
