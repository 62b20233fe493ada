"""Everything that a GPU is needed for, in one command: tests, parity, training, compilation, memory, generation.

    make gpu        or: python benchmarks/gpu.py [--device cuda] [--quick] [--only PART ...]

Each part is a process of its own with a limit of time, so that none takes another down; what it had measured by then
stays. Together they end within nine minutes. Nothing is downloaded. A run replaces the parts that it measured in the
record and leaves the others. `--quick` takes tiny sizes and writes nothing, which shows on a CPU that all works.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import engines
import psutil
import torch
from generation import OURS, THEIRS, make_models, way
from harness import RESULTS, environment, interleave, medians, peak_bytes
from torch import nn

from course_lib.files import write_atomic
from course_lib.generation import compile_step
from course_lib.scaling import activation_bytes, count_flops, count_parameters, measure_roofline, mfu, published_peak
from course_lib.training import TrainingConfig, build_optimizers, chosen_device, tasks, update
from course_lib.training.distributed import no_gpu
from course_lib.variants import GPT, Llama

HERE = Path(__file__).resolve().parents[1]
Rows = Iterator[dict[str, Any]]
SMALLER = ["--set=model.d_model=16", "--set=model.n_heads=2", "--set=batches.length=16", "--set=batches.batch_size=4"]
SIZES = {  # of GPT-2 (layers, width, heads, vocabulary), and a batch and its length
    "6x384": ((6, 384, 6, 65), (64, 256)),
    "124M": ((12, 768, 12, 50257), (16, 1024)),
    "tiny": ((2, 32, 2, 65), (2, 16)),
}


def on_the_device(device: str, quick: bool) -> Rows:
    """Run the tests of devices there, where torch itself refuses tensors of two."""
    chosen = ["-k", "test_blocks or test_norms"] if quick else []
    recorded = "tests/test_compiled_step.py::test_a_recorded_step_sees_all_slots_and_gives_the_same_logits"
    files = ["tests/test_devices.py", *([] if quick else [recorded, "tests/scaling/test_roofline.py"])]
    plain = ["-o", "addopts=", "-p", "no:cacheprovider", *([] if quick else ["-n", "4"])]  # and no notebooks
    command = [sys.executable, "-m", "pytest", "-q", "-rf", *plain, *chosen, *files]
    done = subprocess.run(
        command, cwd=HERE, env=os.environ | {"COURSE_DEVICE": device}, capture_output=True, encoding="utf-8"
    )
    lines = done.stdout.strip().splitlines()
    yield from ({"tests": line.partition(" ")[2][:150]} for line in lines if line.startswith(("FAILED", "ERROR")))
    yield {"tests": next((line.strip("= ") for line in reversed(lines) if " passed" in line), lines[-1])}


@torch.no_grad()
def parity(device: str, quick: bool) -> Rows:
    """Compare logits with those of transformers there, and with our own in float64 on the CPU."""
    from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

    gpt = GPT2Config(n_layer=4, n_embd=128, n_head=4, n_positions=256, vocab_size=500)
    sizes: dict[str, Any] = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 4, "vocab_size": 500}
    llama = LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2)
    families: list[tuple[Any, nn.Module]] = [(GPT, GPT2LMHeadModel(gpt)), (Llama, LlamaForCausalLM(llama))]
    for family, theirs in families:
        with tempfile.TemporaryDirectory() as folder:
            theirs.save_pretrained(folder)  # type: ignore[operator]
            ours = family.from_pretrained(folder)
        tokens = torch.randint(500, (2, 32 if quick else 200))
        exact = ours.double()(tokens)
        for dtype in (torch.float32, torch.bfloat16):
            there = tokens.to(device)
            mine = ours.to(device, dtype)(there).cpu().double()
            other = theirs.to(device, dtype).eval()(there).logits.cpu().double()
            largest = exact.abs().max()
            row = {"model": family.__name__, "dtype": str(dtype).removeprefix("torch.")}
            row |= {"from transformers": f"{(mine - other).abs().max() / largest:.1e}"}
            row |= {"from float64": f"{(mine - exact).abs().max() / largest:.1e}"}
            yield row | {"theirs from float64": f"{(other - exact).abs().max() / largest:.1e}"}
            ours.cpu()


def training(device: str, quick: bool) -> Rows:
    """Run the public command with the whole recipe of the device."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "coursework.cli", "train", "lm", "--device", device, "--out", folder]
        more = ["--set=training.evaluate_every=0", *(["--steps", "3", *SMALLER] if quick else [])]
        began = time.perf_counter()
        subprocess.run([*command, *more], check=True, stdout=subprocess.DEVNULL)
        row = {"seconds of the command": round(time.perf_counter() - began, 1)}
        results = json.loads((Path(folder) / "results.json").read_text(encoding="utf-8"))
    names = ("steps", "parameters", "held_out_loss", "tokens_per_second", "seconds", "peak_memory_mb")
    named = {name.replace("_", " "): results[name] for name in names}
    yield row | named | {"held out loss": round(results["held_out_loss"], 4)}


