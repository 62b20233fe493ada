"""A training loop under watch: what each update and each look at held-out data did, on a device that is not there."""

# mypy: ignore-errors

import contextlib
import tempfile
from pathlib import Path
from unittest import mock

import torch
import torch.nn.functional as F
from torch import nn

from coursework.exercises.spec import FOLDER
from coursework.exercises.tensors import normal

__all__ = ["batches", "run"]

_autocast = torch.autocast


class _Net(nn.Module):
    """Scores (N, V) of features (N, D), with dropout; it knows on which device it was put."""

    def __init__(self, weight):
        super().__init__()
        self.weight = nn.Parameter(weight.clone())
        self.place = torch.device("cpu")

    def to(self, device, *args, **kwargs):
        self.place = torch.device(device)
        return self

    def forward(self, features):
        return F.dropout(features, 0.5, self.training) @ self.weight.T


class _Elsewhere:
    """A tensor in the memory of the CPU, as one sees it that computes on another device."""

    def __init__(self, tensor):
        self.tensor, self.place = tensor, torch.device("cpu")

    def to(self, device, *args, **kwargs):
        moved = _Elsewhere(self.tensor)
        moved.place = torch.device(device)
        return moved


class _Data:
    """Batches in their order, again and again; the state is the number of those that were taken."""

    def __init__(self, batches):
        self.batches, self.taken = batches, 0

    def forever(self):
        while True:
            self.taken += 1
            yield self.batches[(self.taken - 1) % len(self.batches)]

    def state_dict(self):
        return {"taken": self.taken}

    def load_state_dict(self, state):
        self.taken = state["taken"]


class _Config:
    """The settings that the loop reads, named like those of `TrainingConfig`."""

    def __init__(self, steps, evaluate_every, accumulation, precision):
        self.steps, self.evaluate_every, self.accumulation = steps, evaluate_every, accumulation
        self.precision, self.clip = precision, 0.5

    def rate(self, step):
        return 0.5 / step


class _Stopped(Exception):
    """Somebody has pulled the plug."""


class _Watch:
    """Runs a loop and notes what it does."""

    def __init__(self, weight, batches, held_out, stop=0):
        self.model = _Net(weight)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.5)
        self.names = {}
        self.data = _Data([self._named(f"batch {n}", batch) for n, batch in enumerate(batches)])
        self.held_out = [self._named(f"held-out batch {n}", batch) for n, batch in enumerate(held_out)]
        self.stop, self.inside, self.updates, self.looks, self.kinds = stop, False, [], [], []

    def _named(self, name, batch):
        features, targets = batch
        self.names[id(features)] = name
        return {"features": _Elsewhere(features), "targets": _Elsewhere(targets)}

    def autocast(self, device_type, dtype=None, enabled=True, cache_enabled=None):
        self.kinds.append(str(device_type))
        return _autocast("cpu", dtype=dtype or torch.bfloat16, enabled=enabled)

    def loss_of(self, model, batch):
        features, targets = batch["features"], batch["targets"]
        if not features.place == targets.place == self.model.place:
            raise RuntimeError(
                "Expected all tensors to be on the same device, but found at least two devices, "
                f"{features.place} and {self.model.place}"
            )
        rough = torch.is_autocast_enabled("cpu")
        mode = "training" if model.training else "evaluation"
        kept = "" if torch.is_grad_enabled() else ", without gradients"
        own = f" of {self.kinds[-1]}" if rough else ""
        line = f"{self.names[id(features.tensor)]} in {mode} mode{kept}{f', under autocast{own}' if rough else ''}"
        (self.updates if self.inside else self.looks).append(line)
        scores = model(features.tensor).float()
        costs = F.cross_entropy(scores, targets.tensor, reduction="none")
        real = targets.tensor != 0
        return costs[real].sum(), real.sum()

    def step_of(self, model, parts, optimizer, rate, clip, loss_of):
        if self.stop and len(self.rates()) == self.stop:
            raise _Stopped
        around = ", all of it under autocast" if torch.is_autocast_enabled("cpu") else ""
        self.updates.append(f"an update of {len(parts)} at rate {rate:.4f}, clip {clip}{around}:")
        self.inside = True
        total = count = 0
        for batch in parts:
            loss, tokens = loss_of(model, batch)
            loss.backward()
            total, count = total + float(loss.detach()), count + int(tokens)
        self.inside = False
        for p in model.parameters():
            p.grad /= count
        optimizer.param_groups[0]["lr"] = rate
        optimizer.step()
        optimizer.zero_grad()
        return total / count, 0.0

    def rates(self):
        return [line for line in self.updates if line.startswith("an update")]

    def run(self, loop, config, path, device):
        # A loop may keep the random numbers of the device that is not there, too; nothing draws from them.
        draws = {"get_rng_state": lambda *_: torch.get_rng_state(), "set_rng_state": lambda *_: None}
        draws |= {"get_rng_state_all": lambda: [torch.get_rng_state()], "set_rng_state_all": lambda _: None}
        with (
            mock.patch("torch.autocast", self.autocast),
            mock.patch("torch.amp.autocast", self.autocast),
            mock.patch.multiple("torch.cuda", **draws),
        ):
            arguments = self.step_of, self.loss_of, self.data, self.held_out, config, path, device
            return loop(self.model, self.optimizer, *arguments)


def run(loop, weight, data, held_out, steps, evaluate_every, accumulation=1, precision="float32", stop=0,
         device="cpu"):  # fmt: skip
    """The updates, the looks at the held-out batches, the history, the weights; with `stop`, of a run that was stopped
    in the update after so many, and of the one that went on from its file.
    """
    config = _Config(steps, evaluate_every, accumulation, precision)
    with tempfile.TemporaryDirectory(prefix=FOLDER) as folder:
        path = Path(folder, "checkpoint.pt")
        torch.manual_seed(1)
        watch = _Watch(weight, data, held_out, stop)
        found = {}
        if stop:
            with contextlib.suppress(_Stopped):
                watch.run(loop, config, path, device)
            watch = _Watch(weight * 0, data, held_out)
            torch.manual_seed(99)
            found["the file is there"] = path.exists()
        history = watch.run(loop, config, path, device)
    found["updates"] = watch.updates
    found["looks at the held-out data"] = watch.looks
    if isinstance(history, tuple | list):
        history = [tuple(map(float, one)) if isinstance(one, tuple | list) else one for one in history]
    found["history"] = history
    found["weights afterwards"] = watch.model.weight.detach()
    return found


def batches(counts, D, V, seed):
    """For each of `counts` a batch of so many rows; the last id of the longer ones is padding."""
    made = []
    for number, n in enumerate(counts):
        ids = torch.tensor([1 + (seed + number + k) % (V - 1) for k in range(n)])
        ids[n - 1] = 0 if n > 2 else ids[n - 1]
        made.append((normal(n, D, seed=seed + number, grad=False), ids))
    return made
