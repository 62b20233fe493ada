"""Attention: the explicit path against the fused path against torch's own function, in time and memory.

    python benchmarks/attention.py [--quick] [--device cpu|cuda] [--dtype float32] [--heads 4]

Everything is measured in one run. In each round every implementation runs once, in an order that rotates, and a ratio
is taken within the round, so that whatever else the machine does falls on all of them; the table shows medians.
Memory is what a call needs at its peak beyond its inputs, measured in a process of its own on a CPU and by torch's
allocator on CUDA. Forward and backward together include the gradients of query, key and value.
"""

import argparse
import json
import multiprocessing
import os
import platform
import statistics
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import torch
import torch.nn.functional as F
from torch import Tensor

import course_lib
from course_lib.attention import Backend, scaled_dot_product_attention
from course_lib.files import write_atomic

RESULTS = Path(__file__).parent / "results"
IMPLEMENTATIONS = ("explicit", "fused", "torch")
PASSES = ("forward", "forward and backward")
WIDTH = 64


def call(name: str, causal: bool) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Return one of the implementations: (query, key, value) -> output."""
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


def seconds(fn: Callable[..., Tensor], inputs: list[Tensor]) -> float:
    """Time of one pass: of the CPU where it works alone on one thread, which others on the machine disturb less."""
    on_gpu = inputs[0].is_cuda
    clock = time.process_time if counts_cpu_time(on_gpu) else time.perf_counter
    if on_gpu:
        torch.cuda.synchronize()
    began = clock()
    run_once(fn, inputs)
    if on_gpu:
        torch.cuda.synchronize()
    return clock() - began


def counts_cpu_time(on_gpu: bool) -> bool:
    """Whether time is that of the CPU: with several threads, or on a GPU, only the wall clock tells."""
    return not on_gpu and torch.get_num_threads() == 1


def measure_time(n: int, causal: bool, backward: bool, rounds: int, arguments: argparse.Namespace) -> dict:
    """Median milliseconds of each implementation, and the median over the rounds of its ratio to torch."""
    inputs = make_inputs(n, arguments.heads, arguments.device, getattr(torch, arguments.dtype), backward)
    fns = {name: call(name, causal) for name in IMPLEMENTATIONS}
    for fn in fns.values():
        run_once(fn, inputs)  # the first call loads kernels
    taken: dict[str, list[float]] = {name: [] for name in IMPLEMENTATIONS}
    for number in range(rounds):
        shift = number % len(IMPLEMENTATIONS)
        for name in IMPLEMENTATIONS[shift:] + IMPLEMENTATIONS[:shift]:
            taken[name].append(seconds(fns[name], inputs))
    ratios = {n: [a / b for a, b in zip(times, taken["torch"], strict=True)] for n, times in taken.items()}
    return {
        "ms": {name: 1e3 * statistics.median(times) for name, times in taken.items()},
        "time_ratio": {name: statistics.median(values) for name, values in ratios.items()},
    }


def peak_on_cpu(name: str, n: int, causal: bool, backward: bool, heads: int, dtype: str) -> int:
    """Bytes that one pass needs beyond its inputs: the growth of this process; runs in a fresh process."""
    inputs = make_inputs(n, heads, "cpu", getattr(torch, dtype), backward)
    fn = call(name, causal)
    run_once(fn, [x[:, :1, :64].detach().requires_grad_(backward) for x in inputs])  # loads kernels, starts threads
    process = psutil.Process()
    try:
        Path("/proc/self/clear_refs").write_text("5")  # Linux: forget the highest resident size so far
        before = process.memory_info().rss
        run_once(fn, inputs)
        status = Path("/proc/self/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) * 1024 - before
    except OSError:
        return _peak_by_sampling(process, lambda: run_once(fn, inputs))


def _peak_by_sampling(process: psutil.Process, work: Callable[[], None]) -> int:
    """Other systems: look at the resident size every half millisecond while the work is done."""
    before = highest = process.memory_info().rss
    worker = threading.Thread(target=work)
    worker.start()
    while worker.is_alive():
        highest = max(highest, process.memory_info().rss)
        time.sleep(5e-4)
    return highest - before


def peak_on_cuda(name: str, n: int, causal: bool, backward: bool, heads: int, dtype: str) -> int:
    """The same by torch's allocator."""
    inputs = make_inputs(n, heads, "cuda", getattr(torch, dtype), backward)
    run_once(call(name, causal), inputs)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run_once(call(name, causal), inputs)
    return torch.cuda.max_memory_allocated() - before


