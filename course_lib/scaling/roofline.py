"""The roofline of a machine: how fast it multiplies matrices, how fast it moves bytes, and what a pass made of it.

Source: Williams, Waterman and Patterson 2009, "Roofline: An Insightful Visual Performance Model".
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch

from course_lib.checks import NotNegative, Positive, check_number, checked

# Dense peaks in FLOP/s and memory bandwidth in bytes/s of one device, as the makers' data sheets give them (their
# larger numbers "with sparsity" are twice these). float32 means true float32, not TF32.
# Sources: NVIDIA data sheets of T4 (2018), V100 (2018), A100 (2021), H100 (2022), H200 (2023), L4 (2023), and the
# NVIDIA Ada GPU architecture paper (2022) for the RTX 4090, bfloat16 with float32 accumulation.
PEAKS: dict[str, dict[str, float]] = {
    "T4": {"float32": 8.1e12, "float16": 65e12, "bandwidth": 320e9},
    "V100": {"float32": 15.7e12, "float16": 125e12, "bandwidth": 900e9},
    "A100": {"float32": 19.5e12, "tf32": 156e12, "float16": 312e12, "bfloat16": 312e12, "bandwidth": 2039e9},
    "H100": {"float32": 66.9e12, "tf32": 494.7e12, "float16": 989.4e12, "bfloat16": 989.4e12, "bandwidth": 3350e9},
    "H200": {"float32": 66.9e12, "tf32": 494.7e12, "float16": 989.4e12, "bfloat16": 989.4e12, "bandwidth": 4800e9},
    "L4": {"float32": 30.3e12, "tf32": 60e12, "float16": 121e12, "bfloat16": 121e12, "bandwidth": 300e9},
    "RTX 4090": {"float32": 82.6e12, "tf32": 82.6e12, "float16": 165.2e12, "bfloat16": 165.2e12, "bandwidth": 1008e9},
}


class Roofline(NamedTuple):
    """What a machine can do at most: multiply matrices, and move bytes."""

    flops_per_second: float
    bytes_per_second: float

    @property
    def ridge(self) -> float:
        """FLOP a byte at which both take equally long: below it a kernel waits for memory."""
        return self.flops_per_second / self.bytes_per_second

    @checked
    def seconds(self, flops: NotNegative, n_bytes: NotNegative) -> float:
        """Return the least time for work of so many operations and bytes."""
        for name, value in self._asdict().items():
            check_number(name, value, above=0)
        return max(flops / self.flops_per_second, n_bytes / self.bytes_per_second)


@checked
def measure_roofline(
    device: str | torch.device = "cpu", dtype: torch.dtype = torch.float32, *, seconds: Positive = 0.3
) -> Roofline:
    """Measure the roofline: the fastest of several square products, and of a copy too large for any cache.

    Args:
        device: where.
        dtype: of the matrices and of the copy.
        seconds: each is repeated for that long at least; the median counts.
    """
    if not dtype.is_floating_point:
        raise ValueError(f"dtype: expected one of floating-point numbers, got {dtype}")
    device = torch.device(device)
    sizes = (512, 1024, 1536) if device.type == "cpu" else (4096, 8192)
    speeds = []
    for n in sizes:
        a, b = (torch.randn(n, n, device=device, dtype=dtype) for _ in range(2))
        out = torch.empty_like(a)
        speeds.append(2 * n**3 / _median_seconds(partial(torch.mm, a, b, out=out), device, seconds))
    n_bytes = 2**27 if device.type == "cpu" else 2**30
    source = torch.ones(n_bytes // dtype.itemsize, device=device, dtype=dtype)
    target = torch.empty_like(source)
    moved = 2 * source.nbytes  # read and written
    return Roofline(max(speeds), moved / _median_seconds(lambda: target.copy_(source), device, seconds))


@checked
def published_peak(device_name: str, dtype: str = "bfloat16") -> float:
    """Return the published dense peak in FLOP/s of a GPU, by the name that torch gives it.

    Raises ValueError for an unknown GPU or a dtype it has no peak for: measure instead, see `measure_roofline`.
    """
    for name, peaks in PEAKS.items():
        if name in device_name:
            if dtype not in peaks:
                raise ValueError(f"dtype: {name} has published peaks for {sorted(peaks)}, got {dtype!r}")
            return peaks[dtype]
    raise ValueError(f"device_name: expected one of {sorted(PEAKS)}, got {device_name!r}; measure_roofline measures")


def mfu(flops: float, seconds: float, peak: float) -> float:
    """Model FLOPs utilisation: the share of `peak` that a pass of so many model operations made use of.

    Model operations are those of `count_flops` without recomputation, whatever the program really did.
    Source: Chowdhery et al. 2022 (PaLM), section 4.1. Raises ValueError unless all are positive.
    """
    for name, value in (("flops", flops), ("seconds", seconds), ("peak", peak)):
        check_number(name, value, above=0)
    return flops / seconds / peak


def _median_seconds(work: Callable[[], Any], device: torch.device, least: float) -> float:
    """Of one call, of calls that take `least` seconds or more together."""
    from torch.utils.benchmark import Timer

    wait = torch.mps.synchronize if device.type == "mps" else lambda: None  # for CUDA, Timer waits
    timer = Timer("work(); wait()", globals={"work": work, "wait": wait}, num_threads=torch.get_num_threads())
    return timer.blocked_autorange(min_run_time=least).median
