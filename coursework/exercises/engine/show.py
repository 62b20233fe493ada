"""Small tensors and other values as plain text, the same on every run."""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from coursework.exercises.engine.compare import dtype_name, kind_of

WIDTH = 110
"""Longest line of numbers."""

PARTS = 16
"""So many parts of a list of tensors are shown; of a longer one half as many."""


def lines_of(name: str, value: Any, limit: int) -> list[str]:
    """`name` and its value: on one line if it is plain, else a heading and one line for each row.

    Tensors of more than `limit` elements are only described.
    """
    if isinstance(value, np.ndarray):
        return lines_of(f"{name} (a numpy array)", torch.from_numpy(value), limit) if value.dtype != object else [name]
    if isinstance(value, Tensor):
        heading = f"{name}: {dtype_name(value)} {tuple(value.shape)}"
        if value.numel() == 0 or value.numel() > limit:
            return [heading]
        if value.dim() == 0:
            return [f"{heading}  {number(value.item())}"]
        return [heading, *(f"    {line}" for line in rows(value))]
    if isinstance(value, tuple | list | dict) and any(isinstance(leaf, Tensor) for leaf in tree_leaves(value)):
        parts = list(value.items() if isinstance(value, dict) else enumerate(value))
        shown = parts if len(parts) <= PARTS else parts[: PARTS // 2]
        lines = [line for key, part in shown for line in lines_of(f"{name}[{key!r}]", part, limit)]
        return lines if len(shown) == len(parts) else [*lines, f"{name} has {len(parts)} parts in all"]
    return [f"{name} = {short(value)}"]


def line_of(name: str, value: Any, limit: int) -> str:
    """`name` and its value on one line: a tensor in nested brackets if it has at most `limit` elements and fits."""
    if isinstance(value, np.ndarray) and value.dtype != object:
        return line_of(f"{name} (a numpy array)", torch.from_numpy(value), limit)
    if isinstance(value, Tensor):
        heading = f"{name}: {dtype_name(value)} {tuple(value.shape)}"
        if value.dim() == 0 and limit:
            return f"{heading}  {number(value.item())}"
        few = max((value.numel(), *value.shape)) <= limit  # of no elements there may be a billion rows
        whole = f"{heading}  {_nested(value.detach().tolist())}" if few else heading
        return whole if len(whole) <= WIDTH else heading
    if isinstance(value, tuple | list | dict):
        parts = value.values() if isinstance(value, dict) else value
        if any(isinstance(part, Tensor) for part in parts):
            described = [f"{dtype_name(p)} {tuple(p.shape)}" if isinstance(p, Tensor) else short(p) for p in parts]
            if isinstance(value, dict):
                described = [f"{key!r}: {text}" for key, text in zip(value, described, strict=True)]
            return f"{name}: {', '.join(described)}"
    return f"{name} = {short(value)}"


def _nested(value: Any) -> str:
    return f"[{', '.join(map(_nested, value))}]" if isinstance(value, list) else number(value)


def arguments_of(named: Iterable[tuple[str, Any]], limit: int) -> list[str]:
    """The arguments of a case: tensors as `lines_of` shows them, neighbouring plain values together on one line."""
    lines: list[str] = []
    together = False
    for name, value in named:
        if isinstance(value, dict) and len(value) > PARTS // 2 and limit < PARTS:
            lines.append(f"{name}: {len(value)} tensors, by name")
            together = False
            continue
        plain = isinstance(value, bool | int | float | str) or value is None
        shown = lines_of(name, value, limit)
        if plain and together and len(lines[-1]) + len(shown[0]) < WIDTH:
            lines[-1] += f", {shown[0]}"
        else:
            lines += shown
        together = plain
    return lines


def rows(tensor: Tensor) -> Iterator[str]:
    """One line for each row of the last axis; each matrix of a larger tensor under its index."""
    tensor = tensor.detach().cpu()
    cells = [number(item) for item in tensor.flatten().tolist()]
    width = max(map(len, cells))
    columns = tensor.shape[-1]
    lines = [" ".join(cell.rjust(width) for cell in cells[i : i + columns]) for i in range(0, len(cells), columns)]
    lines = [line if len(line) <= WIDTH else line[: WIDTH - 4] + " ..." for line in lines]
    height = tensor.shape[-2] if tensor.dim() > 1 else 1
    outer = list(itertools.product(*(range(size) for size in tensor.shape[:-2])))
    for index, start in zip(outer, range(0, len(lines), height), strict=True):
        if len(outer) > 1:
            yield f"[{', '.join(map(str, index))}]"
        yield from lines[start : start + height]


def number(value: Any, digits: int = 4) -> str:
    """A number with at most so many significant digits; True and False as 1 and 0."""
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, int):
        return str(value) if value.bit_length() < 256 else f"an int of {value.bit_length()} bits"
    if isinstance(value, complex):
        return f"{value:.{digits}g}"
    if math.isnan(value):
        return "NaN"
    return f"{value + 0.0:.{digits}g}"


def short(value: Any) -> str:
    """A value on one line, without addresses, cut to a readable length."""
    if isinstance(value, float):
        return f"{value:.10g}"
    if isinstance(value, torch.dtype | torch.device | int | str | bool | tuple | list | dict) or value is None:
        try:
            text = without_addresses(repr(value))
        except (ValueError, RecursionError):  # thousands of digits, or of brackets
            return kind_of(value)
        return text if len(text) <= WIDTH else text[: WIDTH - 4] + " ..."
    return without_addresses(repr(value)) if dataclasses.is_dataclass(value) else kind_of(value)


def without_addresses(text: str) -> str:
    """The text without memory addresses, which differ on every run."""
    return re.sub(r" at 0x[0-9a-fA-F]+|0x[0-9a-fA-F]{6,}", "", text)


def first_difference(expected: Tensor, actual: Tensor, same: Tensor) -> tuple[str, str, str]:
    """Where two tensors differ first, and the two numbers there with as many digits as tell them apart."""
    index = tuple(int(i) for i in (~same).nonzero()[0])
    place = f"[{', '.join(map(str, index))}]"
    wanted, got = expected[index].item(), actual[index].item()
    digits = next((n for n in (4, 8, 12, 17) if number(wanted, n) != number(got, n)), 17)
    return place, number(wanted, digits), number(got, digits)
