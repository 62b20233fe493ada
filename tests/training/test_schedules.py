"""Schedules: their formulas, torch's where it has them, and that no update runs at rate 0."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from course_lib.training import (
    TrainingConfig,
    cosine_schedule,
    linear_schedule,
    noam_schedule,
    warmup_stable_decay_schedule,
)


def test_noam_peaks_at_the_end_of_its_warmup():
    assert noam_schedule(4000, 512) == pytest.approx(6.9877e-4, rel=1e-4)
    assert noam_schedule(4000, 1024) == pytest.approx(4.9411e-4, rel=1e-4)
    assert noam_schedule(16_000, 512) == pytest.approx(noam_schedule(4000, 512) / 2)
    assert noam_schedule(1, 512) > 0
    rates = [noam_schedule(step, 512, 50) for step in range(1, 300)]
    assert max(rates) == rates[49] == pytest.approx((512 * 50) ** -0.5)


def test_cosine_and_linear_are_torchs():
    for ours, theirs in [
        (cosine_schedule, lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 20, eta_min=0.1)),
        (linear_schedule, lambda o: torch.optim.lr_scheduler.LinearLR(o, 1.0, 0.1, 20)),
    ]:
        optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
        scheduler = theirs(optimizer)
        for step in range(1, 21):
            assert ours(step, 20, peak=1.0, final=0.1) == pytest.approx(optimizer.param_groups[0]["lr"])
            optimizer.step()
            scheduler.step()


@given(st.data())
def test_rates_rise_then_fall_and_are_never_zero(data):
    steps = data.draw(st.integers(2, 400))
    warmup = data.draw(st.integers(0, steps - 1))
    decay = data.draw(st.integers(0, steps - max(warmup, 1)))
    for schedule in (
        lambda step: linear_schedule(step, steps, warmup=warmup),
        lambda step: cosine_schedule(step, steps, warmup=warmup),
        lambda step: warmup_stable_decay_schedule(step, steps, warmup=warmup, decay=decay),
    ):
        rates = [schedule(step) for step in range(1, steps + 1)]
        assert min(rates) > 0
        top = max(warmup, 1)
        assert rates[top - 1] == pytest.approx(1.0)
        assert rates[:top] == sorted(rates[:top])
        assert rates[top - 1 :] == sorted(rates[top - 1 :], reverse=True)
        assert schedule(steps + 1) == pytest.approx(0.0, abs=1e-9) or decay == 0


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine", "warmup_stable_decay", "noam"])
def test_a_config_scales_every_schedule_to_its_rate(schedule):
    config = TrainingConfig(steps=100, schedule=schedule, warmup=10, decay=20, learning_rate=0.3)
    rates = [config.rate(step) for step in range(1, 101)]
    assert max(rates) == pytest.approx(0.3) == config.rate(10)
    assert rates[0] == pytest.approx(0.03)
    assert (rates[-1] < 0.1) == (schedule not in ("constant",))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: noam_schedule(0, 512), "step: expected an integer of at least 1, got 0"),
        (lambda: cosine_schedule(1, 10, warmup=10), "warmup: expected fewer than steps=10"),
        (lambda: warmup_stable_decay_schedule(5, 10, warmup=5, decay=6), "decay: expected at most"),
        (lambda: TrainingConfig(steps=10, warmup=10), "warmup"),
        (lambda: TrainingConfig(schedule="cosin"), "schedule: expected one of"),
        (lambda: TrainingConfig(patience=3), "patience: needs evaluations"),
        (lambda: TrainingConfig.from_dict({"lr": 1}), "lr: no setting of training"),
        (lambda: TrainingConfig(clip=0.0), "clip"),
        (lambda: TrainingConfig(steps=0), "steps: expected an integer of at least 1"),
    ],
)
def test_bad_settings_are_named(call, words):
    with pytest.raises(ValueError, match=words):
        call()


def test_settings_are_read_back_those_of_older_recipes_too():
    config = TrainingConfig(steps=7, betas=(0.9, 0.95), schedule="linear", recompute=True)
    assert TrainingConfig.from_dict(config.to_dict()) == config
    assert TrainingConfig.from_dict({"checkpoint_activations": True}).recompute
