"""Whatever is given for a setting: it is taken as declared, or refused in a line that names it, before work begins."""

import json
import math
import os
import threading
import time
from types import UnionType
from typing import Annotated, Literal, Union, get_args, get_origin

import pytest
import torch
from typer.testing import CliRunner

from course_lib.checks import check_declared, declarations
from course_lib.config import TransformerConfig
from course_lib.data import TokenWindows
from course_lib.training import Run, Silent, TrainingConfig, tasks
from course_lib.transformer import LanguageModel
from coursework import cli
from coursework.commands import recipes
from coursework.commands.tasks import TASKS

INTEGERS = [-1, 0, 1, 2, 300, 2**31 - 1, 2**31, 10**12, 10**30, 10**400, -(10**400)]
FLOATS = [0.5, 1.0, 1.5, -0.5, math.nan, math.inf, -math.inf]
OTHERS = [
    "",
    "x",
    "9" * 5000,
    "\x1b[31mred",
    "no\nline",
    True,
    False,
    None,
    [],
    [1],
    ["x"],
    [[1]],
    [0.5, 2],
    {},
    {"a": 1},
]
VALUES = INTEGERS + FLOATS + OTHERS


def allows(declared, value):
    """Whether a declaration allows a value, written once more, and otherwise than in the library."""
    low, high = -math.inf, math.inf
    if get_origin(declared) is Annotated:
        declared, within = get_args(declared)
        low = max(x for x in (within.least, low) if x is not None)
        high = min(x for x in (within.most, high) if x is not None)
        numeric = type(value) in (int, float)
        if numeric and (
            (within.above is not None and not value > within.above)
            or (within.below is not None and not value < within.below)
        ):
            return False
    origin, parts = get_origin(declared), get_args(declared)
    if origin in (Union, UnionType):
        return any(allows(part, value) for part in parts)
    if origin is Literal:
        return value in parts
    if origin is tuple:
        fits = isinstance(value, list) and (parts[-1] is ... or len(value) == len(parts))
        return fits and all(allows(parts[0], one) for one in value)
    if declared is float:
        return type(value) in (int, float) and abs(value) < 2**1023 and low <= value <= high
    if declared is int:
        return type(value) is int and low <= value <= high
    return type(value) is declared


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_types_by_settings(task):
    counts = {"tried": 0, "allowed": 0, "refused by its name": 0}
    longest, wrong = 0.0, []
    for name, *_ in recipes.settings(task(device="cpu").recipe):
        table, key = name.split(".")
        declared = declarations(recipes.tables()[table])[key]
        for value in VALUES:
            counts["tried"] += 1
            began = time.process_time()
            try:
                task({table: {key: value}}, device="cpu")
                known = {"positions": str, "activation": str}.get(key, declared)
                counts["allowed"] += 1
                if not allows(known, value):
                    wrong.append((name, value, "silently accepted"))
            except (ValueError, TypeError) as error:
                counts["refused by its name"] += 1
                if key not in str(error) or (isinstance(error, TypeError) and ": expected " not in str(error)):
                    wrong.append((name, value, repr(error)[:200]))
            longest = max(longest, time.process_time() - began)
    print(task.name, counts, f"the longest took {longest:.2f} s")
    assert not wrong
    assert longest < 2


@pytest.mark.parametrize("value", [-1, 10**400, math.nan, "\x1b[31mred", None, [[1]]])
@pytest.mark.parametrize(
    "name", ["result.average", "training.steps", "model.d_model", "tokenizer.vocab_size", "data.split_seed"]
)
def test_by_command(tmp_path, monkeypatch, name, value):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(cli.app, ["train", "translate", "--device=cpu", f"--set={name}={json.dumps(value)}"])
    assert result.exit_code == 2, result.output
    [line] = [line for line in result.output.splitlines() if not line.startswith("Loading")]
    assert line.startswith("course: ")
    assert name.split(".")[1] in line
    assert line.isprintable()
    assert not list(tmp_path.iterdir())


def _fifo(folder, name):
    os.mkfifo(folder / name)
    return folder / name


