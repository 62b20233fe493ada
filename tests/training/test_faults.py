"""Kills, interrupts, damage and full disks at random moments; `benchmarks/training_faults.py` tries many more."""

import json
import signal
import sys
from pathlib import Path

import bounded
import pytest

if not hasattr(signal, "SIGKILL"):
    pytest.skip("needs fork and SIGKILL", allow_module_level=True)

from fault_simulation import TRIALS


@pytest.fixture(scope="module")
def found():
    program = Path(__file__).with_name("fault_simulation.py")
    with bounded.program([sys.executable, str(program)]) as process:
        printed = bounded.output_of(process, 500)
    assert process.returncode == 0, printed
    return dict(json.loads(line) for line in printed.splitlines() if line.startswith("["))


@pytest.mark.parametrize("fault", TRIALS)
def test_survives(found, fault, note):
    tried, survived = found[fault]["tried"], found[fault]["survived"]
    note(f"training, {fault}: tried {tried}, survived {survived}")
    assert tried == survived > 0
