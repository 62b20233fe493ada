"""Real text that is on every machine that runs Python: its reference, and the source of its standard library."""

import functools
import random
import sysconfig
from pathlib import Path

# Left out of the library's source: tests, tables of numbers, what systems leave out or generate.
_LEFT_OUT = {"test", "tests", "encodings", "pydoc_data", "idlelib", "lib2to3", "ensurepip"}
_GENERATED = ("config-", "_sysconfigdata")


@functools.cache
def reference_text(*, each_once: bool = False) -> str:
    """Return the Python language reference as one string: about half a million characters of technical prose.

    The topics of `pydoc_data.topics`, sorted by name and joined by blank lines. Topics repeat paragraphs of each other:
    of the first 300,000 characters, most of the last tenth stands in the tenths before as well. With `each_once` only
    the last of paragraphs that are alike stays, so that a part that is held out is new.

    The text grows with each version of Python (465 thousand characters in 3.11, 511 thousand in 3.13): it is the same
    in every run on one machine, and nothing may depend on its exact size. Raises ImportError where Python was
    installed without it.

    Source: the CPython documentation, Python Software Foundation License 2.
    """
    try:
        from pydoc_data.topics import topics
    except ImportError:
        raise ImportError(
            "pydoc_data: this Python was installed without the texts of help(); install its full standard library"
        ) from None
    text = "\n\n".join(topics[name].strip() for name in sorted(topics))
    if not each_once:
        return text
    paragraphs = {" ".join(paragraph.split()): paragraph for paragraph in reversed(text.split("\n\n"))}
    return "\n\n".join(reversed(paragraphs.values()))


@functools.cache
def library_text() -> str:
    """Return the source of Python's standard library as one string: about eight million characters of code and prose.

    Its modules in a shuffled order, which is the same in every run on one machine, joined by blank lines; without tests
    and tables, and without files that hold other characters than ASCII. As `reference_text`, it differs between
    versions of Python. Raises ImportError where Python was installed without its source.

    Source: the CPython standard library, Python Software Foundation License 2.
    """
    root = Path(sysconfig.get_path("stdlib"))
    found: list[tuple[str, str]] = []
    for path in root.rglob("*.py"):
        parts = path.relative_to(root).parts
        if any(part in _LEFT_OUT or part.endswith("-packages") or part.startswith(_GENERATED) for part in parts):
            continue
        source = path.read_bytes()
        if source.isascii() and source.strip():
            found.append(("/".join(parts), source.decode("ascii").replace("\r\n", "\n").strip()))
    if sum(len(text) for _, text in found) < 1_000_000:
        raise ImportError(f"{root}: this Python was installed without the source of its standard library")
    found.sort()
    random.Random(0).shuffle(found)
    return "\n\n".join(text for _, text in found)
