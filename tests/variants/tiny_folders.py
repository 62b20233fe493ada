"""A tiny model in a folder that transformers wrote, and ways to spoil it."""

import json

import torch
from families import SPECIAL
from published import shake
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM

from course_lib.variants.folders import WEIGHTS

BERT_SIZES = {"vocab_size": 29, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}


def tiny_llama(**changes):
    torch.manual_seed(0)
    sizes = {"vocab_size": 29, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2}
    return shake(LlamaForCausalLM(LlamaConfig(**{**sizes, "intermediate_size": 20, **SPECIAL, **changes})))


def without_sums(folder):
    """Make a folder one that somebody else wrote, so that nothing says what its files should be."""
    (folder / "SHA256SUMS").unlink(missing_ok=True)


def change_config(folder, **changes):
    without_sums(folder)
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def change_tensors(folder, change):
    without_sums(folder)
    tensors = load_file(folder / WEIGHTS)
    change(tensors)
    save_file(tensors, folder / WEIGHTS)
