"""The commands: train, interrupt, resume, use, measure; what they refuse."""

import dataclasses
import itertools
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import get_args, get_type_hints

import bounded
import psutil
import pytest
import torch
import typer
from training_samples import weights_hash
from typer.testing import CliRunner

from course_lib.checks import declarations
from course_lib.config import TransformerConfig
from course_lib.data import CharTokenizer, load_tokenizer
from course_lib.generation import compiled
from course_lib.training import RunFolder, TrainingConfig, fast_recipe, list_checkpoints
from course_lib.training.checkpoints import read_checkpoint
from course_lib.transformer import LanguageModel, Transformer
from course_lib.variants import EncoderModel, from_pretrained
from coursework import cli
from coursework.commands import jobs, recipes
from coursework.commands.checked import TEXTS, ranges
from coursework.commands.jobs import peak_resident_bytes
from coursework.commands.recipes import FAST, TEXTBOOK
from coursework.commands.tasks import TASKS

SMALL = [f"--set=model.{name}={value}" for name, value in {"d_model": 16, "n_heads": 2, "n_decoder_layers": 1}.items()]
ONE_ENCODER_LAYER = "--set=model.n_encoder_layers=1"
NO_DECODER = "--set=model.n_decoder_layers=0"
TEXT = "the cat sat on the mat. " * 200


def course(*arguments, code=0):
    result = CliRunner().invoke(cli.app, [str(argument) for argument in arguments])
    assert result.exit_code == code, result.output + str(result.exception)
    return result.output


def lm(folder, *more, code=0):
    text = folder.parent / "text.txt"
    text.write_text(TEXT)
    sizes = ["--set=batches.length=16", "--set=batches.batch_size=4", "--set=training.evaluate_every=4", *SMALL]
    return course("train", "lm", "--data", text, "--out", folder, "--device", "cpu", *sizes, *more, code=code)


def results(folder):
    return json.loads((folder / "results.json").read_text())


def test_the_peak_of_memory_is_in_bytes():
    now = psutil.Process().memory_info().rss
    assert 0.9 * now < peak_resident_bytes() < 100 * now  # systems count in units that differ by 1024


def test_a_translator(tmp_path):
    sizes = ["--set=data.train=60", "--set=data.validation=20", "--set=data.test=20", "--steps=4", "--device=cpu"]
    output = course("train", "translate", "--out", tmp_path, *sizes, *SMALL, ONE_ENCODER_LAYER)
    assert "exact match: " in output
    assert re.search(r"parameters, vocabulary [\d,]+, cpu, \d+\.\d% of the batches is padding", output)
    assert f"The model is in {tmp_path}" in output
    found = results(tmp_path)
    assert found["test_examples"] == 20
    assert found["steps"] == 4
    assert 0 <= found["exact_match"] <= 1
    assert found["tokens_per_second"] > 0
    assert 0 < found["padding_waste"] < 0.5
    assert isinstance(from_pretrained(tmp_path), Transformer)
    lines = course("translate", tmp_path, "drei", "zwölf", "--device", "cpu", "--max-new-tokens", 5).splitlines()
    assert len(lines) == 2
    course("translate", tmp_path, "drei", "--int8", "--device", "cpu", "--max-new-tokens", 5)
    with_beams = course("translate", tmp_path, "drei", "--beams", 3, "--device", "cpu", "--max-new-tokens", 5)
    assert len(with_beams.splitlines()) == 1


def test_pairs_of_ones_own(tmp_path):
    for split in ("train", "validation", "test"):
        (tmp_path / f"{split}.tsv").write_text("".join(f"{i}\t{i * 2}\n" for i in range(10)))
    every = ["--set=data.train=0", "--set=data.validation=0", "--set=data.test=0", "--steps=2", "--device=cpu"]
    kind = "--set=tokenizer.kind=characters"
    course("train", "translate", "--data", tmp_path, "--out", tmp_path / "out", kind, *every, *SMALL, ONE_ENCODER_LAYER)
    assert results(tmp_path / "out")["test_examples"] == 10
    assert "bleu" not in results(tmp_path / "out")  # of one word each, of which BLEU is 0 whatever they are
    (tmp_path / "new.txt").write_text("1\n2\n3\n")
    (tmp_path / "new.csv").write_text("source,other\n1,a\n2,b\n3,c\n")
    for file in ("new.txt", "new.csv"):
        found = course("translate", tmp_path / "out", tmp_path / file, "--device=cpu")
        assert found == course("translate", tmp_path / "out", 1, 2, 3, "--device=cpu")


def test_a_language_model(tmp_path, monkeypatch):
    folder = tmp_path / "lm"
    output = lm(folder, "--steps=12", "--tensorboard")
    assert re.search(r"step 12 of 12  loss \d\.\d+  held-out \d\.\d+", output)
    assert isinstance(from_pretrained(folder), LanguageModel)
    assert results(folder)["held_out_loss"] > 0
    assert list((folder / "tensorboard").iterdir())
    texts = [
        course("generate", folder, "the ", "--max-new-tokens", 9, "--seed", 3, "--device", "cpu") for _ in range(2)
    ]
    assert texts[0] == texts[1]
    assert texts[0].startswith("the ")
    assert len(texts[0]) <= len("the ") + 9 + 1  # special tokens are not written
    greedy = course("generate", folder, "the ", "--temperature", 0, "--max-new-tokens", 9, "--device", "cpu")
    cold = ["--temperature", 1e-320, "--max-new-tokens", 9, "--device", "cpu", "--engine", "course_lib"]
    assert course("generate", folder, "the ", *cold) == greedy
    for smaller in (["--int8"], ["--bf16"], ["--int8", "--bf16"]):
        text = course(
            "generate", folder, "the ", "--temperature", 0, "--max-new-tokens", 9, "--device", "cpu", *smaller
        )
        assert text.startswith("the ")
    model, tokenizer = from_pretrained(folder), load_tokenizer(folder)
    ids = tokenizer.encode("the ")
    for _ in range(9):
        ids.append(int(model(torch.tensor([ids]))[0, -1].argmax()))
    assert greedy == tokenizer.decode(ids) + "\n"
    monkeypatch.setattr(compiled, "_build", lambda graph, inputs, on_cpu: graph.forward)  # traced, which is quick
    options = ["--temperature", 0, "--max-new-tokens", 9, "--device", "cpu", "--compile"]
    said = course("generate", folder, "the ", *options)
    assert greedy in said
    assert re.search(r"compiled in \d+ s", said)


