"""Folders as they are published: shards, ties, older names, other heads, the cache of the hub."""

import json

import pytest
import torch
from families import SPECIAL
from published import shake
from safetensors.torch import load_file, save_file
from tiny_folders import BERT_SIZES, change_tensors, tiny_llama
from transformers import (
    BertConfig,
    BertForPreTraining,
    BertModel,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaForCausalLM,
    T5Config,
    ViTConfig,
    ViTForImageClassification,
    ViTModel,
)
from transformers import T5ForConditionalGeneration as TheirT5

from course_lib.rotary_scaling import LinearScaling
from course_lib.variants import BERT, T5, Gemma3, Llama, ViT, from_pretrained
from course_lib.variants.folders import INDEX, WEIGHTS, locate, write_model

IMAGES = {"image_size": 8, "patch_size": 4, "intermediate_size": 20}


def test_shards(shards):
    assert len(list(shards.glob("*.safetensors"))) > 2
    ours, ids = from_pretrained(shards), torch.arange(3, 10)[None]
    torch.testing.assert_close(ours(ids), tiny_llama()(ids).logits, rtol=1e-4, atol=1e-5)


def test_shards_that_we_write_open_in_transformers(tmp_path, folder):
    ours = from_pretrained(folder)
    ours.save_pretrained(folder)
    write_model(folder, json.loads((folder / "config.json").read_text()), load_file(folder / WEIGHTS), shard_bytes=4000)
    assert (folder / INDEX).exists()
    assert not (folder / WEIGHTS).exists()
    opened, report = LlamaForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not any(report.values()), report
    for name, parameter in tiny_llama().named_parameters():
        assert torch.equal(parameter, opened.get_parameter(name))


def test_offline(monkeypatch, tmp_path):
    """One clear line when the hub cannot be reached; a copy in its cache serves without it."""
    import huggingface_hub.constants as constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ConnectionError) as caught:
        from_pretrained("openai-community/gpt2")
    assert "\n" not in str(caught.value)
    assert "no folder openai-community/gpt2, no copy of it in the hub's cache" in str(caught.value)
    snapshot = tmp_path / "models--course--tiny" / "snapshots" / "0123456789012345678901234567890123456789"
    tiny_llama().save_pretrained(snapshot)
    (tmp_path / "models--course--tiny" / "refs").mkdir()
    (tmp_path / "models--course--tiny" / "refs" / "main").write_text(snapshot.name)
    monkeypatch.setattr("huggingface_hub._snapshot_download.constants.HF_HUB_CACHE", str(tmp_path))
    assert locate("course/tiny") == snapshot
    assert isinstance(from_pretrained("course/tiny"), Llama)


def test_repeats_of_tied_tensors(tmp_path):
    """A head in the file that equals the table is read as tied; one that differs is refused, except in T5."""
    folder = tmp_path / "tied"
    tiny_llama(tie_word_embeddings=True).save_pretrained(folder)
    change_tensors(folder, lambda t: t.update({"lm_head.weight": t["model.embed_tokens.weight"].clone()}))
    ours = from_pretrained(folder)
    assert ours.head.weight is ours.embedding.tokens.weight
    change_tensors(folder, lambda t: t.pop("model.embed_tokens.weight"))  # saved under its other name only
    ours = from_pretrained(folder)
    assert ours.head.weight is ours.embedding.tokens.weight
    change_tensors(folder, lambda t: t.update({"model.embed_tokens.weight": t["lm_head.weight"] + 1}))
    with pytest.raises(ValueError, match=r"lm_head\.weight differs from model\.embed_tokens\.weight, to which"):
        from_pretrained(folder)


def test_equal_by_chance_is_not_tied(tmp_path):
    theirs = tiny_llama(tie_word_embeddings=False)
    with torch.no_grad():
        theirs.lm_head.weight.copy_(theirs.model.embed_tokens.weight)
    theirs.save_pretrained(tmp_path)
    ours = from_pretrained(tmp_path)
    assert ours.head.weight is not ours.embedding.tokens.weight


