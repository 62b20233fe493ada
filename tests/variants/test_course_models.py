"""The course's own models in and out of folders."""

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_folders import without_sums

from course_lib.rotary_scaling import LinearScaling, Llama3Scaling, NTKScaling, YarnScaling
from course_lib.transformer import LanguageModel, Transformer, TransformerConfig
from course_lib.variants import EncoderModel, folders, from_pretrained, save_pretrained
from course_lib.variants.folders import write_model

V = 23
IDS = torch.arange(14).view(2, 7)


def config(**changes):
    sizes = {"d_model": 12, "n_heads": 2, "d_ff": 20, "n_encoder_layers": 2, "n_decoder_layers": 2, "vocab_size": V}
    return TransformerConfig(**{**sizes, "max_length": 40, **changes})


def models():
    return {
        "Transformer": Transformer(config(share_vocabulary=True, pad_id=0)),
        "Transformer, untied": Transformer(config(tie_embeddings=False, target_vocab_size=V + 2)),
        "LanguageModel": LanguageModel(config(positions="rotary", norm="rms", rotary_scaling=Llama3Scaling())),
        "EncoderModel": EncoderModel(config(n_token_types=2), pooler=True),
        "classifier": EncoderModel(config(positions="learned"), head="classifier", n_classes=3),
        "classifier without a pooler": EncoderModel(config(pad_id=0), head="classifier", n_classes=3, pooler=False),
        "masked_lm": EncoderModel(config(embedding_norm=True), head="masked_lm"),
        "masked_lm, untied": EncoderModel(config(tie_embeddings=False), head="masked_lm"),
    }


def run(model):
    return model(IDS, IDS.flip(1)) if isinstance(model, Transformer) else model(IDS)


def test_a_classifier_without_a_pooler_reads_the_mean_of_the_real_tokens():
    model = models()["classifier without a pooler"].eval()
    padded = torch.cat([IDS + 1, torch.zeros(2, 3, dtype=torch.long)], dim=1)
    mean = model.encode(IDS + 1).mean(dim=1)  # (B, D)
    torch.testing.assert_close(model(padded), model.classifier(mean))


@pytest.mark.parametrize("name", models())
def test_round_trip(name, tmp_path):
    model = models()[name].eval()
    save_pretrained(model, tmp_path / "a" / "model")
    other = from_pretrained(tmp_path / "a" / "model")
    assert type(other) is type(model)
    assert other.config == model.config
    assert not other.training
    assert torch.equal(run(model), run(other))
    assert sum(p.numel() for p in other.parameters()) == sum(p.numel() for p in model.parameters())
    run(other).sum().backward()
    names = ["SHA256SUMS", "config.json", "model", "model.safetensors"]
    assert sorted(path.name for path in (tmp_path / "a").rglob("*")) == names


def test_dtype(tmp_path):
    save_pretrained(LanguageModel(config()), tmp_path / "m")
    assert from_pretrained(tmp_path / "m", dtype=torch.bfloat16)(IDS).dtype == torch.bfloat16
    save_pretrained(from_pretrained(tmp_path / "m", dtype=torch.float64), tmp_path / "m")
    assert from_pretrained(tmp_path / "m")(IDS).dtype == torch.float64


switches = st.fixed_dictionaries(
    {
        "positions": st.sampled_from(["none", "sinusoidal", "learned", "rotary", "alibi", "relative"]),
        "norm": st.sampled_from(["layer", "rms", "none"]),
        "norm_place": st.sampled_from(["pre", "post", "both"]),
        "gated": st.booleans(),
        "bias": st.booleans(),
        "attention_bias": st.sampled_from([None, True, False]),
        "qkv_bias": st.sampled_from([None, True, False]),
        "feed_forward_bias": st.sampled_from([None, True, False]),
        "n_kv_heads": st.sampled_from([None, 1]),
        "qk_norm": st.sampled_from(["none", "unit", "rms", "rms_offset"]),
        "window": st.just(3),
        "local_layers": st.sampled_from([None, (True, False)]),
        "tie_embeddings": st.booleans(),
        "share_vocabulary": st.booleans(),
        "head_bias": st.booleans(),
        "rotary_scaling": st.sampled_from(
            [None, LinearScaling(2.0), NTKScaling(4.0), Llama3Scaling(factor=2.0), YarnScaling(2.0, 8)]
        ),
    }
)


@given(fields=switches)
@settings(deadline=None, max_examples=25)
def test_any_config_survives(fields, tmp_path_factory):
    model, path = Transformer(config(**fields)).eval(), tmp_path_factory.mktemp("m")
    save_pretrained(model, path)
    other = from_pretrained(path)
    assert other.config == model.config
    assert torch.equal(run(model), run(other))


