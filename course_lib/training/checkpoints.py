"""Checkpoints, states of training on the disk: tensors in safetensors, all else in JSON, each written in one step.

There is one form, for a `Run` and for a loop of your own. A checkpoint of step 500 is two files,
`step-00000500.safetensors` and `step-00000500.json`. The second is written last and names the size and checksum of the
first, and its own: without it, or if anything differs, there is no checkpoint, and the one before counts. A process
killed at any byte leaves the old checkpoints as they were.
"""

import hashlib
import json
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from course_lib.checks import Count, Within, checked
from course_lib.files import sweep, write_atomic
from course_lib.reading import Unreadable, read_json
from course_lib.training.distributed import Processes
from course_lib.training.state import RandomState, load_model, load_optimizers, model_tensors, optimizer_tensors

__all__ = [
    "Checkpoint",
    "CheckpointError",
    "average_checkpoints",
    "checkpoint_path",
    "list_checkpoints",
    "load_checkpoint",
    "read_checkpoint",
    "save_checkpoint",
]

_NAME = re.compile(r"step-(\d{8,})\.json")
_FORMAT = 1


class CheckpointError(ValueError):
    """A checkpoint that cannot be used; the message names the file and what is wrong with it."""


@dataclass(frozen=True)
class Checkpoint:
    """What one checkpoint holds, and what was wrong with later ones that were passed over."""

    path: Path  # the JSON file
    step: int
    state: dict[str, Any]
    tensors: dict[str, Tensor]
    passed_over: list[str] = field(default_factory=list)

    def part(self, name: str) -> dict[str, Tensor]:
        """Return the tensors of "model", "optimizer" or "random" without that prefix."""
        return _below(f"{name}.", self.tensors)

    @property
    def random(self) -> list[RandomState]:
        """The random generators of each process that wrote it."""
        tensors, numbers = self.part("random"), self.state["random"]
        if isinstance(numbers, dict):  # of `save_checkpoint` before it wrote the form of runs
            return [RandomState(tensors, numbers)]
        return [RandomState(_below(f"{rank}/", tensors), own) for rank, own in enumerate(numbers)]


@checked
def save_checkpoint(
    folder: str | Path,
    step: Annotated[int, Within(0, 2**53)],
    model: nn.Module,
    optimizers: Sequence[torch.optim.Optimizer] = (),
    *,
    state: dict[str, Any] | None = None,
    keep: Count = 3,
    protect: Collection[int] = (),
) -> Path:
    """Write weights, optimizers and the state of all random generators, so that training can go on bit for bit.

    The processes of torch's process group, where there is one, call this together, and the main one writes.

    Args:
        folder: made if it is not there.
        step: updates done so far.
        model: its parameters and buffers, tied ones once.
        optimizers: their state, by the names of the parameters.
        state: anything else, of JSON's kinds: the position in the data, the best loss so far.
        keep: how many checkpoints stay in the folder, this one included.
        protect: steps whose checkpoints stay, too.

    Raises OSError if it cannot be written; the earlier checkpoints are then untouched.
    """
    try:
        json.dumps(state)
    except (TypeError, ValueError) as error:
        raise TypeError(f"state: expected what JSON holds: {error}") from None
    processes = Processes.joined()
    tensors = {f"model.{name}": t for name, t in model_tensors(model).items()}
    tensors |= {f"optimizer.{name}": t for name, t in optimizer_tensors(model, optimizers).items()}
    randoms = processes.gather(RandomState.now())
    for rank, random in enumerate(randoms):
        tensors |= {f"random.{rank}/{name}": t for name, t in random.tensors.items()}
    path = checkpoint_path(folder, step)
    problem = None
    if processes.main:
        try:
            _write(path, step, tensors, {**(state or {}), "random": [random.numbers for random in randoms]})
            _remove_old(path.parent, keep, {checkpoint_path(folder, kept) for kept in protect})
        except OSError as error:
            problem = error
    if problem := processes.gather(problem)[0]:  # all learn of it, so that none waits for another
        raise problem
    return path


@checked
def load_checkpoint(
    folder: str | Path, model: nn.Module, optimizers: Sequence[torch.optim.Optimizer] = (), *, random: bool = True
) -> Checkpoint:
    """Put the newest undamaged checkpoint of a folder back into model, optimizers and random generators.

    Args:
        folder: where `save_checkpoint` wrote, such as `checkpoints/` in the folder of a run; or one JSON file in it.
        model, optimizers: of the architecture that was saved.
        random: also set the random generators, if it was written by as many processes as there are now.

    Raises:
        FileNotFoundError: there is no checkpoint.
        CheckpointError: all are damaged, or the model is of another architecture; the message names file and tensor.
    """
    found = read_checkpoint(folder)
    where = str(found.path.with_suffix(".safetensors"))
    try:
        load_model(model, found.part("model"), where)
        load_optimizers(model, optimizers, found.part("optimizer"), where, begun=found.step > 0)
    except ValueError as error:
        raise CheckpointError(str(error)) from None
    processes = Processes.joined()
    if random and len(found.random) == processes.world:
        found.random[processes.rank].restore()
    return found


