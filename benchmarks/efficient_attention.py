"""Efficient attentions: error against full attention, time and memory from n = 512 to 8192, beside SDPA and flex.

    python benchmarks/efficient_attention.py [--quick] [--device cpu|cuda] [--heads 4]

Time and memory: float32, no mask, every implementation once in each round, in an order that rotates. Memory is what a
call needs at its peak beyond its inputs, measured in a process of its own on a CPU. The exponent is the slope of a
straight line through the logarithms from n = 1024 on; below that, fixed costs weigh.
Error: the length of the difference from full attention over the length of full attention's output, query by query.
"Random" inputs are normal; "real" ones are queries, keys and values of all layers and heads of a published sentence
encoder (all-MiniLM-L6-v2) on English technical prose, if the extra `pretrained` is installed.
"""

import argparse
import json
import pydoc_data.topics
import sys
import warnings
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from harness import (
    environment,
    exponent,
    in_fresh_process,
    interleave,
    medians,
    peak_bytes,
    ratios,
    save,
    shared_machine,
)
from torch import Tensor, nn

from course_lib.attention import Options, fused_attention, scaled_dot_product_attention
from course_lib.variants.efficient import (
    BigBirdAttention,
    HierarchicalAttention,
    LinearAttention,
    LinformerAttention,
    PerformerAttention,
    SlidingWindowAttention,
    TiledAttention,
)
from course_lib.variants.minilm import minilm_folder

WIDTH = 64
PASSES = ("forward", "forward and backward")
# name -> (what makes it for heads of width E and at most n positions, what it is)
MAKERS: dict[str, tuple[Callable[[int, int], Callable[..., Tensor]], str]] = {
    "SDPA": (lambda E, n: F.scaled_dot_product_attention, "torch's fused kernel"),
    "plain": (lambda E, n: partial(scaled_dot_product_attention, backend="explicit"), "scores as a tensor"),
    "tiled": (lambda E, n: TiledAttention(tile=256), "online softmax in tiles of 256, written in Python"),
    "window": (lambda E, n: SlidingWindowAttention(128, n_global=16), "127 on either side, 16 global"),
    "window (flex)": (
        lambda E, n: SlidingWindowAttention(128, n_global=16, backend="flex"),
        "the same by flex, its map of blocks known",
    ),
    "random blocks": (
        lambda E, n: BigBirdAttention(64, n_random=2, n_global=64),
        "blocks of 64: 3 near, 2 random, 1 global",
    ),
    "hierarchical": (lambda E, n: HierarchicalAttention(64, 8), "blocks of 64, far groups as 8 cells"),
    "Linformer": (lambda E, n: LinformerAttention(n, 128), "128 mixtures, untrained"),
    "Performer": (lambda E, n: PerformerAttention(E, 256), "256 orthogonal positive features"),
    "linear": (lambda E, n: LinearAttention(), "elu + 1, another function"),
}  # fmt: skip
NO_BACKWARD_ON_CPU = ("window (flex)",)


def make_inputs(n: int, heads: int, device: str, gradients: bool) -> list[Tensor]:
    """Query, key and value (1, H, n, E), normal."""
    torch.manual_seed(0)
    return [torch.randn((1, heads, n, WIDTH), device=device, requires_grad=gradients) for _ in range(3)]


def make(name: str, E: int, n: int, device: str) -> Callable[..., Tensor]:
    """Return one of the implementations on the device: (query, key, value) -> output."""
    made = MAKERS[name][0](E, n)
    return made.to(device) if isinstance(made, nn.Module) else made


def run_once(fn: Callable[..., Tensor], inputs: list[Tensor]) -> None:
    """One pass: forward, and backward if the inputs ask for gradients."""
    backward = inputs[0].requires_grad
    with torch.set_grad_enabled(backward):
        output = fn(*inputs)
    if backward:
        torch.autograd.grad(output, inputs, torch.ones_like(output))


def names_for(backward: bool, device: str) -> list[str]:
    """The implementations that have this pass on this device."""
    return [name for name in MAKERS if not (backward and device == "cpu" and name in NO_BACKWARD_ON_CPU)]


