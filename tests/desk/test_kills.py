"""Kills while the desk, checkpoints and results are written; `kills.py` tries many more."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from thorough import rounds

if not hasattr(os, "fork"):
    pytest.skip("needs fork", allow_module_level=True)


def test_kills_lose_nothing(note):
    kills = rounds(20, 120)
    program = Path(__file__).with_name("kills.py")
    done = subprocess.run([sys.executable, program, "--kills", str(kills)], capture_output=True, text=True, timeout=300)
    found = dict(json.loads(line) for line in done.stdout.splitlines())
    assert len(found) == 5, done.stderr
    assert sum(one["kills"] for one in found.values()) == kills
    assert all(one["losses"] == 0 for one in found.values()), done.stdout + done.stderr
    assert all(one["litter"] == 0 for one in found.values()), done.stdout
    assert all(one["places"] > 2 for one in found.values())
    note(f"kills while files are written: {sum(one['kills'] for one in found.values())}, losses 0")
