"""Downloads from a server on loopback that cuts, stalls, fails and lies: nothing is lost, one line says what to do."""

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

import pytest
import requests

from course_lib.data import FILES, DataFile, DownloadError, data_folder, download, fetch, tiny_shakespeare

CONTENT = b"".join(hashlib.sha256(str(i).encode()).digest() for i in range(20_000))  # 640 kB that do not repeat
NAME = "folder/numbers.bin"
HALF = len(CONTENT) // 2  # where the server cuts
KEPT = HALF // download.CHUNK * download.CHUNK  # what is on the disk then: whole chunks


class Handler(http.server.BaseHTTPRequestHandler):
    """Serves CONTENT with ranges; the next entry of `server.script` says how this answer goes wrong."""

    def do_GET(self):
        range_ = self.headers.get("Range")
        self.server.requests.append(range_)
        how = self.server.script.pop(0) if self.server.script else "well"
        if how.isdigit():
            self.send_error(int(how))
            return
        body = {"lie": b"#" * len(CONTENT), "log-in page": b"<html>"}.get(how, CONTENT)
        ranged = range_ and how not in ("no ranges", "log-in page")
        start = int(re.fullmatch(r"bytes=(\d+)-", range_)[1]) if ranged else 0
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(body) - start))
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(body) - 1}/{len(body)}")
        self.end_headers()
        body = body[start:]
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
        server.script, server.requests, server.released = [], [], threading.Event()
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
    return tmp_path / "data" / "folder"


def left(folder):
    return sorted(path.name for path in folder.iterdir() if path.suffix != ".lock")


def test_a_file_is_downloaded_once(folder, server, capsys):
    path = fetch(NAME)
    assert path == folder / "numbers.bin"
    assert path.read_bytes() == CONTENT
    printed = capsys.readouterr()
    assert printed.out == "Downloading folder/numbers.bin (0.6 MB) from 127.0.0.1.\n"
    assert printed.err == ""
    assert fetch(NAME) == path
    assert capsys.readouterr().out == ""
    assert server.requests == [None]
    assert left(folder) == ["numbers.bin"]


def test_a_cut_download_goes_on_in_the_same_call(folder, server):
    server.script = ["cut"]
    assert fetch(NAME).read_bytes() == CONTENT
    assert server.requests == [None, f"bytes={KEPT}-"]
    assert left(folder) == ["numbers.bin"]


def test_a_cut_download_goes_on_in_the_next_call(folder, server):
    server.script = ["cut"]
    with pytest.raises(
        DownloadError, match=rf"the connection to 127\.0\.0\.1 was cut\. The {KEPT:,} bytes .* are kept"
    ):
        fetch(NAME, attempts=1)
    assert left(folder) == ["numbers.bin.part"]
    assert fetch(NAME).read_bytes() == CONTENT
    assert server.requests == [None, f"bytes={KEPT}-"]


def test_a_server_without_ranges_starts_again(folder, server):
    server.script = ["cut", "no ranges"]
    assert fetch(NAME).read_bytes() == CONTENT
    assert server.requests == [None, f"bytes={KEPT}-"]


def test_a_part_of_another_file_is_not_trusted(folder, server):
    folder.mkdir(parents=True)
    part = folder / "numbers.bin.part"
    part.write_bytes(b"x" * 1000)
    assert fetch(NAME).read_bytes() == CONTENT
    assert server.requests == ["bytes=1000-", None]
    (folder / "numbers.bin").unlink()
    part.write_bytes(b"x" * (len(CONTENT) + 1))
    assert fetch(NAME).read_bytes() == CONTENT
    assert left(folder) == ["numbers.bin"]


def test_a_part_longer_than_what_the_server_has_is_dropped(folder, server):
    folder.mkdir(parents=True)
    (folder / "numbers.bin.part").write_bytes(CONTENT[:-1])
    server.script = ["416"]
    assert fetch(NAME).read_bytes() == CONTENT
    assert server.requests == [f"bytes={len(CONTENT) - 1}-", None]


def test_a_wrong_checksum_is_refused_and_set_aside(folder, server):
    server.script = ["lie"]
    with pytest.raises(DownloadError, match=r"another checksum than expected and was not used; it is kept as .*\.rej"):
        fetch(NAME)
    assert left(folder) == ["numbers.bin.rejected"]
    assert fetch(NAME).read_bytes() == CONTENT  # the next call starts afresh


def test_a_page_in_place_of_the_file_is_refused(folder, server):
    server.script = ["cut", "log-in page"]
    with pytest.raises(DownloadError, match=r"sends 6 bytes where 640,000 were expected; they were not taken"):
        fetch(NAME)
    assert fetch(NAME).read_bytes() == CONTENT
    assert server.requests[-1] == f"bytes={KEPT}-"  # what had arrived before is still good


def test_a_damaged_file_in_the_folder_is_set_aside_and_replaced(folder, server, capsys):
    folder.mkdir(parents=True)
    (folder / "numbers.bin").write_bytes(CONTENT[:-1] + b"?")
    assert fetch(NAME).read_bytes() == CONTENT
    assert "has another checksum than expected; kept as numbers.bin.rejected." in capsys.readouterr().out
    assert left(folder) == ["numbers.bin", "numbers.bin.rejected"]