def gpt(size: str, device: str) -> tuple[GPT, Callable[..., Callable[[], float]], tuple[int, int]]:
    """A model of a size, what makes its training steps, and the shape of a batch (B, T)."""
    (layers, width, heads, vocabulary), (batch, length) = SIZES[size]
    sizes = {"d_model": width, "n_heads": heads, "n_decoder_layers": layers, "vocab_size": vocabulary}
    torch.manual_seed(0)
    model = GPT(GPT.configure(**sizes, max_length=length, dropout=0.0)).to(device)
    tokens = torch.randint(vocabulary, (batch, length + 1), device=device)
    optimizers = build_optimizers(model, TrainingConfig(learning_rate=1e-4))

    def steps(precision: str, compiled: bool = False, rows: int = 0) -> Callable[[], float]:
        backend = "aot_eager" if size == "tiny" else "inductor"  # the whole way but for the code that is written
        called = torch.compile(model, backend=backend) if compiled else model
        loss = tasks.LanguageModelling(rows=rows).loss
        options: dict[str, Any] = {"clip": 1.0, "precision": precision}
        return lambda: update(called, loss, [{"tokens": tokens}], optimizers, **options).loss

    return model, steps, (batch, length)


def compiling(device: str, quick: bool) -> Rows:
    """Time a training step of 6x384 eager and compiled, and compare the losses."""
    for compiled in (False, True):
        _, steps, (batch, length) = gpt("tiny" if quick else "6x384", device)
        step, began = steps("float32" if quick else "bfloat16", compiled), time.perf_counter()
        losses = [step()]
        first = time.perf_counter() - began
        taken = medians(interleave({"step": lambda: losses.append(step())}, 2 if quick else 200, device))["step"]  # noqa: B023
        row = {"precision": "float32" if quick else "bfloat16", "step": "compiled" if compiled else "eager"}
        yield row | {
            "first step, s": round(first, 1),
            "tokens/s": round(batch * length / taken),
            "first loss": round(losses[0], 4),
        }


def utilisation(device: str, quick: bool) -> Rows:
    """Train the 124 M model in bfloat16: speed, memory beside the formula, and the share of the peak."""
    for compiled, rows in ((False, 0), (False, 4096), (True, 0))[: 2 if quick else 3]:  # rows of logits at a time
        model, steps, (batch, length) = gpt("tiny" if quick else "124M", device)
        step = steps("bfloat16", compiled, rows)
        step()
        held = sum(p.nbytes for p in model.parameters()) * 4  # weights, gradients, and AdamW's two numbers
        beyond = peak_bytes(step, device)
        taken = medians(interleave({"step": step}, 2 if quick else 20, device))["step"]
        flops = count_flops(model.config, batch, length, backward=True, halve_causal=True).total()
        kept = activation_bytes(model.config, batch, length, dtype=torch.bfloat16)
        row = {"step": "compiled" if compiled else "eager", "rows of logits": rows or "all"}
        row |= {"parameters": count_parameters(model.config).total(), "tokens/s": round(batch * length / taken)}
        row |= {"MFU": f"{mfu(flops, taken, peak(device)):.1%}", "GB of weights and state": round(held / 1e9, 2)}
        row |= {"GB beyond, measured": round(beyond / 1e9, 2), "activations by formula": round(kept / 1e9, 2)}
        yield row
        del model, steps, step


def peak(device: str) -> float:
    """FLOP/s of products in bfloat16: as published for a known GPU, else as measured."""
    try:
        return published_peak(torch.cuda.get_device_name() if device == "cuda" else device)
    except ValueError:
        return measure_roofline(device, torch.bfloat16, seconds=0.05).flops_per_second


@torch.no_grad()
def generation(device: str, quick: bool) -> Rows:
    """Continue a prompt beside transformers and the engines that are installed for this device."""
    shapes: dict[str, tuple[int, ...]] = {"4x128": (1,)} if quick else {"6x384": (1,), "gpt2": (1, 16)}
    new, rounds = (4, 1) if quick else (128, 3)
    for shape, batches in shapes.items():
        models = make_models(shape, max(batches), device, rounded=False)
        for batch in batches:
            prompt = torch.randint(65, (batch, 16), device=device)
            work = {name: way(model, prompt, new) for name, model in models.items()}
            for name in [name for name in models if name.startswith(OURS)] if not quick else []:
                if compile_step(models[name], rows=batch) is not None:
                    work[f"{name}, recorded step"] = way(models[name], prompt, new, compile=True)
            with tempfile.TemporaryDirectory() as folder:
                plain, here = models[f"{OURS}, plain"], engines.there(device)
                work |= engines.engine_ways(plain, prompt, new, Path(folder), here, device)  # type: ignore[arg-type]
                written = {name: fn().cpu() for name, fn in work.items()}
                speeds = {name: batch * new / time for name, time in medians(interleave(work, rounds, device)).items()}
            for name, speed in speeds.items():
                row = {"model": shape, "batch": batch, "way": name, "tokens/s": round(speed)}
                row |= {"times transformers": round(speed / speeds[THEIRS], 2)}
                yield row | {"same tokens": f"{(written[name] == written[THEIRS])[:, 16:].float().mean():.0%}"}