def measure_time(n: int, backward: bool, rounds: int, arguments: argparse.Namespace) -> dict:
    """Median milliseconds of each, and how many times as fast as SDPA it was."""
    inputs = make_inputs(n, arguments.heads, arguments.device, backward)
    work = {
        name: partial(run_once, make(name, WIDTH, n, arguments.device), inputs)
        for name in names_for(backward, arguments.device)
    }
    taken = interleave(work, rounds, arguments.device)
    return {
        "ms": {name: 1e3 * value for name, value in medians(taken).items()},
        "times_as_fast_as_sdpa": ratios(taken, "SDPA"),
    }


def peak(name: str, n: int, backward: bool, heads: int, device: str) -> int:
    """Bytes that one pass needs beyond its inputs."""
    inputs = make_inputs(n, heads, device, backward)
    fn = make(name, WIDTH, n, device)
    # The first call loads kernels and starts threads; flex compiles for the full length and finds its map of blocks.
    first = inputs if "flex" in name else [x[:, :1, :320].detach().requires_grad_(backward) for x in inputs]
    run_once(fn, first)
    return peak_bytes(partial(run_once, fn, inputs), device)


def measure_memory(n: int, backward: bool, arguments: argparse.Namespace) -> dict:
    """MiB of each at its peak."""
    measure = peak if arguments.device == "cuda" else partial(in_fresh_process, peak)
    more = (n, backward, arguments.heads, arguments.device)
    return {"mib": {name: measure(name, *more) / 2**20 for name in names_for(backward, arguments.device)}}


