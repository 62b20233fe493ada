"""One step of training a GPT-2: tokens per second, memory and utilisation beside other libraries, in the same rounds.

    python benchmarks/training_step.py [--shapes 4x128 6x384 gpt2] [--rounds N] [--compile NAMES] [--device cpu|cuda]
        [--quick]

A step is the loss, its gradient, a clip to norm 1 and AdamW, on the same batches of random tokens. All start from the
same weights, except for x-transformers, whose layers have no biases, and must reach the same loss. The libraries use
torch's fused AdamW; the naive tutorial and nanoGPT's way on a CPU do not. GPT-2 124M gets small batches, 2 × 256, so
that a round is affordable. Compiling takes minutes for each library and size: `--compile ours x-transformers` leaves
the others eager. Each shape replaces its own part of the record, so that they can be measured one by one.
"""

import argparse
import dataclasses
import gc
import json
import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from itertools import cycle
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from harness import (
    environment,
    in_fresh_process,
    interleave,
    medians,
    peak_bytes,
    place,
    ratios,
    save,
    seconds,
    shared_machine,
)
from torch import Tensor, nn
from torch.nn import functional as F
from training_peers import (
    SHAPES,
    NaiveTutorial,
    NanoStyle,
    Shape,
    TorchEncoder,
    Transformers,
    XTransformers,
    published,
)

from course_lib.scaling import count_flops, measure_roofline, mfu, published_peak
from course_lib.training import TrainingConfig, build_optimizers, tasks, update
from course_lib.training.updates import autocast
from course_lib.variants import GPT

NAIVE, NANO = "naive tutorial", "nanoGPT's way"
ROWS = 128
CHUNKED = f"{ROWS} rows of logits at a time"
PEERS: dict[str, Callable[..., nn.Module]] = {
    "transformers": Transformers,
    "x-transformers": XTransformers,
    "torch.nn": TorchEncoder,
    NAIVE: NaiveTutorial,
}
OPTIONS = {"learning_rate": 1e-4, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.0}
GPU_BATCH = {"4x128": 512, "6x384": 128, "gpt2": 64}
ROUNDS = {"4x128": 7, "6x384": 5, "gpt2": 3}


class Steps:
    """One way to train: calling it makes one step. The losses are kept."""

    def __init__(self, step: Callable[[Tensor], float], batches: list[Tensor], model: nn.Module) -> None:
        self.step, self.batches = step, cycle(batches)
        self.parameters = sum(p.numel() for p in model.parameters())
        self.losses: list[float] = []

    def __call__(self) -> None:
        """Make a step on the next batch."""
        self.losses.append(self.step(next(self.batches)))


def shape_for(name: str, device: str) -> Shape:
    """A shape with a batch that keeps the device busy."""
    return dataclasses.replace(SHAPES[name], batch=GPU_BATCH[name]) if device == "cuda" else SHAPES[name]


def ours(shape: Shape, weights: dict[str, Tensor], device: str) -> GPT:
    """The package's GPT-2, opened from what transformers saved."""
    theirs = published(shape)
    theirs.load_state_dict(weights)
    with tempfile.TemporaryDirectory() as folder:
        theirs.save_pretrained(folder)
        model = GPT.from_pretrained(folder).to(device).train()
    return model


def our_steps(model: GPT, rows: int = 0) -> Callable[..., Callable[[Tensor], float]]:
    """The package's update, as `Run` makes it, by precision and with or without compilation of the model."""
    optimizers = build_optimizers(model, TrainingConfig(**OPTIONS))
    loss = tasks.LanguageModelling(rows=rows).loss

    def way(precision: str, compiled: bool = False) -> Callable[[Tensor], float]:
        called = torch.compile(model) if compiled else model
        return lambda tokens: update(called, loss, [{"tokens": tokens}], optimizers, clip=1.0, precision=precision).loss

    return way


def their_steps(model: nn.Module, *, fused: bool = True) -> Callable[..., Callable[[Tensor], float]]:
    """The same step as most programs write it."""
    adamw = {"lr": OPTIONS["learning_rate"], "betas": OPTIONS["betas"], "weight_decay": 0.0}
    optimizer = torch.optim.AdamW(model.parameters(), fused=fused, **adamw)
    device = next(model.parameters()).device

    def way(precision: str, compiled: bool = False) -> Callable[[Tensor], float]:
        called = torch.compile(model) if compiled else model

        def step(tokens: Tensor) -> float:
            with autocast(device, precision):
                logits = called(tokens[:, :-1])
                loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())  # (B, T, V) -> (B T, V)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            return loss.item()

        return step

    return way


def library(name: str, shape: Shape, weights: dict[str, Tensor], device: str, rows: int = 0) -> Any:
    """The model of a library, and what makes its steps."""
    if name == "ours":
        model: nn.Module = ours(shape, weights, device)
        return model, our_steps(model, rows)
    model = (NanoStyle if name == NANO else PEERS[name])(shape, weights).to(device)
    return model, their_steps(model, fused=device == "cuda" or name not in (NANO, NAIVE))