def test_saving_again_replaces_the_model_and_leaves_other_files(tmp_path):
    save_pretrained(LanguageModel(config()), tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    write_model(tmp_path, {"model_type": "x"}, {"a": torch.ones(40), "b": torch.ones(40)}, shard_bytes=200)
    assert len(list(tmp_path.glob("*.safetensors"))) == 2
    assert not (tmp_path / "model.safetensors").exists()
    model = LanguageModel(config(n_decoder_layers=1)).eval()
    save_pretrained(model, tmp_path)
    names = ["SHA256SUMS", "config.json", "model.safetensors", "tokenizer.json"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    assert torch.equal(run(from_pretrained(tmp_path)), run(model))


def test_a_failure_leaves_the_old_model(tmp_path, monkeypatch):
    model = LanguageModel(config()).eval()
    save_pretrained(model, tmp_path / "m")

    def full(path, data, write=folders.write_atomic):
        if path.suffix == ".safetensors":
            raise OSError("No space left on device")
        write(path, data)

    monkeypatch.setattr(folders, "write_atomic", full)
    with pytest.raises(OSError, match="No space"):
        save_pretrained(LanguageModel(config(d_ff=8)), tmp_path / "m")
    assert [path.name for path in tmp_path.iterdir()] == ["m"]
    assert torch.equal(run(from_pretrained(tmp_path / "m")), run(model))


def test_what_cannot_be_saved():
    with pytest.raises(TypeError, match=r"model: expected one of .*got Linear"):
        save_pretrained(torch.nn.Linear(2, 2), "nowhere")
    own = LanguageModel(config(positions="rotary", rotary_scaling=lambda values: values))
    with pytest.raises(ValueError, match="rotary_scaling: expected one of"):
        save_pretrained(own, "nowhere")
    with pytest.raises(ValueError, match="feed_forward: expected what JSON can hold"):
        save_pretrained(LanguageModel(config(feed_forward=lambda config: torch.nn.Identity())), "nowhere")


@pytest.mark.parametrize(("old", "new"), [(True, "unit"), (False, "none")])
def test_a_folder_from_when_qk_norm_was_a_switch(old, new, tmp_path):
    model = LanguageModel(config(qk_norm=new)).eval()
    save_pretrained(model, tmp_path)
    without_sums(tmp_path)
    path = tmp_path / "config.json"
    found = json.loads(path.read_text())
    found["transformer"]["qk_norm"] = old
    path.write_text(json.dumps(found))
    other = from_pretrained(tmp_path)
    assert other.config == model.config
    assert torch.equal(run(model), run(other))


def test_a_field_of_another_version(tmp_path):
    save_pretrained(LanguageModel(config()), tmp_path)
    without_sums(tmp_path)
    path = tmp_path / "config.json"
    found = json.loads(path.read_text())
    found["transformer"]["warp"] = 9
    path.write_text(json.dumps(found))
    with pytest.raises(ValueError, match=r"config\.json: warp: not a field of TransformerConfig"):
        from_pretrained(tmp_path)


def test_a_field_that_is_gone_is_read_where_it_changed_nothing(tmp_path):
    saved = LanguageModel(config())
    save_pretrained(saved, tmp_path)
    without_sums(tmp_path)
    path = tmp_path / "config.json"
    found = json.loads(path.read_text())
    found["transformer"] |= {"bigram_rows": 0, "ngrams": [], "ngram_rows": 50}
    path.write_text(json.dumps(found))
    assert from_pretrained(tmp_path).config == saved.config
    found["transformer"]["bigram_rows"] = 50
    path.write_text(json.dumps(found))
    with pytest.raises(ValueError, match=r"config\.json: bigram_rows: expected 0, .*; got 50"):
        from_pretrained(tmp_path)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: EncoderModel(config(), head="classes"), "head: expected one of .*got 'classes'"),
        (lambda: EncoderModel(config(), head="classifier"), "n_classes: expected a number .*got None"),
        (lambda: EncoderModel(config(), n_classes=2), "n_classes: expected a number with head='classifier' only"),
        (lambda: EncoderModel(config(vocab_size=None)), "config: expected a vocab_size"),
        (lambda: EncoderModel(config())(IDS, token_types=IDS), "token_types: expected None"),
        (lambda: EncoderModel(config(n_token_types=2))(IDS, token_types=IDS), "tokens: expected ids 0 to 1"),
        (lambda: EncoderModel(config()).pool(torch.ones(2, 7, 12)), "pooler: this model has none"),
        (lambda: EncoderModel(config()).embed_sentences(IDS, mask=IDS > 90, token_types=None), None),
        (lambda: EncoderModel(config()).embed_sentences(IDS, mask=IDS[:1] > 0), r"mask: expected bool \(2, 7\)"),
    ],
)
def test_bad_input(call, message):
    if message is None:  # a sentence without any real token has the vector zero, not NaN
        assert torch.equal(call(), torch.zeros(2, 12))
        return
    with pytest.raises(ValueError, match=message):
        call()
