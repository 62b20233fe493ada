"""What stands in files and settings, checked before it is used; all errors of this kind have one wording.

A file may have been edited by hand, cut short, damaged or written by another program. Whoever reads one states its
shape here, and gets what fits it or an `Unreadable`.
"""

import json
import os
import select
import stat
import tomllib
from collections.abc import Mapping, Sequence
from types import NoneType, UnionType
from typing import Any

MOST_JSON = 2**28  # bytes: no config, notebook or vocabulary comes near it
MOST_TEXT = 2**31
PATIENCE = 5.0  # seconds, with a pipe

OBJECT = {str: object}  # the shape of any JSON object
_NAMES = {
    dict: "a JSON object",
    list: "a list",
    str: "a text",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    NoneType: "null",
}


class Unreadable(ValueError):
    """A file, or a text in its place, that is not what it should be.

    Its message is one line: the name, what was expected, what came, and what to do.
    """

    def __init__(self, name: str | os.PathLike[str], expected: str, got: str, advice: str = "") -> None:
        self.name, self.got = str(name), one_line(got)
        message = f"{self.name}: expected {expected}, got {self.got}"
        super().__init__(f"{message}; {advice}" if advice else message)


def read_bytes(
    path: str | os.PathLike[str],
    most: int = MOST_JSON,
    expected: str = "a file",
    advice: str = "",
    patience: float = PATIENCE,
) -> bytes:
    """Read a whole file, or Unreadable if it holds more than `most` bytes; it may be a pipe. Raises OSError.

    A pipe is waited for only so many seconds until something is written to it, and a device is refused.
    """

    def opened(path: str, flags: int) -> int:
        return _opened(path, flags, patience)

    with open(path, "rb", opener=opened) as stream:
        data = stream.read(most + 1)
    if len(data) > most:
        raise Unreadable(path, f"{expected} of at most {most >> 20} MiB", "more", advice)
    return data


def _opened(path: str, flags: int, patience: float) -> int:
    number = os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
    mode = os.fstat(number).st_mode
    if stat.S_ISCHR(mode) and path != os.devnull and not os.isatty(number):
        os.close(number)
        raise Unreadable(path, "a file", "a device")
    if stat.S_ISFIFO(mode):
        if not select.select([number], [], [], patience)[0]:
            os.close(number)
            raise Unreadable(path, "a file", "a pipe that nothing is written to")
        os.set_blocking(number, True)
    return number


def read_text(path: str | os.PathLike[str], expected: str = "text", advice: str = "") -> str:
    """Read a text in UTF-8, with or without its mark. Raises Unreadable or OSError."""
    return decoded(read_bytes(path, MOST_TEXT, expected, advice), path, expected, advice)


def read_json(path: str | os.PathLike[str], shape: Any = OBJECT, expected: str = "JSON", advice: str = "") -> Any:
    """Read JSON of a shape, as `parse_json` does. Raises Unreadable or OSError."""
    return parse_json(read_bytes(path, MOST_JSON, expected, advice), path, shape, expected, advice)


def parse_json(
    data: bytes | str, name: str | os.PathLike[str], shape: Any = OBJECT, expected: str = "JSON", advice: str = ""
) -> Any:
    """Read JSON of a shape; `name` is what errors call it.

    A shape is a type or a union of them, `[shape]` for a list of such, `{str: shape}` for an object of such, or
    `{"name": shape, …}` for an object that has at least these entries; `object` is anything. Raises Unreadable.
    """
    text = data if isinstance(data, str) else decoded(data, name, expected, advice)
    if not text.strip():
        raise Unreadable(name, expected, "nothing, it is empty", advice)
    try:
        found = json.loads(text)
    except RecursionError:
        raise Unreadable(name, expected, "brackets nested too deep", advice) from None
    except ValueError as error:  # also a number of more digits than Python reads
        raise Unreadable(name, expected, f"no JSON ({error})", advice) from None
    check_shape(found, name, shape, expected, advice)
    return found


def read_toml(path: str | os.PathLike[str], shape: Any = OBJECT, advice: str = "") -> dict[str, Any]:
    """Read TOML of a shape, see `parse_json`. Raises Unreadable or OSError."""
    expected = "a TOML file"
    text = decoded(read_bytes(path, MOST_JSON, expected, advice), path, expected, advice)
    try:
        found = tomllib.loads(text)
    except RecursionError:
        raise Unreadable(path, expected, "brackets nested too deep", advice) from None
    except ValueError as error:
        raise Unreadable(path, expected, f"none ({error})", advice) from None
    check_shape(found, path, shape, expected, advice)
    return found


def check_shape(value: object, name: str | os.PathLike[str], shape: Any, expected: str, advice: str = "") -> None:
    """Raise Unreadable that says where a value is not of a shape, see `parse_json`."""
    if misfit := _misfit(value, shape, ""):
        place, wanted, got = misfit
        what = f"{expected} with {wanted} at {place}" if place else wanted
        raise Unreadable(name, what, got, advice)


def one_line(text: object, longest: int = 300) -> str:
    """Return a text without line ends and what no terminal can write, cut to a length."""
    line = " ".join(str(text).encode("utf-8", "backslashreplace").decode().split())
    line = "".join(character if character.isprintable() else ascii(character)[1:-1] for character in line)
    return line if len(line) <= longest else f"{line[: longest - 1]}…"


def shown(value: object) -> str:
    """Return a value as a message shows it."""
    if isinstance(value, Mapping | list | tuple):
        return f"{_NAMES[dict if isinstance(value, Mapping) else list]} of {len(value)}"
    try:
        return one_line(repr(value), 80)
    except ValueError:  # a number of more digits than Python writes
        return "a number of thousands of digits"


def _misfit(value: object, shape: Any, place: str) -> tuple[str, str, str] | None:
    """Where a value differs from a shape, what stands in the shape there, and what in the value."""
    if shape is object:
        return None
    if isinstance(shape, Mapping):
        if not isinstance(value, dict):
            return place, _NAMES[dict], shown(value)
        if str in shape:
            inner = [(name, shape[str]) for name in value]
        else:
            inner = list(shape.items())
            if missing := [name for name in shape if name not in value]:
                return place, f"an entry {missing[0]}", f"only {', '.join(sorted(value)[:8]) or 'an empty one'}"
        parts = ((value[name], part, f"{place}.{name}" if place else str(name)) for name, part in inner)
    elif isinstance(shape, Sequence):
        if not isinstance(value, list):
            return place, _NAMES[list], shown(value)
        parts = ((one, shape[0], f"{place}[{number}]") for number, one in enumerate(value))
    else:
        kinds = shape.__args__ if isinstance(shape, UnionType) else (shape,)
        if any(type(value) is kind or (kind is float and type(value) is int) for kind in kinds):
            return None
        return place, " or ".join(_NAMES[kind] for kind in kinds), shown(value)
    return next((misfit for part in parts if (misfit := _misfit(*part))), None)


def decoded(data: bytes, name: str | os.PathLike[str], expected: str, advice: str = "") -> str:
    """Return the text that bytes are in UTF-8, with or without its mark. Raises Unreadable."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        got = f"bytes that are not UTF-8, the first at {error.start:,}"
        raise Unreadable(name, expected, got, advice) from None
