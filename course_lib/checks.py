"""The checks of arguments, with one wording: the argument's name, what was expected, what came.

They stand at the public door; what lies behind it trusts its input. A value of the wrong kind is a TypeError, one of
the right kind out of its range a ValueError. True and False are no numbers here. Lengths that `torch.compile` or
`torch.export` has made symbols pass.
"""

import collections.abc
import contextlib
import dataclasses
import functools
import math
import numbers
import os
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn, TypeGuard, TypeVar, Union, get_args, get_origin

if TYPE_CHECKING:  # settings are checked without torch
    from torch import Tensor

Function = TypeVar("Function", bound=Callable[..., Any])
LONGEST = 200  # characters of a value in a message
_SERIES = (collections.abc.Iterable, collections.abc.Sequence, collections.abc.Collection, list)
_WORDS: dict[Any, str] = {str: "text", int: "integer", float: "number", collections.abc.Callable: "function"}
_WORDS |= dict.fromkeys((Mapping, dict), "dictionary")
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
    if most is not None:
        expected = f"a number {f'above {above:g} and up' if least is None else f'from {least:g}'} to {most:g}"
    elif least is not None:
        expected = f"a number of at least {least:g}"
    elif above is not None:
        expected = "a positive number" if above == 0 else f"a number above {above:g}"
    if not _is_number(value):
        _refuse(TypeError, name, expected, _written(value))
    low = value < least if least is not None else above is not None and value <= above
    high = most is not None and value > most
    if low or high or math.isinf(value) or value != value:  # NaN alone differs from itself
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
LARGEST = 2.0**63  # of a setting with a point
Count = Annotated[int, Within(1, MOST)]
CountOrZero = Annotated[int, Within(0, MOST)]
Positive = Annotated[float, Within(above=0)]
NotNegative = Annotated[float, Within(0)]
Finite = Annotated[float, Within()]
Share = Annotated[float, Within(0, below=1)]
Tolerance = Annotated[float, Within(0, 1)]  # relative: from 1 on anything is alike
Several = Within(1)  # a list that is not empty, as in Annotated[Sequence[float], Several]
Scale = Annotated[float, Within(-1e30, 1e30)]  # of scores: beyond it they overflow


class Checked:
    """A dataclass that refuses values which are not as its fields declare."""

    def __post_init__(self) -> None:
        """Refuse them."""
        check_fields(self)


def checked(function: Function) -> Function:
    """Refuse arguments that are not as the function declares them, by the types and ranges of its annotations.

    For what is called now and then, not for forward passes: `torch.compile` is not asked to see through it.
    """
    code = function.__code__
    names = code.co_varnames[: code.co_argcount]

    @functools.wraps(function)
    def checking(*args: Any, **kwargs: Any) -> Any:
        declared = declarations(function)
        for name, value in (*zip(names, args, strict=False), *kwargs.items()):
            if name in declared:
                check_declared(name, value, declared[name])
        return function(*args, **kwargs)

    return checking  # type: ignore[return-value]


def check_fields(config: Any) -> None:
    """Refuse values that are not as the fields of a dataclass declare: their types, ranges and choices."""
    for name, declared in declarations(type(config)).items():  # type: ignore[arg-type]
        check_setting(name, getattr(config, name), declared)


def check_setting(name: str, value: Any, declared: Any) -> None:
    """Refuse a setting that is not as declared, or so large that a product of two is none in 32 bits."""
    check_declared(name, value, declared)
    if isinstance(value, float) and abs(value) > LARGEST:
        _refuse(ValueError, name, f"a number of at most {LARGEST:g}", _written(value))


@functools.cache
def declarations(declaring: Any) -> dict[str, Any]:
    """The types of a dataclass's fields, or of a function's arguments, with their ranges."""
    return typing.get_type_hints(declaring, include_extras=True)


def check_declared(name: str, value: Any, declared: Any) -> None:
    """Refuse a value that is not of the declared type; types that nothing can be asked about let all pass."""
    within = Within()
    if get_origin(declared) is Annotated:
        declared, within = get_args(declared)[:2]
    origin, parts = get_origin(declared), get_args(declared)
    if origin is Literal:
        check_choice(name, value, parts)
    elif origin in (Union, types.UnionType):
        _check_any(name, value, parts)
    elif origin is tuple:
        several = parts[-1] is ...
        length = "some" if several else str(len(parts))
        if not isinstance(value, tuple | list) or not (several or len(value) == len(parts)):
            _refuse(TypeError, name, f"a list of {length}", _written(value))
        for part in value:
            check_declared(name, part, parts[0])
    elif declared is bool:
        check_flag(name, value)
    elif declared is int:
        high = within.most if isinstance(value, int) and value > (within.most or MOST) else None
        check_integer(name, value, int(-MOST if within.least is None else within.least), high)  # type: ignore[arg-type]
    elif declared is float and (within.below is not None or within == Within(above=0, most=1)):
        ends = ("[" if within.above is None else "(", ")" if within.most is None else "]")
        check_probability(name, value, f"{ends[0]}0, 1{ends[1]}")  # type: ignore[arg-type]
    elif declared is float:
        check_number(name, value, least=within.least, above=within.above, most=within.most)
    elif not _is_of(value, declared):
        _refuse(TypeError, name, _in_words(declared), _short(value))
    elif origin in _SERIES and within.least and not len(value):
        _refuse(ValueError, name, "a list of at least one", "none")