def test_a_classifier(tmp_path):
    sizes = ["--set=data.train=200", "--set=data.validation=40", "--set=data.test=60", "--steps=6", "--device=cpu"]
    course("train", "classify", "--out", tmp_path, *sizes, *SMALL, ONE_ENCODER_LAYER, NO_DECODER)
    found = results(tmp_path)
    assert 0 <= found["accuracy"] <= 1
    assert found["accuracy_of_the_commonest_label"] < 0.3
    model = from_pretrained(tmp_path)
    assert isinstance(model, EncoderModel)
    assert model.n_classes == len(json.loads((tmp_path / "recipe.json").read_text())["labels"]) == 8


def test_a_masked_language_model(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text(TEXT)
    sizes = ["--set=batches.length=16", "--set=batches.batch_size=4", "--set=tokenizer.vocab_size=270", "--steps=4"]
    layers = [*SMALL, ONE_ENCODER_LAYER, NO_DECODER]
    course("train", "mlm", "--data", text, "--out", tmp_path / "out", "--device=cpu", *sizes, *layers)
    assert isinstance(from_pretrained(tmp_path / "out"), EncoderModel)


def test_ids_on_the_disk(tmp_path):
    from course_lib.data import CharTokenizer, write_tokens

    tokenizer = CharTokenizer.train([TEXT])
    tokenizer.save(tmp_path)
    for split in ("train", "validation"):
        write_tokens(tmp_path / f"{split}.npy", [tokenizer.encode(TEXT)], vocab_size=tokenizer.vocab_size)
    sizes = ["--set=batches.length=16", "--set=batches.batch_size=4", "--steps=3", "--device=cpu", *SMALL]
    course("train", "lm", "--data", tmp_path, "--out", tmp_path / "out", *sizes)
    assert results(tmp_path / "out")["steps"] == 3
    for split in ("train", "validation"):
        ids = (tmp_path / f"{split}.npy").read_bytes()
        write_tokens(tmp_path / f"{split}.npy", [[*[0] * 999, tokenizer.vocab_size]], vocab_size=9999)
        said = course("train", "lm", "--data", tmp_path, "--out", tmp_path / split, *sizes, code=2)
        assert said.startswith(f"course: data: expected ids below {tokenizer.vocab_size}, ")
        (tmp_path / f"{split}.npy").write_bytes(ids)


def test_settings_come_from_a_file_and_flags_win(tmp_path):
    file = tmp_path / "recipe.toml"
    file.write_text("[training]\nsteps = 3\nlearning_rate = 0.1\n[model]\nd_model = 8\nn_heads = 2\n")
    lm(tmp_path / "out", "--config", file, "--steps=2")
    saved = json.loads((tmp_path / "out" / "recipe.json").read_text())
    assert (saved["training"]["steps"], saved["training"]["learning_rate"]) == (2, 0.1)
    assert saved["model"]["d_model"] == 16  # a flag, too


def test_resumed_is_uninterrupted(tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    lm(whole, "--steps=12", "--set=training.checkpoint_every=5")
    lm(parts, "--steps=12", "--set=training.checkpoint_every=5")
    for path in [*(parts / "checkpoints").glob("*12.*"), *(parts / "checkpoints").glob("*10.*")]:
        path.unlink()  # back to step 5
    assert "resumed at step 5" in lm(parts, "--steps=12", "--set=training.checkpoint_every=5", "--resume")
    assert weights_hash(from_pretrained(parts)) == weights_hash(from_pretrained(whole))
    output = lm(parts, "--steps=12", code=2)
    assert "holds a run already; go on with it by --resume" in output


def begun(folder, *more):
    """A run that was interrupted: its checkpoints are there, its result is not."""
    lm(folder, "--steps=8", "--set=training.checkpoint_every=4", *more)
    for path in folder.glob("*.*"):
        if path.is_file():
            path.unlink()
    return folder


@pytest.fixture(scope="module")
def run_with_seed_0(tmp_path_factory):
    return begun(tmp_path_factory.mktemp("begun") / "out", "--set=model.d_ff=32", "--seed=0")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("--set=training.optimizer=adamw", "training.optimizer is 'adamw', not 'muon'"),
        ("--set=model.d_ff=24", "model.d_ff is 24"),
        ("--set=batches.length=8", "batches.length is 8, not 16"),
        ("--set=data.validation_share=0.2", "data.validation_share is 0.2, not 0.1"),
        ("--set=tokenizer.kind=bpe", "tokenizer.kind is 'bpe', not 'characters'"),
        ("--seed=3", "training.seed is 3"),
    ],
)
def test_another_run_is_not_gone_on_with(run_with_seed_0, change, words):
    folder = run_with_seed_0  # which is left as it is
    settings = ["--steps=12", "--set=model.d_ff=32", "--seed=0", change]
    output = lm(folder, *settings, "--resume", code=2)
    assert "holds another run: " in output
    assert words in output
    assert not (folder / "config.json").exists()


