"""The reading of a sweep finds the law that its rows hold, and the recorded sweep is complete."""

import re
from pathlib import Path

import numpy as np
import pytest

from course_lib.scaling import PowerLaw, read_sweep
from coursework.records import record

ROOT = Path(__file__).parents[2]


def law_rows(noise=0.0):
    law, draw = PowerLaw(1.2, 15.0, 0.25), np.random.default_rng(0)
    rows = []
    for depth, width in [(1, 32), (2, 32), (2, 48), (3, 64), (3, 96), (4, 120), (4, 256)]:
        layers = 12 * depth * width**2
        size = layers + 200 * width
        for tokens in (100_000, 400_000, 1_600_000) * 2:  # two seeds
            loss = law.predict(size).item() + 30 * tokens**-0.5
            loss *= 1 + noise * draw.standard_normal()
            rows.append({"parameters": size, "layer_parameters": layers, "tokens": tokens, "loss": loss})
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