def real_inputs(n: int = 512, texts: int = 2) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Queries, keys and values (texts, H, n, E) of every layer of MiniLM on prose; none if it is not installed."""
    folder = minilm_folder()
    if folder is None:
        return []
    from tokenizers import Tokenizer

    from course_lib.variants import BERT

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    prose = "\n".join(text for _, text in sorted(pydoc_data.topics.topics.items()))
    ids = tokenizer.encode(prose[: texts * n * 8]).ids
    tokens = torch.tensor(ids[: texts * n]).view(texts, n)
    model = BERT.from_pretrained(folder).eval()
    calls: list[tuple[Tensor, Tensor, Tensor]] = []

    def noting(query: Tensor, key: Tensor, value: Tensor, options: Options) -> Tensor:
        calls.append((query, key, value))
        return fused_attention(query, key, value, options)

    for layer in model.encoder.layers:
        layer.self_attention.form = noting
    with torch.no_grad():
        model(tokens)
    return calls


def errors(name: str, inputs: list[tuple[Tensor, Tensor, Tensor]]) -> dict[str, float]:
    """Median and worst relative error over all queries, and the median over the places of the worst."""
    found = []
    with torch.no_grad():
        for query, key, value in inputs:
            full = scaled_dot_product_attention(query, key, value)
            output = make(name, query.size(-1), query.size(-2), str(query.device))(query, key, value)
            found.append(((output - full).norm(dim=-1) / full.norm(dim=-1)).flatten())
    values = torch.cat(found)
    return {"median": values.median().item(), "worst": values.max().item()}


def gradient_error(n: int) -> float:
    """The largest difference between the gradients of the tiled form and of SDPA, relative to the largest gradient."""
    gradients = []
    for name in ("tiled", "SDPA"):
        inputs = make_inputs(n, 4, "cpu", True)
        output = make(name, WIDTH, n, "cpu")(*inputs)
        direction = torch.randn(output.shape, generator=torch.Generator().manual_seed(1))
        gradients.append(torch.cat(torch.autograd.grad(output, inputs, direction)))
    return ((gradients[0] - gradients[1]).abs().max() / gradients[1].abs().max()).item()


def exponents(rows: list[dict], lengths: list[int], device: str) -> dict:
    """The power of n with which time and memory of each grow: pass -> unit -> name -> exponent."""
    found: dict = {}
    for number, kind in enumerate(PASSES):
        kept = [row for row in rows if row["pass"] == kind and row["n"] in lengths]
        found[kind] = {
            unit: {
                name: exponent([row["n"] for row in kept], [row[unit][name] for row in kept])
                for name in names_for(bool(number), device)
            }
            for unit in ("ms", "mib")
        }
    return found


def table(result: dict) -> str:
    """The result as a page of Markdown."""
    where, rows = result["environment"], result["rows"]
    lengths = sorted({row["n"] for row in rows})
    lines = [
        f"# Efficient attentions on {where['device']}",
        "",
        f"`{where['command']}`: torch {where['torch']}, Python {where['python']}, {where['threads']} thread(s), "
        f"float32, batch 1, {where['heads']} heads of {WIDTH}, no mask. Medians of interleaved rounds of "
        f"{where['clock']}; MiB are needed at the peak beyond the inputs.{shared_machine(where)}",
        "",
        "## Error against full attention, relative, over all queries",
        "",
        "| | what | random, median | random, worst | real, median | real, worst |",
        "|---|---|--:|--:|--:|--:|",
    ]
    for name, found in result["errors"].items():
        cells = [
            f"{found[kind][which]:.2g}" if kind in found else "-"
            for kind in ("random", "real")
            for which in ("median", "worst")
        ]
        lines.append(f"| {name} | {MAKERS[name][1]} | " + " | ".join(cells) + " |")
    lines += [
        "",
        f"Gradients of the tiled form against SDPA at n = {result['gradient_n']}: "
        f"largest difference {result['gradient_error']:.1g} of the largest gradient.",
    ]
    for number, kind in enumerate(PASSES):
        for unit, title in (("ms", "milliseconds"), ("mib", "MiB")):
            lines += [
                "",
                f"## {kind.capitalize()}, {title}",
                "",
                "| | " + " | ".join(f"n = {n}" for n in lengths) + " | exponent |",
                "|---|" + "--:|" * (len(lengths) + 1),
            ]
            of_pass = {row["n"]: row for row in rows if row["pass"] == kind}
            for name in names_for(bool(number), result["device"]):
                values = [of_pass[n][unit][name] for n in lengths]
                power = result["exponents"][kind][unit][name]
                lines.append(f"| {name} | " + " | ".join(f"{v:.3g}" for v in values) + f" | {power:.2f} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure, write the results, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="short lengths and few rounds; writes nothing")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=["cpu", "cuda"])
    parser.add_argument("--heads", type=int, default=4)
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore", category=DeprecationWarning)

    lengths = [256, 512] if arguments.quick else [512, 1024, 2048, 4096, 8192]
    where = environment(arguments.device, heads=arguments.heads, head_width=WIDTH)
    result: dict = {"name": f"efficient-attention-{arguments.device}", "device": arguments.device}
    result |= {"environment": where, "rows": []}
    random = [tuple(make_inputs(512 if arguments.quick else 2048, arguments.heads, "cpu", False))]
    real = real_inputs()
    result["errors"] = {
        name: {"random": errors(name, random)} | ({"real": errors(name, real)} if real else {}) for name in MAKERS
    }
    result["gradient_n"] = 512 if arguments.quick else 2048
    result["gradient_error"] = gradient_error(result["gradient_n"])
    print(json.dumps(result["errors"]), file=sys.stderr, flush=True)
    for n in lengths:
        rounds = 3 if arguments.quick else {512: 11, 1024: 9, 2048: 5}.get(n, 3)
        for backward, name in enumerate(PASSES):
            row = {"n": n, "pass": name, "rounds": rounds}
            row |= measure_time(n, bool(backward), rounds, arguments)
            row |= measure_memory(n, bool(backward), arguments)
            result["rows"].append(row)
            print(f"n={n} {name}", file=sys.stderr, flush=True)
    result["exponents"] = exponents(result["rows"], [n for n in lengths if n >= 1024] or lengths, arguments.device)
    page = table(result)
    if not arguments.quick:
        save(result, page)
    print(page)


if __name__ == "__main__":
    main()
