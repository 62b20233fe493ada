"""One step of training a GPT-2: tokens per second, memory and utilisation beside other libraries, in the same rounds.

    python benchmarks/training_step.py [--shapes 4x128 6x384 gpt2] [--rounds N] [--device cpu|cuda] [--quick]

A step is the loss, its gradient, a clip to norm 1 and AdamW, on the same batches of random tokens. All start from the
same weights, except for x-transformers, whose layers have no biases, and must reach the same loss. The libraries use
torch's fused AdamW; the naive tutorial and nanoGPT's way on a CPU do not. Each shape replaces its own part of
the record, so that they can be measured one by one.
"""

import argparse
import gc
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from itertools import cycle
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from harness import (
    RESULTS,
    environment,
    in_fresh_process,
    interleave,
    medians,
    peak_bytes,
    ratios,
    save,
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

PEERS: dict[str, Callable[..., nn.Module]] = {
    "transformers": Transformers,
    "x-transformers": XTransformers,
    "torch.nn": TorchEncoder,
    "naive tutorial": NaiveTutorial,
}
NANO = "nanoGPT's way"
OPTIONS = {"learning_rate": 1e-4, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.0}
ROUNDS = {"4x128": 11, "6x384": 7, "gpt2": 3}
Step = Callable[[], float]


class Steps:
    """One way to train: calling it makes one step. The losses are kept."""

    def __init__(self, step: Callable[[Tensor], float], batches: list[Tensor], model: nn.Module) -> None:
        self.step, self.batches = step, cycle(batches)
        self.parameters = sum(p.numel() for p in model.parameters())
        self.losses: list[float] = []

    def __call__(self) -> None:
        """Make a step on the next batch."""
        self.losses.append(self.step(next(self.batches)))


def ours(shape: Shape, weights: dict[str, Tensor], device: str) -> GPT:
    """The package's GPT-2, opened from what transformers saved."""
    theirs = published(shape)
    theirs.load_state_dict(weights)
    with tempfile.TemporaryDirectory() as folder:
        theirs.save_pretrained(folder)
        return GPT.from_pretrained(folder).to(device).train()


def our_step(model: GPT, *, precision: str, compiled: bool = False, rows: int = 0) -> Callable[[Tensor], float]:
    """The package's update, as `Run` makes it."""
    optimizers = build_optimizers(model, TrainingConfig(**OPTIONS, precision=precision))
    loss = tasks.LanguageModelling(rows=rows).loss
    loss = torch.compile(loss) if compiled else loss

    def step(tokens: Tensor) -> float:
        return update(model, loss, [{"tokens": tokens}], optimizers, clip=1.0, precision=precision).loss

    return step


def their_step(
    model: nn.Module, *, precision: str, compiled: bool = False, fused: bool = True
) -> Callable[[Tensor], float]:
    """The same step as most programs write it."""
    adamw = {"lr": OPTIONS["learning_rate"], "betas": OPTIONS["betas"], "weight_decay": 0.0}
    optimizer = torch.optim.AdamW(model.parameters(), fused=fused, **adamw)
    device = next(model.parameters()).device

    def loss_of(tokens: Tensor) -> Tensor:
        return F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())  # (B, T, V) -> (B T, V)

    loss_of = torch.compile(loss_of) if compiled else loss_of

    def step(tokens: Tensor) -> float:
        optimizer.zero_grad()
        with autocast(device, precision):
            loss = loss_of(tokens)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.item()

    return step


def make(name: str, shape: Shape, weights: dict[str, Tensor], device: str) -> list[tuple[str, Steps]]:
    """The ways of one library, which share one set of weights: eager, compiled and, for ours, more."""
    batches = random_batches(shape, device)
    precision = "bfloat16" if device == "cuda" else "float32"
    can_compile = shutil.which("g++") is not None
    steps: dict[str, Callable[[Tensor], float]] = {}
    model: nn.Module
    if name == "ours":
        model = ours(shape, weights, device)
        steps[name] = our_step(model, precision=precision)
        if device == "cpu":
            steps["ours, bfloat16"] = our_step(model, precision="bfloat16")
        if can_compile:
            steps["ours, compiled"] = our_step(model, precision=precision, compiled=True)
        if can_compile and device == "cpu":
            steps["ours, bfloat16, compiled"] = our_step(model, precision="bfloat16", compiled=True)
    elif name == NANO:
        model = NanoStyle(shape, weights).to(device)
        steps[name] = their_step(model, precision=precision, fused=device == "cuda")
    else:
        model = PEERS[name](shape, weights).to(device)
        fused = name != "naive tutorial"
        steps[name] = their_step(model, precision=precision, fused=fused)
        if can_compile:
            steps[f"{name}, compiled"] = their_step(model, precision=precision, fused=fused, compiled=True)
    return [(way, Steps(step, batches, model)) for way, step in steps.items()]