def test_other_data_under_the_same_name_are_seen(tmp_path, monkeypatch):
    folder = begun(tmp_path / "out")
    monkeypatch.setitem(globals(), "TEXT", "the dog sat on the mat. " * 200)
    assert "fingerprints.train is " in lm(folder, "--steps=12", "--resume", code=2)
    monkeypatch.undo()
    output = lm(folder, "--steps=12", "--learning-rate=0.001", "--resume")  # lengths and rates may change
    assert "resumed at step 8" in output
    assert "learning_rate changed from 0.015 to 0.001" in output


def test_a_tokenizer_of_an_earlier_run_is_not_used(tmp_path):
    folder = tmp_path / "out"
    lm(folder, "--steps=2")
    for path in (folder / "checkpoints").iterdir():
        path.unlink()  # as one does who wants to begin anew
    (tmp_path / "text.txt").write_text("xyz")
    other = tmp_path / "other.txt"
    other.write_text("quick zebras jump. " * 200)
    course(
        "train", "lm", "--data", other, "--out", folder, "--steps=2", "--device=cpu", *SMALL, "--set=batches.length=16"
    )
    assert load_tokenizer(folder).decode(load_tokenizer(folder).encode("zebra")) == "zebra"


def test_two_runs_do_not_share_a_folder(tmp_path):
    folder = RunFolder(tmp_path / "out")
    held = (
        "import sys; from course_lib.training import RunFolder\n"
        "with RunFolder(sys.argv[1]).locked():\n    print('held', flush=True); input()"
    )
    with bounded.program([sys.executable, "-c", held, str(folder)], stdin=subprocess.PIPE) as process:
        assert process.stdout.readline().strip() == "held"
        output = lm(folder.path, "--steps=2", code=2)
        assert f"another run is writing to {folder}" in output
        process.stdin.write("\n")
        process.stdin.flush()
        process.wait(30)
    lm(folder.path, "--steps=2")
    with folder.locked(), folder.locked():  # a run within the command that holds the folder
        pass


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("finished") / "out"
    lm(folder, "--steps=2")
    return folder


def test_a_damaged_result_is_not_used(finished, tmp_path):
    folder = shutil.copytree(finished, tmp_path / "out")
    weights = folder / "model.safetensors"
    payload = bytearray(weights.read_bytes())
    payload[-2] ^= 64
    weights.write_bytes(payload)
    output = course("generate", folder, "the", "--device=cpu", code=2)
    assert "model.safetensors: damaged or changed, it does not fit SHA256SUMS" in output


def test_more_layers_than_there_are_tensors(finished, tmp_path):
    folder = shutil.copytree(finished, tmp_path / "out")
    config = json.loads((folder / "config.json").read_text())
    config["transformer"]["n_decoder_layers"] = 3_000_000
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "SHA256SUMS").unlink()
    output = course("generate", folder, "the", "--device=cpu", code=2)
    assert "expected layers for which there are weights, got 3000000" in output


def test_the_last_checkpoints_are_averaged_if_asked_for(tmp_path):
    folder = tmp_path / "out"
    lm(folder, "--steps=12", "--set=training.checkpoint_every=4", "--set=result.average=2")
    parts = [read_checkpoint(path).part("model") for path in list_checkpoints(folder / "checkpoints")[-2:]]
    for name, found in from_pretrained(folder).state_dict().items():
        torch.testing.assert_close(found, (parts[0][name] + parts[1][name]) / 2)
        assert "norm" in name or not torch.equal(found, parts[1][name])