def _check_any(name: str, value: Any, parts: tuple[Any, ...]) -> None:
    """Refuse what none of the types takes: out of range if it is of the kind of one."""
    if value is None and type(None) in parts:
        return
    parts = tuple(part for part in parts if part is not type(None))
    if isinstance(value, str) and any(getattr(part, "__qualname__", "") == "device" for part in parts):
        check_device(name, value)
    for part in parts[len(parts) == 1 :]:
        with contextlib.suppress(TypeError):  # a ValueError goes on: of that kind, but out of its range
            return check_declared(name, value, part)
    if len(parts) == 1:
        return check_declared(name, value, parts[0])
    _refuse(TypeError, name, " or ".join(map(_in_words, parts)), _short(value))


def _is_of(value: Any, declared: Any) -> bool:
    """Whether a value is of a class, callable, a mapping or a series, as declared; True where that cannot be told."""
    wanted = get_origin(declared) or declared
    if getattr(wanted, "__name__", "") == "Path":
        wanted = os.PathLike
    if wanted is Any or not isinstance(wanted, type) or getattr(wanted, "_is_protocol", False):
        return True
    if wanted in _SERIES:
        part = (get_args(declared) or (Any,))[0]
        if isinstance(value, list | tuple) and isinstance(part, type) and part.__module__ != "builtins":
            return all(_is_of(one, part) for one in value)
        no_list = isinstance(value, bytes | Mapping) or (isinstance(value, str) and declared != Iterable[str])
        return not no_list and (hasattr(value, "__iter__") or hasattr(value, "__getitem__"))
    return isinstance(value, wanted)


def _short(value: Any) -> str:
    return _written(value) if value is None or isinstance(value, (str, int, float)) else kind(value)


def _in_words(declared: Any) -> str:
    """What is expected, such as "a Tensor"."""
    if get_origin(declared) is Annotated:
        declared = get_args(declared)[0]
    wanted = get_origin(declared) or declared
    if wanted in _SERIES:
        part = (get_args(declared) or (Any,))[0]
        return f"a list of {_WORDS.get(part, part.__name__)}s" if isinstance(part, type) else "a list"
    if get_origin(declared) is Literal:
        return f"one of {', '.join(map(str, get_args(declared)))}"
    return f"a{'n' * (wanted is int)} {_WORDS.get(wanted) or wanted.__qualname__}"


def check_device(name: str, value: object) -> None:
    """Refuse the name of a device that is not here."""
    try:
        _ = _torch().empty(0, device=value) if isinstance(value, str) else None
    except (AssertionError, RuntimeError):  # torch says either
        _refuse(ValueError, name, "one that is here, such as 'cpu'", _written(value))


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


def check_kind(name: str, value: object, wanted: type) -> None:
    """Refuse what is not of the class; unlike `check_declared`, forward passes may ask this."""
    if not isinstance(value, wanted):
        _refuse(TypeError, name, f"a {wanted.__name__}", _short(value))


def id_tensor(name: str, ids: Any, **options: Any) -> "Tensor":
    """Make a tensor int64 of token ids in lists; refuse what are none."""
    torch = _torch()
    try:
        tensor = torch.tensor(ids, **options)
    except (TypeError, ValueError, OverflowError, RuntimeError):  # torch says any of them
        tensor = torch.ones(1)
    if tensor.numel() and tensor.dtype != torch.int64:
        _refuse(TypeError, name, "integer token ids", _written(ids))
    return tensor.long()


def check_width(name: str, x: object, width: int) -> None:
    """Refuse what is not floating-point numbers (..., width)."""
    check_floating(name, x)
    if x.dim() == 0 or x.size(-1) != width:  # type: ignore[attr-defined]
        _refuse(ValueError, name, f"(..., D={width})", str(tuple(x.shape)))  # type: ignore[attr-defined]


def check_positions(positions: "Tensor | None", T: int) -> None:
    """Refuse positions that are not as many as the vectors."""
    if positions is not None and positions.size(-1) != T:
        _refuse(ValueError, "positions", f"(T,) or (B, T) with T={T}", str(tuple(positions.shape)))


def check_vectors(name: str, x: "Tensor", width: int, length: str = "T") -> None:
    """Refuse what is not (B, T, width) with T of at least 1; `length` is the letter to say for T."""
    check_floating(name, x)
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
    return isinstance(value, _torch().Tensor)


def _torch() -> Any:
    import torch

    return torch


def _refuse(error: type[Exception], name: str, expected: str, got: str) -> NoReturn:
    raise error(f"{name}: expected {expected}, got {got if len(got) <= LONGEST else got[:LONGEST] + '…'}")