def test_names_of_older_folders(tmp_path):
    """Norms with gamma and beta, position numbers, next-sentence weights: as the first published files have them."""
    theirs = shake(BertForPreTraining(BertConfig(**BERT_SIZES, intermediate_size=20)))
    theirs.save_pretrained(tmp_path)

    def age(tensors):
        for name in [name for name in tensors if "LayerNorm" in name]:
            tensors[name.replace("weight", "gamma").replace("bias", "beta")] = tensors.pop(name)
        tensors["bert.embeddings.position_ids"] = torch.arange(512)[None]
        tensors["cls.predictions.decoder.weight"] = tensors["bert.embeddings.word_embeddings.weight"].clone()

    change_tensors(tmp_path, age)
    ours, ids = from_pretrained(tmp_path), torch.arange(3, 10)[None]
    assert ours.head == "masked_lm"
    torch.testing.assert_close(ours(ids), theirs(ids).prediction_logits, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(ours.pool(ours.encode(ids)), theirs.bert(ids).pooler_output, rtol=1e-4, atol=1e-5)


def test_names_of_the_first_gpt2_files(tmp_path):
    """The body alone, with the causal mask among the tensors of each layer; the head is the table."""
    sizes = {"vocab_size": 29, "n_positions": 16, "n_embd": 8, "n_layer": 2, "n_head": 2, **SPECIAL}
    theirs = shake(GPT2LMHeadModel(GPT2Config(**sizes)))
    theirs.transformer.save_pretrained(tmp_path)
    mask = torch.ones(16, 16).tril()[None, None]
    change_tensors(tmp_path, lambda t: t.update({f"h.{n}.attn.bias": mask.clone() for n in range(2)}))
    ours, ids = from_pretrained(tmp_path), torch.arange(3, 10)[None]
    torch.testing.assert_close(ours(ids), theirs(ids).logits, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", [ViTModel, ViTForImageClassification])
def test_names_that_vit_has_in_the_code_of_transformers(kind, tmp_path):
    theirs = shake(kind(ViTConfig(**IMAGES, hidden_size=8, num_hidden_layers=2, num_attention_heads=2)))
    theirs.save_pretrained(tmp_path)
    save_file(theirs.state_dict(), tmp_path / WEIGHTS)
    assert any(".q_proj" in name for name in load_file(tmp_path / WEIGHTS))
    ours, images = from_pretrained(tmp_path), torch.randn(2, 3, 8, 8)
    out = theirs(images)
    expected = out.logits if kind is ViTForImageClassification else out.last_hidden_state
    torch.testing.assert_close(ours(images), expected, rtol=1e-4, atol=1e-5)


def test_a_new_head_on_an_old_body(tmp_path):
    theirs = shake(BertModel(BertConfig(**BERT_SIZES, intermediate_size=20)))
    theirs.bfloat16().save_pretrained(tmp_path / "body")
    classifier = BERT.from_pretrained(tmp_path / "body", head="classifier", n_classes=5)
    ids = torch.arange(3, 10)[None]
    assert classifier(ids).shape == (1, 5)
    assert {parameter.dtype for parameter in classifier.parameters()} == {torch.bfloat16}
    assert torch.equal(classifier.pooler.weight, theirs.pooler.dense.weight)
    classifier.save_pretrained(tmp_path / "classifier")
    assert BERT.from_pretrained(tmp_path / "classifier").n_classes == 5
    body = BERT.from_pretrained(tmp_path / "classifier", head="none")
    assert torch.equal(body(ids), BERT.from_pretrained(tmp_path / "body")(ids))
    change_tensors(tmp_path / "body", lambda tensors: tensors.pop("embeddings.LayerNorm.bias"))
    with pytest.raises(ValueError, match=r"the tensor bert\.embeddings\.LayerNorm\.bias is missing"):
        BERT.from_pretrained(tmp_path / "body", head="classifier", n_classes=5)


def test_a_new_head_on_a_body_for_images(tmp_path):
    sizes = {"image_size": 8, "patch_size": 4}
    body = ViT(ViT.configure(d_model=8, n_heads=2, n_encoder_layers=1, **sizes), **sizes, pooler=True)
    body.save_pretrained(tmp_path)
    assert ViT.from_pretrained(tmp_path).pooler is not None
    classifier = from_pretrained(tmp_path, n_classes=7)
    assert classifier(torch.ones(2, 3, 8, 8)).shape == (2, 7)
    assert torch.equal(classifier.patches.weight, body.patches.weight)


def test_t5_with_repeated_tables(tmp_path):
    sizes = {"vocab_size": 29, "d_model": 8, "d_kv": 4, "d_ff": 20, "num_layers": 1, "num_heads": 2}
    theirs = shake(TheirT5(T5Config(**sizes, decoder_start_token_id=0)))
    theirs.save_pretrained(tmp_path)
    other = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"

    def repeat(tensors):
        for name in ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight"):
            tensors[name] = tensors["shared.weight"].clone()
        tensors[other] = torch.ones(32, 2)

    change_tensors(tmp_path, repeat)
    ours = T5.from_pretrained(tmp_path)
    assert ours.head.weight is ours.embedding.tokens.weight is ours.source_embedding.tokens.weight


def test_gemma_cannot_say_that_local_layers_are_scaled(tmp_path):
    sizes = {"d_model": 8, "n_heads": 2, "n_decoder_layers": 1, "vocab_size": 11, "d_ff": 12}
    scaled = Gemma3.configure(**sizes, rotary_scaling=LinearScaling(2.0), local_rotary_base=None)
    with pytest.raises(ValueError, match="local_rotary_base: expected a number beside rotary_scaling"):
        Gemma3(scaled).save_pretrained(tmp_path / "folder")
