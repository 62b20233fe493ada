"""Folders that are no whole model: an error that names the tensor and the file, and nothing is run."""

import json
import pickle
import shutil

import pytest
import torch
from families import FAMILIES
from published import shake
from safetensors.torch import load_file, save_file
from tiny_folders import BERT_SIZES, change_config, change_tensors, without_sums
from transformers import (
    BertConfig,
    BertModel,
)

from course_lib.transformer import LanguageModel
from course_lib.variants import BERT, GPT, T5, EncoderModel, Llama, from_pretrained, save_pretrained
from course_lib.variants.folders import INDEX, WEIGHTS
from course_lib.variants.lora import add_lora, remove_lora

NAME = "model.layers.0.mlp.up_proj.weight"


def test_missing_tensor(folder):
    change_tensors(folder, lambda tensors: tensors.pop(NAME))
    with pytest.raises(ValueError, match=rf"model\.safetensors: the tensor {NAME} is missing.*shape \(20, 8\)"):
        from_pretrained(folder)


@pytest.mark.parametrize("name", FAMILIES)
def test_every_tensor_of_a_family_is_asked_for(name, tmp_path):
    model = FAMILIES[name].tiny()
    model.save_pretrained(tmp_path)
    without_sums(tmp_path)
    whole = load_file(tmp_path / WEIGHTS)
    for missing in whole:
        save_file({tensor: whole[tensor] for tensor in whole if tensor != missing}, tmp_path / WEIGHTS)
        # Where a head may repeat the table, the head stands in for it and is then missed itself.
        either = "|".join([missing, *(head for head, table in model.names.ties.items() if table == missing)])
        with pytest.raises(ValueError, match=rf"model\.safetensors: the tensor [\w.]*({either}) is missing"):
            from_pretrained(tmp_path)
    save_file({**whole, "more": torch.ones(1)}, tmp_path / WEIGHTS)
    with pytest.raises(ValueError, match=r"model\.safetensors: holds the tensor more, for which the config has no"):
        from_pretrained(tmp_path)


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


def test_course_models_too(tmp_path):
    save_pretrained(EncoderModel(BERT.configure(**{**LLAMA, "n_encoder_layers": 1})), tmp_path)
    name = "encoder.layers.0.feed_forward.up.weight"
    change_tensors(tmp_path, lambda tensors: tensors.update({name: torch.ones(2, 2)}))
    with pytest.raises(
        ValueError, match=rf"model\.safetensors: expected the tensor {name} of shape \(32, 8\), got \(2, 2\)"
    ):
        from_pretrained(tmp_path)
    change_tensors(tmp_path, lambda tensors: tensors.pop(name))
    with pytest.raises(ValueError, match=rf"model\.safetensors: the tensor {name} is missing.*shape \(32, 8\)"):
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
        ({"hidden_act": "mish"}, r"config\.json: hidden_act: expected one of .*got 'mish'"),
        ({"hidden_size": "wide"}, r"config\.json: "),
        ({"num_attention_heads": 3, "head_dim": None}, r"config\.json: d_model: expected a multiple of n_heads=3"),
        ({"rope_parameters": {"rope_type": "longrope"}}, r"config\.json: rope_type: expected .*got 'longrope'"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 2.0, "mscale": 1.0}}, r"json: mscale: expected None"),
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


def test_two_names_of_one_tensor(tmp_path):
    shake(BertModel(BertConfig(**BERT_SIZES, intermediate_size=20))).save_pretrained(tmp_path)
    change_tensors(tmp_path, lambda t: t.update({"embeddings.LayerNorm.gamma": torch.ones(8)}))
    with pytest.raises(
        ValueError, match=r"embeddings\.LayerNorm\.\w+ and embeddings\.LayerNorm\.\w+ are two names of one"
    ):
        from_pretrained(tmp_path)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Llama(Llama.configure(**LLAMA, norm_place="post")), r"norm_place: Llama has 'pre', got 'post'"),
        (lambda: GPT(GPT.configure(**LLAMA, positions="rotary")), r"positions: GPT has 'learned', got 'rotary'"),
        (
            lambda: GPT(GPT.configure(**LLAMA, attention_scale=0.3)),
            r"attention_scale: expected one of None, 1\.0, got",
        ),
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


def test_no_option_of_a_course_model(tmp_path):
    sizes = {**LLAMA, "n_encoder_layers": 1}
    save_pretrained(EncoderModel(BERT.configure(**sizes)), tmp_path)
    with pytest.raises(ValueError, match="head: no option of a EncoderModel's folder"):
        from_pretrained(tmp_path, head="masked_lm")
