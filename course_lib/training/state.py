"""Models, optimizers and random generators as named tensors, and back.

Tied tensors are named once. Tensors sharded over several processes are gathered in the main one: all must call
together, and the others get none.
"""

import random
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from course_lib.training.distributed import sharded_like

__all__ = ["RandomState", "load_model", "load_optimizers", "model_tensors", "optimizer_tensors", "seed_all"]


def model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return the parameters and saved buffers by name, each once."""
    found: dict[str, Any] = _state_dict().get_model_state_dict(model, options=_gathered())
    return {name: found[name] for name in _own(model) if name in found}


def load_model(model: nn.Module, tensors: dict[str, Tensor], where: str) -> None:
    """Put tensors into the model; raises ValueError that names the tensor and `where` if they do not fit.

    Nothing is changed unless all of them fit.
    """
    own = _own(model)
    for name, tensor in own.items():
        if name not in tensors:
            raise ValueError(f"{where}: no tensor {name!r}, which the model has with shape {tuple(tensor.shape)}")
        if tensors[name].shape != tensor.shape:
            raise ValueError(
                f"{where}: tensor {name!r} has shape {tuple(tensors[name].shape)}, the model expects "
                f"{tuple(tensor.shape)}"
            )
    if unknown := sorted(set(tensors) - set(own)):
        raise ValueError(f"{where}: tensor {unknown[0]!r} is not in the model")
    _state_dict().set_model_state_dict(model, dict(tensors), options=_gathered())


def optimizer_tensors(model: nn.Module, optimizers: Sequence[torch.optim.Optimizer]) -> dict[str, Tensor]:
    """Return what the optimizers remember of each parameter, as "parameter's name/what"."""
    for optimizer in optimizers:
        _names(model, optimizer)  # refuses parameters of another model
    begun = [optimizer for optimizer in optimizers if optimizer.state]  # torch would take a first step of the others
    found: Any = _state_dict().get_optimizer_state_dict(model, begun, options=_gathered()) if begun else {}
    return {
        f"{name}/{key}": torch.as_tensor(value)
        for name, remembered in found.get("state", {}).items()
        for key, value in remembered.items()
    }


def load_optimizers(
    model: nn.Module,
    optimizers: Sequence[torch.optim.Optimizer],
    tensors: dict[str, Tensor],
    where: str,
    *,
    begun: bool = False,
) -> None:
    """Put back what the optimizers remembered; raises ValueError that names the tensor and `where`.

    After the first step, `begun`, those that remember anything must find it.
    """
    if not optimizers:
        return
    if not tensors and begun and any(o.defaults.get("betas") or o.defaults.get("momentum") for o in optimizers):
        raise ValueError(f"{where}: holds no state of an optimizer")
    parameters = {name: p for optimizer in optimizers for name, p in _names(model, optimizer).items()}
    remembered: dict[str, dict[str, Tensor]] = {}
    for full, tensor in tensors.items():
        name, _, key = full.rpartition("/")
        if name not in parameters:
            raise ValueError(f"{where}: optimizer state {full!r} belongs to no parameter that is trained")
        parameter = parameters[name]
        if tensor.dim() and tensor.shape != parameter.shape:
            raise ValueError(
                f"{where}: optimizer state {full!r} has shape {tuple(tensor.shape)}, the parameter has "
                f"{tuple(parameter.shape)}"
            )
        shards = sharded_like(tensor, parameter) if tensor.dim() else tensor
        remembered.setdefault(name, {})[key] = shards.clone()
    # Not torch's set_optimizer_state_dict: it refuses a parameter that never had a gradient, and so has nothing saved.
    for optimizer in optimizers:
        names = enumerate(_names(model, optimizer))
        state = {number: remembered[name] for number, name in names if name in remembered}
        optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


class RandomState(NamedTuple):
    """Where torch's, NumPy's and Python's random generators stand: tensors, and what JSON can hold."""

    tensors: dict[str, Tensor]
    numbers: dict[str, Any]

    @classmethod
    def now(cls) -> "RandomState":
        """Return where those of this process stand."""
        tensors = {"cpu": torch.get_rng_state()}
        for number in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
            tensors[f"cuda/{number}"] = torch.cuda.get_rng_state(number)
        if torch.backends.mps.is_available():
            tensors["mps"] = torch.mps.get_rng_state()
        kind, keys, position, has_gauss, cached = np.random.get_state(legacy=True)  # type: ignore[misc]
        tensors["numpy"] = torch.from_numpy(np.asarray(keys, dtype=np.int64))
        version, numbers, gauss = random.getstate()
        tensors["python"] = torch.tensor(numbers, dtype=torch.int64)
        kept = {"numpy": [str(kind), int(position), int(has_gauss), float(cached)], "python": [version, gauss]}
        return cls(tensors, kept)

    def restore(self) -> None:
        """Set the generators of this process; devices that are not here are passed over."""
        torch.set_rng_state(self.tensors["cpu"])
        for name, tensor in self.tensors.items():
            device, _, number = name.partition("/")
            if device == "cuda" and torch.cuda.is_available() and int(number) < torch.cuda.device_count():
                torch.cuda.set_rng_state(tensor, int(number))
            if device == "mps" and torch.backends.mps.is_available():
                torch.mps.set_rng_state(tensor)
        kind, position, has_gauss, cached = self.numbers["numpy"]
        np.random.set_state((kind, self.tensors["numpy"].numpy().astype(np.uint32), position, has_gauss, cached))
        version, gauss = self.numbers["python"]
        random.setstate((version, tuple(self.tensors["python"].tolist()), gauss))


def seed_all(seed: int) -> None:
    """Seed torch's, NumPy's and Python's random generators."""
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


def _state_dict() -> Any:
    from torch.distributed.checkpoint import state_dict  # takes half a second

    return state_dict


def _gathered() -> Any:
    """Torch's options for state put together from its shards; of tied tensors a second name is missing."""
    return _state_dict().StateDictOptions(full_state_dict=True, cpu_offload=True, strict=False)


def _own(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and saved buffers, tied ones under their first name."""
    seen: set[int] = set()
    own = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            own[name] = tensor
    return own


def _names(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The parameters of an optimizer by their names in the model, in the optimizer's order."""
    names = {id(p): name for name, p in model.named_parameters()}
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for number, p in enumerate(parameters):
        if id(p) not in names:
            raise ValueError(f"optimizers: parameter {number} of {type(optimizer).__name__} is not in the model")
    return {names[id(p)]: p for p in parameters}
