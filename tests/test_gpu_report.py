"""What is to be measured on a GPU runs here with tiny sizes, each part by itself."""

import json
import sys
from pathlib import Path

import pytest
import torch

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))
import gpu

SLOW = {"tests", "training"}  # what they run has tests of its own
KEPT = [pytest.param(part, marks=pytest.mark.thorough) if part in SLOW else part for part in gpu.PARTS]


@pytest.mark.parametrize("part", KEPT)
def test_a_part_runs_with_tiny_sizes(part):
    torch.manual_seed(0)
    rows = list(gpu.PARTS[part][0]("cpu", True))
    assert rows
    json.dumps(rows)
    if part == "tests":
        assert "passed" in rows[-1]["tests"]
        assert "failed" not in rows[-1]["tests"]
    if part == "parity":
        assert all(float(row["from transformers"]) < (1e-5 if row["dtype"] == "float32" else 3e-2) for row in rows)
    if part == "generation":
        assert all(row["same tokens"] == "100%" for row in rows if "bfloat16" not in row["way"])


def test_a_part_that_fails_or_hangs_leaves_the_others_and_what_it_had(monkeypatch):
    whole = gpu.run("parity", "cpu", True)
    assert len(whole["rows"]) == 4
    assert gpu.section("parity", whole)[3].startswith("| model | dtype |")
    failed = gpu.run("parity", "quark", True)
    assert failed["ended"] == "exit code 1"
    assert "device: expected one that is here" in failed["said"][-1]
    monkeypatch.setitem(gpu.PARTS, "parity", (*gpu.PARTS["parity"][:2], 0))
    stopped = gpu.run("parity", "cpu", True)
    assert "Not measured to the end: stopped after 0 s." in gpu.section("parity", stopped)
    environment = {"device": "a card", "torch": "2.6", "command": "make gpu"}
    page = gpu.page({"parity": whole | {"environment": environment}, "tests": stopped | {"environment": environment}})
    assert page.index("## The tests") < page.index("## Parity")


def test_all_of_it_ends_within_nine_minutes():
    assert sum(limit for *_, limit in gpu.PARTS.values()) <= 510


def test_without_a_gpu_the_reason_is_said(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["gpu.py", "--device", "cpu"])
    with pytest.raises(SystemExit, match=r"gpu: .* Tiny sizes on the CPU: .*--quick"):
        gpu.main()
