"""A run resumes bit for bit from every step, ends cleanly at an interrupt, stops early, and logs."""

import json
import os
import re
import signal

import pytest
import torch
from training_samples import TASK, batches, losses, small_model, small_run, weights_hash

from course_lib.training import Lines, Run, Silent, TrainingConfig, interrupts
from course_lib.training.logs import read_log
from coursework.corpora import copy_task


class Windows:
    """Batches that keep their own place, drawn by a generator."""

    def __init__(self):
        self.place = 0

    def __iter__(self):
        while True:
            self.place += 1
            yield batches(1, seed=self.place)[0]

    def state_dict(self):
        return {"place": self.place}

    def load_state_dict(self, state):
        self.place = state["place"]


SETTINGS = {
    "plain": {},
    "accumulation": {"accumulation": 2},
    "Muon": {"optimizer": "muon"},
    "bfloat16": {"precision": "bfloat16"},
    "logged in threes": {"log_every": 3},
}


@pytest.mark.parametrize("kind", SETTINGS)
@pytest.mark.parametrize("data", [lambda: batches(5), Windows], ids=["a list", "data with a place"])
def test_resumed_is_uninterrupted(tmp_path, kind, data):
    settings = SETTINGS[kind]
    whole = small_run(tmp_path / "whole", data=data(), **settings).train()
    for stop in (1, 4, 5, 11):
        folder = tmp_path / f"stopped at {stop}"
        small_run(folder, data=data(), **settings).train(until=stop)
        torch.manual_seed(stop)  # whatever else happens in between
        resumed = small_run(folder, data=data(), model=small_model(seed=7), **settings).train(resume=True)
        assert weights_hash(resumed.model) == weights_hash(whole.model)
        assert resumed.history == whole.history
        assert read_log(folder / "log.jsonl") == whole.history


def test_resuming_from_every_checkpoint_gives_the_same(tmp_path):
    whole = small_run(tmp_path, checkpoint_every=1, keep=99).train()
    for step in range(11, 0, -1):
        for path in (tmp_path / "checkpoints").glob(f"step-{step + 1:08d}.*"):
            path.unlink()
        resumed = small_run(tmp_path, keep=99).train(until=step, resume=True)
        assert resumed.step == step
        resumed.train()
        assert weights_hash(resumed.model) == weights_hash(whole.model)
        for path in (tmp_path / "checkpoints").glob("step-00000012.*"):
            path.unlink()


def test_training_in_pieces_is_training_at_once():
    pieces = small_run()
    for until in (2, 3, 9, 12):
        torch.rand(until)
        pieces.train(until=until)
    assert weights_hash(pieces.model) == weights_hash(small_run().train().model)


def test_a_run_does_not_disturb_other_random_numbers():
    torch.manual_seed(3)
    model = small_model()
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    small_run(model=model).train()
    assert torch.equal(torch.rand(2), expected)


def test_seeds_matter_only_through_dropout():
    same = [weights_hash(small_run(seed=seed, model=small_model(dropout=0.0)).train().model) for seed in (0, 1)]
    other = [weights_hash(small_run(seed=seed).train().model) for seed in (0, 1, 1)]
    assert same[0] == same[1]
    assert other[0] != other[1] == other[2]


class Interrupting:
    """A task that sends this process a signal in the middle of an update."""

    def __init__(self, at, number=signal.SIGINT, times=1):
        self.at, self.number, self.times, self.calls = at, number, times, 0

    def loss(self, model, batch):
        self.calls += model.training
        result = TASK.loss(model, batch)
        if self.calls == self.at and model.training:
            for _ in range(self.times):
                os.kill(os.getpid(), self.number)
        return result


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_cleanly_and_resumes_exactly(tmp_path, capsys, number):
    before = signal.getsignal(number)
    run = small_run(tmp_path, task=Interrupting(5, number), shown=Lines())
    run.train()
    assert run.interrupted
    assert run.step == 5
    assert capsys.readouterr().out.splitlines()[-1] == "interrupted at step 5, checkpoint saved"
    assert signal.getsignal(number) is before
    resumed = small_run(tmp_path, model=small_model(seed=5), shown=Lines()).train(resume=True)
    assert capsys.readouterr().out.startswith("resumed at step 5\n")
    assert weights_hash(resumed.model) == weights_hash(small_run().train().model)
    run.train()  # and so does the run in memory
    assert weights_hash(run.model) == weights_hash(resumed.model)


def test_an_interrupt_during_evaluation_ends_it(tmp_path):
    class InEvaluation(Interrupting):
        def loss(self, model, batch):
            if not model.training:
                os.kill(os.getpid(), signal.SIGINT)
            return TASK.loss(model, batch)

    run = small_run(tmp_path, task=InEvaluation(0), evaluation=batches(3), evaluate_every=4).train()
    assert run.interrupted
    assert run.step == 4
    assert all("evaluation" not in record for record in run.history)


