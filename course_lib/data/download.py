"""Opt-in downloads: verified, cached, resumed where they were cut, and clear about what to do without a network.

Files lie in the folder that the environment variable COURSE_DATA names, else in the user's cache. A file found there
with the right checksum is used without touching the network, so a folder can be carried to a machine that has none.
"""

import errno
import functools
import os
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import platformdirs

from .registry import FILES, DataFile

CHUNK = 1 << 14  # bytes; where a connection is cut, at most one chunk that arrived is lost
WAIT_FOR_OTHERS = 600.0  # seconds that another process may take for the same file


class DownloadError(RuntimeError):
    """A file could not be had; the message is one line that says why and what to do instead."""


def tiny_shakespeare() -> str:
    """Return 1,115,394 characters of Shakespeare's plays, downloaded at the first call and cached: see `fetch`.

    Source: Karpathy 2015, char-rnn.
    """
    return fetch("tinyshakespeare.txt").read_text(encoding="utf-8")


def data_folder() -> Path:
    """Return the folder of downloaded files: COURSE_DATA if set, else the user's cache folder of this system."""
    named = os.environ.get("COURSE_DATA")
    return Path(named).expanduser() if named else platformdirs.user_cache_path("course_lib") / "data"


def fetch(name: str, *, timeout: float = 30.0, attempts: int = 3) -> Path:
    """Return the path of a file of `FILES`, downloading it if it is not yet there.

    A download that is cut, by the network or by an interrupt, leaves `<name>.part` and goes on from there, now or in
    the next call. The file appears under its name only when its checksum is right; one with another checksum is set
    aside as `<name>.rejected`. Two processes that ask for one file download it once.

    Args:
        name: a key of `FILES`.
        timeout: seconds without an answer, or without a further byte, after which an attempt is given up.
        attempts: how often to try, going on from what has arrived.

    Raises:
        ValueError: an unknown name.
        DownloadError: no network, a wrong checksum, a full disk or a folder that cannot be written.
    """
    if name not in FILES:
        raise ValueError(f"name: expected one of {', '.join(FILES)}, got {name!r}")
    file, path = FILES[name], data_folder() / name
    if _is_right(path, file):
        return path
    import filelock

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(f"{path}.lock", timeout=WAIT_FOR_OTHERS):
            if not _is_right(path, file):  # another process may have finished it meanwhile
                _set_aside(path, file)
                _download(file, path, timeout, attempts)
    except filelock.Timeout:
        raise DownloadError(
            f"{name}: another process has been downloading it for {WAIT_FOR_OTHERS:.0f} s; try again when it is done"
        ) from None
    except KeyboardInterrupt:
        print(f"{name}: interrupted. {_kept(path)}".rstrip(), flush=True)
        raise
    except OSError as error:  # those of requests are turned into DownloadError where they occur
        raise DownloadError(f"{name}: {_disk_trouble(error, path)} {_kept(path)}") from error
    return path


def _is_right(path: Path, file: DataFile) -> bool:
    import pooch

    return path.is_file() and pooch.file_hash(str(path), alg="sha256") == file.sha256


def _set_aside(path: Path, file: DataFile) -> None:
    """Keep what stands under the name of a file without being it, out of the way."""
    if path.exists():
        aside = path.with_name(path.name + ".rejected")
        os.replace(path, aside)
        print(f"{file.name}: the file in {path.parent} has another checksum than expected; kept as {aside.name}.")


def _download(file: DataFile, path: Path, timeout: float, attempts: int) -> None:
    import pooch

    pooch.get_logger().setLevel("WARNING")  # its line on stderr would stand in a notebook as a warning
    print(f"Downloading {file.name} ({file.size / 1e6:.1f} MB) from {urlsplit(file.url).hostname}.", flush=True)
    store = pooch.create(
        path=path.parent, base_url="", registry={path.name: f"sha256:{file.sha256}"}, urls={path.name: file.url}
    )
    # pooch hands over a temporary name, verifies the checksum and moves the file to its place.
    store.fetch(path.name, downloader=functools.partial(_into, file, path, timeout, attempts))


