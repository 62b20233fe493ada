"""What the programs of this folder share: interleaved rounds, ratios with intervals, peak memory, results on disk."""

import gc
import json
import math
import multiprocessing
import os
import platform
import statistics
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import psutil
import torch
from matplotlib.figure import Figure
from scipy.stats import bootstrap

import course_lib
from course_lib.files import write_atomic
from coursework.records.record import MEASURED

RESULTS = Path(__file__).parent / "results"


def environment(device: str = "cpu", **more: Any) -> dict:
    """What the numbers depend on, to be written beside them."""
    cpu = platform.processor() or platform.machine()
    if Path("/proc/cpuinfo").exists():
        names = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
        cpu = names[0].split(":", 1)[1].strip() if names else cpu
    return {
        "command": " ".join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]]),
        "device": torch.cuda.get_device_name() if device == "cuda" else cpu,
        "cpus": len(psutil.Process().cpu_affinity()) if hasattr(psutil.Process, "cpu_affinity") else os.cpu_count(),
        "threads": torch.get_num_threads(),
        "clock": "CPU time" if counts_cpu_time(device) else "wall time",
        "load_before": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "course_lib": course_lib.__version__,
        **more,
    }


def shared_machine(where: Mapping[str, Any]) -> str:
    """A sentence for the page if the machine had other work, else nothing."""
    load = where["load_before"]
    if load is None or load <= 0.5 or where["device"].startswith("NVIDIA"):
        return ""
    return (
        f" The machine was shared: its load was {load:.1f} on {where['cpus']} CPUs before the run, so trust the "
        "ratios, which are taken round by round, more than the times."
    )


def counts_cpu_time(device: str) -> bool:
    """Whether time is that of the CPU: with several threads, or on a GPU, only the wall clock tells."""
    return device == "cpu" and torch.get_num_threads() == 1


def seconds(work: Callable[[], Any], device: str = "cpu") -> float:
    """Time of one call: of the CPU where it works alone on one thread, which others on the machine disturb less."""
    clock = time.process_time if counts_cpu_time(device) else time.perf_counter
    if device == "cuda":
        torch.cuda.synchronize()
    began = clock()
    work()
    if device == "cuda":
        torch.cuda.synchronize()
    return clock() - began


def interleave(work: Mapping[str, Callable[[], Any]], rounds: int, device: str = "cpu") -> dict[str, list[float]]:
    """Seconds of each piece of work, once a round, in an order that rotates, after one round that is not counted."""
    names = list(work)
    taken: dict[str, list[float]] = {name: [] for name in names}
    for name in names:
        work[name]()  # the first call loads kernels
    for number in range(rounds):
        shift = number % len(names)
        for name in names[shift:] + names[:shift]:
            gc.collect()
            taken[name].append(seconds(work[name], device))
    return taken


def ratios(taken: Mapping[str, Sequence[float]], reference: str) -> dict[str, list[float]]:
    """Of each, how many times as fast as `reference` it was: the median over the rounds, and its 95 % interval.

    A ratio is taken within a round, so that whatever else the machine does falls on both.
    """
    found = {}
    for name, times in taken.items():
        values = np.array(taken[reference]) / np.array(times)
        middle = float(np.median(values))
        low = high = middle
        if len(values) > 2 and np.ptp(values) > 0:
            found_interval = bootstrap((values,), np.median, method="percentile", rng=np.random.default_rng(0))
            low, high = (float(edge) for edge in found_interval.confidence_interval)
        found[name] = [middle, low, high]
    return found


def medians(taken: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Median seconds of each."""
    return {name: statistics.median(times) for name, times in taken.items()}


def in_fresh_process(fn: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function of a module's top level in a process of its own, so that no freed memory is used again unseen."""
    methods = multiprocessing.get_all_start_methods()
    context = multiprocessing.get_context("forkserver" if "forkserver" in methods else "spawn")
    if "forkserver" in methods:
        context.set_forkserver_preload(["torch", "psutil"])
    with context.Pool(1) as pool:
        return pool.apply(fn, arguments)


def peak_bytes(work: Callable[[], Any], device: str = "cpu") -> int:
    """Bytes that a call needs at its peak beyond what is there before; on a CPU meant for a fresh process."""
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        work()
        return torch.cuda.max_memory_allocated() - before
    process = psutil.Process()
    try:
        Path("/proc/self/clear_refs").write_text("5")  # Linux: forget the highest resident size so far
        before = process.memory_info().rss
        work()
        status = Path("/proc/self/status").read_text()
        return int(status.split("VmHWM:")[1].split()[0]) * 1024 - before
    except OSError:
        return _peak_by_sampling(process, work)


def _peak_by_sampling(process: psutil.Process, work: Callable[[], Any]) -> int:
    """Other systems: look at the resident size every half millisecond while the work is done."""
    before = highest = process.memory_info().rss
    worker = threading.Thread(target=work)
    worker.start()
    while worker.is_alive():
        highest = max(highest, process.memory_info().rss)
        time.sleep(5e-4)
    return highest - before


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float:
    """The power with which the values grow: the slope of a straight line through their logarithms."""
    return float(np.polyfit([math.log(n) for n in sizes], [math.log(max(v, 1e-12)) for v in values], 1)[0])


def place(name: str) -> Path:
    """The JSON file of a result: in the package if notebooks read it, else in `results/`."""
    shipped = MEASURED / f"{name}.json"
    return shipped if shipped.exists() else RESULTS / f"{name}.json"


def save(result: dict, page: str) -> None:
    """Write `results/<name>.json` and `results/<name>.md`, whole or not at all."""
    write_atomic(place(result["name"]), json.dumps(result, indent=1) + "\n")
    write_atomic(RESULTS / f"{result['name']}.md", page)


def save_picture(name: str, figure: Figure) -> None:
    """Write `results/<name>.svg`, which a page beside it shows; the same picture gives the same bytes."""
    with plt.rc_context({"svg.hashsalt": name}):
        figure.savefig(RESULTS / f"{name}.svg", metadata={"Date": None}, facecolor="white")
    plt.close(figure)
