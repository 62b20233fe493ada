"""Several processes on one run: started by torchrun, equal to one process step by step.

Every process reads the same batches and takes every n-th row of each, so that a run does not depend on how many there
are. Gradients are sums over all rows, divided by the number of real tokens in all processes.
"""

import contextlib
import os
from collections.abc import Iterator
from datetime import timedelta
from typing import Any, TypeVar

import psutil
import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib.training.config import Parallel

__all__ = ["Processes", "join_processes"]

JOIN = timedelta(minutes=5)  # for all processes to be there
EXCHANGE = timedelta(minutes=10)  # for the slowest process to reach an exchange, a checkpoint being written included

Batch = dict[str, Tensor]
T = TypeVar("T")


class Processes:
    """The processes of a run, as seen from this one: its rank among them, their number, and its device."""

    def __init__(self, rank: int = 0, world: int = 1, device: torch.device | str = "cpu") -> None:
        self.rank, self.world, self.device = rank, world, torch.device(device)

    @classmethod
    def joined(cls, device: torch.device | str = "cpu") -> "Processes":
        """Return those of the process group that this process has joined, or this one alone."""
        return cls(dist.get_rank(), dist.get_world_size(), device) if dist.is_initialized() else cls(device=device)

    @property
    def main(self) -> bool:
        """Whether this is the process that prints and writes."""
        return self.rank == 0

    def sum(self, values: Tensor) -> Tensor:
        """Sum a tensor over all processes, in place."""
        if self.world > 1:
            dist.all_reduce(values)
        return values

    def barrier(self) -> None:
        """Wait until all processes are here."""
        if self.world > 1:
            dist.barrier()

    def gather(self, value: T) -> list[T]:
        """Return the value of each process, in the order of ranks."""
        found: list[T] = [value] * self.world
        if self.world > 1:
            dist.all_gather_object(found, value)
        return found

    def share(self, batch: Batch) -> tuple[Batch, bool]:
        """Return this process's rows of a batch on its device, and whether there are any.

        With fewer rows than processes, some get the first row to keep in step, and must count it as nothing.
        """
        if self.world == 1:
            return {name: tensor.to(self.device, non_blocking=True) for name, tensor in batch.items()}, True
        rows = {name: tensor[self.rank :: self.world] for name, tensor in batch.items()}
        empty = any(tensor.size(0) == 0 for tensor in rows.values())
        rows = {name: tensor[:1] for name, tensor in batch.items()} if empty else rows
        return {name: tensor.to(self.device, non_blocking=True) for name, tensor in rows.items()}, not empty

    def wrap(self, model: nn.Module, how: Parallel) -> nn.Module:
        """Return the module to call in training: the model itself, or the one that keeps its copies or shards equal.

        "ddp" keeps a copy of the weights in each process. "fsdp" shards the weights, their gradients and the optimizer
        over the processes, layer by layer, and changes the model in place.
        """
        if self.world == 1:
            return model
        if how == "ddp":
            devices = None if self.device.type == "cpu" else [self.device]
            return nn.parallel.DistributedDataParallel(model, device_ids=devices, gradient_as_bucket_view=True)
        from torch.distributed.fsdp import fully_shard

        for part in reversed(list(model.modules())):  # inner lists before those around them
            if isinstance(part, nn.ModuleList):
                for layer in part:
                    fully_shard(layer)
        fully_shard(model)
        return model

    @contextlib.contextmanager
    def accumulating(self, wrapped: nn.Module, last: bool) -> Iterator[None]:
        """Put off the exchange of gradients until the last backward pass of an update."""
        if self.world == 1:
            yield
        elif isinstance(wrapped, nn.parallel.DistributedDataParallel):
            with contextlib.nullcontext() if last else wrapped.no_sync():
                yield
        else:
            wrapped.set_requires_gradient_sync(last)  # type: ignore[operator]
            yield


