"""What nobody foresaw is one line; the lab opens whatever is damaged; files are read with one wording."""

import os
from pathlib import Path

import pytest
from desk_tools import exercise_cells, load, save, text_of, texts
from typer.testing import CliRunner

from course_lib import reading
from coursework.cli import UNFORESEEN, app
from coursework.commands import notebooks as commands
from coursework.desk import launch
from coursework.desk.rescue import salvage
from coursework.desk.store import Desk


@pytest.mark.parametrize("problem", [RuntimeError("two\nlines \ud800"), KeyError("x"), RecursionError(), MemoryError()])
def test_what_nobody_foresaw_is_one_line(desk: Desk, monkeypatch: pytest.MonkeyPatch, problem: Exception) -> None:
    def fail(*_: object) -> None:
        raise problem

    monkeypatch.setattr(commands.updates, "update", fail)
    monkeypatch.delenv("COURSE_DEBUG", raising=False)
    done = CliRunner().invoke(app, ["--folder", str(desk.folder), "update"])
    assert done.exit_code == UNFORESEEN
    assert len(done.output.strip().splitlines()) == 1
    assert "memory" in done.output or f"{type(problem).__name__} at test_boundary.py" in done.output
    monkeypatch.setenv("COURSE_DEBUG", "1")
    assert "Traceback" in CliRunner().invoke(app, ["--folder", str(desk.folder), "update"]).output


def test_the_lab_opens_whatever_is_damaged(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr(launch, "become", lambda command, *_: started.append(command) or 0)
    (desk.folder / "01_attention.ipynb").write_bytes(b"\xff[[[")
    (desk.private / "progress.json").write_text('{"exercises": {"a": 3}}')
    (desk.folder / "predictions.txt").mkdir()
    (desk.answers / "history" / "causal_mask" / "0001.py").mkdir(parents=True)
    done = CliRunner().invoke(app, ["lab", "--no-browser"], env={"COURSE_DESK": str(desk.folder)})
    assert done.exit_code == 0, done.output
    assert "01_attention.ipynb: expected a notebook, got bytes that are not UTF-8" in done.output
    assert started[0][-1].endswith("02_heads.ipynb")  # the first that can be read
    assert (desk.private / "progress.damaged-1.json").read_text() == '{"exercises": {"a": 3}}'


def test_a_damaged_cell_does_not_hide_those_below_it(desk: Desk) -> None:
    path = desk.folder / "01_attention.ipynb"
    before = load(path)
    cell = before["cells"][2]
    save(path, before)
    data = path.read_bytes().replace(f'"id": "{cell["id"]}"'.encode(), b'"id": ', 1)  # no JSON from here on
    found = salvage(data)
    assert found is not None
    assert [one["source"] for one in found["cells"]] == [text_of(one) for one in before["cells"]]
    assert {one["metadata"].get("exercise") for one in found["cells"]} >= set(exercise_cells(path))
    assert set(texts(path)) - {one["id"] for one in found["cells"]} <= {cell["id"]}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "settings.json: expected settings, got nothing, it is empty; do this"),
        (b"\xff", "expected settings, got bytes that are not UTF-8, the first at 0; do this"),
        (b"[" * 100_000, "expected settings, got brackets nested too deep"),
        (b"{", r"expected settings, got no JSON \(Expecting property name"),
        (b"[]", "expected a JSON object, got a list of 0"),
        (b"{}", "expected an entry sizes, got only an empty one"),
        (b'{"sizes": {"a": true}}', "expected settings with a whole number at sizes.a, got True"),
        (b'{"sizes": {"a": [1, 2]}}', "at sizes.a, got a list of 2"),
        (b'{"sizes": {"a": ' + b"9" * 5000 + b"}}", "got no JSON"),
    ],
)
def test_one_wording(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "settings.json"
    path.write_bytes(data)
    with pytest.raises(reading.Unreadable, match=message) as caught:
        reading.read_json(path, {"sizes": {str: int}}, "settings", "do this")
    assert len(str(caught.value).splitlines()) == 1


def test_no_file_takes_all_memory(tmp_path: Path) -> None:
    path = tmp_path / "long"
    path.write_bytes(bytes(2**20 + 1))
    with pytest.raises(reading.Unreadable, match="long: expected a TOML file of at most 1 MiB, got more"):
        reading.read_bytes(path, 2**20, "a TOML file")


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="needs an endless file")
def test_a_device_is_no_file() -> None:
    with pytest.raises(reading.Unreadable, match="/dev/zero: expected a file, got a device"):
        reading.read_bytes("/dev/zero")
    assert reading.read_bytes(os.devnull) == b""
