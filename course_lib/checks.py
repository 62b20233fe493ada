"""The checks of arguments, with one wording: the argument's name, what was expected, what came.

They stand at the public door; what lies behind it trusts its input. A value of the wrong kind is a TypeError, one of
the right kind out of its range a ValueError. True and False are no numbers here. Lengths that `torch.compile` or
`torch.export` has made symbols pass.
"""

import dataclasses
import functools
import math
import numbers
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn, TypeGuard, get_args, get_origin, get_type_hints

if TYPE_CHECKING:  # settings are checked without torch
    from torch import Tensor

LONGEST = 200  # characters of a value in a message
Interval = Literal["[0, 1)", "(0, 1]", "[0, 1]", "(0, 1)"]


def check_integer(name: str, value: Any, least: int = 1, most: int | None = None, *, or_none: bool = False) -> None:
    """Refuse what is not an integer of at least `least`, and at most `most` if given; None passes with `or_none`."""
    if value is None and or_none:
        return
    expected = f"an integer of at least {least}" if most is None else f"an integer from {least} to {most}"
    if isinstance(value, bool) or not (isinstance(value, int) or type(value).__name__ == "SymInt"):
        _refuse(TypeError, name, expected, _written(value))
    if value < least or (most is not None and value > most):
        _refuse(ValueError, name, expected, _written(value))


def check_number(
    name: str,
    value: object,
    *,
    least: float | None = None,
    above: float | None = None,
    most: float | None = None,
    or_none: bool = False,
) -> None:
    """Refuse what is no finite number, or is out of the bounds that are given; None passes with `or_none`."""
    if value is None and or_none:
        return
    expected = "a finite number"
    if least is not None:
        expected = f"a number of at least {least:g}"
    elif above is not None:
        expected = "a positive number" if above == 0 else f"a number above {above:g}"
    if not _is_number(value):
        _refuse(TypeError, name, expected, _written(value))
    low = value < least if least is not None else above is not None and value <= above
    high = most is not None and value > most
    if low or high or math.isinf(value) or value != value:  # NaN alone differs from itself
        expected += f", at most {most:g}" if high else ""
        _refuse(ValueError, name, expected, _written(value))


def check_probability(name: str, value: object, interval: Interval = "[0, 1)", *, or_none: bool = False) -> None:
    """Refuse what is not a number in the interval; a round bracket leaves out its end. None passes with `or_none`."""
    if value is None and or_none:
        return
    expected = f"a probability in {interval}"
    if not _is_number(value):
        _refuse(TypeError, name, expected, _written(value))
    inside = 0 <= value <= 1 and (value != 0 or interval[0] == "[") and (value != 1 or interval[-1] == "]")
    if not inside:  # also NaN
        _refuse(ValueError, name, expected, _written(value))


def check_choice(name: str, value: object, choices: Iterable[object]) -> None:
    """Refuse what is not one of the choices."""
    choices = tuple(choices)
    if value not in choices:
        _refuse(ValueError, name, f"one of {', '.join(map(str, choices))}", _written(value))


def check_flag(name: str, value: object) -> None:
    """Refuse what is neither True nor False: any text counts as true, "no" among them."""
    if not isinstance(value, bool):
        _refuse(TypeError, name, "True or False", _written(value))


@dataclasses.dataclass(frozen=True)
class Within:
    """The range of a number in a declaration, such as `steps: Annotated[int, Within(1)]`."""

    least: float | None = None
    most: float | None = None
    above: float | None = None
    below: float | None = None


MOST = 2**31 - 1  # of what is counted: more is a slip of the pen, and overflows elsewhere
LARGEST = 2.0**63  # of a number with a point: the product of two is still one in 32 bits
Count = Annotated[int, Within(1, MOST)]
CountOrZero = Annotated[int, Within(0, MOST)]
Positive = Annotated[float, Within(above=0)]
NotNegative = Annotated[float, Within(0)]
Share = Annotated[float, Within(0, below=1)]


def check_fields(config: Any) -> None:
    """Refuse values that are not as the fields of a dataclass declare: their types, ranges and choices."""
    for name, declared in declarations(type(config)).items():  # type: ignore[arg-type]
        check_declared(name, getattr(config, name), declared)


@functools.cache
def declarations(kind: type) -> dict[str, Any]:
    """The types of a dataclass's fields, with their ranges."""
    return get_type_hints(kind, include_extras=True)


def check_declared(name: str, value: Any, declared: Any) -> None:
    """Refuse a value that is not of the declared type; types that are not of settings, such as functions, let pass."""
    within = Within()
    if get_origin(declared) is Annotated:
        declared, within = get_args(declared)[:2]
    origin, parts = get_origin(declared), get_args(declared)
    if origin is Literal:
        check_choice(name, value, parts)
    elif type(None) in parts:
        if value is not None:
            check_declared(name, value, next(part for part in parts if part is not type(None)))
    elif origin is tuple:
        several = parts[-1] is ...
        length = "some" if several else str(len(parts))
        if not isinstance(value, tuple | list) or not (several or len(value) == len(parts)):
            _refuse(TypeError, name, f"a list of {length}", _written(value))
        for part in value:
            check_declared(name, part, parts[0])
    elif declared is bool:
        check_flag(name, value)
    elif declared is str and not isinstance(value, str):
        _refuse(TypeError, name, "a text", _written(value))
    elif declared is int:
        high = within.most if isinstance(value, int) and value > (within.most or MOST) else None
        check_integer(name, value, int(-MOST if within.least is None else within.least), high)  # type: ignore[arg-type]
    elif declared is float and 1 in (within.below, within.most):
        ends = ("[" if within.above is None else "(", ")" if within.most is None else "]")
        check_probability(name, value, f"{ends[0]}0, 1{ends[1]}")  # type: ignore[arg-type]
    elif declared is float:
        least = -LARGEST if within.least is within.above is None else within.least
        check_number(name, value, least=least, above=within.above, most=within.most or LARGEST)


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


def _written(value: object) -> str:
    try:
        return repr(value)
    except ValueError:
        return "a number of thousands of digits"


def _is_number(value: object) -> TypeGuard[float]:
    if isinstance(value, int) and abs(value) >= 2**1023:  # no float holds it
        return False
    if isinstance(value, (int, float)) or type(value).__name__ in ("SymInt", "SymFloat"):
        return not isinstance(value, bool)
    return isinstance(value, numbers.Real)  # such as NumPy's


def _is_tensor(value: object) -> TypeGuard["Tensor"]:
    import torch

    return isinstance(value, torch.Tensor)


def _refuse(error: type[Exception], name: str, expected: str, got: str) -> NoReturn:
    raise error(f"{name}: expected {expected}, got {got if len(got) <= LONGEST else got[:LONGEST] + '…'}")