def test_early_stopping_leaves_the_best_weights(tmp_path):
    folder = tmp_path / "out"
    output = lm(folder, "--plain", "--steps=200", "--learning-rate=2", "--set=training.patience=2")
    assert (stopped := re.search(r"stopped at step (\d+): 2 evaluations, none below (\d+\.\d+)", output))
    assert results(folder)["steps"] == int(stopped[1]) < 200
    log = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    best = min((r for r in log if "evaluation" in r), key=lambda record: record["evaluation"])
    assert f"{best['evaluation']:.4f}" == stopped[2]
    kept = read_checkpoint(folder / "checkpoints" / f"step-{best['step']:08d}.json").part("model")
    for name, found in from_pretrained(folder).state_dict().items():
        torch.testing.assert_close(found, kept[name])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["train", "lm", "--data", "nothing.txt"],
            "data: there is no file or folder 'nothing.txt'; without files: 'tinyshakespeare'",
        ),
        (["train", "lm", "--set", "steps"], "--set: expected TABLE.NAME=VALUE"),
        (["train", "lm", "--set", "training.lr=1"], "lr: no setting of [training]; there are accumulation"),
        (["train", "lm", "--set", "trainin.steps=1"], "trainin: no table of a recipe"),
        (
            ["train", "lm", "--data", "reference", "--set", "model.n_heads=3"],
            "d_model: expected a multiple of n_heads=3",
        ),
        (
            ["train", "translate", "--data", "multi31k"],
            "data: there is no file or folder 'multi31k'; without files: numbers",
        ),
        (["train", "lm", "--config", "no.toml"], "no.toml"),
        (["generate", "nowhere", "x"], "MODEL: there is no folder nowhere"),
        (["generate", "runs/typo", "x"], "there is no folder runs/typo; a model on the hub is written hf:runs/typo"),
    ],
)
def test_what_is_wrong_is_one_line(tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    output = course(*arguments, code=2)
    assert words in output
    assert len(output.strip().splitlines()) == 1
    assert "Traceback" not in output


@pytest.mark.parametrize("plain", [False, True])
@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_every_default_is_a_setting_that_there_is(task, plain):
    made = task({"training": {"steps": 50}}, plain=plain)
    TransformerConfig(**made.recipe["model"], vocab_size=10)
    assert made.config.warmup <= 5
    assert task.name in course("train", "--help")
    assert "Example: course train " + task.name in " ".join(course("train", task.name, "--help").split())


def saved(folder):
    return json.loads((folder / "recipe.json").read_text())


def test_the_fast_recipe_is_the_default_and_says_what_it_changes(tmp_path):
    [said] = [line for line in lm(tmp_path / "fast", "--steps=2").splitlines() if "--plain" in line]
    recipe = saved(tmp_path / "fast")
    for table, settings in FAST["lm"].items():
        for name, value in settings.items():
            if name not in ("steps", "length", "batch_size", "d_ff"):  # those that were given, or follow from them
                assert recipe[table][name] == value
                assert f" {name} " in said or TEXTBOOK["lm"][table].get(name) == value
    assert "length" not in said
    assert recipe["model"]["window"] == 16  # as far as it saw in training


def test_a_gpu_gets_a_recipe_of_its_own(monkeypatch):
    monkeypatch.setattr("course_lib.training.chosen_device", lambda name: torch.device("cuda"))
    monkeypatch.setattr("course_lib.training.has_bfloat16", lambda device: True)
    task = next(task for task in TASKS if task.name == "lm")
    made = task()
    assert made.config.precision == "bfloat16"
    assert (made.recipe["model"]["d_model"], made.recipe["batches"]["length"]) == (384, 256)
    assert made.recipe["model"]["window"] == 256
    assert "d_model 384" in made.changed
    assert task(plain=True).recipe["model"]["d_model"] == 128


def test_why_there_is_no_gpu_is_said():
    output = course("train", "lm", "--device=cuda", code=2)
    assert "device: expected one that is here, such as 'cpu', got 'cuda': " in output
    assert output.strip() != "got 'cuda':"


@pytest.mark.parametrize("engine", ["ctranslate2", "llama.cpp"])
def test_engines_write_the_same_tokens(tmp_path, engine):
    folder = tmp_path / "lm"
    lm(folder, "--steps=20", "--set=training.learning_rate=0.05")
    greedy = ["generate", folder, "the cat ", "--temperature=0", "--device=cpu", "--max-new-tokens"]
    expected = course(*greedy, 8, "--engine=course_lib")
    assert course(*greedy, 8, f"--engine={engine}") == expected
    place = folder / "engines" / ("gguf" if engine == "llama.cpp" else engine)
    before = (place / "stamp.json").stat().st_mtime_ns
    assert course(*greedy, 8, f"--engine={engine}") == expected
    assert (place / "stamp.json").stat().st_mtime_ns == before  # it is not exported again
    lm(tmp_path / "other", "--steps=1")
    for path in (tmp_path / "other").glob("model.safetensors"):
        path.rename(folder / path.name)
    (folder / "SHA256SUMS").unlink()
    assert course(*greedy, 8, f"--engine={engine}") == course(*greedy, 8, "--engine=course_lib")
    if engine == "llama.cpp":
        assert "this model sees 16 tokens" in course(*greedy, 40, f"--engine={engine}", code=2)
    else:
        assert course(*greedy, 60) == course(*greedy, 60, "--engine=course_lib")  # past the window, by itself
        seeded = ["generate", folder, "the ", "--seed=3", "--device=cpu", "--top-k=4", "--top-p=0.9"]
        assert course(*seeded) == course(*seeded)
    assert "without --int8" in course(*greedy, 8, "--int8", f"--engine={engine}", code=2)
    assert "engine: expected one of" in course(*greedy, 8, "--engine=vllm", code=2)


def test_the_fast_recipe_is_a_function():
    made = next(task for task in TASKS if task.name == "lm")({"training": {"precision": "float32"}})
    model, run = fast_recipe(50)
    assert model == TransformerConfig(**made.recipe["model"], vocab_size=50)
    quiet = ("evaluate_every", "checkpoint_every", "log_every")
    assert {**run.to_dict(), **{name: getattr(made.config, name) for name in quiet}} == made.config.to_dict()
    assert fast_recipe(50, length=32, steps=7)[1].steps == 7


def test_plain_is_the_textbooks_recipe(tmp_path):
    output = lm(tmp_path / "plain", "--plain", "--steps=2")
    recipe, textbook = saved(tmp_path / "plain"), TEXTBOOK["lm"]
    assert "--plain" not in output
    assert recipe["model"] == {**textbook["model"], "d_model": 16, "n_heads": 2, "n_decoder_layers": 1}
    told = {"steps": 2, "evaluate_every": 4, "warmup": 0}
    assert recipe["training"] == TrainingConfig.from_dict({**textbook["training"], **told}).to_dict()


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_bfloat16_is_for_processors_that_have_it(task, monkeypatch):
    for has, precision in ((True, "bfloat16"), (False, "float32")):
        monkeypatch.setattr("course_lib.training.has_bfloat16", lambda device, has=has: has)
        made = task(device="cpu")
        assert made.config.precision == precision
        assert made.changed.endswith("precision bfloat16") == has
        assert task(plain=True).config.precision == task({"training": {"precision": "float32"}}).config.precision
        assert not task(plain=True).changed


def test_the_recipe_in_the_folder_wins_over_the_defaults(tmp_path):
    """A run that was begun before the defaults changed is gone on with as it was."""
    folder = begun(tmp_path / "out", "--plain", "--set=model.norm_eps=1e-4")
    was = json.loads((folder / "checkpoints" / "recipe.json").read_text())
    del was["model"]["norm_eps"], was["training"]["schedule"]  # an older version did not know them
    (folder / "checkpoints" / "recipe.json").write_text(json.dumps(was))
    output = lm(folder, "--steps=12", "--set=model.norm_eps=1e-4", "--resume")
    assert "resumed at step 8, steps changed from 8 to 12\n" in output
    assert "--plain" not in output
    now = saved(folder)
    assert now["training"] == {**was["training"], "schedule": "cosine", "steps": 12}
    assert now["model"] == {**was["model"], "norm_eps": 1e-4}


def command(folder, *more):
    """The command as a process of its own."""
    text = folder.parent / "text.txt"
    text.write_text(TEXT)
    sizes = ["--set=batches.length=16", "--set=batches.batch_size=4", *SMALL]
    return [
        "-m",
        "coursework.cli",
        "train",
        "lm",
        "--data",
        str(text),
        "--out",
        str(folder),
        "--device=cpu",
        *sizes,
        *more,
    ]


def test_an_interrupt_in_a_terminal(tmp_path):
    folder = tmp_path / "out"
    more = ["--steps=100000", "--set=training.checkpoint_every=5"]
    with bounded.program([sys.executable, *command(folder, *more)]) as process:
        bounded.wait_for(lambda: process.poll() is not None or list_checkpoints(folder / "checkpoints"))
        process.send_signal(signal.SIGINT)
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)  # an impatient reader's
        out = bounded.output_of(process, 120)
    assert process.returncode == 130, out
    assert re.search(r"interrupted at step \d+, checkpoint saved\nGo on with: course train lm --out .* --resume", out)
    step = int(re.search(r"interrupted at step (\d+)", out)[1])
    assert list_checkpoints(folder / "checkpoints")[-1].name == f"step-{step:08d}.json"


