"""Linear maps with 8-bit weights, for decoding: what limits it is how many bytes of weights are read for a token.

Each output has a step of its own, and its weights are whole multiples of it (symmetric, per output channel). The inputs
may be rounded to 8 bits too, which is faster where there are many, and less exact.

Source: Dettmers et al. 2022, "LLM.int8()", section 2.1, for both roundings.
"""

import warnings
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from course_lib.variants.packed import NO_KERNEL, FrozenLinear, replace_linear_maps

_HIGHEST = 127  # levels are -127 to 127: as many on either side of zero
_FEW_ROWS = 16  # with more, torch's kernel for 8-bit weights loses against making floats of them first
_ALIGNED = 32  # that kernel reads whole vectors, past the end of a row of another width
_LARGER = 2.0**10  # the kernel for 8-bit inputs knows no step of theirs below 6e-5, so it gets them larger


class Int8Linear(FrozenLinear):
    """A frozen linear map whose weights are levels times a step for each output: (..., D_in) -> (..., D_out).

    A weight is off by at most half a step, so output o by at most step[o] / 2 times the sum of the inputs' sizes.
    A state dict holds `levels` int8 (D_out, D_in), `step` (D_out,) and `bias`.

    On a CPU a few inputs, as in decoding, go through torch's kernel for 8-bit weights, which takes and gives bfloat16.
    With `round_inputs`, inputs become integers too, of one step for the whole call; the kernel keeps its own copy of
    the weights. Everywhere else the weights are made float in each call, which saves memory and no time.

    Args:
        base: the map to take the weights of; its own stay as they are.
        round_inputs: round the inputs to 8 bits as well.

    Calls that ask for gradients raise RuntimeError.
    """

    levels: Tensor
    step: Tensor
    bias: Tensor | None

    def __init__(self, base: nn.Linear, *, round_inputs: bool = False) -> None:
        super().__init__(base)
        weight = base.weight.detach().float()
        if not weight.isfinite().all():
            raise ValueError("base: expected finite weights, got NaN or infinity")
        largest = weight.abs().amax(dim=1)  # (D_out,)
        # A step that bfloat16 holds exactly is still right after `.to(torch.bfloat16)`. A row of zeros has any step.
        step = (largest / _HIGHEST).bfloat16().float().masked_fill(largest == 0, 1.0)
        levels = (weight / step[:, None]).round().clamp(-_HIGHEST, _HIGHEST)
        self.round_inputs = round_inputs
        self.register_buffer("levels", levels.to(torch.int8))
        self.register_buffer("step", step.to(base.weight.dtype))

    @property
    def weight(self) -> Tensor:
        """The weights in force as floats, (D_out, D_in); made anew at each look."""
        return self.levels.to(self.step.dtype) * self.step[:, None]

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., D_in) -> (..., D_out)."""
        if torch.is_grad_enabled() and (self.training or x.requires_grad):
            raise RuntimeError(
                "Int8Linear: gradients do not pass through integers; call model.eval(), use torch.no_grad(), "
                "and train with float weights"
            )
        if x.is_cpu and x.dtype in (torch.float32, torch.bfloat16) and x.size(-1) == self.in_features:
            found = self._with_integers(x) if self.round_inputs else self._with_bfloat16(x)
            if found is not None:
                return found
        return F.linear(x, self.weight.to(x.dtype), None if self.bias is None else self.bias.to(x.dtype))

    def extra_repr(self) -> str:
        """What print shows."""
        return super().extra_repr() + (", round_inputs=True" if self.round_inputs else "")

    def _with_bfloat16(self, x: Tensor) -> Tensor | None:
        """(..., D_in) -> (..., D_out), or None for what the kernel is not good for."""
        if x.numel() > _FEW_ROWS * self.in_features or self.in_features % _ALIGNED:
            return None
        if self._packed is None:
            self._packed = self.step.bfloat16()
        rows = x.bfloat16().reshape(-1, self.in_features)  # (..., D_in) -> (N, D_in)
        found = torch._weight_int8pack_mm(rows, self.levels, self._packed)
        found = found if self.bias is None else found + self.bias  # in the wider of the two dtypes
        return found.to(x.dtype).view(*x.shape[:-1], self.out_features)  # (N, D_out) -> (..., D_out)

    def _with_integers(self, x: Tensor) -> Tensor | None:
        """(..., D_in) -> (..., D_out), or None where torch has no kernel for it or the inputs hold NaN."""
        if self._packed is None:
            self._packed = _pack(self.levels, self.step, self.bias)
        if self._packed is NO_KERNEL:
            return None
        try:
            return self._packed(x.float() * _LARGER).to(x.dtype)
        except RuntimeError:
            return None


def quantize_(model: nn.Module, *, round_inputs: bool = False, keep: Sequence[str] = ("router",)) -> list[str]:
    """Replace the linear maps of a model by `Int8Linear`, in place; return their full names.

    The model is frozen and put in evaluation mode. Token tables stay as they are, also where a head shares their
    weight. A state dict loads into a model of the same sizes to which the same was done.

    Args:
        model: any; `model.to(torch.bfloat16)` may come before or after.
        round_inputs: also round what the maps read to 8 bits, see `Int8Linear`.
        keep: last names of maps to leave alone; the router of a mixture of experts decides by small differences.

    Raises ValueError if there is nothing to replace, or updates of LoRA are not merged.
    """
    return replace_linear_maps(model, lambda base: Int8Linear(base, round_inputs=round_inputs), keep)


def _pack(levels: Tensor, step: Tensor, bias: Tensor | None) -> Any:
    """A function from float32 (..., D_in), times `_LARGER`, to (..., D_out); `NO_KERNEL` if torch has none."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch says that it will remove these one day; then there is none
            zeros = torch.zeros(len(step), dtype=torch.int64)
            whole = torch._make_per_channel_quantized_tensor(levels, step.double() / _LARGER, zeros, 0)
            packed = torch.ops.quantized.linear_prepack(whole, None if bias is None else bias.float())
            multiply = torch.ops.quantized.linear_dynamic.default
        # Without VNNI instructions, sums of two products of 8 bits overflow on x86: seven for the inputs then.
        seven_bits = not getattr(torch.cpu, "_is_vnni_supported", bool)()
        return lambda rows: multiply(rows, packed, seven_bits)
    except (RuntimeError, AttributeError):
        return NO_KERNEL