def gathered(tensor: Tensor) -> Tensor:
    """Put together a tensor whose shards lie in several processes; any other is returned as it is."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def sharded_like(tensor: Tensor, other: Any) -> Tensor:
    """Cut a tensor that every process has into the shards of `other`, where it has any."""
    if not hasattr(other, "full_tensor"):
        return tensor
    from torch.distributed.tensor import distribute_tensor  # costs most of a second to import

    return distribute_tensor(tensor.to(other.device), other.device_mesh, other.placements, src_data_rank=None)


@contextlib.contextmanager
def join_processes(device: str | None = None) -> Iterator[Processes]:
    """Join the processes that torchrun started, or be alone, and leave at the end.

    Args:
        device: "cpu", "cuda" or "mps"; the best there is unless given. Each process takes the GPU of its local rank.

    The exchange is by NCCL on GPUs and by gloo on CPUs. Raises ConnectionError if the others do not come.
    """
    kind = str(chosen_device(device))
    told = told_processes()
    if told is None:
        yield Processes(device=kind)
        return
    rank, world = told
    if kind == "cuda":
        kind = f"cuda:{os.environ.get('LOCAL_RANK', '0')}"
        torch.cuda.set_device(torch.device(kind))
    backend = "nccl" if kind.startswith("cuda") else "gloo"
    if os.environ.get("LOCAL_WORLD_SIZE") == os.environ["WORLD_SIZE"] and (name := _loopback()):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", name)  # all on this machine, whose name may not be known to it
    try:
        store, rank, world = next(iter(dist.rendezvous("env://", timeout=JOIN)))
    except RuntimeError as error:
        where = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
        raise ConnectionError(
            f"process {rank} of {world} did not meet the others at {where} ({str(error).splitlines()[0]})"
        ) from error
    # After a restart, torchrun's store still holds the addresses of the processes that died: each attempt has its own.
    store = dist.PrefixStore(f"attempt-{os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}", store)
    dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=EXCHANGE)
    try:
        yield Processes.joined(kind)
    finally:
        dist.destroy_process_group()


def told_processes() -> tuple[int, int] | None:
    """Return the rank and the number of processes that torchrun told, None without it. Raises ValueError."""
    told = {name: os.environ[name] for name in ("RANK", "WORLD_SIZE") if name in os.environ}
    if len(told) < 2:
        return None
    if wrong := next((name for name, value in told.items() if not (value.isascii() and value.isdigit())), None):
        raise ValueError(f"{wrong}: expected a whole number, as torchrun sets it in the environment, got {told[wrong]}")
    rank, world = map(int, told.values())
    if rank >= world:
        raise ValueError(f"RANK: expected less than WORLD_SIZE={world} in the environment, got {rank}")
    return rank, world


def _loopback() -> str | None:
    """Return the name of the network interface of 127.0.0.1."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(address.address == "127.0.0.1" for address in addresses):
            return name
    return None


def chosen_device(name: str | None) -> torch.device:
    """Return the device of that name, the best there is for None. Raises ValueError for one that is not there."""
    best = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    name = name or best
    try:
        torch.empty(1, device=name).item()  # which "meta" cannot tell, either
    except (AssertionError, RuntimeError, NotImplementedError):  # torch says any
        why = f": {no_gpu()}" if str(name).startswith(("cuda", "mps")) else ""
        raise ValueError(f"device: expected one that is here, such as 'cpu', got {name!r}{why}") from None
    return torch.device(name)


def no_gpu() -> str:
    """Say why torch finds no GPU, or how many."""
    if count := torch.cuda.device_count():
        return f"there are {count} GPUs, counted from 0"
    if torch.backends.mps.is_built():
        return "MPS needs an Apple processor and macOS 14"
    if torch.version.cuda is torch.version.hip is None:
        return "this PyTorch is built for CPUs alone; pytorch.org says which to install"
    if os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return "CUDA_VISIBLE_DEVICES hides every GPU"
    return f"no driver shows one; nvidia-smi says what it sees, and CUDA {torch.version.cuda} needs a driver as new"
