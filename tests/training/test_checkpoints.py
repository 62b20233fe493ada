"""Checkpoints: what is saved comes back, damage is noticed, what does not fit is named, old ones go."""

import errno
import json
import os
import random

import numpy as np
import pytest
import torch
from torch import nn
from training_samples import batches, small_model, small_run, weights_hash

from course_lib.training import (
    CheckpointError,
    TrainingConfig,
    average_checkpoints,
    build_optimizers,
    list_checkpoints,
    load_checkpoint,
    save_checkpoint,
    tasks,
    update,
)
from course_lib.training.checkpoints import read_checkpoint
from course_lib.training.folder import RunFolder
from course_lib.training.logs import RunLog, read_log


def trained(optimizer="adamw", steps=2):
    model = small_model()
    optimizers = build_optimizers(model, TrainingConfig(optimizer=optimizer))
    for batch in batches(steps):
        update(model, tasks.Translation(pad_id=0).loss, [batch], optimizers)
    return model, optimizers


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_everything_comes_back(tmp_path, optimizer):
    model, optimizers = trained(optimizer)
    save_checkpoint(tmp_path, 2, model, optimizers, state={"data": {"epoch": 1}})
    draws = (torch.rand(3), np.random.rand(3), random.random())
    other, others = small_model(seed=1), []
    others = build_optimizers(other, TrainingConfig(optimizer=optimizer))
    found = load_checkpoint(tmp_path, other, others)
    assert (found.step, found.state["data"]) == (2, {"epoch": 1})
    assert list(found.tensors) == sorted(found.tensors)  # processes that share them out go through them alike
    assert weights_hash(model) == weights_hash(other)
    assert torch.equal(draws[0], torch.rand(3))
    assert (draws[1] == np.random.rand(3)).all()
    assert draws[2] == random.random()
    for a, b in zip(optimizers, others, strict=True):
        for p, twin in zip(*([p for g in o.param_groups for p in g["params"]] for o in (a, b)), strict=True):
            assert a.state[p].keys() == b.state[twin].keys() != set()
            assert all(
                torch.equal(torch.as_tensor(v), torch.as_tensor(b.state[twin][k])) for k, v in a.state[p].items()
            )
    for m, o in ((model, optimizers), (other, others)):  # and they go on alike, dropout included
        torch.manual_seed(5)
        update(m, tasks.Translation(pad_id=0).loss, batches(1, seed=3), o)
    assert weights_hash(model) == weights_hash(other)


def test_a_run_and_a_loop_of_ones_own_write_the_same_form(tmp_path):
    run = small_run(tmp_path).train()
    draw = torch.rand(1)
    other = small_model(seed=1)
    others = build_optimizers(other, run.config)
    found = load_checkpoint(tmp_path / "checkpoints", other, others)
    assert found.step == run.step
    assert weights_hash(other) == weights_hash(run.model)
    assert not torch.equal(torch.rand(1), draw)  # the generators are those of the run now
    save_checkpoint(tmp_path / "own", found.step, other, others, state=found.state)
    load_checkpoint(tmp_path / "checkpoints", other)
    save_checkpoint(tmp_path / "own", found.step, other, others, state=found.state)
    for kind in ("json", "safetensors"):
        theirs, ours = (tmp_path / folder / f"step-00000012.{kind}" for folder in ("checkpoints", "own"))
        assert theirs.read_bytes() == ours.read_bytes()


def test_what_was_never_trained_is_no_obstacle(tmp_path):
    """An optimizer before its first step, and a parameter that never had a gradient, have nothing to save."""
    model = nn.ModuleDict({"used": nn.Linear(2, 2), "unused": nn.Linear(2, 2)})
    optimizers = [torch.optim.AdamW(model.parameters())]
    save_checkpoint(tmp_path, 0, model, optimizers)
    assert not optimizers[0].state
    model["used"](torch.ones(1, 2)).sum().backward()
    optimizers[0].step()
    save_checkpoint(tmp_path, 1, model, optimizers)
    load_checkpoint(tmp_path, model, others := [torch.optim.AdamW(model.parameters())])
    assert set(others[0].state) == set(model["used"].parameters())


