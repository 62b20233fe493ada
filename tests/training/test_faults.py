"""Kills, interrupts, damage and full disks at random moments; `benchmarks/training_faults.py` tries many more."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

if not hasattr(signal, "SIGKILL"):
    pytest.skip("needs fork and SIGKILL", allow_module_level=True)

from fault_simulation import TRIALS


@pytest.fixture(scope="module")
def found():
    program = Path(__file__).with_name("fault_simulation.py")
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr
    return dict(map(json.loads, done.stdout.splitlines()))


@pytest.mark.parametrize("fault", TRIALS)
def test_survives(found, fault, note):
    tried, survived = found[fault]["tried"], found[fault]["survived"]
    note(f"training, {fault}: tried {tried}, survived {survived}")
    assert tried == survived > 0