def make(name: str, shape: Shape, weights: dict[str, Tensor], device: str, compiled: bool) -> dict[str, Steps]:
    """The ways of one library, which share one set of weights: eager, compiled and, for ours, in bfloat16."""
    model, steps = library(name, shape, weights, device)
    usual = "bfloat16" if device == "cuda" else "float32"
    found = {name: steps(usual)}
    if name == "ours" and device == "cpu":
        found["ours, bfloat16"] = steps("bfloat16")
    if compiled and shutil.which("g++") is not None:
        found |= {
            f"{way}, compiled": steps("bfloat16" if "bfloat16" in way else usual, compiled=True) for way in list(found)
        }
    batches = random_batches(shape, device)
    return {way: Steps(step, batches, model) for way, step in found.items()}


def random_batches(shape: Shape, device: str) -> list[Tensor]:
    """Four batches (B, T + 1)."""
    draw = torch.Generator().manual_seed(1)
    sizes = (shape.batch, shape.context + 1)
    return [torch.randint(shape.vocabulary, sizes, generator=draw).to(device) for _ in range(4)]


def memory(way: str, shape_name: str, device: str) -> int:
    """Peak bytes of two steps beyond the weights; to be called in a fresh process."""
    torch.set_num_threads(1)
    shape = shape_for(shape_name, device)
    weights = dict(published(shape).state_dict())
    name, _, kind = way.partition(", ")
    steps = library(name, shape, weights, device, rows=ROWS if kind == CHUNKED else 0)[1]
    step = steps("bfloat16" if device == "cuda" or kind == "bfloat16" else "float32")
    batches = random_batches(shape, device)
    weights.clear()
    gc.collect()
    return peak_bytes(lambda: [step(tokens) for tokens in batches[:2]], device)


def measure(shape_name: str, rounds: int, device: str, compiled: list[str], with_memory: bool) -> dict[str, Any]:
    """Everything about one shape; the libraries in `compiled` also compile their models."""
    shape = shape_for(shape_name, device)
    where = environment(device, transformers=version("transformers"), x_transformers=version("x-transformers"))
    weights = dict(published(shape).state_dict())
    ways: dict[str, Steps] = {}
    for name in ("ours", *PEERS, NANO):
        for way, steps in make(name, shape, weights, device, name in compiled).items():
            steps()
            ways[way] = steps
            print(f"{shape_name}: {way}, loss {steps.losses[0]:.6f}", file=sys.stderr, flush=True)
    peaks = {name: peak(device, name) for name in ("float32", "bfloat16")}
    several = {way: partial(repeat, steps, shape.steps) for way, steps in ways.items()}
    taken = interleave(several, rounds, device)
    peaks = {name: max(value, peak(device, name)) for name, value in peaks.items()}

    config = GPT.configure(
        d_model=shape.width,
        n_heads=shape.heads,
        n_decoder_layers=shape.layers,
        vocab_size=shape.vocabulary,
        max_length=shape.context,
    )
    flops = count_flops(config, shape.batch, shape.context, backward=True, halve_causal=True).total()
    rows = []
    for way, total in medians(taken).items():
        dtype = "bfloat16" if "bfloat16" in way or device == "cuda" else "float32"
        rows.append(
            {
                "way": way,
                "parameters": ways[way].parameters,
                "seconds": total / shape.steps,
                "tokens_per_second": shape.tokens * shape.steps / total,
                "dtype": dtype,
                "utilisation": mfu(flops * shape.steps, total, peaks[dtype]),
                "first_loss": None if "," in way else ways[way].losses[0],  # the others go on from those weights
            }
        )
    ways.clear()
    gc.collect()
    weighed = ["ours", "ours, bfloat16", *PEERS, NANO] if with_memory else []
    if with_memory and shape.vocabulary > 10_000:
        weighed.append(f"ours, {CHUNKED}")
    return {
        "environment": where,
        "rounds": rounds,
        "tokens": [shape.batch, shape.context],
        "flops": flops,
        "peak_flops_per_second": peaks,
        "rows": rows,
        "comparisons": comparisons(taken),
        "memory_bytes": {name: in_fresh_process(memory, name, shape_name, device) for name in weighed},
    }


def repeat(steps: Steps, times: int) -> None:
    """Make several steps."""
    for _ in range(times):
        steps()


def peak(device: str, dtype: str) -> float:
    """FLOP/s of matrix products: published for a known GPU, else measured."""
    if device == "cuda":
        try:
            return published_peak(torch.cuda.get_device_name(), dtype)
        except ValueError:
            return measure_roofline(device, getattr(torch, dtype)).flops_per_second
    found = []
    for n in (512, 1024, 1536):
        a, b = (torch.randn(n, n, dtype=getattr(torch, dtype)) for _ in range(2))
        times = [seconds(lambda a=a, b=b: a @ b) for _ in range(6)]  # by the clock of the steps
        found.append(2 * n**3 / statistics.median(times[1:]))
    return max(found)