def random_batches(shape: Shape, device: str) -> list[Tensor]:
    """Four batches (B, T + 1)."""
    draw = torch.Generator().manual_seed(1)
    sizes = (shape.batch, shape.context + 1)
    return [torch.randint(shape.vocabulary, sizes, generator=draw).to(device) for _ in range(4)]


def memory(name: str, shape_name: str, device: str) -> int:
    """Peak bytes of two steps beyond the weights; to be called in a fresh process."""
    torch.set_num_threads(1)
    shape = SHAPES[shape_name]
    weights = dict(published(shape).state_dict())
    precision = "bfloat16" if device == "cuda" or "bfloat16" in name else "float32"
    if name.startswith("ours"):
        step = our_step(ours(shape, weights, device), precision=precision, rows=128 if "rows" in name else 0)
    else:
        kind = NanoStyle if name == NANO else PEERS[name]
        fused = device == "cuda" or name not in (NANO, "naive tutorial")
        step = their_step(kind(shape, weights).to(device), precision=precision, fused=fused)
    batches = random_batches(shape, device)
    weights.clear()
    gc.collect()
    return peak_bytes(lambda: [step(tokens) for tokens in batches[:2]], device)


def measure(shape_name: str, rounds: int, device: str) -> dict[str, Any]:
    """Everything about one shape."""
    shape = SHAPES[shape_name]
    where = environment(device, transformers=version("transformers"), x_transformers=version("x-transformers"))
    weights = dict(published(shape).state_dict())
    ways: dict[str, Steps] = {}
    for name in ("ours", *PEERS, NANO):
        for way, steps in make(name, shape, weights, device):
            steps()  # alone, so that the first losses can be compared
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
                "first_loss": ways[way].losses[0],
            }
        )
    ways.clear()
    gc.collect()
    with_memory = ["ours", "ours, bfloat16", *PEERS, NANO]
    if shape.vocabulary > 10_000:
        with_memory.append("ours, 128 rows of logits")
    return {
        "environment": where,
        "rounds": rounds,
        "tokens": [shape.batch, shape.context],
        "flops": flops,
        "peak_flops_per_second": peaks,
        "rows": rows,
        "comparisons": comparisons(taken),
        "memory_bytes": {name: in_fresh_process(memory, name, shape_name, device) for name in with_memory},
    }


def repeat(steps: Steps, times: int) -> None:
    """Make several steps."""
    for _ in range(times):
        steps()


def peak(device: str, dtype: str) -> float:
    """FLOP/s of matrix products: published for a GPU, measured on a CPU."""
    if device == "cuda":
        return published_peak(torch.cuda.get_device_name(), dtype)
    return measure_roofline(device, getattr(torch, dtype), rounds=5).flops_per_second


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
        "the same run on a CPU, published by the maker for a GPU. Memory is the peak of two steps beyond the weights, "
        "in a fresh process.",
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
            lines.append(
                f"| {row['way']} | {row['parameters']:,} | {row['first_loss']:.5f} | {1e3 * row['seconds']:,.1f} "
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
    parser.add_argument("--quick", action="store_true", help="three rounds of the smallest shape; writes nothing")
    arguments = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    if arguments.device == "cpu":
        torch.set_num_threads(1)
    name = f"training-step-{arguments.device}"
    before = RESULTS / f"{name}.json"
    shapes = json.loads(before.read_text())["shapes"] if before.exists() else {}
    result = {"name": name, "shapes": {} if arguments.quick else shapes}
    for shape in ["4x128"] if arguments.quick else arguments.shapes:
        rounds = arguments.rounds or (3 if arguments.quick else ROUNDS[shape])
        result["shapes"][shape] = measure(shape, rounds, arguments.device)
        result["shapes"] = {known: result["shapes"][known] for known in SHAPES if known in result["shapes"]}
        if not arguments.quick:
            save(result, page(result))
    print(page(result))


if __name__ == "__main__":
    main()
