"""Sizes of the published models, as transformers builds them and as their publishers state them; switches."""

import pytest
import torch
from families import SAMPLES

from course_lib import testing as laws
from course_lib.transformer import TransformerConfig
from course_lib.variants import PUBLISHED, ViT, family_configs, switch_table

# How far the count may be from the stated number: publishers round, two of them downright.
ROUNDED = {"bert-large-uncased": 0.015, "t5-large": 0.045, "llama-2-7b": 0.04, "t5-3b": 0.02, "t5-11b": 0.03}
EXACT = {
    "bert-base-uncased": 109_482_240,
    "gpt2": 124_439_808,
    "t5-small": 60_506_624,
    "llama-2-7b": 6_738_415_616,
    "llama-3-8b": 8_030_261_248,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_counts(name, note):
    published = PUBLISHED[name]
    with torch.device("meta"):
        theirs = SAMPLES[published.family].sized(published.config())
    expected = sum(parameter.numel() for parameter in theirs.parameters())
    count = laws.assert_counts(published.build(), parameters=expected).parameters
    assert count == EXACT.get(name, count)
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
    places = ("dropout", "attention_dropout", "activation_dropout")
    dropped = {name: tuple(row[place] for place in places) for name, row in rows.items()}
    assert dropped == {
        "Transformer": (0.1, 0.0, 0.0),
        "BERT": (0.1, 0.1, 0.0),
        "GPT-2": (0.1, 0.1, 0.0),
        "T5": (0.1, 0.1, 0.1),
        "T5 1.1": (0.1, 0.1, 0.1),
        "Llama": (0.0, 0.0, 0.0),
        "ViT": (0.0, 0.0, 0.0),
    }
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
