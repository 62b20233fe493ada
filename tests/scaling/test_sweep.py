"""A sweep stops and goes on, shares its points among processes, and reads the law that its rows hold."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from course_lib import cli
from course_lib.scaling import PowerLaw, record, sweep
from course_lib.scaling.sweep import Point, grid, model_config, read_rows, read_sweep, run_sweep
from course_lib.training import Run

ROOT = Path(__file__).parents[2]
SHAPES = "1x8,1x16,1x32,1x64,2x96"
SMALL = ["sweep", "--tokens", "2048,3072,4096", "--shapes", SHAPES, "--seeds", "1"]
TEXT = "the quick brown fox jumps over the lazy dog and then it sleeps. " * 300


def points():
    return grid([(1, 8), (1, 16)], [2048], [0])


def tokens():
    generator = torch.Generator().manual_seed(0)
    return torch.randint(9, (5000,), generator=generator), torch.randint(9, (3000,), generator=generator)


def test_points_that_are_there_are_not_run_again(tmp_path, monkeypatch):
    first = run_sweep(points(), *tokens(), 9, tmp_path, say=lambda text: None)
    assert len(first) == 2
    monkeypatch.setattr("course_lib.scaling.sweep.run_point", lambda *arguments: pytest.fail("ran again"))
    assert run_sweep(points(), *tokens(), 9, tmp_path, say=lambda text: None) == first


def test_an_interrupt_inside_a_point_costs_nothing(tmp_path, monkeypatch):
    whole = run_sweep(points(), *tokens(), 9, tmp_path / "whole", say=lambda text: None)
    train = Run.train

    def interrupted(self, *arguments, **options):
        train(self, until=1, **options)
        self.interrupted = True
        return self

    monkeypatch.setattr(Run, "train", interrupted)
    said = []
    assert run_sweep(points(), *tokens(), 9, tmp_path / "cut", say=said.append) is None
    assert "the same command goes on" in said[0]
    assert read_rows(tmp_path / "cut") == []
    monkeypatch.undo()
    resumed = run_sweep(points(), *tokens(), 9, tmp_path / "cut", say=lambda text: None)
    assert [row["loss"] for row in resumed] == [row["loss"] for row in whole]
    assert not list((tmp_path / "cut" / "runs").iterdir()), "checkpoints of finished points are no longer needed"


def test_processes_take_turns_with_the_points(tmp_path):
    for rank in ("0", "1"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("RANK", rank)
            patch.setenv("WORLD_SIZE", "2")
            rows = run_sweep(points(), *tokens(), 9, tmp_path, say=lambda text: None)
            assert len(rows) == int(rank) + 1


def law_rows(noise=0.0):
    law, draw = PowerLaw(1.2, 15.0, 0.25), np.random.default_rng(0)
    rows = []
    for point in grid(tokens=(100_000, 400_000, 1_600_000), seeds=(0, 1)):
        layers = 12 * point.layers * point.width**2
        size = layers + 200 * point.width
        loss = law.predict(size).item() + 30 * point.tokens**-0.5
        loss *= 1 + noise * draw.standard_normal()
        rows.append({"parameters": size, "layer_parameters": layers, "tokens": point.tokens, "loss": loss, "seed": 0})
    return rows


def test_the_law_of_the_rows_is_read_and_predicts_the_largest():
    reading = read_sweep(law_rows())
    assert reading.fit.law.exponent == pytest.approx(0.25, rel=1e-3)
    assert abs(reading.error) < 1e-5
    assert reading.surface.d_exponent == pytest.approx(0.5, rel=0.02)
    assert max(reading.sizes) < reading.held_out_size / 3.5
    noisy = read_sweep(law_rows(noise=0.002))
    assert abs(noisy.error) < 0.02
    assert noisy.interval[0] < noisy.predicted < noisy.interval[1]


def test_leaving_the_tables_out_reads_another_exponent():
    rows = law_rows()
    every, layers = (read_sweep(rows, parameters=name) for name in ("parameters", "layer_parameters"))
    assert layers.fit.law.exponent < every.fit.law.exponent


def test_rows_without_a_larger_model_are_refused():
    rows = [row for row in law_rows() if row["layer_parameters"] < 12 * 4 * 256**2]
    with pytest.raises(ValueError, match="the largest four times the next"):
        read_sweep(rows)


def test_sizes_of_the_default_grid():
    sizes = [12 * point.layers * point.width**2 for point in grid(tokens=(1,))]
    assert sizes[0] > 1e4
    assert sizes[-1] > 4 * sizes[-2]
    assert sizes[-1] > 3e6
    assert model_config(Point(4, 256, 1, 0), 100).head_width == 32


def test_the_command(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text(TEXT)
    arguments = [*SMALL, "--data", str(text), "--out", str(tmp_path / "out")]
    result = CliRunner().invoke(cli.app, arguments)
    assert result.exit_code == 0, result.output
    assert "four times larger than any in the fit" in (tmp_path / "out" / "sweep.md").read_text()
    rows = [json.loads(path.read_text()) for path in (tmp_path / "out" / "points").glob("*.json")]
    assert len(rows) == 13  # the last shape has the largest budget only
    for wrong, word in ((["--tokens", "many"], "--tokens"), (["--shapes", "3"], "--shapes"), (["--data", "x"], "data")):
        result = CliRunner().invoke(cli.app, [*arguments, *wrong])
        assert result.exit_code == 2
        assert word in result.output


def test_the_command_under_torchrun(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text(TEXT)
    torchrun = "torch.distributed.run --standalone --local-addr=127.0.0.1 --nproc-per-node=2"
    command = [sys.executable, "-m", *torchrun.split(), "-m"]
    small = ["sweep", "--tokens", "2048", "--shapes", "1x8,1x16,1x24", "--seeds", "1"]
    command += ["course_lib.cli", *small, "--data", str(text), "--out", str(tmp_path / "out")]
    subprocess.run(command, check=True, capture_output=True, timeout=300, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert len(read_rows(tmp_path / "out")) == 3
    assert "No law" in (tmp_path / "out" / "sweep.md").read_text()


def test_the_record_is_complete_and_its_page_is_of_it():
    found = record("sweep")
    assert {"command", "commit", "machine", "torch", "characters", "rows"} <= set(found)
    assert len(found["rows"]) == found["points"]
    assert max(row["epochs"] for row in found["rows"]) <= 1, "no text is read twice"
    page = (ROOT / "benchmarks/results/sweep.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| ")][1:]
    assert [float(line.split("|")[7]) for line in rows] == [round(row["loss"], 4) for row in found["rows"]]
    assert found["command"] in page
    reading = read_sweep(found["rows"], n_resamples=20)
    assert float(re.search(r"it predicts ([\d.]+) \(", page)[1]) == pytest.approx(reading.predicted, rel=1e-3)
    assert reading.held_out_size > 4 * max(reading.sizes)


def test_an_unknown_record_is_refused():
    with pytest.raises(ValueError, match="expected one of"):
        record("nothing")


def test_an_interrupted_command_writes_what_is_there(tmp_path, monkeypatch):
    text = tmp_path / "text.txt"
    text.write_text(TEXT)
    first = "layers1-width8-tokens2048-seed0"
    run_point = sweep.run_point
    monkeypatch.setattr(
        sweep, "run_point", lambda point, *a, **k: run_point(point, *a, **k) if point.name == first else None
    )
    result = CliRunner().invoke(cli.app, [*SMALL, "--data", str(text), "--out", str(tmp_path / "out")])
    assert result.exit_code == 130, result.output
    assert "the same command goes on" in result.output
    assert "1 of 13 runs" in (tmp_path / "out" / "sweep.md").read_text()
