"""The engines that `benchmarks/generation.py` compares with: CTranslate2 and llama.cpp, each with the same weights.

They come with the extra `bench`. The model is exported by `coursework.export`, and each continues the same ids greedily
on one thread. CTranslate2 takes a batch as it is; llama.cpp has a slot for each of its texts and decodes them together.
"""

import re
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from course_lib.transformer import LanguageModel
from coursework.export import export

CTRANSLATE2, LLAMA = "CTranslate2", "llama.cpp"
PACKAGES = {CTRANSLATE2: "ctranslate2", LLAMA: "xllamacpp"}
ENGINES = {  # way -> engine, and the numbers of the exported weights
    f"{CTRANSLATE2}, float32": (CTRANSLATE2, "float32"),
    f"{CTRANSLATE2}, int8": (CTRANSLATE2, "int8"),
    f"{LLAMA}, float32": (LLAMA, "float32"),
    f"{LLAMA}, Q8_0": (LLAMA, "int8"),
}


def missing() -> list[str]:
    """Packages that are not installed and must be."""
    return [name for name in ("gguf", *PACKAGES.values()) if find_spec(name) is None]


def versions() -> dict[str, str]:
    """The version of each engine."""
    from importlib.metadata import version

    return {package: version(package) for package in PACKAGES.values()}


def there(device: str) -> dict[str, tuple[str, str]]:
    """Those of `ENGINES` that are installed and work on the device; on a GPU in float16 instead of 8 bits."""
    found = {name: one for name, one in ENGINES.items() if not {"gguf", PACKAGES[one[0]]} & set(missing())}
    if device == "cpu":
        return found
    engines = {engine for engine, _ in found.values() if _ON_GPU[engine]()}
    return {f"{engine}, {dtype}": (engine, dtype) for engine in sorted(engines) for dtype in ("float32", "float16")}


def _ctranslate2_on_gpu() -> bool:
    import ctranslate2

    return ctranslate2.get_cuda_device_count() > 0


def _llama_on_gpu() -> bool:
    import xllamacpp

    return any("CUDA" in str(one) for one in xllamacpp.get_device_info())


_ON_GPU = {CTRANSLATE2: _ctranslate2_on_gpu, LLAMA: _llama_on_gpu}


def engine_ways(
    model: LanguageModel,
    prompt: Tensor,
    new: int,
    folder: Path,
    ways: Mapping[str, tuple[str, str]] = MappingProxyType(ENGINES),
    device: str = "cpu",
) -> dict[str, Callable[[], Tensor]]:
    """For each engine a function that returns `prompt` (B, T) continued by `new` ids: (B, T + new)."""
    made = {}
    for name, (engine, dtype) in ways.items():
        to = "gguf" if engine == LLAMA else "ctranslate2"
        path = export(model, to=to, out=folder / name.replace(", ", "-"), dtype=dtype)
        start = _llama if engine == LLAMA else _ctranslate2
        made[name] = _continued(start(path, dtype, prompt, new, device), prompt)
    return made


def _continued(write: Callable[[], list[list[int]]], prompt: Tensor) -> Callable[[], Tensor]:
    return lambda: torch.cat([prompt, torch.tensor(write(), device=prompt.device)], dim=1)


def _ctranslate2(path: Path, dtype: str, prompt: Tensor, new: int, device: str) -> Callable[[], list[list[int]]]:
    import ctranslate2

    engine = ctranslate2.Generator(str(path), device=device, inter_threads=1, intra_threads=1, compute_type=dtype)
    rows = [[f"<{id}>" for id in row] for row in prompt.tolist()]
    options = {"max_length": new, "end_token": [], "include_prompt_in_result": False, "sampling_topk": 1}
    return lambda: [found.sequences_ids[0] for found in engine.generate_batch(rows, **options)]


def _llama(path: Path, dtype: str, prompt: Tensor, new: int, device: str) -> Callable[[], list[list[int]]]:
    import xllamacpp

    parameters = xllamacpp.CommonParams()
    parameters.model.path, parameters.n_parallel = str(path), len(prompt)
    parameters.n_ctx = len(prompt) * (-(-(prompt.size(1) + new) // 256) * 256)  # all slots together
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = 1
    parameters.warmup, parameters.verbosity = False, -1
    parameters.n_gpu_layers = 0 if device == "cpu" else 999
    if dtype == "float32":  # the rest in float32 as well; else as it comes, with a cache in float16
        parameters.cache_type_k = parameters.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
        parameters.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    server = xllamacpp.Server(parameters)
    ids = prompt.tolist() if len(prompt) > 1 else prompt[0].tolist()
    request: dict[str, Any] = {"prompt": ids, "max_tokens": new, "ignore_eos": True, "cache_prompt": False}
    request |= {"temperature": 0, "samplers": ["top_k"], "top_k": 1}

    def write() -> list[list[int]]:
        choices = sorted(server.handle_completions(request)["choices"], key=lambda choice: choice["index"])
        return [[int(id) for id in re.findall(r"<(\d+)>", choice["text"])] for choice in choices]

    return write
