"""What the modules of a folder define is found by its definition: no list has to name it."""

import importlib
import pkgutil
from collections.abc import Callable
from typing import Any


def defined_in(package: str, wanted: Callable[[Any], bool]) -> dict[str, Any]:
    """Return by name what the modules of a package define: what has no leading underscore and is `wanted`.

    Raises ValueError for a name that two modules define.
    """
    found: dict[str, Any] = {}
    for info in pkgutil.iter_modules(importlib.import_module(package).__path__):
        module = importlib.import_module(f"{package}.{info.name}")
        for name, thing in vars(module).items():
            if name.startswith("_") or getattr(thing, "__module__", "") != module.__name__ or not wanted(thing):
                continue
            if name in found:
                first = found[name].__module__
                raise ValueError(f"{name}: expected in one module of {package}, got {first} and {module.__name__}")
            found[name] = thing
    return found