def measure_memory(n: int, causal: bool, backward: bool, arguments: argparse.Namespace) -> dict:
    """MiB of each implementation at its peak."""
    more = (n, causal, backward, arguments.heads, arguments.dtype)
    if arguments.device == "cuda":
        peaks = {name: peak_on_cuda(name, *more) for name in IMPLEMENTATIONS}
    else:
        methods = multiprocessing.get_all_start_methods()
        context = multiprocessing.get_context("forkserver" if "forkserver" in methods else "spawn")
        if "forkserver" in methods:
            context.set_forkserver_preload(["torch", "psutil"])
        peaks = {}
        for name in IMPLEMENTATIONS:
            with context.Pool(1) as pool:  # a fresh process, so that no freed memory is used again unseen
                peaks[name] = pool.apply(peak_on_cpu, (name, *more))
    return {"mib": {name: peak / 2**20 for name, peak in peaks.items()}}


def environment(arguments: argparse.Namespace) -> dict:
    """What the numbers depend on."""
    cpu = platform.processor() or platform.machine()
    if Path("/proc/cpuinfo").exists():
        names = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
        cpu = names[0].split(":", 1)[1].strip() if names else cpu
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    return {
        "command": " ".join(["python", "benchmarks/attention.py", *sys.argv[1:]]),
        "device": torch.cuda.get_device_name() if arguments.device == "cuda" else cpu,
        "cpus": len(psutil.Process().cpu_affinity()) if hasattr(psutil.Process, "cpu_affinity") else os.cpu_count(),
        "threads": torch.get_num_threads(),
        "clock": "CPU time" if counts_cpu_time(arguments.device == "cuda") else "wall time",
        "load_before": load,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "course_lib": course_lib.__version__,
        "dtype": arguments.dtype,
        "batch": 1,
        "heads": arguments.heads,
        "head_width": WIDTH,
    }


def table(result: dict) -> str:
    """The result as a page of Markdown."""
    where = result["environment"]
    shared = ""
    if where["load_before"] is not None and where["load_before"] > 0.5 and "cpu" in result["name"]:
        shared = (
            f" The machine was shared: its load was {where['load_before']:.1f} on {where['cpus']} CPUs before the run, "
            "so trust the ratios, which are taken round by round, more than the milliseconds."
        )
    lines = [
        f"# Attention: explicit, fused and torch on {where['device']}",
        "",
        f"`{where['command']}`: torch {where['torch']}, Python {where['python']}, {where['threads']} thread(s), "
        f"{where['dtype']}, batch 1, {where['heads']} heads of {WIDTH}. Medians of interleaved rounds of "
        f"{where['clock']}; a ratio is to torch's own function in the same round; MiB are needed at the peak beyond "
        f"the inputs.{shared}",
    ]
    for causal in (False, True):
        for name in PASSES:
            rows = [r for r in result["rows"] if r["causal"] == causal and r["pass"] == name]
            lines += [
                "",
                f"## {name.capitalize()}, {'causal' if causal else 'no mask'}",
                "",
                "| n | rounds | torch ms | explicit / torch | fused / torch | explicit MiB | fused MiB | torch MiB |",
                "|--:|--:|--:|--:|--:|--:|--:|--:|",
            ]
            for row in rows:
                ratio, mib = row["time_ratio"], row["mib"]
                lines.append(
                    f"| {row['n']} | {row['rounds']} | {row['ms']['torch']:.3g} | {ratio['explicit']:.2f} "
                    f"| {ratio['fused']:.2f} | {mib['explicit']:.1f} | {mib['fused']:.1f} | {mib['torch']:.1f} |"
                )
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

    lengths = [256, 512] if arguments.quick else [512, 1024, 2048, 4096, 8192]
    result: dict = {"name": f"attention-{arguments.device}", "environment": environment(arguments), "rows": []}
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
        write_atomic(RESULTS / f"{result['name']}.json", json.dumps(result, indent=1) + "\n")
        write_atomic(RESULTS / f"{result['name']}.md", page)
    print(page)


if __name__ == "__main__":
    main()
