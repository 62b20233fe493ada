"""Files of token ids that are read in place, so that a corpus may be larger than memory."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

import numpy as np

from course_lib.checks import Within, checked
from course_lib.files import open_atomic


@checked
def write_tokens(
    path: str | Path, chunks: Iterable[Sequence[int]], *, vocab_size: Annotated[int, Within(1, 2**32)]
) -> int:
    """Write ids, chunk by chunk, as a one-dimensional .npy file, and return how many.

    Two bytes an id where the vocabulary allows it, else four. No more than one chunk is held in memory, and the file
    appears under its name only when it is complete.
    """
    dtype = np.dtype("<u2" if vocab_size <= 1 << 16 else "<u4")
    count = 0
    with open_atomic(path) as stream:
        _write_header(stream, dtype, 0)
        begins = stream.tell()
        for chunk in chunks:
            ids = np.asarray(chunk)
            if ids.size and ids.dtype.kind not in "ui":
                raise TypeError(f"chunks: expected integer ids, got {str(chunk)[:80]}")
            if ids.size and not (ids.min() >= 0 and ids.max() < vocab_size):
                raise ValueError(f"chunks: expected ids from 0 to {vocab_size - 1}, got {ids.min()} to {ids.max()}")
            stream.write(ids.astype(dtype).tobytes())
            count += ids.size
        stream.seek(0)
        _write_header(stream, dtype, count)  # numpy leaves room in the header for the final length
        if stream.tell() != begins:
            raise RuntimeError("the header of the .npy format grew; its version of numpy leaves no room")
    return count


def open_tokens(path: str | Path) -> np.ndarray:
    """Map a file of `write_tokens`: ids (N,), read from the disk where they are used."""
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"path: expected a file of token ids, found none at {path}")
    try:
        tokens = np.load(path, mmap_mode="r", allow_pickle=False)
    except ValueError as error:
        raise ValueError(f"path: {path} is no complete file of token ids ({error})") from error
    if tokens.ndim != 1 or tokens.dtype.kind not in "ui":
        raise ValueError(f"path: expected integers (N,) in {path}, got {tokens.dtype} {tokens.shape}")
    return tokens


def _write_header(stream: object, dtype: np.dtype, count: int) -> None:
    header = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": (count,)}
    np.lib.format.write_array_header_1_0(stream, header)  # type: ignore[arg-type]
