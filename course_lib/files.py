"""Writing files so that an interrupt, a full disk or a crash leaves the old content or the new, never half of one."""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


def write_atomic(path: str | os.PathLike[str], data: bytes | str) -> None:
    """Replace the content of `path` with `data` in one step; text is written as UTF-8.

    The data goes to a temporary file in the same folder, is flushed to the disk, and then renamed over `path`.
    Raises OSError if the disk is full or the folder cannot be written; `path` is then as it was before.
    """
    payload = data.encode("utf-8") if isinstance(data, str) else data
    with open_atomic(path) as stream:
        stream.write(payload)


@contextlib.contextmanager
def open_atomic(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a file to be written in pieces; it takes the place of `path` when the block ends without an error.

    As `write_atomic`, for content too large to be held in memory.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        # mkstemp makes files private; keep the mode of the file replaced, or what the umask gives a new one.
        os.chmod(temporary, path.stat().st_mode & 0o777 if path.exists() else 0o666 & ~_umask())
        os.replace(temporary, path)
    except BaseException:  # an interrupt too must not leave the temporary file behind
        Path(temporary).unlink(missing_ok=True)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
