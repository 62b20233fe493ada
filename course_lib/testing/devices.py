"""The law of devices, tried without an accelerator: tensors with numbers that say they lie on another device.

The device is torch's "meta". A mode makes what is asked for there, or moved there, keep its numbers on the CPU,
computes with them, and stops where an operation gets tensors of both devices. So code whose way depends on its numbers
runs, too. Where `COURSE_DEVICE` names a device, such as cuda, that one is taken instead, and torch itself refuses.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.utils._device import _device_constructors
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from course_lib.testing.common import seeded

REAL = os.environ.get("COURSE_DEVICE")
_THERE = torch.empty(0, device=REAL or "meta").device  # with its number
_HERE = torch.device("cpu")
# What torch lets read from another device: copies, and rows chosen by numbers that the host has.
_MAY_MIX = {"aten::copy_", "aten::_to_copy", "aten::index.Tensor"}
_MAY_MIX |= {"aten::index_put", "aten::index_put_", "aten::_index_put_impl_"}


class _There(Tensor):
    """A tensor that says it lies there; `numbers` lie here."""

    numbers: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, numbers: Tensor) -> "_There":
        sizes: Any = {"strides": numbers.stride(), "storage_offset": numbers.storage_offset(), "dtype": numbers.dtype}
        return Tensor._make_wrapper_subclass(cls, numbers.shape, **sizes, device=_THERE)  # type: ignore[attr-defined]

    def __init__(self, numbers: Tensor) -> None:
        self.numbers = numbers

    def tolist(self) -> Any:
        """Torch would refuse this of tensors that are not its own."""
        return self.numbers.tolist()

    def new_tensor(self, data: Any, *, dtype: Any = None, device: Any = None, **kwargs: Any) -> Tensor:  # type: ignore[override]
        """Torch would forget the numbers."""
        return torch.tensor(data, dtype=dtype or self.dtype, device=device or self.device, **kwargs)

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]
        return f"{self.numbers!r} on another device"

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return _compute(func, args, kwargs or {})


class _Watching(TorchDispatchMode):
    """Sees every operation, also those that only make tensors."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _compute(func, args, kwargs or {})


