"""The blocks of README.md and of the pages in docs are run; those that cannot run here are named with the reason."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from coursework.cli import app

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
BLOCKS = {
    f"{path.name}: {text.splitlines()[0].split('  #')[0].strip()}": (language, text)
    for path in PAGES
    for language, text in BLOCK.findall(path.read_text(encoding="utf-8"))
}
TRAINING_AT_SCALE = "a run of hours or many machines: tests/scaling/test_scale_out.py has its commands understood"
SERVED = "serves until it is stopped, or needs its run: tests/export/test_serving.py"
NOT_RUN = {
    "README.md: make lab": "installs and then serves until it is stopped: tests/browser opens JupyterLab",
    "README.md: make test": "is what runs this test",
    "README.md: py -m venv .venv": "Windows: tests/test_hosts.py",
    "where_to_run.md: !git clone --quiet ADDRESS-OF-THIS-REPOSITORY course": "Colab, and the address is the fork's",
    "where_to_run.md: from google.colab import drive": "Colab",
    "scale_out.md: course train lm --data library --steps 500 --out runs/first": TRAINING_AT_SCALE,
    "scale_out.md: [batches]": TRAINING_AT_SCALE,
    "scale_out.md: course train lm --plain --config gpt2.toml --data data/library --out runs/gpt2 --device cuda "
    "--bf16 --compile": TRAINING_AT_SCALE,
    "scale_out.md: torchrun --standalone --nproc-per-node 8 --max-restarts 3 -m coursework.cli train lm --plain "
    "--config gpt2.toml \\": TRAINING_AT_SCALE,
    "scale_out.md: #!/bin/bash": TRAINING_AT_SCALE,
    "scale_out.md: apiVersion: v1": TRAINING_AT_SCALE,
    "serving.md: pip install 'course-lib[engines]'": SERVED,
    "serving.md: import time": SERVED,
    "serving.md: import ctranslate2": "needs a translator: tests/export/test_exported_pairs.py does the same",
    "serving.md: curl http://127.0.0.1:8080/v1/completions -H 'Content-Type: application/json' \\": SERVED,
    'where_to_run.md: .venv/bin/python -c "import torch; print(torch.cuda.get_device_name())"': "a GPU",
}
LINES_NOT_RUN = {
    "torchrun": "several processes: tests/training/test_several_processes.py",
    "course train translate": "translates 27 s long after any training: tests/training/test_commands.py",
}
SHORTER = {"course train": "--steps 3", "course generate": "--max-new-tokens 4"}
"""What is added to commands that begin so: the last of two options counts."""
FEWER = {"steps=200": "steps=20"}
"""The same of Python."""
FAILS = {"course verify . --exercise causal_mask --strict --out ../verified": "the answer is still open"}


def shortened(text: str) -> list[str]:
    """The commands of a block, one a line, with what makes them quick."""
    found = []
    for line in text.replace("\\\n", " ").splitlines():
        line = line.split("  #")[0].strip()
        if line and not line.startswith(tuple(LINES_NOT_RUN)):
            found.append(" ".join([line, *(add for begin, add in SHORTER.items() if line.startswith(begin))]))
    return found


def test_what_is_not_run_is_there():
    assert NOT_RUN.keys() <= BLOCKS.keys(), NOT_RUN.keys() - BLOCKS.keys()
    text = "".join(text for _, text in BLOCKS.values())
    assert all(re.search(rf"^{begin}", text, re.MULTILINE) for begin in [*LINES_NOT_RUN, *SHORTER, *FAILS])
    assert all(many in text for many in FEWER)


@pytest.mark.skipif(os.name != "posix", reason="the blocks are for a POSIX shell")
@pytest.mark.parametrize("name", sorted(BLOCKS.keys() - NOT_RUN.keys()))
def test_a_block_runs(name, tmp_path, monkeypatch):
    """The first command of a block in a shell, as its reader types it; the others here, where torch is loaded."""
    language, text = BLOCKS[name]
    for variable in [variable for variable in os.environ if variable.startswith("COURSE_")]:
        monkeypatch.delenv(variable)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mytext.txt").write_text("Once upon a time there was a loop that ended.\n" * 200, encoding="utf-8")
    reviews = [f"film {n} is {word},{word}\n" for n in range(100) for word in ("fine", "dull")]
    (tmp_path / "reviews.csv").write_text("".join(["text,label\n", *reviews]), encoding="utf-8")
    desk = tmp_path / "submissions" / "ada"
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}

    def in_a_shell(command: list[str]) -> tuple[int, str]:
        ended = subprocess.run(command, env=environment, capture_output=True, encoding="utf-8", timeout=600)
        return ended.returncode, ended.stdout + ended.stderr

    def here(line: str) -> tuple[int, str]:
        ended = CliRunner().invoke(app, shlex.split(line.removeprefix("course ")))
        return ended.exit_code, f"{ended.output}{ended.exc_info}"

    if language == "python":
        for many, few in FEWER.items():
            text = text.replace(many, few)
        code, said = in_a_shell([sys.executable, "-c", text])
        assert code == 0, said
        return
    assert language in ("", "bash")
    if "course verify" in text:
        assert here(f"course start --folder {desk}")[0] == 0
    for number, line in enumerate(shortened(text)):
        code, said = here(line) if number and line.startswith("course ") else in_a_shell(["bash", "-c", line])
        assert (code != 0) == (line in FAILS), f"{line}\n{said}"
        assert "Traceback" not in said
