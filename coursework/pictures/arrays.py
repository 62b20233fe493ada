"""Turning what readers pass in (tensors, arrays, nested lists) into plain numpy arrays, or a clear refusal."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
LONGEST = 14  # characters of a label in a figure
SUPERSCRIPTS = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")


def matrix(name: str, values: Any) -> Array:
    """Return `values` as float64 (rows, columns) without changing a number.

    Raises TypeError if it is not numbers, ValueError if it has not two dimensions, is empty, or is not finite.
    """
    array = plain(name, values)
    if array.ndim != 2:
        hint = "; take one example and one head, for instance weights[0, 0]" if array.ndim > 2 else ""
        raise ValueError(f"{name}: expected two dimensions, got shape {array.shape}{hint}")
    if 0 in array.shape:
        raise ValueError(f"{name}: expected at least one row and one column, got shape {array.shape}")
    if array.dtype.kind not in "biuf":
        raise TypeError(f"{name}: expected numbers, got {array.dtype}")
    array = array.astype(np.float64)
    if not np.isfinite(array).all():
        raise ValueError(f"{name}: expected finite numbers, got nan or inf")
    return array


def mask_matrix(name: str, values: Any, shape: tuple[int, int]) -> Array | None:
    """Return a boolean mask (True = may attend) of the given shape (T, S), or None for None; leading axes of 1 go.

    Raises TypeError if it is not boolean, ValueError if it does not broadcast to the shape.
    """
    if values is None:
        return None
    array = plain(name, values)
    if array.dtype != np.bool_:
        raise TypeError(f"{name}: expected a boolean mask (True = may attend), got {array.dtype}")
    squeezed = array.reshape(array.shape[-2:]) if array.ndim > 2 and set(array.shape[:-2]) == {1} else array
    if squeezed.ndim != 2 or any(size not in (1, whole) for size, whole in zip(squeezed.shape, shape, strict=True)):
        raise ValueError(f"{name}: expected shape (T, S)={shape}, got {array.shape}")
    return np.broadcast_to(squeezed, shape).copy()


def labels(name: str, values: Sequence[Any] | None, count: int, prefix: str = "") -> list[str]:
    """Return `count` labels as text; without any, positions 0, 1, … after `prefix`.

    Raises ValueError if there are more or fewer, TypeError for one text.
    """
    if values is None:
        return [f"{prefix}{position}" for position in range(count)]
    if isinstance(values, str):
        raise TypeError(f"{name}: expected a list of {count} labels, got one text {values!r}; split it first")
    texts = [_visible(str(value)) for value in values]
    if len(texts) != count:
        raise ValueError(f"{name}: expected {count} labels, one per row of the tensor, got {len(texts)}")
    return texts


def _visible(token: str) -> str:
    """Make blanks visible that a label would lose: at the start, alone, and line ends."""
    rest = token.lstrip(" ")
    return "␣" * (len(token) - len(rest)) + rest.replace("\n", "↵").replace("\t", "⇥")


def shorten(name: str) -> str:
    """Cut a label that would leave no room for the figure."""
    return name if len(name) <= LONGEST else name[: LONGEST - 1] + "…"


def plain(name: str, values: Any) -> Array:
    """Return a numpy array of a tensor on any device, an array, or nested lists."""
    if hasattr(values, "detach"):  # a torch tensor; numpy has no bfloat16
        values = values.detach().cpu()
        values = values.double() if values.is_floating_point() else values
        return np.asarray(values.numpy())
    try:
        return np.asarray(values)
    except ValueError:
        raise ValueError(f"{name}: expected rows of equal length") from None


def number(value: float, digits: int = 3) -> str:
    """Write a number as all figures and explorers do: fixed decimals, a true minus sign, no negative zero."""
    text = f"{abs(value):.{digits}f}"
    return f"−{text}" if value < 0 and float(text) != 0 else text


def power_of_ten(value: float, digits: int = 2) -> str:
    """Write a large positive number with so many digits and a power of ten, as the text does: 1.6·10¹¹."""
    front, exponent = f"{value:.{digits - 1}e}".split("e")
    return f"{front}·10{str(int(exponent)).translate(SUPERSCRIPTS)}"


def short(value: float) -> str:
    """Write a number with at most two decimals, for examples that a reader follows by hand: 0.74, 3, −0.7."""
    return number(value, 2).rstrip("0").rstrip(".")


def point(values: Iterable[float]) -> str:
    """Write a point, or a vector, as its numbers in brackets: (0.74, 0.17)."""
    return f"({', '.join(short(float(value)) for value in values)})"
