"""What crosses between the judge and the process in which an answer runs.

To the answer goes a pickle, in which functions and classes of the bank are written out, for the answer's process has no
bank. Back comes JSON, which says of a value no more than what a check compares. It is read into objects of exactly
Python's own types, tensors and arrays, so that no code of an answer comes along.
"""

from __future__ import annotations

import base64
import builtins
import importlib
import io
import itertools
import marshal
import math
import pickle
import types
from collections.abc import Callable, Iterator, Mapping
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from coursework.desk.frames import Malformed
from coursework.exercises import bank
from coursework.exercises.engine.compare import kind_of
from coursework.exercises.engine.guard import OutOfMemory, RanAway
from coursework.exercises.engine.run import Outcome
from coursework.exercises.modules import Unfit

TENSOR = 4 << 20
"""Bytes of one tensor that are sent. No right result has as many: of a larger one goes the shape."""

DEPTH, PARTS, DIGITS = 50, 100_000, 4000
"""How deep containers lie in one another, how many parts they have in all, and bits of an int."""


_UNREADABLE = TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RuntimeError, MemoryError
"""What reading such a message may raise."""


# -- to the answer: a pickle with the bank's functions and classes written out -----------------------------------------


def ship(value: Any) -> bytes:
    """The value as a pickle that a process without the bank can read."""
    to = io.BytesIO()
    _Shipper(to, protocol=5).dump(value)
    return to.getvalue()


_NOT_SENT = ("__dict__", "__weakref__", "__module__")


class _Shipper(pickle.Pickler):
    def reducer_override(self, obj: Any) -> Any:
        home = getattr(obj, "__module__", None)
        ours = isinstance(home, str) and home.startswith(f"{bank.__name__}.")
        if isinstance(obj, types.FunctionType) and ours:
            names = sorted(set(_names(obj.__code__)) & set(obj.__globals__))
            state = (
                {name: obj.__globals__[name] for name in names},
                [_contents(cell) for cell in obj.__closure__ or ()],
                (obj.__defaults__, obj.__kwdefaults__, obj.__qualname__),
            )
            return _function, (marshal.dumps(obj.__code__), len(state[1])), state, None, None, _fill_function
        if isinstance(obj, type) and ours:
            own = {name: value for name, value in vars(obj).items() if name not in _NOT_SENT}
            return _class, (type(obj), obj.__name__, obj.__bases__), own, None, None, _fill_class
        if isinstance(obj, types.ModuleType):
            return importlib.import_module, (obj.__name__,)
        if isinstance(obj, staticmethod | classmethod):
            return type(obj), (obj.__func__,)
        if isinstance(obj, types.MappingProxyType):
            return _proxy, (dict(obj),)
        if isinstance(obj, property):
            return property, (obj.fget, obj.fset, obj.fdel)
        if type(obj) is Tensor and obj.device.type == "cpu" and obj.layout == torch.strided and obj.is_leaf:
            flat = torch.empty(0, dtype=torch.uint8).set_(obj.untyped_storage())
            place = tuple(obj.shape), obj.stride(), obj.storage_offset(), obj.requires_grad
            return _tensor, (flat.numpy().tobytes(), obj.dtype, *place)
        return NotImplemented


def _proxy(of: dict[Any, Any]) -> types.MappingProxyType[Any, Any]:
    return types.MappingProxyType(of)


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _contents(cell: types.CellType) -> tuple[Any, ...]:
    try:
        return (cell.cell_contents,)
    except ValueError:  # empty
        return ()


def _function(code: bytes, cells: int) -> types.FunctionType:
    closure = tuple(types.CellType() for _ in range(cells))
    names = {"__builtins__": builtins, "__name__": "exercise"}
    return types.FunctionType(marshal.loads(code), names, None, None, closure)


def _fill_function(function: types.FunctionType, state: Any) -> None:
    names, cells, (function.__defaults__, function.__kwdefaults__, function.__qualname__) = state
    function.__globals__.update(names)
    for cell, contents in zip(function.__closure__ or (), cells, strict=True):
        if contents:
            cell.cell_contents = contents[0]


def _class(kind: Callable[..., type], name: str, bases: tuple[type, ...]) -> type:
    return kind(name, bases, {})