def comparisons(taken: dict[str, list[float]]) -> list[dict[str, Any]]:
    """Ours against the fastest peer, eager and compiled, and our fastest way against nanoGPT's."""
    middle = medians(taken)
    best = min((way for way in taken if way.startswith("ours")), key=middle.__getitem__)
    peers = [name for name in PEERS if name in taken]
    compiled = [f"{name}, compiled" for name in peers if f"{name}, compiled" in taken]
    pairs = [("ours", min(peers, key=middle.__getitem__), 1.0)]
    if compiled:
        pairs.append(("ours, compiled", min(compiled, key=middle.__getitem__), 1.1))
        pairs.append(("ours, compiled", pairs[0][1], 1.1))
    pairs.append((best, NANO, 1.7))
    return [
        {"ours": mine, "peer": peer, "goal": goal, "ratio": ratios(taken, peer)[mine]} for mine, peer, goal in pairs
    ]


def version(package: str) -> str:
    """The installed version."""
    from importlib.metadata import version as installed

    return installed(package)


def page(result: dict[str, Any]) -> str:
    """The tables."""
    lines = ["# A training step beside other libraries", ""]
    lines += [
        "GPT-2 in several shapes, on random tokens: loss, gradient, clip to norm 1, AdamW (torch's fused one, except "
        f"for the naive tutorial and {NANO}). Times are medians of interleaved rounds; a ratio is taken within a "
        "round and given with the 95 % interval of its median. Utilisation counts the operations of matrix products, "
        "the causal half of the attention scores, against the fastest square product of the same dtype: measured in "
        "the same run on a CPU, published by the maker for a GPU. In bfloat16 on a CPU ours attends by "
        "`short_attention`, and the weights stay in float32. Memory is the peak of two steps beyond the weights, in a "
        "fresh process.",
        "",
    ]
    for shape, run in result["shapes"].items():
        where = run["environment"]
        speeds = ", ".join(
            f"{value / 1e9:,.0f} GFLOP/s in {name}" for name, value in run["peak_flops_per_second"].items()
        )
        lines += [
            f"## {shape}, {run['tokens'][0]} × {run['tokens'][1]} tokens a step",
            "",
            f"`{where['command']}`: {where['device']}, {where['threads']} thread(s), {where['clock']}, "
            f"{run['rounds']} rounds, torch {where['torch']}, transformers {where['transformers']}, x-transformers "
            f"{where['x_transformers']}. Peak: {speeds}.{shared_machine(where)}",
            "",
            "| way | parameters | first loss | ms | tokens/s | utilisation | memory, MB |",
            "|---|--:|--:|--:|--:|--:|--:|",
        ]
        bytes_of = run["memory_bytes"]
        for row in run["rows"]:
            held = f"{bytes_of[row['way']] / 1e6:,.0f}" if row["way"] in bytes_of else ""
            loss = "" if row["first_loss"] is None else f"{row['first_loss']:.5f}"
            lines.append(
                f"| {row['way']} | {row['parameters']:,} | {loss} | {1e3 * row['seconds']:,.1f} "
                f"| {row['tokens_per_second']:,.0f} | {row['utilisation']:.0%} | {held} |"
            )
        for name in bytes_of.keys() - {row["way"] for row in run["rows"]}:
            lines.append(f"| {name} | | | | | | {bytes_of[name] / 1e6:,.0f} |")
        lines += ["", "| ours | against | times as fast | 95 % interval | goal |", "|---|---|--:|--:|--:|"]
        for pair in run["comparisons"]:
            middle, low, high = pair["ratio"]
            lines.append(
                f"| {pair['ours']} | {pair['peer']} | {middle:.3f} | {low:.3f} to {high:.3f} | {pair['goal']:.2f} |"
            )
        lines.append("")
    return "\n".join(lines)


def main() -> None:
    """Measure the shapes asked for, put them into the record, and print it."""
    import transformers

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shapes", nargs="+", choices=list(SHAPES), default=list(SHAPES))
    parser.add_argument("--rounds", type=int, help=f"{ROUNDS} unless given")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=["cpu", "cuda"])
    names = ["ours", *PEERS]
    parser.add_argument("--compile", nargs="*", choices=names, default=names, help="whose models to compile as well")
    parser.add_argument("--memory", action=argparse.BooleanOptionalAction, default=True, help="also measure memory")
    parser.add_argument("--quick", action="store_true", help="three rounds of the smallest shape; writes nothing")
    arguments = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    if arguments.device == "cpu":
        torch.set_num_threads(1)
    name = f"training-step-{arguments.device}"
    before = place(name)
    shapes = json.loads(before.read_text())["shapes"] if before.exists() else {}
    result = {"name": name, "shapes": {} if arguments.quick else shapes}
    for shape in ["4x128"] if arguments.quick else arguments.shapes:
        rounds = arguments.rounds or (3 if arguments.quick else ROUNDS[shape])
        result["shapes"][shape] = measure(shape, rounds, arguments.device, arguments.compile, arguments.memory)
        result["shapes"] = {known: result["shapes"][known] for known in SHAPES if known in result["shapes"]}
        if not arguments.quick:
            save(result, page(result))
    print(page(result))


if __name__ == "__main__":
    main()