def test_a_stalled_server_is_given_up(folder, server):
    server.script = ["stall", "stall"]
    began = time.monotonic()
    with pytest.raises(DownloadError, match=r"127\.0\.0\.1 sent nothing for 0\.3 s\. The [\d,]+ bytes .* are kept"):
        fetch(NAME, timeout=0.3, attempts=2)
    assert time.monotonic() - began < 5
    assert fetch(NAME).read_bytes() == CONTENT
    assert server.requests[-1].startswith("bytes=")


def test_a_server_error_is_tried_again(folder, server):
    server.script = ["503", "500"]
    assert fetch(NAME).read_bytes() == CONTENT
    assert len(server.requests) == 3


@pytest.mark.parametrize(("status", "asked"), [("404", 1), ("503", 2)])
def test_a_server_that_refuses_is_named(folder, server, status, asked):
    server.script = [status] * 5
    with pytest.raises(DownloadError, match=rf"127\.0\.0\.1 answered {status} .* Without a network: use dice"):
        fetch(NAME, attempts=2)
    assert len(server.requests) == asked


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


def test_two_processes_download_once(folder, server):
    server.script = ["slow"]
    both = [child(FILES[NAME].url) for _ in range(2)]
    outputs = sorted(process.communicate(timeout=60)[0] for process in both)
    assert [process.returncode for process in both] == [0, 0]
    assert server.requests == [None]
    assert outputs[0] == f"{len(CONTENT)}\n"  # the one that waited has nothing else to say
    assert outputs[1] == f"Downloading {NAME} (0.6 MB) from 127.0.0.1.\n{len(CONTENT)}\n"
    assert left(folder) == ["numbers.bin"]


def test_a_killed_process_leaves_what_arrived(folder, server):
    server.script = ["stall"]
    process = child(FILES[NAME].url)
    part = folder / "numbers.bin.part"
    for _ in range(600):
        if part.exists() and part.stat().st_size:
            break
        time.sleep(0.05)
    process.kill()
    process.communicate(timeout=30)
    kept = part.stat().st_size
    assert 0 < kept <= HALF
    assert fetch(NAME).read_bytes() == CONTENT  # the lock of the dead process is not in the way
    assert server.requests == [None, f"bytes={kept}-"]


class Failing:
    """A file that takes `room` bytes and then fails."""

    def __init__(self, stream, error, room):
        self.stream, self.error, self.room = stream, error, room

    def write(self, data):
        if self.stream.tell() + len(data) > self.room:
            self.stream.write(data[: self.room - self.stream.tell()])
            raise self.error
        return self.stream.write(data)

    def tell(self):
        return self.stream.tell()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stream.close()


def failing_open(error, room=100_000):
    def opened(path, mode):
        return Failing(open(path, mode), error, room)

    return opened


def test_a_full_disk_keeps_what_arrived(folder, server, monkeypatch):
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    monkeypatch.setattr(download, "open", failing_open(full), raising=False)
    with pytest.raises(
        DownloadError, match=r"no space is left in .*; free some, .* The 100,000 bytes .* are kept"
    ) as e:
        fetch(NAME)
    assert "\n" not in str(e.value)
    assert left(folder) == ["numbers.bin.part"]
    monkeypatch.undo()
    assert (folder / "numbers.bin.part").read_bytes() == CONTENT[:100_000]


def test_an_interrupt_keeps_what_arrived(folder, server, monkeypatch, capsys):
    with monkeypatch.context() as patch:
        patch.setattr(download, "open", failing_open(KeyboardInterrupt()), raising=False)
        with pytest.raises(KeyboardInterrupt):
            fetch(NAME)
    said = capsys.readouterr().out.splitlines()[-1]
    assert said == (
        f"{NAME}: interrupted. The 100,000 bytes that arrived are kept, and the next call goes on from there."
    )
    assert left(folder) == ["numbers.bin.part"]
    assert fetch(NAME).read_bytes() == CONTENT
    assert server.requests == [None, "bytes=100000-"]


def test_a_folder_that_cannot_be_written_is_named(folder, server, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("not a folder")
    monkeypatch.setenv("COURSE_DATA", str(tmp_path / "file"))
    with pytest.raises(DownloadError, match=r"cannot be written \(.*\); let the environment variable COURSE_DATA name"):
        fetch(NAME)


def test_an_unknown_name_is_refused():
    with pytest.raises(ValueError, match=r"name: expected one of tinyshakespeare\.txt, .* got 'shakespeare'"):
        fetch("shakespeare")


def test_the_folder(monkeypatch):
    monkeypatch.setenv("COURSE_DATA", "~/elsewhere")
    assert data_folder() == Path.home() / "elsewhere"
    monkeypatch.delenv("COURSE_DATA")
    assert "course_lib" in data_folder().parts


def test_the_registry_is_complete():
    assert set(FILES) >= {"tinyshakespeare.txt", "multi30k/train.de.gz", "multi30k/val.en.gz"}
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
    if name == "tinyshakespeare.txt":
        text = tiny_shakespeare()
        assert len(text) == 1_115_394
        assert text.startswith("First Citizen:\nBefore we proceed any further, hear me speak.")
