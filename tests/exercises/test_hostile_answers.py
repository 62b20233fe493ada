"""Answers that do harm, in a kernel: each is judged, and the kernel goes on."""

import sys

import pytest
import torch
from hostile import BORROWED, PLACES, drawn, in_a_kernel, sources
from thorough import rounds

from coursework.exercises.engine.apart import can_fork

SEPARATE = sys.platform == "linux" and not torch.cuda.is_available()


@pytest.mark.skipif(not SEPARATE, reason="no copy of the process can be made here")
def test_nothing_ends_or_hangs_the_kernel():
    assert can_fork() or sys.gettrace() or sys.getprofile()
    counts = in_a_kernel(drawn(sources(PLACES), rounds(8, 200)))
    assert counts["tried"] == counts["Not yet"] + counts["not judged"], counts
    assert not any(counts[name] for name in ("Right", "raised", "kernels lost", "hangs", "processes left")), counts


def test_there_are_enough_of_many_kinds():
    assert len(sources(PLACES)) >= 120
    assert len(BORROWED) >= 6