def test_tied_tensors_are_saved_once(tmp_path):
    model, _ = trained()
    path = save_checkpoint(tmp_path, 1, model)
    names = list(read_checkpoint(path).part("model"))
    assert sum("tokens.weight" in name or "head.weight" in name for name in names) == 1
    load_checkpoint(tmp_path, other := small_model(seed=1))
    assert other.head.weight is other.embedding.tokens.weight


def flip(path, place):
    data = bytearray(path.read_bytes())
    data[place % len(data)] ^= 1 << (place % 8)
    path.write_bytes(bytes(data))


DAMAGES = {  # bits that flip and files that are cut short: fault_simulation.py
    "zeroed": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"x"),
    "missing": lambda path: path.unlink(),
}


@pytest.mark.parametrize("file", ["json", "safetensors"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_noticed_and_the_one_before_counts(tmp_path, damage, file):
    model, optimizers = trained()
    save_checkpoint(tmp_path, 1, model, optimizers)
    expected = weights_hash(model)
    with torch.no_grad():
        next(model.parameters()).add_(1)
    last = save_checkpoint(tmp_path, 2, model, optimizers).with_suffix(f".{file}")
    DAMAGES[damage](last)
    found = load_checkpoint(tmp_path, other := small_model(seed=1))
    assert found.step == 1
    assert weights_hash(other) == expected
    if last.with_suffix(".json").exists():
        assert last.name in found.passed_over[0]


def test_with_nothing_left_it_says_so(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no checkpoint"):
        load_checkpoint(tmp_path / "nowhere", small_model())
    path = save_checkpoint(tmp_path, 1, small_model())
    flip(path.with_suffix(".safetensors"), 5000)
    with pytest.raises(CheckpointError, match=r"step-00000001.safetensors: damaged, its checksum does not fit"):
        load_checkpoint(tmp_path, small_model())
    path.write_text(json.dumps({"format": 1}))
    with pytest.raises(CheckpointError, match=r"step-00000001.json: damaged"):
        load_checkpoint(tmp_path, small_model())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"d_model": 32}, r"step-00000001.safetensors: tensor '.*' has shape \(.*\), the model expects \(.*\)"),
        ({"n_decoder_layers": 3}, r"step-00000001.safetensors: no tensor 'decoder.layers.2.*', which the model has"),
        ({"n_decoder_layers": 1}, r"step-00000001.safetensors: tensor 'decoder.layers.1.*' is not in the model"),
    ],
)
def test_another_architecture_is_named(tmp_path, changes, words):
    save_checkpoint(tmp_path, 1, small_model())
    other = small_model(**changes)
    before = weights_hash(other)
    with pytest.raises(CheckpointError, match=words):
        load_checkpoint(tmp_path, other)
    assert weights_hash(other) == before


def test_state_of_other_optimizers_is_named(tmp_path):
    model, optimizers = trained()
    save_checkpoint(tmp_path, 1, model, optimizers)
    with pytest.raises(ValueError, match="belongs to no parameter that is trained"):
        load_checkpoint(tmp_path, model, [torch.optim.AdamW([model.head.weight])])
    with pytest.raises(ValueError, match="is not in the model"):
        save_checkpoint(tmp_path, 2, model, [torch.optim.AdamW(nn.Linear(2, 2).parameters())])


def test_only_the_last_stay(tmp_path):
    model = small_model()
    for step in range(1, 6):
        save_checkpoint(tmp_path, step, model, keep=2)
    assert [path.name for path in list_checkpoints(tmp_path)] == ["step-00000004.json", "step-00000005.json"]
    assert len(list(tmp_path.iterdir())) == 4
    (tmp_path / ".step-00000006.safetensors.abcdefgh.tmp").write_bytes(b"half")  # what kill -9 leaves
    (tmp_path / "step-00000006.safetensors").write_bytes(b"without its JSON")
    save_checkpoint(tmp_path, 7, model, keep=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        f"step-0000000{step}.{kind}" for step in (5, 7) for kind in ("json", "safetensors")
    ]


