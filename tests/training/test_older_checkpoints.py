"""Checkpoints that an earlier version wrote are read and taken up as the later ones are.

`older_run/` is a run of 8 updates, of which the checkpoint of the 4th was kept; `saved/` in it is what
`save_checkpoint` wrote at the end, when it and runs had two forms. Losses are compared with a tolerance, because
another machine rounds otherwise.
"""

import json
import shutil
from pathlib import Path

import pytest
import torch

from course_lib.training import Run, Silent, TrainingConfig, build_optimizers, load_checkpoint, tasks
from course_lib.training.logs import read_log
from course_lib.training.state import model_tensors
from course_lib.transformer import LanguageModel, TransformerConfig

OLDER = Path(__file__).with_name("older_run")
CONFIG = {"steps": 8, "learning_rate": 1e-2, "log_every": 1, "checkpoint_every": 4, "optimizer": "muon"}


def model(seed=1):
    torch.manual_seed(seed)
    sizes = {"d_model": 4, "n_heads": 1, "n_encoder_layers": 0, "n_decoder_layers": 1, "vocab_size": 8, "dropout": 0.1}
    return LanguageModel(TransformerConfig(**sizes, norm_place="pre", positions="rotary"))


def test_an_older_run_is_taken_up(tmp_path):
    before = read_log(OLDER / "log.jsonl")
    shutil.copytree(OLDER, tmp_path, dirs_exist_ok=True)
    data = [{"tokens": (torch.arange(18).view(2, 9) * step) % 8} for step in (1, 2, 3)]
    config = TrainingConfig.from_dict({**CONFIG, "checkpoint_activations": False})
    run = Run(model(), tasks.LanguageModelling(), data, config, folder=tmp_path, shown=Silent()).train(resume=True)
    assert [record["step"] for record in run.history] == [record["step"] for record in before]
    assert run.history[:4] == before[:4]
    for ours, theirs in zip(run.history, before, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-5)
    load_checkpoint(OLDER / "saved", other := model(2))
    for name, expected in model_tensors(other).items():
        torch.testing.assert_close(model_tensors(run.model)[name], expected)


@pytest.mark.parametrize(("folder", "step"), [("saved", 8), ("checkpoints", 4)])
def test_both_older_forms_are_read(folder, step):
    network = model()
    optimizers = build_optimizers(network, TrainingConfig(**CONFIG))
    found = load_checkpoint(OLDER / folder, network, optimizers)
    assert found.step == step
    remembered = {
        f"{name}/{key}": value
        for name, p in network.named_parameters()
        for optimizer in optimizers
        for key, value in optimizer.state.get(p, {}).items()
    }
    assert remembered.keys() == found.part("optimizer").keys()
    for name, tensor in [*found.part("model").items(), *found.part("optimizer").items()]:
        assert torch.equal(tensor, {**model_tensors(network), **remembered}[name])
    if folder == "saved":
        assert torch.rand(2).tolist() == json.loads((OLDER / "next_draw.json").read_text())