ODD = {
    "nothing": lambda folder: "",
    "a long name": lambda folder: "a" * 5000,
    "escape codes": lambda folder: "\x1b[31mred\x1b[0m.txt",
    "a folder without files": lambda folder: folder,
    "zeros": lambda folder: "/dev/zero",
    "a pipe": lambda folder: _fifo(folder, "text.txt"),
    "a pipe of rows": lambda folder: _fifo(folder, "rows.csv"),
}


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names")
@pytest.mark.parametrize("option", ["--data", "--config", "--from"])
@pytest.mark.parametrize("kind", ODD)
def test_odd_files(tmp_path, monkeypatch, kind, option):
    place = ODD[kind](tmp_path)
    monkeypatch.chdir(tmp_path)
    found = []
    command = ["train", "classify", "--device=cpu", option, str(place), "--out", str(tmp_path / "out"), "--steps=1"]
    worker = threading.Thread(target=lambda: found.append(CliRunner().invoke(cli.app, command)), daemon=True)
    worker.start()
    worker.join(60)
    assert found, "it hangs"
    assert found[0].exit_code == 2, found[0].output
    assert all(line.isprintable() for line in found[0].output.splitlines())
    assert "Traceback" not in found[0].output


@pytest.mark.parametrize(
    "arguments",
    [
        ["--tokens=-1"],
        ["--tokens=0"],
        ["--shapes=0x8"],
        ["--seeds=0"],
        ["--learning-rate=nan"],
        ["--tokens=" + "9" * 400],
    ],
)
def test_a_sweep_refuses(arguments):
    result = CliRunner().invoke(cli.app, ["sweep", *arguments])
    assert result.exit_code == 2, result.output
    assert arguments[0].partition("=")[0] in result.output


@pytest.mark.parametrize("tokens", [[0.5] * 40, [math.nan] * 40, [-1] * 40, [[1] * 40], [True] * 40])
def test_windows_take_ids_alone(tokens):
    with pytest.raises((TypeError, ValueError), match=r"tokens: expected .*ids"):
        TokenWindows(tokens, length=4, batch_size=2)


def test_a_share_of_hidden_tokens():
    for share in (0, 1, 2, math.nan, "x"):
        with pytest.raises((ValueError, TypeError), match="share: expected a probability"):
            tasks.MaskedLanguageModelling(mask_id=1, vocab_size=9, share=share)


@pytest.mark.parametrize("change", [{"n_heads": 4}, {"positions": "alibi"}, {"window": 3}])
def test_weights_of_equal_shapes_are_not_gone_on_with(tmp_path, change):
    def run(**changes):
        sizes = {"d_model": 16, "n_heads": 2, "n_encoder_layers": 0, "n_decoder_layers": 1, "vocab_size": 9}
        model = LanguageModel(TransformerConfig(**{**sizes, "positions": "rotary", **changes}))
        batches = [{"tokens": torch.randint(9, (2, 8))}]
        told = TrainingConfig(steps=2)
        return Run(model, tasks.LanguageModelling(), batches, told, folder=tmp_path, shown=Silent())

    run().train()
    with pytest.raises(ValueError, match=f"model: {next(iter(change))} is "):
        run(**change).train(resume=True)
    assert run().train(resume=True).step == 2


def test_a_loss_that_is_no_number_is_not_the_best():
    model = LanguageModel(TransformerConfig(d_model=8, n_heads=1, n_encoder_layers=0, n_decoder_layers=1, vocab_size=9))
    batches, looks = [{"tokens": torch.randint(9, (2, 8))}], iter([math.nan, 2.0, 3.0])
    run = Run(
        model,
        tasks.LanguageModelling(),
        batches,
        TrainingConfig(steps=3, evaluate_every=1),
        evaluation=batches,
        shown=Silent(),
    )
    run.loss = lambda model, batch, loss=run.loss: (
        loss(model, batch) if model.training else (torch.tensor(next(looks)), torch.tensor(1))
    )
    run.train()
    assert run.best == (2.0, 2)


def test_numbers_of_many_digits_are_named():
    for value in (10**400, 10**5000):
        with pytest.raises((ValueError, TypeError), match="x: expected"):
            check_declared("x", value, float)
        with pytest.raises(ValueError, match="steps: expected"):
            TrainingConfig(steps=value)
