"""Folders that are no whole model: an error that names the tensor and the file, and nothing is run."""

import json
import pickle
import shutil

import pytest
import torch
from families import SPECIAL, shake
from safetensors.torch import load_file, save_file
from transformers import BertConfig, BertForPreTraining, BertModel, LlamaConfig, LlamaForCausalLM, T5Config
from transformers import T5ForConditionalGeneration as TheirT5

from course_lib.transformer import LanguageModel
from course_lib.variants import BERT, GPT, T5, EncoderModel, Llama, ViT, from_pretrained, save_pretrained
from course_lib.variants.checkpoint import INDEX, WEIGHTS, locate, write_model
from course_lib.variants.lora import add_lora, remove_lora

NAME = "model.layers.0.mlp.up_proj.weight"


def tiny_llama(**changes):
    torch.manual_seed(0)
    sizes = {"vocab_size": 29, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2}
    return shake(LlamaForCausalLM(LlamaConfig(**{**sizes, "intermediate_size": 20, **SPECIAL, **changes})))


@pytest.fixture
def folder(tmp_path):
    tiny_llama().save_pretrained(tmp_path / "llama")
    return tmp_path / "llama"


@pytest.fixture
def shards(tmp_path):
    tiny_llama().save_pretrained(tmp_path / "sharded", max_shard_size="3KB")
    return tmp_path / "sharded"


def change_config(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def change_tensors(folder, change):
    tensors = load_file(folder / WEIGHTS)
    change(tensors)
    save_file(tensors, folder / WEIGHTS)


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


def test_missing_tensor(folder):
    change_tensors(folder, lambda tensors: tensors.pop(NAME))
    with pytest.raises(ValueError, match=rf"model\.safetensors: the tensor {NAME} is missing.*shape \(20, 8\)"):
        from_pretrained(folder)


def test_one_tensor_too_many(folder):
    change_tensors(folder, lambda tensors: tensors.update({"model.layers.2.mlp.up_proj.weight": torch.ones(20, 8)}))
    message = (
        r"model\.safetensors: holds the tensor model\.layers\.2\.mlp\.up_proj\.weight, for which the config has no"
    )
    with pytest.raises(ValueError, match=message):
        from_pretrained(folder)


def test_wrong_shape(folder):
    change_tensors(folder, lambda tensors: tensors.update({NAME: torch.ones(8, 20)}))
    message = rf"model\.safetensors: expected the tensor {NAME} of shape \(20, 8\), got \(8, 20\)"
    with pytest.raises(ValueError, match=message):
        from_pretrained(folder)


def test_numbers_that_are_no_weights(folder):
    change_tensors(folder, lambda tensors: tensors.update({NAME: torch.ones(20, 8, dtype=torch.int8)}))
    message = rf"model\.safetensors: expected floating-point numbers in the tensor {NAME}, got torch\.int8"
    with pytest.raises(ValueError, match=message):
        from_pretrained(folder)


def test_own_models_too(tmp_path):
    save_pretrained(EncoderModel(BERT.configure(**{**LLAMA, "n_encoder_layers": 1})), tmp_path)
    name = "encoder.layers.0.feed_forward.up.weight"
    change_tensors(tmp_path, lambda tensors: tensors.update({name: torch.ones(2, 2)}))
    with pytest.raises(ValueError, match=rf"model\.safetensors: expected {name} of shape \(32, 8\), got \(2, 2\)"):
        from_pretrained(tmp_path)
    change_tensors(tmp_path, lambda tensors: tensors.pop(name))
    with pytest.raises(ValueError, match=rf"model\.safetensors: missing the tensor {name} of shape \(32, 8\)"):
        from_pretrained(tmp_path)
    change_tensors(tmp_path, lambda tensors: tensors.update({name: torch.ones(32, 8), "more": torch.ones(1)}))
    with pytest.raises(ValueError, match=r"model\.safetensors: holds the tensor more, for which the config has no"):
        from_pretrained(tmp_path)


def test_a_config_of_other_sizes(folder):
    change_config(folder, vocab_size=30)
    with pytest.raises(ValueError, match=r"model\.embed_tokens\.weight of shape \(30, 8\), got \(29, 8\)"):
        from_pretrained(folder)


def test_pickles_are_refused_unread(folder, tmp_path):
    class Trap:
        def __reduce__(self):
            return (tmp_path.joinpath("sprung").write_text, ("code ran",))

    (folder / WEIGHTS).unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Trap()))
    with pytest.raises(ValueError, match=r"pytorch_model\.bin: refused, unpickling runs code"):
        from_pretrained(folder)
    (folder / WEIGHTS).write_bytes(pickle.dumps(Trap()))  # a pickle by another name
    with pytest.raises(ValueError, match=r"model\.safetensors: not a whole safetensors file"):
        from_pretrained(folder)
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize("kept", [0.0, 0.001, 0.5, 0.999])
def test_half_downloaded(folder, kept):
    content = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(content[: int(len(content) * kept)])
    with pytest.raises(ValueError, match=r"model\.safetensors: not a whole safetensors file .*fetch it again"):
        from_pretrained(folder)


def test_half_downloaded_shard(shards):
    shard = sorted(shards.glob("*.safetensors"))[1]
    shard.write_bytes(shard.read_bytes()[:-100])
    with pytest.raises(ValueError, match=rf"{shard.name}: not a whole safetensors file"):
        from_pretrained(shards)


def test_missing_shard(shards):
    shard = sorted(shards.glob("*.safetensors"))[1]
    shard.unlink()
    with pytest.raises(FileNotFoundError, match=rf"{shard.name}: not there; {INDEX} says that it holds [\w.]+weight"):
        from_pretrained(shards)