def test_an_interrupt_pressed_twice_is_one(tmp_path):
    run = small_run(tmp_path, task=Interrupting(5, times=2)).train()
    assert (run.interrupted, run.step) == (True, 5)


def test_a_later_interrupt_is_raised(tmp_path, monkeypatch):
    monkeypatch.setattr(interrupts, "IMPATIENT", -1.0)
    with pytest.raises(KeyboardInterrupt):
        small_run(tmp_path, task=Interrupting(5, times=2)).train()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_early_stopping_keeps_the_best(tmp_path):
    def unlearnable(n, seed):
        source, _ = copy_task(4 * n, 4, 12, first_id=3, generator=torch.Generator().manual_seed(seed))
        other = copy_task(4 * n, 4, 12, first_id=3, generator=torch.Generator().manual_seed(seed + 50))[0]
        return [{"source": source[i : i + 4], "target": other[i : i + 4]} for i in range(0, 4 * n, 4)]

    settings = {"steps": 400, "learning_rate": 1e-2, "evaluate_every": 5, "patience": 3}
    ends = []
    for folder in (tmp_path, None):
        run = small_run(folder, data=unlearnable(1, 0), evaluation=unlearnable(3, 1), keep=1, **settings).train()
        assert run.step < 400
        values = [(r["evaluation"], r["step"]) for r in run.history if "evaluation" in r]
        assert run.best == min(values)
        assert run.step == run.best[1] + 15
        assert run.evaluate() == pytest.approx(values[-1][0])
        assert run.restore_best() == run.best[0] == pytest.approx(run.evaluate())
        ends.append(weights_hash(run.model))
    assert ends[0] == ends[1]
    with pytest.raises(ValueError, match="no evaluation yet"):
        small_run().restore_best()


def test_the_log_says_what_happened(tmp_path):
    run = small_run(tmp_path, log_every=4, evaluate_every=6, evaluation=batches(2, seed=9)).train()
    records = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert records == run.history
    assert [record["step"] for record in records] == [1, 4, 6, 8, 12]
    assert [record["step"] for record in records if "evaluation" in record] == [6, 12]
    assert (
        records[-1]["tokens"]
        == run.tokens
        == sum(int((batches(5)[i % 5]["target"][:, 1:] != 0).sum()) for i in range(12))
    )
    assert records[-1]["evaluation"] == pytest.approx(run.evaluate())
    (tmp_path / "log.jsonl").write_text((tmp_path / "log.jsonl").read_text() + '{"step": 13, "lo')
    assert read_log(tmp_path / "log.jsonl") == records


def test_tensorboard_on_request(tmp_path):
    small_run(tmp_path, tensorboard=True).train()
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [event.step for event in events.Scalars("loss")] == list(range(1, 13))


def test_lines_of_text_are_the_same_in_every_run(capsys):
    texts = []
    for _ in range(2):
        small_run(shown=Lines(), evaluate_every=6, evaluation=batches(2, seed=9)).train()
        texts.append(capsys.readouterr())
    assert texts[0] == texts[1]
    assert texts[0].err == ""
    assert re.fullmatch(r"(step +\d+ of 12  loss \d\.\d{4}  held-out \d\.\d{4}\n){2}", texts[0].out)


def test_what_it_does_not_accept(tmp_path):
    with pytest.raises(ValueError, match="evaluation: config"):
        small_run(evaluate_every=2)
    with pytest.raises(TypeError, match="task: expected"):
        small_run(task=3)
    with pytest.raises(ValueError, match="resume: this run has no folder"):
        small_run().train(resume=True)
    with pytest.raises(ValueError, match="data: expected at least one batch"):
        small_run(data=[]).train()
    used_up = iter(batches(2))
    with pytest.raises(ValueError, match="an iterator that is used up"):
        small_run(data=used_up).train()
    small_run(tmp_path).train(until=2)
    with pytest.raises(ValueError, match="holds checkpoints of an earlier run"):
        small_run(tmp_path).train()


def test_changed_settings_are_named_when_resuming(tmp_path, capsys):
    small_run(tmp_path, steps=5).train()
    run = small_run(tmp_path, steps=8, shown=Lines()).train(resume=True)
    assert "resumed at step 5, steps changed from 5 to 8" in capsys.readouterr().out
    assert run.step == 8
    assert len(losses(run)) == 8


def test_it_learns():
    run = Run(
        small_model(), TASK, batches(40), TrainingConfig(steps=300, learning_rate=5e-3, warmup=30), shown=Silent()
    )
    assert losses(run.train())[-1] < 0.75 * losses(run)[0]
