"""The engines that read what is exported, each asked to continue ids by the most likely token, and models to export."""

import functools
import json
import re

import torch
from torch import nn

from course_lib import generation
from course_lib.transformer import LanguageModel, Transformer, TransformerConfig
from course_lib.variants import GPT, T5, Llama, Qwen3

V, PROMPT, NEW = 97, [5, 12, 19, 26], 24
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


@functools.cache
def counting():
    """A Llama that has learned to count by 7, and is sure of it."""
    torch.manual_seed(0)
    model = FAMILIES["Llama"]()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(40):
        tokens = (torch.randint(V, (16, 1)) + 7 * torch.arange(20)) % V
        loss = nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
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


def in_transformers(path, prompt=PROMPT, new=NEW):
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(str(path))
    return model.generate(torch.tensor([prompt]), max_new_tokens=new, do_sample=False)[0, len(prompt) :].tolist()


DECODE = {"gguf": in_llama_cpp, "ctranslate2": in_ctranslate2}


def ours_of_pair(model, sources, *, start=0, new=40, stop=None):
    """The new ids that this package writes after `start`, for each source by itself."""
    first = torch.tensor([[start]])
    return [
        generation.generate(
            model, first, source=torch.tensor([source]), max_new_tokens=new, temperature=0, stop=stop
        )[0, 1:].tolist()
        for source in sources
    ]  # fmt: skip


def in_translator(path, sources, *, new=40, end_token=()):
    """The new ids that CTranslate2 writes for sources of tokens."""
    import ctranslate2

    engine = ctranslate2.Translator(str(path), device="cpu", intra_threads=1)
    end = list(end_token) if isinstance(end_token, tuple) else end_token
    answers = engine.translate_batch(
        sources, max_decoding_length=new, beam_size=1, end_token=end, return_end_token=True
    )  # fmt: skip
    tokens = json.loads(next(path.glob("*vocabulary.json")).read_text(encoding="utf-8"))
    if (target := path / "target_vocabulary.json").exists():
        tokens = json.loads(target.read_text(encoding="utf-8"))
    ids = {token: id for id, token in enumerate(tokens)}
    return [[ids[token] for token in answer.hypotheses[0]] for answer in answers]
