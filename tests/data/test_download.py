"""Downloads from a server on loopback that cuts, stalls, fails and lies: only the right file appears."""

import errno
import hashlib
import http.server
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import requests

from course_lib.data import FILES, DataFile, DownloadError, data_folder, fetch

CONTENT = b"".join(hashlib.sha256(str(i).encode()).digest() for i in range(20_000))  # 640 kB that do not repeat
NAME = "folder/numbers.bin"


class Handler(http.server.BaseHTTPRequestHandler):
    """Serves CONTENT; the next entry of `server.script` says how this answer goes wrong."""

    def do_GET(self):
        self.server.asked += 1
        how = self.server.script.pop(0) if self.server.script else "well"
        if how.isdigit():
            self.send_error(int(how))
            return
        body = {"lie": b"#" * len(CONTENT), "log-in page": b"<html>"}.get(how, CONTENT)
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if how == "cut":
            body = body[: len(body) // 2]
        elif how == "stall":
            self.wfile.write(body[: len(body) // 2])
            self.wfile.flush()
            self.server.released.wait(10)
            return
        elif how == "slow":
            for i in range(0, len(body), 40_000):
                self.wfile.write(body[i : i + 40_000])
                self.wfile.flush()
                time.sleep(0.05)
            return
        self.wfile.write(body)

    def log_message(self, *args):
        pass


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request, client_address):
        pass  # a client that hangs up is part of these tests


@pytest.fixture
def server():
    with Server(("127.0.0.1", 0), Handler) as server:
        server.script, server.asked, server.released = [], 0, threading.Event()
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        yield server
        server.released.set()
        server.shutdown()


@pytest.fixture
def folder(tmp_path, monkeypatch, server):
    """An empty cache folder, with the file of the server in the registry."""
    url = f"http://127.0.0.1:{server.server_port}/numbers.bin"
    file = DataFile(NAME, url, hashlib.sha256(CONTENT).hexdigest(), len(CONTENT), "here", "free", "use dice")
    monkeypatch.setitem(FILES, NAME, file)
    monkeypatch.setenv("COURSE_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr("pooch.core.time", SimpleNamespace(sleep=lambda seconds: None))  # between attempts
    return tmp_path / "data" / "folder"


def left(folder):
    return sorted(path.name for path in folder.parent.rglob("*") if path != folder or not any(folder.iterdir()))


def test_a_file_is_downloaded_once(folder, server, capsys):
    path = fetch(NAME)
    assert path == folder / "numbers.bin"
    assert path.read_bytes() == CONTENT
    printed = capsys.readouterr()
    assert printed.out == "Downloading folder/numbers.bin (0.6 MB) from 127.0.0.1.\n"
    assert printed.err == ""
    assert fetch(NAME) == path
    assert capsys.readouterr().out == ""
    assert server.asked == 1
    assert left(folder) == ["numbers.bin"]


@pytest.mark.parametrize("how", ["cut", "stall", "503", "lie", "log-in page"])
def test_what_goes_wrong_once_is_tried_again(folder, server, how):
    server.script = [how]
    assert fetch(NAME, timeout=0.3).read_bytes() == CONTENT
    assert server.asked == 2
    assert left(folder) == ["numbers.bin"]


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("cut", r"the connection to 127\.0\.0\.1 was cut\."),
        ("stall", r"127\.0\.0\.1 sent nothing for 0\.3 s\."),
        ("404", r"127\.0\.0\.1 answered 404 Not Found for http"),
        ("503", r"127\.0\.0\.1 answered 503 Service Unavailable for http"),
        ("lie", r"numbers\.bin sends has another checksum than expected and was not used\."),
        ("log-in page", r"numbers\.bin sends has another checksum than expected and was not used\."),
    ],
)
def test_what_goes_wrong_every_time_is_named_and_leaves_nothing(folder, server, how, words):
    server.script = [how] * 5
    with pytest.raises(DownloadError, match=words + ".* Without a network: use dice; or put the file at"):
        fetch(NAME, timeout=0.3, attempts=2)
    assert server.asked == 2
    assert left(folder) == []


def test_a_damaged_file_in_the_folder_is_replaced(folder, server):
    folder.mkdir(parents=True)
    (folder / "numbers.bin").write_bytes(CONTENT[:-1] + b"?")
    server.script = ["404"]
    with pytest.raises(DownloadError):
        fetch(NAME, attempts=1)
    assert (folder / "numbers.bin").read_bytes() == CONTENT[:-1] + b"?"  # the old one stays until there is another
    assert fetch(NAME).read_bytes() == CONTENT
    assert left(folder) == ["numbers.bin"]


def test_others_may_read_the_file(folder, server):
    if os.name == "posix":
        assert fetch(NAME).stat().st_mode & 0o044 == 0o044


def test_without_a_network_the_alternative_is_named(folder, server):
    server.shutdown()
    server.server_close()
    with pytest.raises(DownloadError) as raised:
        fetch(NAME, attempts=1)
    message = str(raised.value)
    assert "\n" not in message
    assert "127.0.0.1 cannot be reached (ConnectionError)" in message
    assert "Without a network: use dice; or put the file at" in message
    assert str(folder / "numbers.bin") in message
    assert "COURSE_DATA" in message
    assert left(folder) == []


def test_a_file_put_into_the_folder_needs_no_network(folder, server, monkeypatch):
    folder.mkdir(parents=True)
    (folder / "numbers.bin").write_bytes(CONTENT)
    monkeypatch.setattr(requests, "get", lambda *args, **kwargs: pytest.fail("asked the network"))
    assert fetch(NAME) == folder / "numbers.bin"
    assert left(folder) == ["numbers.bin"]  # and nothing is written there


CHILD = """
import sys
from course_lib.data import FILES, DataFile, fetch
file = DataFile(*sys.argv[1:4], int(sys.argv[4]), "", "", "")
FILES[file.name] = file
print(len(fetch(file.name).read_bytes()))
"""


def child(url):
    arguments = [NAME, url, FILES[NAME].sha256, str(len(CONTENT))]
    return subprocess.Popen([sys.executable, "-c", CHILD, *arguments], stdout=subprocess.PIPE, text=True)


def test_two_processes_at_once(folder, server):
    server.script = ["slow", "slow"]
    both = [child(FILES[NAME].url) for _ in range(2)]
    for process in both:
        assert process.communicate(timeout=60)[0].endswith(f"{len(CONTENT)}\n")
        assert process.returncode == 0
    assert (folder / "numbers.bin").read_bytes() == CONTENT
    assert left(folder) == ["numbers.bin"]


def test_a_killed_process_is_not_in_the_way(folder, server):
    server.script = ["stall"]
    process = child(FILES[NAME].url)
    for _ in range(600):
        if server.asked:
            break
        time.sleep(0.05)
    process.kill()
    process.communicate(timeout=30)
    assert "numbers.bin" not in left(folder)
    assert fetch(NAME).read_bytes() == CONTENT


class Failing:
    """A connection that fails after the first bytes, for a reason that is not the network's."""

    def __init__(self, error):
        self.error = error

    def __call__(self, url, output, store):
        Path(output).write_bytes(CONTENT[:1000])
        raise self.error


def test_a_full_disk_is_named(folder, server, monkeypatch):
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    monkeypatch.setattr("pooch.HTTPDownloader", lambda **options: Failing(full))
    with pytest.raises(DownloadError, match=r"no space is left in .*; free some, or let COURSE_DATA name") as raised:
        fetch(NAME)
    assert "\n" not in str(raised.value)
    assert left(folder) == []


def test_an_interrupt_leaves_nothing(folder, server, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr("pooch.HTTPDownloader", lambda **options: Failing(KeyboardInterrupt()))
        with pytest.raises(KeyboardInterrupt):
            fetch(NAME)
    assert left(folder) == []
    assert fetch(NAME).read_bytes() == CONTENT


def test_a_folder_that_cannot_be_written_is_named(folder, server, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("COURSE_DATA", str(tmp_path / "file"))
    with pytest.raises(DownloadError, match=r"cannot be written \(.*\); let the environment variable COURSE_DATA name"):
        fetch(NAME)


def test_an_unknown_name_is_refused():
    with pytest.raises(ValueError, match=r"name: expected one of multi30k/train\.de\.gz, .* got 'shakespeare'"):
        fetch("shakespeare")


def test_the_folder(monkeypatch):
    monkeypatch.setenv("COURSE_DATA", "~/elsewhere")
    assert data_folder() == Path.home() / "elsewhere"
    monkeypatch.delenv("COURSE_DATA")
    assert "course_lib" in data_folder().parts


def test_the_registry_is_complete():
    assert set(FILES) >= {"multi30k/train.de.gz", "multi30k/val.en.gz"}
    for name, file in FILES.items():
        assert file.name == name
        assert file.url.startswith("https://")
        assert re.fullmatch("[0-9a-f]{64}", file.sha256)
        assert file.size > 0
        assert all((file.source, file.terms, file.offline))
    assert len({file.sha256 for file in FILES.values()}) == len(FILES)


@pytest.mark.parametrize("name", FILES)
def test_the_real_files(name):
    """Where COURSE_DATA names a folder that holds them, the real files have the checksums and sizes of the registry."""
    if not (data_folder() / name).is_file():
        pytest.skip("COURSE_DATA names no folder with this file")
    assert fetch(name).stat().st_size == FILES[name].size
