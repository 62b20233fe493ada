"""Real text: the reference of Python and Shakespeare, shipped with the course; the source of the standard library."""

import functools
import gzip
import random
import sysconfig
from pathlib import Path

_TEXTS = Path(__file__).parent / "texts"
# Left out of the library's source: tests, tables of numbers, what systems leave out or generate.
_LEFT_OUT = {"test", "tests", "encodings", "pydoc_data", "idlelib", "lib2to3", "ensurepip"}
_GENERATED = ("config-", "_sysconfigdata")


@functools.cache
def reference_text(*, each_once: bool = False) -> str:
    """Return the Python language reference as one string: 465,047 characters of technical prose.

    The topics of `pydoc_data.topics` of Python 3.11.7, sorted by name and joined by blank lines; the same on every
    version of Python. Topics repeat paragraphs of each other: of the first 300,000 characters, most of the last tenth
    stands in the tenths before as well. With `each_once` only the last of paragraphs that are alike stays, so that a
    part that is held out is new; 373,231 characters remain.

    Source: the CPython documentation, Python Software Foundation License 2; see `texts/LICENCE.md`.
    """
    text = _shipped("python-reference")
    if not each_once:
        return text
    paragraphs = {" ".join(paragraph.split()): paragraph for paragraph in reversed(text.split("\n\n"))}
    return "\n\n".join(reversed(paragraphs.values()))


@functools.cache
def tiny_shakespeare() -> str:
    """Return 1,115,394 characters of Shakespeare's plays, the text on which small language models are compared.

    Source: Karpathy 2015, char-rnn; in the public domain.
    """
    return _shipped("tinyshakespeare")


@functools.cache
def speeches() -> list[tuple[str, list[str]]]:
    """Return the speeches of `tiny_shakespeare` in their order: who speaks, "ROMEO", and the lines of the speech."""
    found = []
    for block in tiny_shakespeare().split("\n\n"):
        speaker, _, text = block.strip().partition(":\n")
        found.append((speaker, [line for line in text.split("\n") if line.strip()]))
    return found


@functools.cache
def library_text() -> str:
    """Return the source of Python's standard library as one string: about eight million characters of code and prose.

    Its modules in a shuffled order, which is the same in every run on one machine, joined by blank lines; without tests
    and tables, and without files that hold other characters than ASCII. It is read from the Python that runs, so
    another version has another text. Raises ImportError where Python was installed without its source.

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


def _shipped(name: str) -> str:
    # gzip, because some builds of Python lack lzma, which would save a fifth
    return gzip.decompress((_TEXTS / f"{name}.txt.gz").read_bytes()).decode("utf-8")