def _fill_class(new: type, own: Mapping[str, Any]) -> None:
    for name, value in own.items():
        setattr(new, name, value)


def _tensor(
    data: bytes, dtype: torch.dtype, shape: tuple[int, ...], strides: tuple[int, ...], offset: int, gradient: bool
) -> Tensor:
    flat = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
    whole = torch.empty(0, dtype=dtype).set_(flat.untyped_storage(), offset, shape, strides)
    return whole.requires_grad_(gradient)


# -- back: plain values ------------------------------------------------------------------------------------------------

DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.complex128, torch.bool),
        *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    )
}
_ARRAYS = "?bhilqBHILQefdFD"


def pack(value: Any) -> Any:
    """The value as what JSON can say."""
    try:
        return _pack(value, DEPTH, itertools.count())
    except _TooMuch:
        return {"other": "container of far too many parts"}


class _TooMuch(Exception):
    pass


def _pack(value: Any, depth: int, count: Iterator[int]) -> Any:
    if next(count) > PARTS:
        raise _TooMuch
    if depth == 0:
        return {"other": "container that is nested far too deeply"}

    def packed(part: Any) -> Any:
        return _pack(part, depth - 1, count)

    if value is None or value is True or value is False:
        return value
    if isinstance(value, int):
        bits = int.bit_length(value)
        return {"int": hex(int.__index__(value))} if bits <= DIGITS else {"other": f"int of {bits} bits"}
    if isinstance(value, float):
        return float.__float__(value)
    if isinstance(value, str):
        return str.__str__(value)[:PARTS]
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    if isinstance(value, Fraction):
        return {"fraction": [packed(value.numerator), packed(value.denominator)]}
    if isinstance(value, Tensor):
        try:
            return _pack_tensor(value)
        except Exception:  # nested, of another kind of dispatch, or of a class of the answer's own
            return {"other": "tensor whose values cannot be read"}
    if isinstance(value, np.ndarray | np.generic) and value.dtype.char in _ARRAYS and value.nbytes <= TENSOR:
        data = base64.b64encode(np.ascontiguousarray(value).tobytes()).decode()
        return {"number" if isinstance(value, np.generic) else "array": [value.dtype.char, list(value.shape), data]}
    if isinstance(value, list | tuple):
        return {"list" if isinstance(value, list) else "tuple": [packed(part) for part in value]}
    if isinstance(value, set | frozenset):
        return {"set": [packed(part) for part in value]}
    if isinstance(value, dict):
        return {"dict": [[packed(key), packed(part)] for key, part in dict.items(value)]}
    if isinstance(value, torch.dtype | torch.device):
        return {type(value).__name__: str(value).removeprefix("torch.")}
    return {"other": kind_of(value).partition(" ")[2][:80]}


def _pack_tensor(tensor: Tensor) -> Any:
    name, size = str(tensor.dtype).removeprefix("torch."), tensor.numel() * tensor.element_size()
    if name not in DTYPES or tensor.layout != torch.strided:
        return {"other": kind_of(tensor).partition(" ")[2]}
    head = [name, list(tensor.shape), tensor.device.type]
    if tensor.device.type != "cpu" or size > TENSOR:
        return {"tensor": [*head, None]}
    plain = torch.empty(tensor.numel(), dtype=tensor.dtype)
    plain.view(tensor.shape).copy_(tensor.detach())
    return {"tensor": [*head, base64.b64encode(plain.view(torch.uint8).numpy().tobytes()).decode()]}


def is_without_values(value: Any) -> bool:
    """Whether it is, or holds, a tensor of which only the shape has come."""
    return any(isinstance(leaf, Tensor) and leaf.device.type == "meta" for leaf in tree_leaves(value))


def unpack(said: Any) -> Any:
    """The value that `pack` described; Malformed if it did not write this."""
    try:
        return _unpack(said)
    except _UNREADABLE as problem:
        raise Malformed(f"what came from the answer cannot be read ({type(problem).__name__})") from None


def _unpack(said: Any) -> Any:
    if said is None or type(said) in (bool, int, float, str):
        return said
    ((kind, inner),) = said.items()
    return _READ[kind](inner)


