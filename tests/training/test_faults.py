"""Kills, interrupts, damage and full disks at random moments; `benchmarks/training_faults.py` tries many more."""

import signal

import fault_simulation as faults
import pytest

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs fork and SIGKILL")

TRIALS = {
    "killed at random moments": lambda: faults.signals(24, signal.SIGKILL),
    "interrupted at random moments": lambda: faults.signals(8, signal.SIGINT),
    "killed at each step of saving": faults.kills_while_saving,
    "newest checkpoint cut short": lambda: faults.damages(20, "cut short"),
    "a bit of it flipped": lambda: faults.damages(20, "bit flipped"),
    "disk full": lambda: faults.full_disks(8),
    "another architecture": faults.other_architectures,
}


@pytest.mark.parametrize("fault", TRIALS)
def test_survives(fault, note):
    found = TRIALS[fault]()
    note(f"training, {fault}: tried {found['tried']}, survived {found['survived']}")
    assert found["tried"] == found["survived"] > 0
