"""The engines that read what is exported, each asked to continue ids by the most likely token, and models to export."""

import re

import torch
from torch import nn

from course_lib import generation
from course_lib.transformer import LanguageModel, Transformer, TransformerConfig
from course_lib.variants import GPT, T5, Llama, Qwen3

V, PROMPT, NEW = 97, [5, 17, 33, 8], 24
SIZES = {"d_model": 64, "n_heads": 4, "n_decoder_layers": 2, "vocab_size": V, "max_length": 64}
GROUPED = {**SIZES, "n_kv_heads": 2, "d_ff": 96}
PRE = {"n_encoder_layers": 0, "norm_place": "pre", "scale_embeddings": False, "positions": "rotary"}
RMS = {**PRE, "norm": "rms", "bias": False, "tie_embeddings": False}
PAIRS = {**SIZES, "n_encoder_layers": 2, "pad_id": 0, "share_vocabulary": True}


def decoder(**switches):
    return LanguageModel(TransformerConfig(**{**SIZES, **switches}))


def translator(**switches):
    return Transformer(TransformerConfig(**{**PAIRS, **switches}))


def t5(**switches):
    return T5(T5.configure(**{**PAIRS, "d_head": 12, "d_ff": 96, "relative_buckets": 8, **switches}))


FAMILIES = {
    "GPT": lambda: GPT(GPT.configure(**SIZES)),
    "Llama": lambda: Llama(Llama.configure(**GROUPED)),
    "Qwen3": lambda: Qwen3(Qwen3.configure(**GROUPED, d_head=32)),
}


def shaken(make, seed=0):
    """A model with weights of a size that matters, so that its logits lie apart."""
    torch.manual_seed(seed)
    model = make()
    for name, parameter in model.named_parameters():
        nn.init.normal_(parameter, mean=1.0 if "norm" in name and name.endswith("weight") else 0.0, std=0.2)
    return model.eval()


def ours(model, prompt=PROMPT, new=NEW):
    """The new ids that this package writes."""
    return generation.generate(model, torch.tensor([prompt]), max_new_tokens=new, temperature=0)[
        0, len(prompt) :
    ].tolist()


def in_ctranslate2(path, prompt=PROMPT, new=NEW, **options):
    import ctranslate2

    engine = ctranslate2.Generator(str(path), device="cpu", intra_threads=1, **options)
    written = engine.generate_batch(
        [[f"<{id}>" for id in prompt]],
        max_length=new,
        end_token=[],
        include_prompt_in_result=False,
        sampling_topk=1,
    )
    return written[0].sequences_ids[0]


def llama_server(path, *, n_ctx=64, **changes):
    """llama.cpp with a model, on one thread, all in float32 where the file is."""
    import xllamacpp

    parameters = xllamacpp.CommonParams()
    parameters.model.path, parameters.n_ctx, parameters.n_parallel = str(path), n_ctx, 1
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = 1
    parameters.warmup, parameters.verbosity = False, -1
    parameters.cache_type_k = parameters.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    parameters.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    for name, value in changes.items():
        setattr(parameters, name, value)
    return xllamacpp.Server(parameters)


def in_llama_cpp(path, prompt=PROMPT, new=NEW):
    answer = llama_server(path).handle_completions({"prompt": prompt, "max_tokens": new, "temperature": 0})
    return [int(id) for id in re.findall(r"<(\d+)>", answer["choices"][0]["text"])]


DECODE = {"gguf": in_llama_cpp, "ctranslate2": in_ctranslate2}