@pytest.mark.parametrize("n_writes", range(6))
def test_a_full_disk_leaves_the_earlier_checkpoints(tmp_path, monkeypatch, n_writes):
    """The n-th call that puts bytes or names on the disk fails, at each step of saving."""
    model = small_model()
    save_checkpoint(tmp_path, 1, model)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    calls = 0

    def failing(original):
        def call(*args, **kwargs):
            nonlocal calls
            calls += 1
            if calls > n_writes:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return original(*args, **kwargs)

        return call

    for name in ("fsync", "replace", "chmod"):
        monkeypatch.setattr(os, name, failing(getattr(os, name)))
    with pytest.raises(OSError, match="No space left"):
        save_checkpoint(tmp_path, 2, model)
    monkeypatch.undo()
    assert {name: (tmp_path / name).read_bytes() for name in before} == before
    assert not list(tmp_path.glob(".*"))
    assert load_checkpoint(tmp_path, model).step == 1


def test_a_run_goes_on_when_the_disk_is_full_and_says_so_at_the_end(tmp_path, monkeypatch, capsys):
    from course_lib.training import Lines

    run = small_run(tmp_path, steps=6, checkpoint_every=2, shown=Lines())
    run.train(until=2)
    good = os.fsync

    def full(handle):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(
        OSError, match=r"checkpoint of step 6 not saved \(No space left on device\); the last one is step"
    ):
        run.train()
    assert "checkpoint of step 4 not saved (No space left on device)" in capsys.readouterr().out
    monkeypatch.setattr(os, "fsync", good)
    assert run.step == 6
    again = small_run(tmp_path, steps=6).train(resume=True)
    assert weights_hash(again.model) == weights_hash(run.model)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a disk that is always full")
def test_a_run_goes_on_when_there_is_no_room_for_its_log_and_writes_it_later(tmp_path, capsys):
    from course_lib.training import Lines

    run = small_run(tmp_path, steps=6, checkpoint_every=2, shown=Lines())
    run.train(until=1)
    (tmp_path / "log.jsonl").rename(tmp_path / "kept")
    (tmp_path / "log.jsonl").symlink_to("/dev/full")
    run.train(until=3)
    said = capsys.readouterr().out
    assert said.count("not logged (No space left on device); training goes on") == 1
    assert run.step == 3
    assert load_checkpoint(tmp_path / "checkpoints", run.model).step == 3
    (tmp_path / "kept").replace(tmp_path / "log.jsonl")
    run.train()
    assert [one["step"] for one in read_log(tmp_path / "log.jsonl")] == [1, 2, 3, 4, 5, 6]


def test_the_log_keeps_what_waited_for_room(tmp_path):
    log = RunLog(RunFolder(tmp_path))
    log.write({"step": 1})
    (tmp_path / "log.jsonl").rename(tmp_path / "kept")
    (tmp_path / "log.jsonl").mkdir()  # nothing can be written there
    with pytest.raises(OSError, match="log"):
        log.write({"step": 2})
    (tmp_path / "log.jsonl").rmdir()
    (tmp_path / "kept").rename(tmp_path / "log.jsonl")
    log.write({"step": 3})
    assert [one["step"] for one in read_log(tmp_path / "log.jsonl")] == [1, 2, 3]


def test_a_checkpoint_of_any_step_is_found_again(tmp_path):
    model = small_model()
    for step in (99_999_999, 7, 100_000_000, 0):
        save_checkpoint(tmp_path, step, model, keep=9)
    assert [path.stem for path in list_checkpoints(tmp_path)] == [
        "step-00000000", "step-00000007", "step-99999999", "step-100000000",
    ]  # fmt: skip
    assert load_checkpoint(tmp_path, model).step == 100_000_000
    with pytest.raises(ValueError, match="step: expected an integer of at least 0, got -1"):
        save_checkpoint(tmp_path, -1, model)


def test_the_mean_of_checkpoints(tmp_path):
    models = [small_model(seed=seed) for seed in range(4)]
    for step, model in enumerate(models, start=1):
        path = save_checkpoint(tmp_path, step, model, keep=9)
    flip(path.with_suffix(".safetensors"), 4000)  # the newest is damaged: passed over
    mean = average_checkpoints(tmp_path, 2)
    expected = dict(models[1].named_parameters()), dict(models[2].named_parameters())
    for name, tensor in mean.items():
        if name in expected[0]:
            torch.testing.assert_close(tensor, (expected[0][name] + expected[1][name]) / 2)
    model = small_model(seed=9)
    model.load_state_dict(mean, strict=False)
    with pytest.raises(ValueError, match="last: expected at most 3"):
        average_checkpoints(tmp_path, 4)
