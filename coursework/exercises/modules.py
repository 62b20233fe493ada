"""Running a class that a learner writes: built by its constructor, with declared weights, called twice."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors
from torch.utils._pytree import tree_leaves

DEVICE = "It makes a tensor on the default device, where the inputs do not lie."
_BETWEEN_DEVICES = (Tensor.__getitem__, Tensor.__setitem__, Tensor.copy_, Tensor.type_as)


class Unfit(ValueError):
    """A module cannot be compared with the right one; the text is said to the learner as it is."""


def call(
    candidate: Callable[..., nn.Module],
    sizes: Mapping[str, Any],
    state: Mapping[str, Tensor],
    *inputs: Any,
    train: bool = False,
    elsewhere: bool = False,
    before: tuple[Any, ...] = (),
) -> Any:
    """What `candidate(**sizes)` gives for the inputs, with the weights of `state`, to which gradients flow.

    Args:
        candidate: the class.
        sizes: the arguments of its constructor.
        state: every parameter and buffer by its name in the `state_dict`.
        inputs: the arguments of its `forward`.
        train: in train mode, else in eval mode.
        elsewhere: the inputs do not lie on the default device, as on a machine with a GPU.
        before: arguments of an earlier call of the same module, which must leave nothing behind; none if empty.

    Raises Unfit if the module has other weights than `state`, keeps something, or makes a tensor on the wrong device.
    """
    module = candidate(**sizes).train(train)
    _compare_weights(module, state)
    value = _forward(module, state, inputs, elsewhere)
    if before:
        used = candidate(**sizes).train(train)
        with torch.no_grad():
            _forward(used, state, before, elsewhere)
            again = _forward(used, state, inputs, elsewhere)
        if not _same(value, again):
            raise Unfit("It keeps something: after a call with other inputs, the same module gives another result.")
    return value


def _same(value: Any, again: Any) -> bool:
    """Whether two results agree, but for rounding."""
    pairs = itertools.zip_longest(tree_leaves(value), tree_leaves(again))
    return all(
        isinstance(a, Tensor) and isinstance(b, Tensor) and a.shape == b.shape and torch.allclose(a, b, equal_nan=True)
        if isinstance(a, Tensor) or isinstance(b, Tensor)
        else a == b
        for a, b in pairs
    )


def _compare_weights(module: nn.Module, state: Mapping[str, Tensor]) -> None:
    own = module.state_dict()
    lacking, extra = [name for name in state if name not in own], [name for name in own if name not in state]
    if lacking:
        raise Unfit(f"The module lacks the weight {lacking[0]!r}; its own are {', '.join(own) or 'none'}.")
    if extra:
        raise Unfit(f"The module has a weight too many, {extra[0]!r}.")
    for name, tensor in state.items():
        if own[name].shape != tensor.shape:
            shapes = f"{tuple(own[name].shape)}; {tuple(tensor.shape)} is expected"
            raise Unfit(f"The shape of the weight {name!r} is {shapes}.")


def _forward(module: nn.Module, state: Mapping[str, Tensor], inputs: tuple[Any, ...], elsewhere: bool) -> Any:
    with _Elsewhere() if elsewhere else contextlib.nullcontext():
        return torch.func.functional_call(module, dict(state), inputs)


class _Elsewhere(TorchFunctionMode):
    """As if weights and inputs did not lie on the default device: what arises there cannot be mixed with them.

    What arises there bears a mark until it is moved. As between a GPU and the CPU, single numbers may be mixed with
    anything, and may be indices, and copying goes both ways.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = [leaf for leaf in tree_leaves([args, kwargs]) if isinstance(leaf, Tensor)]
        marks = [hasattr(tensor, "of_default_device") for tensor in tensors]
        marked = bool(marks) and all(marks)
        if func in _device_constructors():
            marked = kwargs.get("device") is None
        elif func is Tensor.to and ("device" in kwargs or isinstance(args[1], torch.device | str | Tensor)):
            marked = marks[-1] and len(tensors) > 1  # as the tensor to which it is moved
        elif func not in _BETWEEN_DEVICES and not marked and any(t.dim() for t in itertools.compress(tensors, marks)):
            raise Unfit(DEVICE)
        result = func(*args, **kwargs)
        if any(result is tensor for tensor, mark in zip(tensors, marks, strict=True) if mark and not marked):
            result = result.clone()
        for leaf in tree_leaves(result) if marked else ():
            if isinstance(leaf, Tensor):
                leaf.of_default_device = True  # type: ignore[attr-defined]
        return result


def weights(
    candidate: Callable[..., nn.Module], sizes: Mapping[str, Any], tensor: Callable[..., Tensor]
) -> dict[str, Tensor]:
    """Weights for `candidate(**sizes)` by name, each from `tensor(*shape)`; so they have the values that it draws."""
    return {name: tensor(*shape) for name, shape in _shapes(candidate, tuple(sizes.items()))}


@functools.lru_cache(maxsize=256)
def _shapes(
    candidate: Callable[..., nn.Module], sizes: tuple[tuple[str, Any], ...]
) -> list[tuple[str, tuple[int, ...]]]:
    with torch.random.fork_rng(devices=[]):  # not on `meta`: drawing there loads a compiler, seconds long
        own = candidate(**dict(sizes)).state_dict()
    return [(name, tuple(tensor.shape)) for name, tensor in own.items()]