@pytest.mark.thorough
def test_torchrun_goes_on_when_a_process_is_killed(tmp_path):
    folder = tmp_path / "out"
    more = ["--steps=200", "--set=training.checkpoint_every=10", "--resume"]
    torchrun = [*bounded.TORCHRUN, "--nproc-per-node=2", "--max-restarts=3"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with bounded.program([*torchrun, *command(folder, *more)], env=environment) as process:
        bounded.wait_for(lambda: process.poll() is not None or list_checkpoints(folder / "checkpoints"))
        workers = [w for w in psutil.Process(process.pid).children() if "coursework.cli" in " ".join(w.cmdline())]
        assert workers, bounded.output_of(process, 60)
        workers[0].kill()
        out = bounded.output_of(process, 240)
    assert process.returncode == 0, out
    assert re.search(r"resumed at step \d+", out)
    assert results(folder)["processes"] == 2
    alone = tmp_path / "alone"
    with bounded.program([sys.executable, *command(alone, *more)]) as process:
        bounded.output_of(process, 120)
    theirs = [json.loads(line) for line in (alone / "log.jsonl").read_text().splitlines()]
    ours = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    assert [r["step"] for r in ours] == [r["step"] for r in theirs]
    assert Path(folder / "model.safetensors").exists()


def own_rows(path, n=300, spoilt=()):
    """A CSV in which one word tells the label; its rows of these numbers are spoilt."""
    rows = [f'"word {n}, {"left" if n % 2 else "right"}",{"odd" if n % 2 else "even"}' for n in range(n)]
    for number in spoilt:
        rows[number] = "spoilt"
    path.write_text("\n".join(["text,label", *rows]) + "\n")
    return path


CLASSIFIER = [*SMALL, ONE_ENCODER_LAYER, NO_DECODER, "--device=cpu", "--set=tokenizer.vocab_size=270"]


def test_one_file_of_ones_own(tmp_path):
    file, folder = own_rows(tmp_path / "own.csv", spoilt=(7, 20)), tmp_path / "out"
    refused = course("train", "classify", "--data", file, "--out", folder, "--steps=2", *CLASSIFIER, code=2)
    assert f"line 9 of {file}: expected 2 columns, got 1; line 22 of" in refused
    said = course("train", "classify", "--data", file, "--out", folder, "--steps=2", "--skip-bad", *CLASSIFIER)
    assert re.search(r"2 rows left out: line 9 of .*; line 22 of .*: expected 2 columns, got 1", said)
    assert "split by seed 0" in said
    found = results(folder)
    assert found["rows_left_out"] == 2
    assert found["accuracy_of_a_linear_model"] == 1  # one word tells
    measured = course("evaluate", folder, "--device=cpu")
    assert f"accuracy: {round(found['accuracy'], 4)}" in measured  # the same as at the end of training
    assert "Measured on its test part." in measured
    file.rename(tmp_path / "moved.csv")  # known by what is in it
    assert "Measured on its test part." in course("evaluate", folder, tmp_path / "moved.csv", "--device=cpu")
    other = own_rows(tmp_path / "other.csv", n=40)
    assert "test examples: 40" in course("evaluate", folder, other, "--device=cpu")
    lines = course("classify", folder, "word 3, left", "word 4, right", "--device=cpu").splitlines()
    assert [line.split("\t")[2] for line in lines] == ["word 3, left", "word 4, right"]
    assert {line.split("\t")[0] for line in lines} <= {"odd", "even"}
    assert len(course("classify", folder, other, "--device=cpu").splitlines()) == 40
    (tmp_path / "new.txt").write_text("word 3\n\nword 4\n\n")  # a line for each, or answers would stand beside others
    lines = course("classify", folder, tmp_path / "new.txt", "--device=cpu").splitlines()
    assert [line.split("\t")[-1] for line in lines] == ["word 3", "", "word 4", ""]
    (tmp_path / "new.csv").write_text('text\n"one\ntwo"\n')
    assert course("classify", folder, tmp_path / "new.csv", "--device=cpu").endswith("\tone two\n")
    long = "This film was fine. " * 20  # longer than any name of a file
    assert course("classify", folder, long, "--device=cpu").startswith(("odd\t", "even\t"))
    for texts, words in (
        ([tmp_path], "expected texts or a file, got the folder"),
        ([other, other], "expected texts, or one file alone"),
        (["a", "--columns=text"], "--columns: expected one file"),
        (["/dev/zero"], "/dev/zero: expected a file, got a device"),
        (["x" * 100_001], "text 1: expected at most 100,000 characters, got 100,001"),
        ([tmp_path / "no.csv"], "there is no file"),
    ):
        assert words in course("classify", folder, *texts, "--device=cpu", code=2)


def test_more_pairs_than_any_set_has(tmp_path):
    names = "".join(f"{n}\t{n}\n" for n in range(50_000))
    (tmp_path / "pairs.tsv").write_text(names)
    made = next(task for task in TASKS if task.name == "translate")({"data": {"name": str(tmp_path / "pairs.tsv")}})
    made.read()
    assert sum(map(len, made.pairs.values())) == 50_000


def test_rows_that_no_batch_holds(tmp_path):
    file = own_rows(tmp_path / "own.csv")
    file.write_text(file.read_text() + f"{'long ' * 200},odd\n")
    options = ["train", "classify", "--data", file, "--steps=1", *CLASSIFIER, "--set=batches.max_tokens=100"]
    assert "line 302 of" in course(*options, "--out", tmp_path / "a", code=2)
    course(*options, "--out", tmp_path / "b", "--skip-bad")
    assert results(tmp_path / "b")["rows_left_out"] == 1


def test_a_language_model_is_measured_in_bits_per_byte(tmp_path):
    folder = tmp_path / "lm"
    lm(folder, "--steps=4")
    found = results(folder)
    held_out = TEXT[len(TEXT) - len(TEXT) // 10 :]  # a character is a token and a byte
    assert found["bits_per_byte"] == pytest.approx(found["held_out_loss"] / math.log(2))
    assert found["perplexity"] == pytest.approx(math.exp(found["held_out_loss"]))
    for data in ([], [tmp_path / "text.txt"]):
        said = course("evaluate", folder, *data, "--device=cpu")
        assert f"bits per byte: {round(found['bits_per_byte'], 4)}" in said
        assert "held-out part" in said
    other = tmp_path / "other.txt"
    other.write_text(held_out + "ZZ")
    assert "the whole text" in (said := course("evaluate", folder, other, "--device=cpu"))
    assert "unknown tokens: 0.0" in said
    assert "the held-out part of the text" in course("evaluate", folder, other, "--held-out", "--device=cpu")


def test_a_held_out_loss_that_rises_again_is_spoken_of(tmp_path, monkeypatch):
    monkeypatch.setattr(jobs, "WORSE", 0.0)
    said = lm(tmp_path / "lm", "--steps=4", "--set=training.evaluate_every=2")
    assert re.search(
        r"The held-out loss was lowest at step \d, \d\.\d+. A new run with --set training.patience=2 keeps that", said
    )
    assert "patience" not in lm(tmp_path / "other", "--steps=4", "--set=training.patience=2")


def test_to_go_on_without_a_checkpoint_begins_anew_and_says_so(tmp_path):
    assert "There is no checkpoint in" in lm(tmp_path / "lm", "--steps=2", "--resume")


def test_a_folder_of_texts(tmp_path):
    (tmp_path / "texts").mkdir()
    for number in range(60):
        (tmp_path / "texts" / f"{number}.txt").write_text(f"text {number}: {TEXT[:100]}")
    sizes = ["--set=batches.length=16", "--set=batches.batch_size=4", "--steps=2", "--device=cpu", *SMALL]
    said = course("train", "lm", "--data", tmp_path / "texts", "--out", tmp_path / "out", *sizes)
    assert re.search(r"texts: \d+ in train, \d+ in validation, split by seed 0", said)


@pytest.mark.parametrize("lora", [[], ["--lora=2"]])
def test_going_on_with_other_data(tmp_path, lora):
    first, second = tmp_path / "first", tmp_path / "second"
    lm(first, "--steps=8", "--set=model.d_ff=24")
    other = tmp_path / "other.txt"
    other.write_text("the mat sat on the cat. " * 200)
    options = ["train", "lm", "--data", other, "--from", first, "--out", second, "--device=cpu", *lora]
    said = course(*options, "--steps=3", "--set=training.checkpoint_every=2")
    what = "updates of rank 2 .*" if lora else "all weights"
    assert re.search(rf"Goes on from .*, training {what}, at a rate of 0\.\d+\.", said)
    before, after = from_pretrained(first).state_dict(), from_pretrained(second).state_dict()
    assert before.keys() == after.keys()
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert moved
    assert not lora or all("attention" in name for name in moved)
    assert (second / "tokenizer.json").read_bytes() == (first / "tokenizer.json").read_bytes()
    assert saved(second)["batches"] == saved(first)["batches"]
    assert "resumed at step 3" in course(*options, "--steps=5", "--resume")
    assert "an update needs a model to go on from" in course("train", "lm", "--lora=2", code=2)


def test_a_new_head_on_an_encoder_that_read(tmp_path):
    text, encoder = tmp_path / "text.txt", tmp_path / "encoder"
    text.write_text(TEXT)
    sizes = ["--set=batches.length=16", "--set=batches.batch_size=4", "--set=tokenizer.vocab_size=270", "--steps=2"]
    layers = [*SMALL, ONE_ENCODER_LAYER, NO_DECODER]
    course("train", "mlm", "--data", text, "--out", encoder, "--device=cpu", *sizes, *layers)
    file, folder = own_rows(tmp_path / "own.csv"), tmp_path / "out"
    said = course("train", "classify", "--data", file, "--from", encoder, "--out", folder, "--steps=1", "--device=cpu")
    assert "all weights and a new head" in said
    more = ["--from", folder, "--out", tmp_path / "more", "--steps=1", "--device=cpu"]
    assert "a new head" not in course("train", "classify", "--data", file, *more)
    wrong = ["--from", folder, "--out", tmp_path / "wrong", "--steps=1", "--device=cpu"]
    said = course("train", "lm", "--data", text, *wrong, code=2)
    assert "--from: expected a model that lm can go on from, got one of classify" in said


def test_every_setting_is_printed_with_what_it_may_be():
    for task in TASKS:
        rows = list(recipes.settings(task(plain=True).recipe))
        lacking = [name for name, _, allowed, line in rows if not allowed or not line]
        assert not lacking
    said = course("train", "lm", "--settings", "--plain", "--set=model.activation=swiglu")
    assert re.search(r'^model\.activation +"silu" +relu, gelu, .*, swiglu, geglu, reglu: \w', said, re.MULTILINE)
    assert re.search(r"^model\.gated +true +true, false: ", said, re.MULTILINE)
    for setting, allowed in (
        ("tokenizer.kind=words", "one of characters, bpe"),
        ("model.activation=tanh", "one of relu, gelu"),
        ("training.schedule=x", "one of constant, linear"),
        ("data.skip_bad=maybe", "True or False"),
        ("batches.length=many", "an integer"),
    ):
        assert f"expected {allowed}" in course("train", "lm", f"--set={setting}", code=2)


def test_the_speed_after_a_resume_is_that_of_the_resumed_run(tmp_path, monkeypatch):
    folder = begun(tmp_path / "out")
    clock = itertools.count(step=10)  # ten seconds pass between two looks
    monkeypatch.setattr(jobs, "time", SimpleNamespace(perf_counter=lambda: next(clock), process_time=lambda: 0))
    lm(folder, "--steps=9", "--resume")
    found = results(folder)
    assert found["seconds_until_trained"] == 10
    assert found["tokens_per_second"] == round(found["tokens"] / 9 / 10)  # one update of nine
    lm(folder, "--steps=9", "--resume")  # nothing is left to do
    assert {**results(folder), "command": ""} == {**found, "command": ""}


def commands_of(group, words=()):
    """Every command of the program with the words that call it."""
    for word, one in group.commands.items():
        yield from commands_of(one, (*words, word)) if hasattr(one, "commands") else [((*words, word), one)]


COMMANDS = dict(commands_of(typer.main.get_command(cli.app)))


def called(words, parameter, value):
    """The words of a command with a value for one of its parameters, and something for those that it needs."""
    command, more = COMMANDS[words], []
    for one in command.params:
        if one is parameter and one.param_type_name == "option":
            more.append(f"{max(one.opts, key=len)}={value}")
        elif one.required or one is parameter:
            more += [value if one is parameter else "x"] if one.param_type_name == "argument" else [f"{one.opts[0]}=x"]
    return [*words, *more]


def numbers():
    for words, command in COMMANDS.items():
        hints = get_type_hints(command.callback)
        for parameter in command.params:
            if {int, float} & {hints.get(parameter.name), *get_args(hints.get(parameter.name))}:
                yield words, parameter


def outside(declared):
    kind, within = get_args(declared)
    low = within.least if within.least is not None else within.above
    yield from () if low is None else [kind(low - 1)]
    yield from () if within.most is None else [kind(within.most + 1)]
    yield from [10**40] if kind is int else ["nan", "inf", "1e400", 1e300]


def test_a_number_out_of_its_range_is_refused_before_any_command_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings = {field.name for field in dataclasses.fields(TrainingConfig)}  # those check themselves
    tried = 0
    for words, parameter in numbers():
        declared = ranges(COMMANDS[words].callback)
        if words[0] == "train" and parameter.name in settings:
            continue
        assert parameter.name in declared, (words, parameter.name, "has no range")
        for value in outside(declared[parameter.name]):
            [said] = course(*called(words, parameter, value), code=2).splitlines()
            assert said.startswith(f"course: {max(parameter.opts, key=len)}: expected ")
            tried += 1
    assert tried > 50
    assert not list(tmp_path.iterdir())


def test_no_name_is_empty(tmp_path, monkeypatch):
    """An empty path would be the working directory."""
    monkeypatch.chdir(tmp_path)
    for words, command in COMMANDS.items():
        for parameter in command.params:
            if parameter.name not in TEXTS and not getattr(parameter, "is_flag", False):
                [said] = course(*called(words, parameter, ""), code=2).splitlines()
                assert said.endswith(": expected a name or a number, got an empty text")
    assert "--folder: expected a name" in course("--folder", "", "status", code=2)
    assert not list(tmp_path.iterdir())


def test_a_device_that_computes_nothing_is_none(tmp_path):
    for name in ("meta", "potato"):
        assert f"device: expected one that is here, such as 'cpu', got '{name}'" in lm(
            tmp_path / "o", f"--device={name}", code=2
        )


def test_no_setting_overflows_and_none_is_a_function_or_found(tmp_path):
    for table in ("model", "training"):
        for name, kind in declarations(recipes.tables()[table]).items():
            unknown = "Callable" in str(kind) or name in recipes.FOUND
            if unknown or kind is float or float in get_args(kind) or "float" in str(kind):
                value = "x" if unknown else [1e300, 1e300] if name == "betas" else 1e300
                with pytest.raises(ValueError, match=f"^{name}: {'no setting' if unknown else 'expected'}"):
                    TASKS[1]({table: {name: value}}, plain=True)
    with pytest.raises(ValueError, match="attention_scale: expected a positive number, got 0"):
        TASKS[1]({"model": {"attention_scale": 0}}, plain=True)


def test_more_checkpoints_than_there_will_be_are_refused_before_training(tmp_path):
    for steps, every, keep in itertools.product((1, 7, 8), (0, 1, 4, 9), (1, 3)):
        there = min(keep, len({steps, *range(every or steps, steps, every or steps)}))
        training = {"steps": steps, "checkpoint_every": every, "keep": keep}
        TASKS[1]({"training": training, "result": {"average": there}}, plain=True)
        with pytest.raises(ValueError, match=f"result.average: expected at most {there}, .* got {there + 1}"):
            TASKS[1]({"training": training, "result": {"average": there + 1}}, plain=True)


def test_a_finished_model_without_checkpoints_is_not_gone_on_with(tmp_path):
    folder = tmp_path / "out"
    lm(folder, "--steps=2")
    before = weights_hash(from_pretrained(folder))
    for path in (folder / "checkpoints").iterdir():
        path.unlink()
    assert "holds a model, and no checkpoint to go on from" in lm(folder, "--steps=6", "--resume", code=2)
    assert weights_hash(from_pretrained(folder)) == before
    (folder / "tokenizer.json").write_text(CharTokenizer.train([TEXT + "0123456789"]).to_text())
    (folder / "SHA256SUMS").unlink()
    assert "tokenizer: expected at most" in course("generate", folder, "the", "--device=cpu", code=2)


def test_the_folder_of_another_task_is_named(tmp_path):
    folder = begun(tmp_path / "out")
    said = course("train", "classify", "--out", folder, "--resume", "--device=cpu", code=2)
    assert f"--resume: {folder} holds a run of lm, not of classify" in said


@pytest.mark.parametrize(
    ("name", "rows", "words"),
    [
        ("rows.csv", ["text,label", *[f"t{n},a,more" for n in range(60)]], "line 2 of {}: expected 2 columns, got 3"),
        ("rows.csv", ["text,label", *[f"t{n}," for n in range(60)]], "line 2 of {}: empty label"),
        ("rows.csv", ["text,label", *[f",l{n}" for n in range(60)]], "line 2 of {}: empty text"),
        ("rows.tsv", [f"t{n}" for n in range(60)], "line 1 of {}: expected 2 columns, got 1"),
        ("rows.jsonl", ['{"text": "a", "label": []}'] * 60, "line 1 of {}: no label"),
        ("rows.jsonl", ["[", *['{"text": "a", "label": "b"},'] * 60, "]"], "line 1 of {}: no JSON"),
        ("rows.csv", ["text,label", *["same,a", "same,b"] * 60], "of 120 rows with 1 different texts"),
        ("rows.csv", ["text,label"], "expected rows in {}, got none"),
        ("rows.csv", ["text,text,label", "a,b,c"], "expected text once in the header of {}"),
    ],
)
def test_rows_that_are_all_bad_are_named(tmp_path, name, rows, words):
    file = tmp_path / name
    file.write_text("\n".join(rows) + "\n")
    said = course("train", "classify", "--data", file, "--steps=1", *CLASSIFIER, "--out", tmp_path / "o", code=2)
    assert words.format(file) in said


def test_columns_of_what_has_none(tmp_path):
    (tmp_path / "text.txt").write_text(TEXT)
    (tmp_path / "pairs.tsv").write_text("a\tb\n" * 60)
    for task, data in (("lm", "text.txt"), ("translate", "pairs.tsv")):
        columns = "x" if task == "lm" else "x,y"
        said = course("train", task, "--data", tmp_path / data, "--columns", columns, "--steps=1", code=2)
        assert "columns: expected " in said


@pytest.mark.parametrize(
    ("rank", "world", "words"),
    [("5", "2", "RANK: expected less than WORLD_SIZE=2"), ("abc", "2", "RANK: expected a whole number"),
     ("0", "0", "RANK: expected less than WORLD_SIZE=0"), ("0", "-1", "WORLD_SIZE: expected a whole number")],
)  # fmt: skip
def test_processes_that_cannot_be_are_not_waited_for(tmp_path, monkeypatch, rank, world, words):
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("WORLD_SIZE", world)
    assert words in lm(tmp_path / "o", "--steps=1", code=2)


def test_the_system_names_what_led_to_its_refusal(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("")
    (tmp_path / "class" / "anna").mkdir(parents=True)
    Path("text.txt").write_text(TEXT)
    for words in (["verify", "class"], ["sweep", "--data=text.txt", "--shapes=1x8", "--tokens=64"]):
        [*_, said] = course(*words, "--out=file", code=2).splitlines()
        assert said.startswith("course: --out: file"), said
    assert f"--out: {tmp_path / 'file'}: File exists" in lm(tmp_path / "file", "--steps=1", code=2)
    assert f"--config: {tmp_path}: Is a directory" in lm(tmp_path / "o", "--config", tmp_path, code=2)
    long = "x" * 5000
    for arguments in (["generate", long], ["train", "lm", "--data", long], ["train", "lm", "--from", long]):
        [said] = course(*arguments, code=2).splitlines()
        assert "File name too long" in said or "there is no folder" in said or "got 'xxx" in said


def test_memory_that_torch_cannot_have_is_said():
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**60)
    assert "not enough memory" in cli._unforeseen(caught.value)