# What is done, under which heading, and how many seconds it may take: 500 together, and ten for what lies between.
PARTS: dict[str, tuple[Callable[[str, bool], Rows], str, int]] = {
    "tests": (on_the_device, "The tests, on the device", 100),
    "parity": (parity, "Parity: the largest difference of logits, as a share of the largest logit", 40),
    "training": (training, "Training by `course train lm`, with its recipe for a GPU", 90),
    "compile": (compiling, "A training step of 6 layers of width 384, eager and compiled", 80),
    "124M": (utilisation, "A training step of the 124 M model: 16 texts of 1024 tokens, bfloat16", 90),
    "generation": (generation, "Generation beside other engines", 100),
}


def run(name: str, device: str, quick: bool) -> dict[str, Any]:
    """Run a part in a process of its own: its rows, how it ended ("" if well), what it said then, and its seconds."""
    began, limit = time.perf_counter(), PARTS[name][2] * (5 if quick else 1)  # tiny sizes wait for a busy CPU
    with tempfile.TemporaryDirectory() as folder:
        to, log = Path(folder) / "rows.json", Path(folder) / "log"
        command = [sys.executable, __file__, "--part", name, "--device", device, "--write", str(to)]
        with log.open("wb") as stream:
            process = subprocess.Popen(
                command + ["--quick"] * quick, stdout=stream, stderr=stream, start_new_session=True
            )
            try:
                code = process.wait(limit)
                ended = f"exit code {code}" if code else ""
            except subprocess.TimeoutExpired:
                ended = f"stopped after {limit} s"
                _end(process)
        rows = json.loads(to.read_text(encoding="utf-8")) if to.exists() else []
        said = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-12:] if ended else []
    return {"rows": rows, "ended": ended, "said": said, "seconds": round(time.perf_counter() - began)}


def section(name: str, found: dict[str, Any]) -> list[str]:
    """The lines of a part on the page."""
    lines = ["", f"## {PARTS[name][1]}", ""]
    columns = list(dict.fromkeys(column for row in found["rows"] for column in row))
    if columns:
        lines += [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
        lines += [f"| {' | '.join(_shown(row.get(column, '')) for column in columns)} |" for row in found["rows"]]
        lines.append("")
    if found["ended"]:
        said = ["", "```", *found["said"], "```"] if found["said"] else []
        return [*lines, f"Not measured to the end: {found['ended']}.", *said]
    return [*lines, f"{found['seconds']} s."]


def page(record: dict[str, Any]) -> str:
    """The parts measured so far, each with its card and command where they are not those of the first."""
    first = next(iter(record.values()))["environment"]
    lines = [f"# What a GPU is needed for, on {first['device']}", "", f"torch {first['torch']}."]
    for name in [name for name in PARTS if name in record]:
        lines += section(name, record[name])
        where = record[name]["environment"]
        lines[-1] += f" `{where['command']}`" if not record[name]["ended"] else ""
        if (where["device"], where["torch"]) != (first["device"], first["torch"]):
            lines += ["", f"On {where['device']}, torch {where['torch']}."]
    return "\n".join(lines) + "\n"


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a part and all that it started."""
    for one in [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            one.kill()
    process.wait()


def _shown(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value).replace("|", "\\|")


def main() -> None:
    """Run the parts one after the other, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", help="cuda, mps or cpu; the best there is unless given")
    parser.add_argument("--quick", action="store_true", help="tiny sizes; writes nothing")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), help="these parts")
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    parser.add_argument("--write", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    try:
        device = chosen_device(arguments.device).type
    except ValueError as error:
        raise SystemExit(f"gpu: {error}") from None
    if arguments.part:
        rows = []
        for row in PARTS[arguments.part][0](device, arguments.quick):
            rows.append(row)
            write_atomic(arguments.write, json.dumps(rows))  # so that what is measured outlives its part
        return
    if device == "cpu" and not arguments.quick:
        raise SystemExit(f"gpu: {no_gpu()} Tiny sizes on the CPU: python benchmarks/gpu.py --quick")
    began, kept = time.perf_counter(), RESULTS / "gpu.json"
    record = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else {}
    for name in arguments.only:
        record[name] = run(name, device, arguments.quick) | {"environment": environment(device)}
        print("\n".join(section(name, record[name])), flush=True)
        if not arguments.quick:
            write_atomic(kept, json.dumps(record, indent=1) + "\n")
            write_atomic(RESULTS / "gpu.md", page(record))
    failed = [name for name in arguments.only if record[name]["ended"]]
    print(
        f"\nAll of it: {(time.perf_counter() - began) / 60:.1f} minutes; not to the end: {', '.join(failed) or 'none'}."
    )
    if failed:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