def checkpoint_path(folder: str | Path, step: int) -> Path:
    """Return the JSON file that the checkpoint of a step has in a folder."""
    return Path(folder) / f"step-{step:08d}.json"


def list_checkpoints(folder: str | Path) -> list[Path]:
    """Return the JSON files of a folder's checkpoints, the oldest first, damaged ones included."""
    found = ((_NAME.fullmatch(path.name), path) for path in Path(folder).glob("step-*.json"))
    return [path for _, path in sorted((int(name[1]), path) for name, path in found if name)]


def read_checkpoint(folder: str | Path) -> Checkpoint:
    """Read the newest undamaged checkpoint of a folder, or the one of a JSON file; errors as `load_checkpoint`."""
    folder = Path(folder)
    paths = [folder] if folder.suffix == ".json" else list_checkpoints(folder)[::-1]
    passed_over: list[str] = []
    for path in paths:
        try:
            return _read(path, passed_over)
        except CheckpointError as error:
            passed_over.append(str(error))
    if passed_over:
        raise CheckpointError("; ".join(passed_over))
    raise FileNotFoundError(f"{folder}: there is no checkpoint")


def _write(path: Path, step: int, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
    _remove_temporary(path.parent)
    path.unlink(missing_ok=True)  # of an earlier run beyond this step: its tensors are about to go
    payload = safetensors.torch.save({name: t.detach().cpu().contiguous() for name, t in tensors.items()})
    write_atomic(path.with_suffix(".safetensors"), payload)
    document = {
        "format": _FORMAT,
        "step": step,
        "bytes": len(payload),
        "sha256": hashlib.sha256(payload).hexdigest(),
        "state": state,
    }
    document["checksum"] = _checksum(document)
    write_atomic(path, json.dumps(document))


def _remove_old(folder: Path, keep: int, protected: Collection[Path]) -> None:
    for old in list_checkpoints(folder)[:-keep]:
        if old not in protected:
            old.unlink(missing_ok=True)  # first, so that what is left is no checkpoint
            old.with_suffix(".safetensors").unlink(missing_ok=True)


@checked
def average_checkpoints(folder: str | Path, last: Count) -> dict[str, Tensor]:
    """Return the mean of the weights of the last undamaged checkpoints, by name, for `load_state_dict`.

    Integer and boolean tensors are taken from the newest. Raises ValueError if fewer than `last` are there.

    Source: Vaswani et al. 2017, section 6.1, where the base models average the last 5.
    """
    sums: dict[str, Tensor] = {}
    newest: dict[str, Tensor] = {}
    count = 0
    for path in list_checkpoints(folder)[::-1]:
        try:
            weights = _read(path, []).part("model")
        except CheckpointError:
            continue
        newest = newest or weights
        for name, tensor in weights.items():
            sums[name] = sums[name] + tensor.double() if name in sums else tensor.double()
        count += 1
        if count == last:
            return {
                name: (total / count).to(newest[name].dtype) if newest[name].is_floating_point() else newest[name]
                for name, total in sums.items()
            }
    raise ValueError(f"last: expected at most {count}, the undamaged checkpoints in {folder}, got {last}")


def _read(path: Path, passed_over: list[str]) -> Checkpoint:
    try:
        document = read_json(path, {"checksum": str})
        right = document["checksum"] == _checksum({k: v for k, v in document.items() if k != "checksum"})
    except Unreadable as error:
        raise CheckpointError(f"{path}: damaged, got {error.got}") from None
    if not right:
        raise CheckpointError(f"{path}: damaged, its checksum does not fit")
    if document["format"] != _FORMAT:
        raise CheckpointError(f"{path}: written by another version, format {document['format']!r}, not {_FORMAT}")
    file = path.with_suffix(".safetensors")
    try:
        payload = file.read_bytes()
    except FileNotFoundError:
        raise CheckpointError(f"{file}: missing") from None
    if len(payload) != document["bytes"]:
        raise CheckpointError(f"{file}: damaged, {len(payload)} bytes in place of {document['bytes']}")
    if hashlib.sha256(payload).hexdigest() != document["sha256"]:
        raise CheckpointError(f"{file}: damaged, its checksum does not fit")
    try:
        tensors = safetensors.torch.load(payload)
    except SafetensorError as error:
        raise CheckpointError(f"{file}: not a safetensors file ({error})") from None
    # A file is read in any order; processes share out one tensor after another, so all need the same.
    return Checkpoint(path, document["step"], document["state"], dict(sorted(tensors.items())), passed_over)


def _below(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _checksum(document: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def _remove_temporary(folder: Path) -> None:
    """Remove what a killed process left half-written, and tensors that never got their JSON."""
    sweep(folder)
    for path in folder.glob("step-*.safetensors"):
        if not path.with_suffix(".json").exists():
            path.unlink(missing_ok=True)
