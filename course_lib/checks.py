"""The checks of arguments, with one wording: the argument's name, what was expected, what came.

They stand at the public door; what lies behind it trusts its input. A value of the wrong kind is a TypeError, one of
the right kind out of its range a ValueError. True and False are no numbers here. Lengths that `torch.compile` or
`torch.export` has made symbols pass.
"""

import dataclasses
import math
import numbers
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeGuard, get_args, get_origin

if TYPE_CHECKING:  # settings are checked without torch
    from torch import Tensor

LONGEST = 200  # characters of a value in a message
Interval = Literal["[0, 1)", "(0, 1]", "[0, 1]"]


def check_integer(name: str, value: Any, least: int = 1, most: int | None = None, *, or_none: bool = False) -> None:
    """Refuse what is not an integer of at least `least`, and at most `most` if given; None passes with `or_none`."""
    if value is None and or_none:
        return
    expected = f"an integer of at least {least}" if most is None else f"an integer from {least} to {most}"
    if isinstance(value, bool) or not (isinstance(value, int) or type(value).__name__ == "SymInt"):
        _refuse(TypeError, name, expected, repr(value))
    if value < least or (most is not None and value > most):
        _refuse(ValueError, name, expected, repr(value))


def check_number(
    name: str, value: object, *, least: float | None = None, above: float | None = None, or_none: bool = False
) -> None:
    """Refuse what is no finite number, of at least `least` or above `above` if given; None passes with `or_none`."""
    if value is None and or_none:
        return
    expected = "a finite number"
    if least is not None:
        expected = f"a number of at least {least:g}"
    elif above is not None:
        expected = "a positive number" if above == 0 else f"a number above {above:g}"
    if not _is_number(value):
        _refuse(TypeError, name, expected, repr(value))
    low = value < least if least is not None else above is not None and value <= above
    if low or math.isinf(value) or value != value:  # NaN alone differs from itself
        _refuse(ValueError, name, expected, repr(value))


def check_probability(name: str, value: object, interval: Interval = "[0, 1)", *, or_none: bool = False) -> None:
    """Refuse what is not a number in the interval; a round bracket leaves out its end. None passes with `or_none`."""
    if value is None and or_none:
        return
    expected = f"a probability in {interval}"
    if not _is_number(value):
        _refuse(TypeError, name, expected, repr(value))
    inside = 0 <= value <= 1 and (value != 0 or interval[0] == "[") and (value != 1 or interval[-1] == "]")
    if not inside:  # also NaN
        _refuse(ValueError, name, expected, repr(value))


def check_choice(name: str, value: object, choices: Iterable[object]) -> None:
    """Refuse what is not one of the choices."""
    choices = tuple(choices)
    if value not in choices:
        _refuse(ValueError, name, f"one of {', '.join(map(str, choices))}", repr(value))


def check_flag(name: str, value: object) -> None:
    """Refuse what is neither True nor False: any text counts as true, "no" among them."""
    if not isinstance(value, bool):
        _refuse(TypeError, name, "True or False", repr(value))


def check_fields(config: Any, *, may_be_zero: Collection[str] = (), aside: Collection[str] = ()) -> None:
    """Refuse what is not as the fields of a dataclass say: integers of at least 1, True or False, and choices.

    Integers in `may_be_zero` may be 0. Those `aside`, numbers and whatever else there is are left to the caller.
    """
    for field in dataclasses.fields(config):
        name, value, expected = field.name, getattr(config, field.name), field.type
        if get_origin(expected) is Literal:
            check_choice(name, value, get_args(expected))
        elif expected is bool or (expected == bool | None and value is not None):
            check_flag(name, value)
        elif expected in (int, int | None) and name not in aside:
            check_integer(name, value, 0 if name in may_be_zero else 1, or_none=expected is not int)


def check_floating(name: str, tensor: object) -> None:
    """Refuse what is not a tensor of floating-point numbers."""
    if not _is_tensor(tensor) or not tensor.is_floating_point():
        _refuse(TypeError, name, "a tensor of floating-point numbers", kind(tensor))


def check_integers(name: str, tensor: object, what: str = "integers") -> None:
    """Refuse what is not a tensor of integers, such as "integer token ids"."""
    if not _is_tensor(tensor) or tensor.is_floating_point() or kind(tensor) == "torch.bool":
        _refuse(TypeError, name, f"a tensor of {what}", kind(tensor))


def check_token_ids(name: str, tensor: object) -> None:
    """Refuse what torch does not take as rows of a table."""
    if kind(tensor) not in ("torch.int64", "torch.int32"):
        _refuse(TypeError, name, "a tensor of integer token ids, int64 or int32", kind(tensor))


def check_vectors(name: str, x: "Tensor", width: int, length: str = "T") -> None:
    """Refuse what is not (B, T, width) with T of at least 1; `length` is the letter to say for T."""
    if x.dim() != 3 or x.size(1) == 0 or x.size(2) != width:
        _refuse(ValueError, name, f"(B, {length}, {width}) with {length} of at least 1", str(tuple(x.shape)))


def check_mask(name: str, mask: object) -> None:
    """Refuse what is not a boolean tensor."""
    if kind(mask) != "torch.bool":
        _refuse(TypeError, name, "a boolean mask (True = may attend)", kind(mask))


def kind(value: object) -> str:
    """The dtype of a tensor, the class of anything else."""
    return str(value.dtype) if _is_tensor(value) else type(value).__name__


def _is_number(value: object) -> TypeGuard[float]:
    if isinstance(value, (int, float)) or type(value).__name__ in ("SymInt", "SymFloat"):
        return not isinstance(value, bool)
    return isinstance(value, numbers.Real)  # such as NumPy's


def _is_tensor(value: object) -> TypeGuard["Tensor"]:
    import torch

    return isinstance(value, torch.Tensor)


def _refuse(error: type[Exception], name: str, expected: str, got: str) -> NoReturn:
    raise error(f"{name}: expected {expected}, got {got if len(got) <= LONGEST else got[:LONGEST] + '…'}")
