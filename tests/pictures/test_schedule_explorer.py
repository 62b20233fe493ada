"""The explorer of schedules shows the rates of the package, and refuses what makes no schedule."""

import pytest
from explorer_samples import schedule

from course_lib.training import (
    cosine_schedule,
    linear_schedule,
    noam_schedule,
    warmup_stable_decay_schedule,
)
from coursework.explorers import ScheduleExplorer


def test_rates_are_those_of_the_package():
    explorer = schedule()
    run = {"peak": 0.003, "warmup": 11}
    for step in range(1, 98):
        scale = 0.003 / noam_schedule(11, 512, 11)
        assert explorer.rate(step, "noam") == pytest.approx(scale * noam_schedule(step, 512, 11))
        assert explorer.rate(step, "cosine") == pytest.approx(cosine_schedule(step, 97, **run))
        assert explorer.rate(step, "linear") == pytest.approx(linear_schedule(step, 97, **run))
        stable = warmup_stable_decay_schedule(step, 97, decay=23, **run)
        assert explorer.rate(step, "warmup_stable_decay") == pytest.approx(stable)
    assert explorer.rate(7) == explorer.rate(7, "noam")
    assert explorer.table().rows[0][1] == f"{0.003 / 11:.3e}"
    assert "34 % of its peak" in explorer.caption


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "step"}, "kind: expected one of noam, cosine"),
        ({"peak": 0.0}, "peak: expected a positive number"),
        ({"steps": 3}, "steps: expected an integer from 4 to 2000, got 3"),
        ({"warmup": 51}, "warmup: expected an integer from 1 to 50, got 51"),
        ({"decay": 50}, "decay: expected an integer from 1 to 49, got 50"),
        ({"step": 0}, "step: expected an integer from 1 to 100, got 0"),
    ],
)
def test_wrong_numbers_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        ScheduleExplorer(**options)
