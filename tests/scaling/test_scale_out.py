"""The page on scaling out has the numbers of the formulas, and commands that this package understands."""

import importlib.util
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from course_lib.config import TransformerConfig
from coursework import cli
from coursework.commands.tasks import LanguageTask

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "scale_out.md").read_text(encoding="utf-8")


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


def commands():
    """What follows `course` or `-m coursework.cli` in each command of the page, as words."""
    [job] = [part for part in yaml.safe_load_all(blocks("yaml")[0]) if part["kind"] == "Job"]
    texts = [*blocks("bash"), *job["spec"]["template"]["spec"]["containers"][0]["args"]]
    lines = [line for text in texts for line in text.replace("\\\n", " ").splitlines()]
    found = [re.search(r"(?:^course|-m coursework\.cli) (.*)", line) for line in lines]
    return [shlex.split(match[1]) for match in found if match]


@pytest.fixture
def page_folder(tmp_path, monkeypatch):
    """A folder with the configuration of the page, to work in."""
    (tmp_path / "gpt2.toml").write_text(blocks("toml")[0])
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_tables_are_those_of_the_formulas():
    spec = importlib.util.spec_from_file_location("scale_out", DOCS / "scale_out.py")
    scale_out = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(scale_out)
    assert scale_out.filled(PAGE) == PAGE, "run python docs/scale_out.py"
    assert scale_out.filled(PAGE.replace("1,557,611,200", "1,500,000,000")) == PAGE


def test_claims_beside_the_tables():
    table = PAGE.split("<!-- memory -->")[1].split("\n<!-- end -->")[0]
    memory = [line.split("|")[2:-1] for line in table.splitlines()]
    ours = {
        label: [float(cell.replace(",", "")) for cell in row] for label, row in zip("123", memory[-3:], strict=True)
    }
    gpu = 80e9 / 2**30
    assert ours["1"][0] + ours["1"][4] < gpu  # 1.5 B fits without splitting
    assert ours["2"][0] > gpu  # 8 B does not, even without activations
    assert ours["3"][2] > gpu  # 70 B needs everything split
    assert ours["3"][3] + ours["3"][4] > gpu > ours["3"][6]  # ... and recomputation


def test_there_are_commands_of_each_kind():
    assert len(commands()) == 6
    assert sum("--parallel" in words for words in commands()) == 2


@pytest.mark.parametrize("number", range(6))
def test_a_command_is_understood(number, page_folder, monkeypatch):
    words = commands()[number]
    if words[0] == "generate":
        assert CliRunner().invoke(cli.app, ["generate", "--help"]).exit_code == 0
        return
    tasks = []
    monkeypatch.setattr("coursework.commands.jobs.train_job", lambda task, *_, **__: tasks.append(task) or {})
    words = [word.removeprefix("/shared/") if word.endswith(".toml") else word for word in words]
    result = CliRunner().invoke(cli.app, words)
    assert result.exit_code == 0, result.output
    [task] = tasks
    TransformerConfig(**task.recipe["model"], vocab_size=50257)
    config = task.config
    assert config.recompute == ("--recompute" in words)
    if "--plain" in words:
        assert config.precision == ("bfloat16" if "--bf16" in words else "float32")


def test_the_configuration_is_that_of_gpt2(page_folder):
    recipe = LanguageTask(tomllib.loads(blocks("toml")[0]), plain=True).recipe
    model = TransformerConfig(**recipe["model"], vocab_size=50257)
    assert (model.n_decoder_layers, model.d_model, model.n_heads) == (12, 768, 12)
    per_update = recipe["batches"]["length"] * recipe["batches"]["batch_size"] * recipe["training"]["accumulation"]
    assert per_update == 2**19


def test_prepared_data_trains_in_two_processes(page_folder):
    """The page's own program writes the ids, then its command for several GPUs runs on two CPUs, made small."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    program = blocks("python")[0].replace("text, folder = library_text(),", "text, folder = library_text()[:300_000],")
    assert "[:300_000]" in program
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120, env=environment)
    assert (page_folder / "data/library/train.npy").exists()
    [words] = [
        words for words in commands() if "--max-restarts" not in words and "runs/gpt2" in words and "--resume" in words
    ]
    small = ["model.d_model=16", "model.n_heads=2", "model.n_decoder_layers=2", "batches.length=32"]
    small += ["training.accumulation=2", "batches.batch_size=4", "training.warmup=1", "training.evaluate_every=0"]
    words = [word for word in words if word != "--compile"] + ["--device", "cpu", "--steps", "2"]
    words += ["--parallel", "fsdp", "--recompute", *(f"--set={setting}" for setting in small)]
    torchrun = "torch.distributed.run --standalone --local-addr=127.0.0.1 --nproc-per-node=2"
    launcher = [sys.executable, "-m", *torchrun.split(), "-m"]
    done = subprocess.run(
        [*launcher, "coursework.cli", *words], capture_output=True, text=True, timeout=200, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert (page_folder / "runs/gpt2/model.safetensors").exists()
