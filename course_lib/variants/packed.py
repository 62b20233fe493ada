"""Linear maps whose weights lie in memory as the processor's kernels read them, for decoding on a CPU.

There a matrix product with few rows takes as long as its weights take to arrive. A plain (D_out, D_in) matrix is
rearranged in each call in bfloat16, and read in float32 in an order that leaves part of the memory's speed unused;
`benchmarks/generation.py` has the difference it makes.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from course_lib.checks import Count, check_integer, checked
from course_lib.variants.lora import LoRALinear

NO_KERNEL = object()  # in place of a copy, where torch has no kernel that wants one
_SMALL = 2**17  # numbers of a float32 matrix; with fewer, plain calls are faster
_ROWS = 16  # what oneDNN's order of the weights is made for; with it, 1 to 256 rows are near their best


class FrozenLinear(nn.Module):
    """What stands in for an `nn.Linear` that is not trained any more, and keeps a copy of its weights for a kernel.

    The copy is made at the first call, and again after a move, a load, a copy or a pickle.
    """

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        if not isinstance(base, nn.Linear):
            raise TypeError(f"base: expected an nn.Linear, got {type(base).__name__}")
        self.out_features, self.in_features = base.weight.shape
        self.register_buffer("bias", None if base.bias is None else base.bias.detach().clone())
        self._packed: Any = None
        self.eval()

    def extra_repr(self) -> str:
        """What print shows."""
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"

    def _apply(self, fn: Any, recurse: bool = True) -> "FrozenLinear":
        self._forget()
        return super()._apply(fn, recurse)

    def _load_from_state_dict(self, *arguments: Any) -> None:
        self._forget()
        super()._load_from_state_dict(*arguments)

    def __getstate__(self) -> dict[str, Any]:
        """All but the copy."""
        self._forget()
        return self.__dict__.copy()

    def _forget(self) -> None:
        """Drop the copy."""
        self._packed = None


class PackedLinear(FrozenLinear):
    """A frozen linear map, (..., D_in) -> (..., D_out), that differs from `nn.Linear` by the order of its sums alone.

    On a CPU, oneDNN multiplies in bfloat16 and, unless the map is small, in float32, from a copy in its own order that
    takes as much memory again. For one row in float32 there is no copy: a map that widens is stored column by column.
    Everywhere else, where gradients pass to the input, and compiled, it is `torch.nn.functional.linear`. Its state dict
    is that of the `nn.Linear`.

    Args:
        base: the map to take the weights of; its own stay as they are.
        rows: how many vectors a call has: in decoding, the batch.
    """

    weight: Tensor
    bias: Tensor | None

    def __init__(self, base: nn.Linear, *, rows: int = 1) -> None:
        super().__init__(base)
        check_integer("rows", rows)
        self.rows = rows
        weight = base.weight.detach()
        by_columns = rows == 1 and weight.dtype == torch.float32 and self.out_features >= self.in_features
        # (D_out, D_in) in both cases; the transpose of a transpose has its columns in a row
        weight = weight.t().clone(memory_format=torch.contiguous_format).t() if by_columns else weight.clone()
        self.register_buffer("weight", weight)

    def factors(self) -> tuple[Tensor, Tensor | None]:
        """The weights, (D_out, D_in), for a compiled step of generation; they have no factor."""
        return self.weight, None

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., D_in) -> (..., D_out)."""
        weight = self.weight
        fits = x.is_cpu and x.dtype == weight.dtype and x.size(-1) == self.in_features and x.numel() > 0
        if fits and not (x.requires_grad and torch.is_grad_enabled()) and not torch.compiler.is_compiling():
            if self._packed is None:
                self._packed = _pack(weight, self.rows)
            if self._packed is not NO_KERNEL:
                return torch.ops.mkldnn._linear_pointwise(x, self._packed, self.bias, "none", [], "")
        return F.linear(x, weight, self.bias)


@checked
def pack_(model: nn.Module, *, rows: Count = 1, keep: Sequence[str] = ()) -> list[str]:
    """Replace the linear maps of a model by `PackedLinear`, in place; return their full names.

    The model is frozen and put in evaluation mode; call it after `model.to(...)`. Its state dict stays what it was, but
    `save_pretrained` wants the model as it was before.

    Args:
        model: any.
        rows: how many examples are decoded at once; other numbers give the same, less fast.
        keep: last names of maps to leave alone.

    Raises ValueError if there is nothing to replace, or updates of LoRA are not merged.
    """
    return replace_linear_maps(model, lambda base: PackedLinear(base, rows=rows), keep)


def replace_linear_maps(model: nn.Module, make: Callable[[nn.Linear], nn.Module], keep: Sequence[str]) -> list[str]:
    """Put `make(map)` in place of each `nn.Linear` whose last name is not in `keep`, and freeze the model."""
    if any(isinstance(part, LoRALinear) for part in model.modules()):
        raise ValueError("model: merge its updates first, with course_lib.variants.lora.remove_lora")
    made: dict[int, nn.Module] = {}  # a map that serves in two places stays one
    names = []
    for name, part in list(model.named_modules(remove_duplicate=False)):
        if not isinstance(part, nn.Linear) or name.rpartition(".")[2] in keep:
            continue
        if not name:
            raise ValueError("model: a bare nn.Linear cannot be replaced in place; give the model that it is part of")
        if id(part) not in made:
            made[id(part)] = make(part)
        model.set_submodule(name, made[id(part)])
        names.append(name)
    if not names:
        raise ValueError("model: expected one with nn.Linear maps, found none")
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    model.eval()
    return names


def _pack(weight: Tensor, rows: int) -> Any:
    """The weights in oneDNN's order, or `NO_KERNEL` where a plain call is as good."""
    good = weight.dtype == torch.bfloat16 or (weight.dtype == torch.float32 and rows > 1 and weight.numel() >= _SMALL)
    if not good:
        return NO_KERNEL
    try:
        return torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), _ROWS)
    except (RuntimeError, AttributeError):  # torch without oneDNN, or a processor without bfloat16
        return NO_KERNEL