def _of_dtype(inner: Any) -> torch.dtype:
    return DTYPES[inner]


def _read_tensor(inner: Any) -> Tensor:
    name, shape, device, data = inner
    dtype, size = DTYPES[name], math.prod(shape)
    if any(type(n) is not int or n < 0 for n in shape):
        raise ValueError("shape")
    if data is None or device != "cpu":  # no values are known: it lies elsewhere
        return torch.empty(shape, dtype=dtype, device="meta")
    raw = base64.b64decode(data, validate=True)
    if len(raw) != size * dtype.itemsize:
        raise ValueError("bytes")
    if not raw:
        return torch.empty(shape, dtype=dtype)
    flat = torch.frombuffer(bytearray(raw), dtype=torch.uint8)
    return (flat != 0 if dtype == torch.bool else flat.view(dtype)).view(shape)


def _read_array(inner: Any) -> Any:
    char, shape, data = inner
    if char not in _ARRAYS:
        raise ValueError("dtype")
    return np.frombuffer(base64.b64decode(data, validate=True), dtype=char).reshape(shape).copy()


def _other(inner: Any) -> Any:
    name = "".join(c for c in str(inner)[:80] if c.isprintable()) or "object"
    return type(name, (), {})()


_READ: dict[str, Callable[[Any], Any]] = {
    "int": lambda inner: int(inner, 16),
    "complex": lambda inner: complex(*inner),
    "fraction": lambda inner: Fraction(*map(_unpack, inner)),
    "tensor": _read_tensor,
    "array": _read_array,
    "number": lambda inner: _read_array(inner)[()],
    "list": lambda inner: [_unpack(part) for part in inner],
    "tuple": lambda inner: tuple(_unpack(part) for part in inner),
    "set": lambda inner: {_unpack(part) for part in inner},
    "dict": lambda inner: {_unpack(key): _unpack(part) for key, part in inner},
    "dtype": _of_dtype,
    "device": torch.device,
    "other": _other,
}


# -- what a call did ---------------------------------------------------------------------------------------------------

_ERRORS: dict[str, type[BaseException]] = {one.__name__: one for one in (RanAway, OutOfMemory, Unfit)}


def pack_outcome(outcome: Outcome) -> dict[str, Any]:
    """The outcome as what JSON can say."""
    error = None
    if outcome.error is not None:
        error = {"kinds": [one.__name__ for one in type(outcome.error).__mro__], "text": _text(outcome.error)}
    return {
        "value": pack(outcome.value),
        "error": error,
        "gradients": None if outcome.gradients is None else [pack(one) for one in outcome.gradients],
        "changed": list(outcome.changed),
        "graded": list(outcome.graded),
        "flops": outcome.flops,
        "elements": outcome.elements,
        "printed": outcome.printed,
    }


def _text(error: BaseException) -> str:
    try:
        return str(error)[:2000]
    except Exception:  # an answer may raise what cannot be shown
        return ""


def unpack_outcome(said: Any) -> Outcome:
    """The outcome; Malformed if `pack_outcome` did not write this."""
    try:
        gradients = said["gradients"]
        if gradients is not None:
            gradients = [_unpack(one) for one in gradients]
            if not all(one is None or isinstance(one, Tensor) for one in gradients):
                raise ValueError("gradients")
        return Outcome(
            value=unpack(said["value"]),
            error=None if said["error"] is None else _error(said["error"]),
            gradients=gradients,
            changed=tuple(map(str, said["changed"])),
            graded=tuple(map(str, said["graded"])),
            flops=int(said["flops"]),
            elements=int(said["elements"]),
            printed=str(said["printed"]),
        )
    except _UNREADABLE as problem:
        raise Malformed(f"what came from the answer cannot be read ({type(problem).__name__})") from None


def _error(said: Any) -> BaseException:
    text = str(said["text"])
    for name in map(str, said["kinds"]):
        kind = _ERRORS.get(name) or getattr(builtins, name, None)
        if isinstance(kind, type) and issubclass(kind, BaseException):
            try:
                return kind(text)
            except TypeError:  # of an encoding, say, which needs more than a text
                continue
    return Exception(text)
