"""Two and four processes compute what one computes, step by step."""

import json
import sys
import time
from datetime import timedelta
from pathlib import Path

import bounded
import pytest
import torch
from several_processes import CASES, SETTINGS, free_port
from training_samples import batches

from course_lib.training import Processes, distributed

ALONE = {"1 process", "1 process, Muon", "1 process, no accumulation"}


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    program = Path(__file__).with_name("several_processes.py")
    with bounded.program([sys.executable, str(program), str(tmp_path_factory.mktemp("processes"))]) as process:
        printed = bounded.output_of(process, 500)
    assert process.returncode == 0, printed
    return json.loads(printed.splitlines()[-1])


@pytest.mark.parametrize("case", [name for name in CASES if name not in ALONE])
def test_equal_to_one_process(found, case, note):
    alone = "1 process" + (", Muon" * ("Muon" in case)) + (", no accumulation" * ("no accumulation" in case))
    assert isinstance(found[case][0], list), f"exit codes {found[case]}"
    (theirs, their_end), (ours, our_end) = found[alone], found[case]
    assert len(ours) == len(theirs) == SETTINGS["steps"]
    assert theirs[-1] < theirs[0] - 0.1  # it learns
    worst = max(abs(a - b) for a, b in zip(ours, theirs, strict=True))
    assert worst < 1e-6
    assert abs(our_end - their_end) < 1e-6
    note(f"training, {case}: largest difference from one process in {len(ours)} losses {worst:.1e}")


def test_rows_are_shared_out_and_none_is_counted_twice():
    batch = batches(1, rows=5)[0]
    shares = [Processes(rank, 3) for rank in range(3)]
    rows = [each.share(batch) for each in shares]
    assert all(mine for _, mine in rows)
    together = torch.cat([part["source"] for part, _ in rows])
    assert sorted(together.tolist()) == sorted(batch["source"].tolist())
    few = batches(1, rows=2)[0]
    assert [each.share(few)[1] for each in shares] == [True, True, False]
    assert shares[2].share(few)[0]["source"].size(0) == 1  # keeps step, counted as nothing


@pytest.mark.parametrize("address", ["127.0.0.1", "no-such-machine.invalid"])
def test_processes_that_do_not_come_are_not_waited_for_without_end(monkeypatch, address):
    monkeypatch.setattr(distributed, "JOIN", timedelta(seconds=2))
    place = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": address, "MASTER_PORT": str(free_port())}
    for name, value in place.items():
        monkeypatch.setenv(name, value)
    began = time.monotonic()
    words = rf"process 1 of 2 did not meet the others at {address}:\d+"
    with pytest.raises(ConnectionError, match=words), distributed.join_processes("cpu"):
        pass
    assert time.monotonic() - began < 60
