"""Attention: the explicit and the fused path against torch's own function and flex attention, in time and memory.

    python benchmarks/attention.py [--quick] [--device cpu|cuda] [--dtype float32] [--heads 4]

Everything is measured in one run. In each round every implementation runs once, in an order that rotates, and a ratio
is taken within the round, so that whatever else the machine does falls on all of them; the table shows medians.
Memory is what a call needs at its peak beyond its inputs, measured in a process of its own on a CPU and by torch's
allocator on CUDA. Forward and backward together include the gradients of query, key and value. Flex attention is
compiled, and its map of blocks made, before it is measured; on a CPU torch has no backward pass for it.
"""

import argparse
import functools
import statistics
import sys
from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from harness import environment, in_fresh_process, interleave, peak_bytes, save, shared_machine
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from course_lib.attention import Backend, scaled_dot_product_attention

IMPLEMENTATIONS = ("explicit", "fused", "flex", "torch")
PASSES = ("forward", "forward and backward")
WIDTH = 64


def names_for(backward: bool, device: str) -> list[str]:
    """The implementations that have this pass on this device."""
    return [name for name in IMPLEMENTATIONS if not (name == "flex" and backward and device == "cpu")]


@functools.cache
def compiled_flex() -> Callable[..., Tensor]:
    """Flex attention as its documentation says to use it."""
    return torch.compile(flex_attention, dynamic=False)


def call(name: str, causal: bool, n: int, device: str) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Return one of the implementations: (query, key, value) -> output."""
    if name == "flex":
        later = create_block_mask(lambda b, h, i, j: i >= j, None, None, n, n, device=device) if causal else None
        return lambda q, k, v: compiled_flex()(q, k, v, block_mask=later)
    if name == "torch":
        return lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=causal)
    backend: Backend = "explicit" if name == "explicit" else "fused"
    return lambda q, k, v: scaled_dot_product_attention(q, k, v, causal=causal, backend=backend)


def make_inputs(n: int, heads: int, device: str, dtype: torch.dtype, gradients: bool) -> list[Tensor]:
    """Query, key and value (1, H, n, E)."""
    torch.manual_seed(0)
    shape = (1, heads, n, WIDTH)
    return [torch.randn(shape, device=device, dtype=dtype, requires_grad=gradients) for _ in range(3)]


def run_once(fn: Callable[..., Tensor], inputs: list[Tensor]) -> None:
    """One pass: forward, and backward if the inputs ask for gradients."""
    output = fn(*inputs)
    if output.requires_grad:
        torch.autograd.grad(output, inputs, torch.ones_like(output))


def measure_time(n: int, causal: bool, backward: bool, rounds: int, arguments: argparse.Namespace) -> dict:
    """Median milliseconds of each implementation, and the median over the rounds of its ratio to torch."""
    inputs = make_inputs(n, arguments.heads, arguments.device, getattr(torch, arguments.dtype), backward)
    fns = {name: call(name, causal, n, arguments.device) for name in names_for(backward, arguments.device)}
    taken = interleave({name: partial(run_once, fn, inputs) for name, fn in fns.items()}, rounds, arguments.device)
    ratios = {n: [a / b for a, b in zip(times, taken["torch"], strict=True)] for n, times in taken.items()}
    return {
        "ms": {name: 1e3 * statistics.median(times) for name, times in taken.items()},
        "time_ratio": {name: statistics.median(values) for name, values in ratios.items()},
    }


def peak(name: str, n: int, causal: bool, backward: bool, heads: int, device: str, dtype: str) -> int:
    """Bytes that one pass needs beyond its inputs."""
    inputs = make_inputs(n, heads, device, getattr(torch, dtype), backward)
    fn = call(name, causal, n, device)
    # The first call loads kernels and starts threads; flex compiles for the full length.
    run_once(fn, inputs if name == "flex" else [x[:, :1, :64].detach().requires_grad_(backward) for x in inputs])
    return peak_bytes(partial(run_once, fn, inputs), device)


def measure_memory(n: int, causal: bool, backward: bool, arguments: argparse.Namespace) -> dict:
    """MiB of each implementation at its peak."""
    more = (n, causal, backward, arguments.heads, arguments.device, arguments.dtype)
    measure = peak if arguments.device == "cuda" else partial(in_fresh_process, peak)
    return {"mib": {name: measure(name, *more) / 2**20 for name in names_for(backward, arguments.device)}}


def table(result: dict) -> str:
    """The result as a page of Markdown."""
    where = result["environment"]
    lines = [
        f"# Attention: explicit, fused, flex and torch on {where['device']}",
        "",
        f"`{where['command']}`: torch {where['torch']}, Python {where['python']}, {where['threads']} thread(s), "
        f"{where['dtype']}, batch 1, {where['heads']} heads of {WIDTH}. Medians of interleaved rounds of "
        f"{where['clock']}; a ratio is to torch's own function in the same round; MiB are needed at the peak beyond "
        f"the inputs.{shared_machine(where)}",
    ]
    for causal in (False, True):
        for name in PASSES:
            rows = [r for r in result["rows"] if r["causal"] == causal and r["pass"] == name]
            lines += [
                "",
                f"## {name.capitalize()}, {'causal' if causal else 'no mask'}",
                "",
                "| n | rounds | torch ms | explicit / torch | fused / torch | flex / torch "
                "| explicit MiB | fused MiB | flex MiB | torch MiB |",
                "|" + "--:|" * 10,
            ]
            for row in rows:
                cells = [f"{row['time_ratio'][k]:.2f}" if k in row["time_ratio"] else "-" for k in IMPLEMENTATIONS[:-1]]
                cells += [f"{row['mib'][k]:.1f}" if k in row["mib"] else "-" for k in IMPLEMENTATIONS]
                lines.append(f"| {row['n']} | {row['rounds']} | {row['ms']['torch']:.3g} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure, write the results, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="short lengths and few rounds; writes nothing")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=["cpu", "cuda"])
    parser.add_argument("--dtype", choices=["float32", "bfloat16", "float16"], help="bfloat16 on CUDA, else float32")
    parser.add_argument("--heads", type=int, default=4)
    arguments = parser.parse_args()
    arguments.dtype = arguments.dtype or ("bfloat16" if arguments.device == "cuda" else "float32")

    torch._dynamo.config.cache_size_limit = 64  # flex is compiled for each length
    lengths = [256, 512] if arguments.quick else [512, 1024, 2048, 4096, 8192]
    where = environment(arguments.device, dtype=arguments.dtype, batch=1, heads=arguments.heads, head_width=WIDTH)
    result: dict = {"name": f"attention-{arguments.device}", "environment": where, "rows": []}
    for n in lengths:
        rounds = 3 if arguments.quick else {512: 21, 1024: 15, 2048: 9, 4096: 5}.get(n, 3)
        for causal in (False, True):
            for backward, name in enumerate(PASSES):
                row = {"n": n, "causal": causal, "pass": name, "rounds": rounds}
                row |= measure_time(n, causal, bool(backward), rounds, arguments)
                row |= measure_memory(n, causal, bool(backward), arguments)
                result["rows"].append(row)
                print(f"n={n} {name}, {'causal' if causal else 'no mask'}", file=sys.stderr, flush=True)
    page = table(result)
    if not arguments.quick:
        save(result, page)
    print(page)


if __name__ == "__main__":
    main()
