"""Models, optimizers and random generators as named tensors, and back.

Tied tensors are named once. Tensors sharded over several processes are gathered; all processes must call together.
"""

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

__all__ = [
    "load_model",
    "load_optimizers",
    "load_random_state",
    "model_tensors",
    "optimizer_tensors",
    "random_tensors",
    "seed_all",
]


def model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return the parameters and saved buffers by name, each once."""
    return {name: _gathered(tensor) for name, tensor in _own(model).items()}


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
    with torch.no_grad():
        for name, tensor in own.items():
            _copy(tensor, tensors[name])


def optimizer_tensors(model: nn.Module, optimizers: Sequence[torch.optim.Optimizer]) -> dict[str, Tensor]:
    """Return what the optimizers remember of each parameter, as "parameter's name/what"."""
    found = {}
    for optimizer in optimizers:
        for name, parameter in _names(model, optimizer).items():
            for key, value in optimizer.state.get(parameter, {}).items():
                found[f"{name}/{key}"] = _gathered(torch.as_tensor(value))
    return found


def load_optimizers(
    model: nn.Module, optimizers: Sequence[torch.optim.Optimizer], tensors: dict[str, Tensor], where: str
) -> None:
    """Put back what the optimizers remembered; raises ValueError that names the tensor and `where`."""
    places = {name: (optimizer, p) for optimizer in optimizers for name, p in _names(model, optimizer).items()}
    if not optimizers:
        return
    for full, tensor in tensors.items():
        name, _, key = full.rpartition("/")
        if name not in places:
            raise ValueError(f"{where}: optimizer state {full!r} belongs to no parameter that is trained")
        parameter = places[name][1]
        if tensor.dim() and tensor.shape != parameter.shape:
            raise ValueError(
                f"{where}: optimizer state {full!r} has shape {tuple(tensor.shape)}, the parameter has "
                f"{tuple(parameter.shape)}"
            )
    for optimizer in optimizers:
        optimizer.state.clear()
    for full, tensor in tensors.items():
        name, _, key = full.rpartition("/")
        optimizer, parameter = places[name]
        if tensor.dim() == 0:  # AdamW's count of steps; fused kernels want it where the parameter is
            fused = any(group.get("fused") for group in optimizer.param_groups)
            optimizer.state[parameter][key] = tensor.to(parameter.device if fused else "cpu").clone()
        else:
            value = torch.empty_like(parameter, requires_grad=False)
            _copy(value, tensor)
            optimizer.state[parameter][key] = value


def random_tensors() -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the state of torch's, NumPy's and Python's random generators: tensors, and what JSON can hold."""
    tensors = {"cpu": torch.get_rng_state()}
    for number in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        tensors[f"cuda/{number}"] = torch.cuda.get_rng_state(number)
    if torch.backends.mps.is_available():
        tensors["mps"] = torch.mps.get_rng_state()
    kind, keys, position, has_gauss, cached = np.random.get_state(legacy=True)  # type: ignore[misc]
    tensors["numpy"] = torch.from_numpy(np.asarray(keys, dtype=np.int64))
    version, numbers, gauss = random.getstate()
    tensors["python"] = torch.tensor(numbers, dtype=torch.int64)
    return tensors, {"numpy": [str(kind), int(position), int(has_gauss), float(cached)], "python": [version, gauss]}


def load_random_state(tensors: dict[str, Tensor], numbers: dict[str, Any]) -> None:
    """Set the random generators as `random_tensors` found them; devices that are not here are passed over."""
    torch.set_rng_state(tensors["cpu"])
    for name, tensor in tensors.items():
        device, _, number = name.partition("/")
        if device == "cuda" and torch.cuda.is_available() and int(number) < torch.cuda.device_count():
            torch.cuda.set_rng_state(tensor, int(number))
        if device == "mps" and torch.backends.mps.is_available():
            torch.mps.set_rng_state(tensor)
    kind, position, has_gauss, cached = numbers["numpy"]
    np.random.set_state((kind, tensors["numpy"].numpy().astype(np.uint32), position, has_gauss, cached))
    version, gauss = numbers["python"]
    random.setstate((version, tuple(tensors["python"].tolist()), gauss))


def seed_all(seed: int) -> None:
    """Seed torch's, NumPy's and Python's random generators."""
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


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


def _gathered(tensor: Tensor) -> Tensor:
    whole = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return whole.detach().cpu()


def _copy(target: Any, source: Tensor) -> None:
    if hasattr(target, "full_tensor"):
        from torch.distributed.tensor import distribute_tensor  # costs most of a second to import

        source = distribute_tensor(source.to(target.device), target.device_mesh, target.placements, src_data_rank=None)
    target.copy_(source)