def _into(file: DataFile, path: Path, timeout: float, attempts: int, url: str, output: Any, store: Any) -> None:
    """The downloader for pooch: complete `<name>.part`, check it, and move it to `output`."""
    part = _part(path)
    resumed = part.exists()
    _complete(file, part, url, timeout, attempts)
    if resumed and not _is_right(part, file):  # what an earlier call left may have been the beginning of another file
        part.unlink()
        _complete(file, part, url, timeout, attempts)
    if not _is_right(part, file):
        rejected = path.with_name(path.name + ".rejected")
        os.replace(part, rejected)
        raise DownloadError(
            f"{file.name}: what {url} sent has another checksum than expected and was not used; it is kept as "
            f"{rejected}. {_advice(file, path)}"
        )
    os.replace(part, output)


def _complete(file: DataFile, part: Path, url: str, timeout: float, attempts: int) -> None:
    """Add the missing bytes to `part`, in as many attempts as allowed."""
    import requests

    for attempt in range(attempts):
        try:
            _attempt(file, part, url, timeout)
            return
        except requests.RequestException as error:
            status = error.response.status_code if error.response is not None else None
            if status == 416:  # the server has fewer bytes than the part
                part.unlink(missing_ok=True)
            final = status is not None and status < 500 and status not in (408, 416, 429)
            if final or attempt == attempts - 1:
                path = part.with_name(part.name.removesuffix(".part"))
                raise DownloadError(
                    f"{file.name}: {_network_trouble(error, url, timeout)} {_kept(path)} {_advice(file, path)}"
                ) from error
        time.sleep(0.5 * 2**attempt)


def _attempt(file: DataFile, part: Path, url: str, timeout: float) -> None:
    """Ask for the bytes that `part` lacks and append them as they arrive."""
    import requests

    have = part.stat().st_size if part.exists() else 0
    if have > file.size:
        part.unlink()  # not a beginning of this file
        have = 0
    if have == file.size:
        return
    headers = {"Accept-Encoding": "identity"}  # compressed bytes could not be resumed
    if have:
        headers["Range"] = f"bytes={have}-"
    with requests.get(url, headers=headers, stream=True, timeout=timeout) as answer:
        answer.raise_for_status()
        goes_on = answer.status_code == 206 and answer.headers.get("Content-Range", "").startswith(f"bytes {have}-")
        expected = file.size - have if goes_on else file.size
        sent = answer.headers.get("Content-Length")
        if sent and "Content-Encoding" not in answer.headers and int(sent) != expected:
            path = part.with_name(part.name.removesuffix(".part"))
            raise DownloadError(  # a newer file, or the page of a log-in
                f"{file.name}: {url} sends {int(sent):,} bytes where {expected:,} were expected; they were not taken. "
                f"{_advice(file, path)}"
            )
        with open(part, "ab" if have and goes_on else "wb") as stream:
            for chunk in answer.iter_content(CHUNK):
                stream.write(chunk)
                if stream.tell() > file.size:
                    break  # not this file: the checksum will say so
    if part.stat().st_size < file.size:
        raise requests.ConnectionError(f"the answer ended after {part.stat().st_size} of {file.size} bytes")


def _part(path: Path) -> Path:
    return path.with_name(path.name + ".part")


def _kept(path: Path) -> str:
    part = _part(path)
    size = part.stat().st_size if part.exists() else 0
    return f"The {size:,} bytes that arrived are kept, and the next call goes on from there." if size else ""


def _advice(file: DataFile, path: Path) -> str:
    return (
        f"Without a network: {file.offline}; or put the file at {path} (the environment variable COURSE_DATA names "
        f"the folder)."
    )


def _network_trouble(error: Exception, url: str, timeout: float) -> str:
    import requests

    host = urlsplit(url).hostname
    if isinstance(error, requests.HTTPError) and error.response is not None:
        return f"{host} answered {error.response.status_code} {error.response.reason} for {url}."
    if isinstance(error, requests.Timeout) or "timed out" in str(error):  # within a body it is no Timeout to requests
        return f"{host} sent nothing for {timeout:g} s."
    if isinstance(error, requests.exceptions.ChunkedEncodingError) or "the answer ended" in str(error):
        return f"the connection to {host} was cut."
    return f"{host} cannot be reached ({type(error).__name__})."


def _disk_trouble(error: OSError, path: Path) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"no space is left in {path.parent}; free some, or let COURSE_DATA name another folder."
    return (
        f"{path.parent} cannot be written ({error.strerror or error}); let the environment variable COURSE_DATA name "
        f"a folder that can."
    )
