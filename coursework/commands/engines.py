"""Open a model for use; for `course generate --engine` in an engine, exported when that is first asked for."""

import contextlib
import itertools
import json
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from course_lib.checks import check_choice
from course_lib.data import Tokenizer, load_tokenizer
from course_lib.files import write_atomic
from course_lib.reading import read_json
from course_lib.training import RunFolder, chosen_device
from course_lib.transformer import LanguageModel
from course_lib.variants import from_pretrained, locate
from course_lib.variants.int8 import quantize_
from course_lib.variants.packed import pack_
from coursework.export import export

__all__ = ["ENGINES", "OURS", "engine_writes", "fastest_engine", "open_model", "written_by"]

OURS = "course_lib"
ENGINES = {"ctranslate2": ("ctranslate2",), "llama.cpp": ("xllamacpp", "gguf")}  # by the packages that they need
_LARGE = 50_000_000  # parameters; above, llama.cpp is faster (benchmarks/results/generation-cpu.md)


def open_model(name: str, device: str | None, *, int8: bool, bf16: bool, rows: int) -> tuple[Any, Tokenizer]:
    """Open a model for use on a device, to decode about so many examples at once, and its tokenizer."""
    where = chosen_device(device)
    folder = locate(name)
    network: Any = from_pretrained(folder).eval()
    tokenizer = load_tokenizer(folder)
    sizes = (network.config.vocab_size, network.config.setting("target_vocab_size"))
    if tokenizer.vocab_size > (most := min(size for size in sizes if size is not None)):
        raise ValueError(f"tokenizer: expected at most {most} tokens as the model has, got {tokenizer.vocab_size}")
    network.to(where, torch.bfloat16 if bf16 else None)
    if int8:
        quantize_(network)
    elif next(network.parameters()).is_cpu:
        pack_(network, rows=rows)
    return network, tokenizer


def written_by(
    engine: str | None, network: Any, name: str, ids: list[int], *, hub: bool, plain: bool, **options: Any
) -> Iterator[int | str] | None:
    """What an engine writes, the fastest one unless named; None where the code of the course is to write it.

    Raises ValueError for a model that does not write, and where the engine that is named cannot.
    """
    if not isinstance(network, LanguageModel):
        raise ValueError(f"{name}: expected a language model, got a {type(network).__name__}")
    check_choice("engine", engine, (None, OURS, *ENGINES))
    window = getattr(network, "config", None) and network.config.window
    if engine == "llama.cpp" and window is not None and len(ids) + options["max_new_tokens"] > window:
        raise ValueError(f"--engine: llama.cpp has no window, and this model sees {window} tokens; ctranslate2 has one")
    named, here = engine, next(network.parameters()).is_cpu and plain
    if not here and engine in ENGINES:
        raise ValueError("--engine: expected a language model on the CPU, without --int8, --bf16 and --compile")
    if engine is None and here and not hub:
        count = sum(parameter.numel() for parameter in network.parameters())
        engine = fastest_engine(count, window=network.config.window is not None)
    if engine in (None, OURS):
        return None
    try:
        written = engine_writes(
            engine, locate(name), ids, threads=torch.get_num_threads(), **options  # type: ignore[arg-type]
        )  # fmt: skip
        first = next(written, "")
    except ValueError:  # not a model for it
        if named is None:
            return None
        raise
    return itertools.chain([first], written)


def fastest_engine(parameters: int, *, window: bool) -> str:
    """Return the engine that was measured to be the fastest for a model on a CPU, of those that are installed.

    llama.cpp has no window, and writes in one piece.
    """
    here = [name for name, packages in ENGINES.items() if all(find_spec(package) for package in packages)]
    if "llama.cpp" in here and not window and (parameters > _LARGE or "ctranslate2" not in here):
        return "llama.cpp"
    return "ctranslate2" if "ctranslate2" in here else OURS


def engine_writes(
    engine: str, folder: Path, ids: list[int], *, max_new_tokens: int, stop: int, seed: int | None,
    temperature: float, top_k: int | None, top_p: float | None, threads: int,
) -> Iterator[int | str]:  # fmt: skip
    """Yield with what an engine continues `ids`, as ids or as text; the most likely ones with temperature 0, as we do.

    Raises ValueError for a model that the engine cannot run.
    """
    with contextlib.ExitStack() as stack:
        path = _exported(engine, folder, stack)
        options = {"temperature": temperature, "top_k": top_k or 0, "top_p": 1.0 if top_p is None else top_p}
        if engine == "ctranslate2":
            yield from _ctranslate2(path, ids, max_new_tokens, stop, seed, options, threads)
        else:
            yield _llama(path, ids, max_new_tokens, seed, options, threads)


def _exported(engine: str, folder: Path, stack: contextlib.ExitStack) -> Path:
    """What the engine opens, in the folder of the model; written anew where the weights are others."""
    run, to = RunFolder(folder), "gguf" if engine == "llama.cpp" else engine
    mark = [[path.name, path.stat().st_size, path.stat().st_mtime_ns] for path in sorted(folder.glob("*.safetensors"))]
    place = folder / "engines" / to
    if not run.recipe.exists():  # not ours to write into
        place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    stamp, opened = place / "stamp.json", place / "model.gguf" if to == "gguf" else place
    if stamp.exists() and read_json(stamp) == {"weights": mark}:
        return opened
    path = export(folder, to=to, out=place)
    write_atomic(stamp, json.dumps({"weights": mark}))
    return path


def _ctranslate2(
    path: Path, ids: list[int], new: int, stop: int, seed: int | None, options: dict[str, Any], threads: int
) -> Iterator[int]:
    import ctranslate2

    if seed is not None:
        ctranslate2.set_random_seed(seed)
    names = read_json(path / "vocabulary.json", [str])
    engine = ctranslate2.Generator(str(path), device="cpu", inter_threads=1, intra_threads=threads)
    greedy = options["temperature"] == 0
    steps = engine.generate_tokens(
        [names[id] for id in ids],
        max_length=new,
        end_token=[names[stop]],
        sampling_topk=1 if greedy else options["top_k"],
        sampling_topp=options["top_p"],
        sampling_temperature=1.0 if greedy else options["temperature"],
    )
    return (step.token_id for step in steps if step.token_id != stop)


def _llama(path: Path, ids: list[int], new: int, seed: int | None, options: dict[str, Any], threads: int) -> str:
    import xllamacpp

    parameters = xllamacpp.CommonParams()
    parameters.model.path, parameters.n_parallel, parameters.n_ctx = str(path), 1, -(-(len(ids) + new) // 256) * 256
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = threads
    parameters.warmup, parameters.verbosity = False, -1
    parameters.cache_type_k = parameters.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    parameters.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    server = xllamacpp.Server(parameters)
    request = {"prompt": ids, "max_tokens": new, "cache_prompt": False, **options}
    answer = server.handle_completions(request | ({} if seed is None else {"seed": seed}))
    return str(answer["choices"][0]["text"])
