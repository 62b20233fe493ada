"""A sweep stops and goes on, shares its points among processes, and writes its table."""

import json
import os
import subprocess
import sys

import pytest
import torch
from typer.testing import CliRunner

from course_lib.training import Run
from coursework import cli
from coursework.commands import points as sweep_points
from coursework.commands.points import Point, grid, model_config, read_rows, run_sweep
from coursework.commands.sweep import SHAPES, _shapes

SMALL_SHAPES = "1x8,1x16,1x32,1x64,2x96"
SMALL = ["sweep", "--tokens", "2048,3072,4096", "--shapes", SMALL_SHAPES, "--seeds", "1"]
TEXT = "the quick brown fox jumps over the lazy dog and then it sleeps. " * 300


def points():
    return grid([(1, 8), (1, 16)], [2048], [0])


def tokens():
    generator = torch.Generator().manual_seed(0)
    return torch.randint(9, (5000,), generator=generator), torch.randint(9, (3000,), generator=generator)


def test_points_that_are_there_are_not_run_again(tmp_path, monkeypatch):
    first = run_sweep(points(), *tokens(), 9, tmp_path, rate=0.32, say=lambda text: None)
    assert len(first) == 2
    monkeypatch.setattr("coursework.commands.points.run_point", lambda *arguments: pytest.fail("ran again"))
    assert run_sweep(points(), *tokens(), 9, tmp_path, rate=0.32, say=lambda text: None) == first


def test_an_interrupt_inside_a_point_costs_nothing(tmp_path, monkeypatch):
    whole = run_sweep(points(), *tokens(), 9, tmp_path / "whole", rate=0.32, say=lambda text: None)
    train = Run.train

    def interrupted(self, *arguments, **options):
        train(self, until=1, **options)
        self.interrupted = True
        return self

    monkeypatch.setattr(Run, "train", interrupted)
    said = []
    assert run_sweep(points(), *tokens(), 9, tmp_path / "cut", rate=0.32, say=said.append) is None
    assert "the same command goes on" in said[0]
    assert read_rows(tmp_path / "cut") == []
    monkeypatch.undo()
    resumed = run_sweep(points(), *tokens(), 9, tmp_path / "cut", rate=0.32, say=lambda text: None)
    assert [row["loss"] for row in resumed] == [row["loss"] for row in whole]
    assert not list((tmp_path / "cut" / "runs").iterdir()), "checkpoints of finished points are no longer needed"


def test_processes_take_turns_with_the_points(tmp_path):
    for rank in ("0", "1"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("RANK", rank)
            patch.setenv("WORLD_SIZE", "2")
            rows = run_sweep(points(), *tokens(), 9, tmp_path, rate=0.32, say=lambda text: None)
            assert len(rows) == int(rank) + 1


def test_sizes_of_the_default_grid():
    sizes = [12 * point.layers * point.width**2 for point in grid(_shapes(SHAPES), [1], [0])]
    assert sizes[0] > 1e4
    assert sizes[-1] > 4 * sizes[-2]
    assert sizes[-1] > 3e6
    assert model_config(Point(4, 256, 1, 0), 100).setting("d_head") == 32


def test_the_command(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text(TEXT)
    arguments = [*SMALL, "--data", str(text), "--out", str(tmp_path / "out")]
    result = CliRunner().invoke(cli.app, arguments)
    assert result.exit_code == 0, result.output
    assert "four times larger than any in the fit" in (tmp_path / "out" / "sweep.md").read_text()
    rows = [json.loads(path.read_text()) for path in (tmp_path / "out" / "points").glob("*.json")]
    assert len(rows) == 13  # the last shape has the largest budget only
    for wrong, word in ((["--tokens", "many"], "--tokens"), (["--shapes", "3"], "--shapes"), (["--data", "x"], "data"),
                        (["--shapes", "1x8,1x8"], "each once")):  # fmt: skip
        result = CliRunner().invoke(cli.app, [*arguments, *wrong])
        assert result.exit_code == 2
        assert word in result.output


@pytest.mark.thorough
def test_the_command_under_torchrun(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text(TEXT)
    torchrun = "torch.distributed.run --standalone --local-addr=127.0.0.1 --nproc-per-node=2"
    command = [sys.executable, "-m", *torchrun.split(), "-m"]
    small = ["sweep", "--tokens", "2048", "--shapes", "1x8,1x16,1x24", "--seeds", "1"]
    command += ["coursework.cli", *small, "--data", str(text), "--out", str(tmp_path / "out")]
    subprocess.run(command, check=True, capture_output=True, timeout=300, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert len(read_rows(tmp_path / "out")) == 3
    assert "No law" in (tmp_path / "out" / "sweep.md").read_text()


def test_an_interrupted_command_writes_what_is_there(tmp_path, monkeypatch):
    text = tmp_path / "text.txt"
    text.write_text(TEXT)
    first = "layers1-width8-tokens2048-seed0"
    run_point = sweep_points.run_point
    monkeypatch.setattr(
        sweep_points, "run_point", lambda point, *a, **k: run_point(point, *a, **k) if point.name == first else None
    )
    result = CliRunner().invoke(cli.app, [*SMALL, "--data", str(text), "--out", str(tmp_path / "out")])
    assert result.exit_code == 130, result.output
    assert "the same command goes on" in result.output
    assert "No law" not in result.output.partition("stopped")[0]
    result = CliRunner().invoke(
        cli.app, [*SMALL, "--shapes=1x8,1x16", "--data", str(text), "--out", str(tmp_path / "o")]
    )
    assert result.output.startswith("No law will be read from this")  # said before hours of training
    assert "1 of 13 runs" in (tmp_path / "out" / "sweep.md").read_text()
