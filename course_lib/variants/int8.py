"""Linear maps with weights of 8 bits or fewer: what limits decoding is how many bytes of weights are read for a token.

The weights of an output, or of a group of neighbours among them, have a step of their own and are whole multiples of
it. The inputs may be rounded to 8 bits too, which is faster and less exact. What each of these costs a trained model is
measured by `benchmarks/rounding.py`.

Source: Dettmers et al. 2022, "LLM.int8()", section 2.1, for the roundings to 8 bits; Dettmers & Zettlemoyer 2023, "The
case for 4-bit precision", section 2, for groups.
"""

import warnings
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from course_lib.checks import check_integer, checked
from course_lib.variants.packed import NO_KERNEL, FrozenLinear, replace_linear_maps

_FEW_ROWS = 16  # with more, torch's kernel for 8-bit weights loses against making floats of them first
_ALIGNED = 32  # that kernel reads whole vectors, past the end of a row of another width
_LARGER = 2.0**10  # the kernel for 8-bit inputs knows no step of theirs below 6e-5, so it gets them larger
_GROUPS = (256, 128, 64, 32)  # of inputs with one step each: those that torch's kernel for 4-bit weights knows
_OUTPUTS = 16  # that kernel wants a multiple of so many


class QuantizedLinear(FrozenLinear):
    """A frozen linear map whose weights are levels times steps: (..., D_in) -> (..., D_out).

    A weight is off by at most half a step. So an output is off by at most half the sum of the inputs' sizes, each times
    its step. Steps are bfloat16, and may be negative: there is one level more below zero than above it.

    A state dict holds `bias`, `step` (D_out, G), without G where an output has one step, and `levels`: of 8 bits as
    int8 (D_out, G group), of fewer packed into uint8 (D_out, G group bits / 8), so two to a byte if they have 4 bits.

    On a CPU a few inputs, as in decoding, go through torch's kernel for 8-bit weights, and any number of inputs through
    that for 4-bit weights in groups of 32, 64, 128 or 256; both compute in bfloat16. The second wants an order of its
    own, in which alone the weights are then held. With `round_inputs`, inputs become integers too, of one step for the
    whole call; that kernel keeps its own copy of the weights. Everywhere else the weights are made float in each call,
    which saves memory and no time.

    Args:
        base: the map to take the weights of; its own stay as they are.
        bits: of a weight, 2 to 8.
        group: how many neighbouring inputs share a step, a multiple of 8; None: all inputs of an output.
        round_inputs: round the inputs to 8 bits as well; for 8 bits with one step for each output.

    Calls that ask for gradients raise RuntimeError.
    """

    levels: Tensor | None
    step: Tensor
    bias: Tensor | None

    def __init__(self, base: nn.Linear, *, bits: int = 8, group: int | None = None, round_inputs: bool = False) -> None:
        super().__init__(base)
        check_integer("bits", bits, 2, 8)
        check_integer("group", group, 8, or_none=True)
        if group is not None and group % 8:
            raise ValueError(f"group: expected a multiple of 8, or None, got {group}")
        if round_inputs and (bits, group) != (8, None):
            raise ValueError(f"round_inputs: expected bits 8 and no group with it, got bits {bits}, group {group}")
        weight = base.weight.detach().float()
        if not weight.isfinite().all():
            raise ValueError("base: expected finite weights, got NaN or infinity")
        self.bits, self.group, self.round_inputs = bits, group, round_inputs
        levels, step = _round(weight, bits, group)
        self.register_buffer("levels", levels if bits == 8 else _to_bytes(levels, bits))
        self.register_buffer("step", step)

    @property
    def weight(self) -> Tensor:
        """The weights in force, float32 (D_out, D_in); made anew at each look."""
        levels = self._levels().float()
        if self.group is None:
            return (levels * self.step.float()[:, None])[:, : self.in_features]
        grouped = levels.unflatten(1, (-1, self.group)) * self.step.float()[..., None]  # (D_out, G, group)
        return grouped.flatten(1)[:, : self.in_features]

    def factors(self) -> tuple[Tensor, Tensor | None] | None:
        """Weights (D_out, D_in) and a factor (D_out,) on the outputs, which a compiled step of generation multiplies.

        None where that is not what is computed, or slower than a kernel.
        """
        if self.bits != 8 or self.round_inputs or self.levels is None:
            return None
        return (self.levels, self.step.float()) if self.group is None else (self.weight, None)

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., D_in) -> (..., D_out)."""
        if torch.is_grad_enabled() and (self.training or x.requires_grad):
            raise RuntimeError(
                "QuantizedLinear: gradients do not pass through integers; call model.eval(), use torch.no_grad(), "
                "and train with float weights"
            )
        if x.is_cpu and x.dtype in (torch.float32, torch.bfloat16) and x.size(-1) == self.in_features:
            found = self._with_integers(x) if self.round_inputs else self._with_bfloat16(x)
            if found is not None:
                return found
        return F.linear(x, self.weight.to(x.dtype), None if self.bias is None else self.bias.to(x.dtype))

    def extra_repr(self) -> str:
        """What print shows."""
        group = "" if self.group is None else f", group={self.group}"
        return f"{super().extra_repr()}, bits={self.bits}{group}" + (", round_inputs=True" if self.round_inputs else "")

    def _with_bfloat16(self, x: Tensor) -> Tensor | None:
        """(..., D_in) -> (..., D_out), or None for what the kernels are not good for."""
        few = x.numel() <= _FEW_ROWS * self.in_features
        by_output = self.bits == 8 and self.group is None and few and self.in_features % _ALIGNED == 0
        if not by_output and (self.bits != 4 or x.numel() == 0):
            return None
        if self._packed is None and by_output:
            self._packed = self.step.bfloat16()
        elif self._packed is None:
            self._packed = _pack4(self._levels(), self.step, self.group)
            if self._packed is not NO_KERNEL:
                self.levels = None
        packed: Any = self._packed
        if packed is NO_KERNEL:
            return None
        rows = x.bfloat16().reshape(-1, self.in_features)  # (..., D_in) -> (N, D_in)
        if by_output:
            found = torch._weight_int8pack_mm(rows, self._levels(), packed)
        else:
            found = _multiply4(rows, *packed)[:, : self.out_features]
        found = found if self.bias is None else found + self.bias  # in the wider of the two dtypes
        return found.to(x.dtype).reshape(*x.shape[:-1], self.out_features)  # (N, D_out) -> (..., D_out)

    def _with_integers(self, x: Tensor) -> Tensor | None:
        """(..., D_in) -> (..., D_out), or None where torch has no kernel for it or the inputs hold NaN."""
        if self._packed is None:
            self._packed = _pack8(self._levels(), self.step, self.bias)
        if self._packed is NO_KERNEL:
            return None
        try:
            return self._packed(x.float() * _LARGER).to(x.dtype)
        except RuntimeError:
            return None

    def _levels(self) -> Tensor:
        """The levels, int8 (D_out, G group)."""
        if self.levels is None:
            return _unpack4(*self._packed)[: self.out_features]
        return self.levels if self.bits == 8 else _from_bytes(self.levels, self.bits)

    def _forget(self) -> None:
        if self.levels is None:
            self.levels = _to_bytes(self._levels(), self.bits)
        super()._forget()

    def _save_to_state_dict(self, *arguments: Any) -> None:
        self._forget()  # the kernel's order is another on another processor
        super()._save_to_state_dict(*arguments)


@checked
def quantize_(
    model: nn.Module,
    *,
    bits: int = 8,
    group: int | None = None,
    round_inputs: bool = False,
    keep: Sequence[str] = ("router",),
) -> list[str]:
    """Replace the linear maps of a model by `QuantizedLinear`, in place; return their full names.

    The model is frozen and put in evaluation mode. Token tables stay as they are, also where a head shares their
    weight. A state dict loads into a model of the same sizes to which the same was done.

    Args:
        model: any; `model.to(torch.bfloat16)` may come before or after.
        bits: of a weight, 2 to 8.
        group: how many neighbouring inputs share a step, a multiple of 8; with None all inputs of an output do, which
            is enough for 8 bits. With 4 bits take 32 or 64.
        round_inputs: also round what the maps read to 8 bits, see `QuantizedLinear`.
        keep: last names of maps to leave alone; the router of a mixture of experts decides by small differences.

    Raises ValueError if there is nothing to replace, or updates of LoRA are not merged.
    """
    options: dict[str, Any] = {"bits": bits, "group": group, "round_inputs": round_inputs}
    return replace_linear_maps(model, lambda base: QuantizedLinear(base, **options), keep)


def _round(weight: Tensor, bits: int, group: int | None) -> tuple[Tensor, Tensor]:
    """Levels, int8 (D_out, G group), and steps, (D_out, G), or (D_out,) without groups: the finest that fit.

    Fitting is that no weight is off by more than half a step. Zeros fill the last group, and rows up to whole bytes.
    """
    size = group or (1 if bits == 8 else 8)
    rows = F.pad(weight, (0, -weight.size(1) % size))  # (D_out, D_in) -> (D_out, G group)
    grouped = rows if group is None else rows.unflatten(1, (-1, group))  # (D_out, G, group)
    half = 2 ** (bits - 1)  # levels are -half to half - 1
    low, high = grouped.aminmax(dim=-1)
    ends = torch.stack([-low, high])
    exact = torch.maximum(ends.amax(0) / (half + 0.5), ends.amin(0) / (half - 0.5))
    near = exact.bfloat16()
    step = torch.where(near.float() < exact, torch.nextafter(near, near.new_tensor(torch.inf)), near)  # rounded up
    step = torch.where(high > -low, -step, step).masked_fill(exact == 0, 1.0)  # the largest takes the lowest level
    levels = (grouped / step.float()[..., None]).round().clamp(-half, half - 1)
    return levels.to(torch.int8).reshape(rows.shape), step


def _to_bytes(levels: Tensor, bits: int) -> Tensor:
    """Eight levels each in as many bytes as a level has bits: int8 (D_out, D) -> uint8 (D_out, D bits / 8)."""
    eights = (levels.long() + 2 ** (bits - 1)).unflatten(1, (-1, 8))  # from 0 on, (D_out, D / 8, 8)
    whole = (eights << bits * torch.arange(8, device=levels.device)).sum(-1, keepdim=True)
    return (whole >> 8 * torch.arange(bits, device=levels.device) & 255).to(torch.uint8).flatten(1)


def _from_bytes(packed: Tensor, bits: int) -> Tensor:
    """The reverse: uint8 (D_out, D bits / 8) -> int8 (D_out, D)."""
    some = packed.long().unflatten(1, (-1, bits))  # (D_out, D / 8, bits)
    whole = (some << 8 * torch.arange(bits, device=packed.device)).sum(-1, keepdim=True)
    eights = whole >> bits * torch.arange(8, device=packed.device) & (2**bits - 1)
    return (eights - 2 ** (bits - 1)).to(torch.int8).flatten(1)


def _pack4(levels: Tensor, step: Tensor, group: int | None) -> Any:
    """The weights for `_multiply4`: levels in its order, their group, steps; `NO_KERNEL` where it has none for them."""
    D_out, D = levels.shape
    group = group or next((size for size in _GROUPS if D % size == 0), 0)
    if group not in _GROUPS:
        return NO_KERNEL
    steps = step.bfloat16().reshape(D_out, -1).expand(-1, D // group)  # (D_out, G)
    pairs = torch.stack([steps, torch.zeros_like(steps)], dim=-1)  # what the kernel adds to a weight is nothing
    more = -D_out % _OUTPUTS
    pairs = F.pad(pairs, (0, 0, 0, 0, 0, more)).transpose(0, 1).contiguous()  # (G, D_out', 2)
    try:
        levels = F.pad(levels.int() + 8, (0, 0, 0, more))
        found = torch.ops.aten._convert_weight_to_int4pack_for_cpu(levels, 1), group, pairs
        _multiply4(pairs.new_zeros(1, D), *found)
        return found
    except (RuntimeError, AttributeError):
        return NO_KERNEL


def _multiply4(rows: Tensor, packed: Tensor, group: int, steps: Tensor) -> Tensor:
    """Bfloat16 (N, D_in) -> (N, D_out'); the inputs that fill the last group are zero."""
    missing = steps.size(0) * group - rows.size(1)
    rows = F.pad(rows, (0, missing)) if missing else rows
    return torch.ops.aten._weight_int4pack_mm_for_cpu(rows, packed, group, steps)


def _unpack4(packed: Tensor, group: int, steps: Tensor) -> Tensor:
    """The levels, int8 (D_out', D_in'), out of the kernel's order, which is secret: what it makes of single inputs."""
    ones = torch.stack([torch.ones_like(steps[..., 0]), torch.zeros_like(steps[..., 0])], dim=-1)
    each = torch.eye(steps.size(0) * group, dtype=torch.bfloat16)
    return torch.ops.aten._weight_int4pack_mm_for_cpu(each, packed, group, ones).t().to(torch.int8).contiguous()


def _pack8(levels: Tensor, step: Tensor, bias: Tensor | None) -> Any:
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