def _compute(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Run an operation on the numbers; what comes out lies where torch would put it."""
    given = [value for value in tree_leaves((args, kwargs)) if isinstance(value, Tensor)]
    there = [tensor for tensor in given if isinstance(tensor, _There)]
    asked = kwargs.get("device")
    if there:
        _insist_on_one_device(func, given, there[0])
    goes_there = bool(there) if asked is None else torch.device(asked) == _THERE
    if func.name() == "aten::copy_":
        goes_there = isinstance(args[0], _There)
    if goes_there and kwargs.get("generator") is not None:
        raise AssertionError(f"{func.name()} draws on the other device with a generator that lies on the CPU")
    known = {id(tensor.numbers): tensor for tensor in there}
    plain_args, plain = tree_map_only(_There, lambda tensor: tensor.numbers, (args, kwargs))
    found = func(*plain_args, **(plain if asked is None else {**plain, "device": _HERE}))
    if not goes_there:
        return found
    return tree_map_only(Tensor, lambda one: known[id(one)] if id(one) in known else _There(one), found)


def _insist_on_one_device(func: Any, given: list[Tensor], there: Tensor) -> None:
    here = [tensor for tensor in given if not isinstance(tensor, _There)]
    written = func._schema.is_mutable and not isinstance(given[0], _There)
    wrong = here[:1] if written else [tensor for tensor in here if tensor.dim()]  # a single number may come from here
    if wrong and func.name() not in _MAY_MIX:
        raise AssertionError(
            f"{func.name()} mixes devices: a tensor {tuple(wrong[0].shape)} lies on the CPU, "
            f"one {tuple(there.shape)} on the other device"
        )


@contextmanager
def another_device(*modules: nn.Module) -> Iterator[torch.device]:
    """Put the modules on a pretended device, and give it: `tensor.to(device)` moves there, `tensor.cpu()` back.

    An operation on tensors of both raises AssertionError with its name and their shapes, where torch would refuse it on
    an accelerator; so does autocast for another device. Afterwards the modules are back, with the same parameters and
    their values as they are then. Nothing compiled runs there.
    """
    if REAL:
        try:
            yield _at_once(modules, _THERE)
        finally:
            _at_once(modules, _HERE)
        return
    autocast, enabled = torch.autocast, torch.is_autocast_enabled
    _device_constructors()  # torch keeps them from the first call on: they must be its own, not those set below

    def casts(kind: str, *args: Any, **kwargs: Any) -> Any:  # torch knows no autocast for this device
        if kind != _THERE.type and kwargs.get("enabled", True):
            raise AssertionError(f"autocast is opened for {kind!r}, and not for the device of what is computed")
        return autocast("cpu", enabled=False)

    def keeping(make: Callable[..., Tensor]) -> Callable[..., Tensor]:  # torch would forget the numbers
        def made(data: Any, *, device: Any = None, **kwargs: Any) -> Tensor:
            if device is None:
                device = data.device if isinstance(data, Tensor) else torch.empty(0).device
            return make(data, device=data.device if isinstance(data, Tensor) else _HERE, **kwargs).to(device)

        return made

    with ExitStack() as stack:
        stack.enter_context(mock.patch("torch.autocast", casts))
        stack.enter_context(
            mock.patch("torch.is_autocast_enabled", lambda kind="cuda": kind != _THERE.type and enabled(kind))
        )
        for make in (torch.tensor, torch.as_tensor):
            stack.enter_context(mock.patch(f"torch.{make.__name__}", keeping(make)))
        stack.enter_context(_Watching())
        for module in modules:
            stack.callback(_move_back, module, _move(module))
        yield _THERE


def _at_once(modules: tuple[nn.Module, ...], device: torch.device) -> torch.device:
    for module in modules:
        module.to(device)
    return device


def _move(module: nn.Module) -> dict[int, Tensor]:
    """Put weights there, tied ones tied, which share their numbers with those here; the latter by the id of the new."""
    there: dict[int, Tensor] = {}
    here: dict[int, Tensor] = {}
    for tensors, name, tensor in _weights(module):
        if id(tensor) not in there:
            moved: Tensor = _There(tensor.detach())
            moved = nn.Parameter(moved, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else moved
            there[id(tensor)], here[id(moved)] = moved, tensor
        tensors[name] = there[id(tensor)]
    return here


def _move_back(module: nn.Module, here: dict[int, Tensor]) -> None:
    for tensors, name, tensor in _weights(module):
        if id(tensor) in here:
            tensors[name] = here[id(tensor)]
        elif isinstance(tensor, _There):  # made there
            own = isinstance(tensor, nn.Parameter)
            tensors[name] = nn.Parameter(tensor.numbers, tensor.requires_grad) if own else tensor.numbers


def _weights(module: nn.Module) -> list[tuple[dict[str, Any], str, Tensor]]:
    own = [tensors for part in module.modules() for tensors in (part._parameters, part._buffers)]
    return [(tensors, name, tensor) for tensors in own for name, tensor in tensors.items() if tensor is not None]


def assert_follows_device(
    fn: Callable[..., Any], *inputs: Any, module: nn.Module | None = None, gradients: bool = True
) -> None:
    """Run on a pretended device: whatever `fn` makes must lie where its inputs do, and so must its gradients.

    Args:
        fn: inputs -> a tensor, or tensors in tuples, lists and dicts.
        inputs: tensors, which are moved, and other values.
        module: whose weights are moved too; `fn` itself if it is a module.
        gradients: also pull gradients back from the floating-point outputs that have any.

    Raises:
        AssertionError: "aten::add.Tensor mixes devices: a tensor (5, 8) lies on the CPU, one (2, 5, 8) on ...".
    """
    module = fn if module is None and isinstance(fn, nn.Module) else module
    with another_device(*([] if module is None else [module])) as device, seeded():
        moved = tree_map_only(Tensor, lambda tensor: _moved(tensor, device), inputs)
        found = [value for value in tree_leaves(_attempt(lambda: fn(*moved))) if isinstance(value, Tensor)]
        for number, tensor in enumerate(found):
            if tensor.device != device:
                raise AssertionError(f"output {number}, {tuple(tensor.shape)}, lies on the CPU")
        wanted = [tensor.float().square().sum() for tensor in found if tensor.requires_grad]
        if gradients and wanted:
            _attempt(lambda: torch.stack(wanted).sum().backward())
            for parameter in [] if module is None else module.parameters():
                parameter.grad = None


def _moved(tensor: Tensor, device: torch.device) -> Tensor:
    return tensor.detach().to(device).requires_grad_(tensor.requires_grad)


def _attempt(work: Callable[[], Any]) -> Any:
    """Do it; what it refuses on this device is what the law has against it."""
    try:
        return work()
    except (ValueError, TypeError, RuntimeError) as error:
        raise AssertionError(f"on another device: {type(error).__name__}: {error}") from error
