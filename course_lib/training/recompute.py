"""Recomputation of activations: keep the input of each layer, compute the rest again for the backward pass."""

import functools

from torch import nn
from torch.utils.checkpoint import checkpoint

from course_lib.checks import checked

__all__ = ["recompute_activations"]


@checked
def recompute_activations(model: nn.Module) -> nn.Module:
    """Make each layer of the model's stacks (each entry of an `nn.ModuleList`) recompute itself; in place.

    Less memory for about a third more operations: the gradients stay the same, dropout included. Names and values of
    the weights do not change. Source: Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost".

    Raises ValueError for a model without an `nn.ModuleList`.
    """
    layers = _layers(model)
    if not layers:
        raise ValueError("model: expected layers in an nn.ModuleList, which could be computed again; there are none")
    for layer in layers:
        layer.forward = functools.partial(checkpoint, layer.forward, use_reentrant=False)  # type: ignore[method-assign]
    return model


def _layers(module: nn.Module) -> list[nn.Module]:
    """The entries of the outermost lists; those inside a layer, such as experts, go with it."""
    if isinstance(module, nn.ModuleList):
        return list(module)
    return [layer for child in module.children() for layer in _layers(child)]
