"""Opt-in downloads: verified, cached, tried again, and clear about what to do without a network.

Files lie in the folder that the environment variable COURSE_DATA names, else in the user's cache. A file found there
with the right checksum is used without touching the network, so a folder can be carried to a machine that has none.
"""

import contextlib
import errno
import os
from pathlib import Path
from urllib.parse import urlsplit

import platformdirs

from .registry import FILES, DataFile, DownloadError


def data_folder() -> Path:
    """Return the folder of downloaded files: COURSE_DATA if set, else the user's cache folder of this system."""
    named = os.environ.get("COURSE_DATA")
    return Path(named).expanduser() if named else platformdirs.user_cache_path("course_lib") / "data"


def fetch(name: str, *, timeout: float = 30.0, attempts: int = 3) -> Path:
    """Return the path of a file of `FILES`, downloading it if it is not yet there.

    The file appears under its name only when it is whole and its checksum is right, so several processes may ask for
    it at once. A file that stands there with another checksum is replaced.

    Args:
        name: a key of `FILES`.
        timeout: seconds without an answer, or without a further byte, after which an attempt is given up.
        attempts: how often to try.

    Raises:
        ValueError: an unknown name.
        DownloadError: no network, a wrong checksum, a full disk or a folder that cannot be written.
    """
    if name not in FILES:
        raise ValueError(f"name: expected one of {', '.join(FILES)}, got {name!r}")
    import pooch
    import requests

    file, path = FILES[name], data_folder() / name
    if path.is_file() and pooch.file_hash(str(path), alg="sha256") == file.sha256:
        return path
    print(f"Downloading {name} ({file.size / 1e6:.1f} MB) from {urlsplit(file.url).hostname}.", flush=True)
    new = not path.parent.exists()
    pooch.get_logger().setLevel("WARNING")  # its line on stderr would stand in a notebook as a warning
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        store = pooch.create(
            path=path.parent,
            base_url="",
            registry={path.name: f"sha256:{file.sha256}"},
            urls={path.name: file.url},
            retry_if_failed=attempts - 1,
        )
        store.fetch(path.name, downloader=pooch.HTTPDownloader(timeout=timeout))
        path.chmod(0o644)  # pooch lets the owner alone read it, and a class may share the folder
    except requests.RequestException as error:
        raise DownloadError(f"{name}: {_network_trouble(error, file.url, timeout)} {_advice(file, path)}") from error
    except ValueError as error:  # of pooch
        raise DownloadError(
            f"{name}: what {file.url} sends has another checksum than expected and was not used. {_advice(file, path)}"
        ) from error
    except OSError as error:
        raise DownloadError(f"{name}: {_disk_trouble(error, path)}") from error
    finally:
        if new:
            with contextlib.suppress(OSError):  # it holds the file, or another process's
                path.parent.rmdir()
    return path


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
    if isinstance(error, requests.exceptions.ChunkedEncodingError):
        return f"the connection to {host} was cut."
    return f"{host} cannot be reached ({type(error).__name__})."


def _disk_trouble(error: OSError, path: Path) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"no space is left in {path.parent}; free some, or let COURSE_DATA name another folder."
    return (
        f"{path.parent} cannot be written ({error.strerror or error}); let the environment variable COURSE_DATA name "
        f"a folder that can."
    )