def test_a_tensor_not_in_its_shard(shards):
    first, second = sorted(shards.glob("*.safetensors"))[:2]
    shutil.copy(first, second)
    with pytest.raises(ValueError, match=rf"{second.name}: the tensor [\w.]+ is missing, which {INDEX} says"):
        from_pretrained(shards)


def test_an_index_that_leads_elsewhere(shards):
    index = json.loads((shards / INDEX).read_text())
    index["weight_map"][NAME] = "../../secret.safetensors"
    (shards / INDEX).write_text(json.dumps(index))
    with pytest.raises(ValueError, match=rf"expected the name of a file in this folder for {NAME}, got \.\./"):
        from_pretrained(shards)
    (shards / INDEX).write_text("{}")
    with pytest.raises(ValueError, match=rf"{INDEX}: expected an entry weight_map"):
        from_pretrained(shards)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "mamba"}, r"config\.json: expected a model_type of \['bert'.*got 'mamba'"),
        ({"hidden_act": "mish"}, r"config\.json: activation: expected one of .*got 'mish'"),
        ({"hidden_size": "wide"}, r"config\.json: "),
        ({"num_attention_heads": 3, "head_dim": None}, r"config\.json: d_model: expected a multiple of n_heads=3"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 2.0}}, r"config\.json: rope_type: expected .*got 'yarn'"),
        ({"rope_parameters": {"rope_type": "linear"}}, r"config\.json: expected an entry 'factor'"),
    ],
)
def test_bad_config(folder, changes, message):
    change_config(folder, **changes)
    with pytest.raises(ValueError, match=message):
        from_pretrained(folder)


def test_config_that_is_none(folder):
    path = folder / "config.json"
    for content, message in (("{", "expected JSON"), ("[]", "expected a JSON object"), ("{}", "an entry model_type")):
        path.write_text(content)
        with pytest.raises(ValueError, match=rf"config\.json: .*{message}"):
            from_pretrained(folder)
    path.write_text(json.dumps({"model_type": "llama"}))
    with pytest.raises(ValueError, match=r"config\.json: expected an entry 'hidden_size'"):
        from_pretrained(folder)
    path.unlink()
    with pytest.raises(FileNotFoundError, match=r"config\.json: not there"):
        from_pretrained(folder)


def test_empty_folder(tmp_path, folder):
    (folder / WEIGHTS).unlink()
    with pytest.raises(FileNotFoundError, match=rf"{WEIGHTS}: not there, nor {INDEX}"):
        from_pretrained(folder)
    with pytest.raises(FileNotFoundError, match=r"config\.json: not there"):
        from_pretrained(tmp_path)


def test_the_wrong_family(folder):
    with pytest.raises(ValueError, match=r"config\.json: expected a model_type of \('gpt2',\) for GPT, got 'llama'"):
        GPT.from_pretrained(folder)


@pytest.mark.parametrize("name", ["/no/such/folder", "./nowhere", "a/b/c", "no such name"])
def test_no_such_folder(name):
    with pytest.raises(FileNotFoundError, match=f"no folder {name}"):
        from_pretrained(name)


def test_a_file_in_place_of_a_folder(folder):
    with pytest.raises(ValueError, match=r"expected a folder with config\.json, got the file"):
        from_pretrained(folder / WEIGHTS)
    with pytest.raises(ValueError, match="path: expected a folder, got the file"):
        save_pretrained(from_pretrained(folder), folder / WEIGHTS)


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


BERT_SIZES = {"vocab_size": 29, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}


def test_names_of_older_checkpoints(tmp_path):
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


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Llama(Llama.configure(**LLAMA, norm_place="post")), r"norm_place: Llama has 'pre', got 'post'"),
        (lambda: GPT(GPT.configure(**LLAMA, positions="rotary")), r"positions: GPT has 'learned', got 'rotary'"),
        (lambda: GPT(GPT.configure(**LLAMA, attention_scale=0.3)), r"attention_scale: GPT has None or 1\.0, got 0\.3"),
        (lambda: T5(T5.configure(**LLAMA, logit_scale=0.3)), r"logit_scale: T5 has D\^-0\.5=.*got 0\.3"),
        (lambda: Llama(Llama.configure(**LLAMA, rotary_scaling=abs)), "rotary_scaling: expected LinearScaling"),
    ],
)
def test_what_the_published_config_cannot_say(call, message, tmp_path):
    model = call()
    with pytest.raises(ValueError, match=message):
        model.save_pretrained(tmp_path / "m")
    assert not (tmp_path / "m").exists()


LLAMA = {"d_model": 8, "n_heads": 2, "n_encoder_layers": 0, "n_decoder_layers": 1, "vocab_size": 29}


def test_what_was_added_to_the_layers_is_not_saved_unseen(tmp_path):
    for model in (GPT(GPT.configure(**LLAMA)), LanguageModel(GPT.configure(**LLAMA))):
        add_lora(model, rank=2)
        with pytest.raises(ValueError, match=r"self_attention.*merge and remove what was added to the layers"):
            save_pretrained(model, tmp_path / "m")
        assert not (tmp_path / "m").exists()
        remove_lora(model)
        save_pretrained(model, tmp_path / "m")
        assert type(from_pretrained(tmp_path / "m")) is type(model)
        shutil.rmtree(tmp_path / "m")


def test_no_option_of_an_own_model(tmp_path):
    sizes = {**LLAMA, "n_encoder_layers": 1}
    save_pretrained(EncoderModel(BERT.configure(**sizes)), tmp_path)
    with pytest.raises(ValueError, match="head: no option of a EncoderModel's folder"):
        from_pretrained(tmp_path, head="masked_lm")
