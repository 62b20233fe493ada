"""From files of one's own to a model that is used, one command a step: minutes, and what was reached.

    python benchmarks/own_data.py [--quick]

The files are made of the Python that runs: a megabyte of its library, 2,000 rows of code with the package that it
comes from, some of them spoilt, and 5,000 names written in two ways. `--quick` trains small models for a few steps.
"""

import argparse
import contextlib
import csv
import os
import random
import re
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

from harness import RESULTS, environment, shared_machine

from course_lib.files import write_atomic
from coursework.corpora import library_text

HERE = Path(__file__).resolve().parents[1]
PACKAGES = ("asyncio", "ctypes", "email", "http", "importlib", "multiprocessing", "unittest", "xml")
SPOILT = ("only one column\n", '"a quote that is not closed,email\n', "no label,\n", "b\udcff,email\n", "a,b,c\n")
QUICK = ["--steps", "3", "--set", "model.d_model=16", "--set", "model.n_heads=2"]
SHOWN = re.compile(
    r"^(held out loss|perplexity|bits per byte|accuracy.*|exact match.*|bleu.*|.*left out.*): ?.*$", re.M
)


def definitions(package: str) -> list[str]:
    """The first lines of the functions and classes of a package."""
    root = Path(sysconfig.get_path("stdlib")) / package
    sources = [path.read_text(encoding="utf-8", errors="replace") for path in sorted(root.rglob("*.py"))]
    found = [one for source in sources for one in re.findall(r"^[ \t]*(?:def|class) .*(?:\n.*){0,4}", source, re.M)]
    return [one for one in dict.fromkeys(found) if one.isascii()]


def write_files(folder: Path) -> None:
    """Write text.txt, other.txt, code.csv and names.tsv."""
    draw, text = random.Random(0), library_text()
    (folder / "text.txt").write_text(text[:1_000_000], encoding="utf-8")
    (folder / "other.txt").write_text(text[-200_000:], encoding="utf-8")
    rows = [(one, package) for package in PACKAGES for one in definitions(package)]
    with (folder / "code.csv").open("w", encoding="utf-8", errors="surrogateescape", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(("text", "label"))
        for number, row in enumerate(draw.sample(rows, 1990)):
            writer.writerow(row)
            if number % 200 == 100:
                stream.write(SPOILT[number // 200 % len(SPOILT)])
    names = sorted(set(re.findall(r"\b[a-z]{2,}(?:_[a-z]{2,}){1,3}\b", text)))
    pairs = [f"{name}\t{name.title().replace('_', '')}\n" for name in draw.sample(names, 5000)]
    (folder / "names.tsv").write_text("".join(pairs), encoding="utf-8")


COMMANDS = (
    "train lm --data text.txt --out lm",
    "evaluate lm",
    "evaluate lm other.txt",
    "train lm --data other.txt --from lm --steps 100 --out tuned",
    "train lm --data other.txt --from lm --lora 8 --steps 100 --out lora",
    "generate tuned 'def main(' --max-new-tokens 100 --seed 0",
    "export lm --to transformers",
    "train classify --data code.csv --out classifier",
    "train classify --data code.csv --skip-bad --out classifier",
    "train classify --data code.csv --skip-bad --out letters --set tokenizer.kind=characters",
    "evaluate classifier",
    "classify classifier 'async def wait(self, timeout):'",
    "train translate --data names.tsv --out names",
    "evaluate names",
    "translate names read_the_docs",
)


def run(command: str, folder: Path, more: list[str]) -> tuple[int, float, str]:
    """Exit code, minutes and output of a command."""
    words = [word.strip("'") for word in re.findall(r"'[^']*'|\S+", command)]
    began = time.perf_counter()
    ended = subprocess.run(
        [sys.executable, "-m", "coursework.cli", *words, *(more if words[0] == "train" else [])],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(HERE)},
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    return ended.returncode, (time.perf_counter() - began) / 60, ended.stdout + ended.stderr


def figures(command: str, output: str) -> str:
    """The lines of an output that say how good, or what was refused."""
    if command.split()[0] in ("generate", "translate", "classify", "export"):
        lines = [line for line in output.splitlines() if line and not line.startswith(("course:", "Loading"))]
        return "; ".join(f"`{line}`" for line in lines)[:300].replace("|", "\\|")
    found = [line for line in output.splitlines() if SHOWN.match(line) and "signature" not in line]
    return "; ".join(found or output.strip().splitlines()[-1:])[:400].replace("|", "\\|")


def main() -> None:
    """Run the commands one after the other, and write the log."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small models and few steps; writes nothing")
    parser.add_argument("--folder", type=Path, help="where to work; else a folder that is removed at the end")
    arguments = parser.parse_args()
    where = environment()
    lines = [
        "# Your own data, by command",
        "",
        f"`{where['command']}`",
        "",
        f"{where['device']}.{shared_machine(where)}",
    ]
    lines += ["", "| command | minutes | figures |", "|---|---|---|"]
    place = contextlib.nullcontext(arguments.folder) if arguments.folder else tempfile.TemporaryDirectory()
    with place as name:
        folder = Path(name)
        write_files(folder)
        for command in COMMANDS:
            code, minutes, output = run(command, folder, QUICK if arguments.quick else [])
            refused = "code.csv --out" in command  # its spoilt rows are named, and nothing is trained
            if code != (2 if refused else 0):
                raise SystemExit(f"course {command}\n{output}")
            lines.append(f"| `course {command}` | {minutes:.1f} | {figures(command, output)} |")
            print(lines[-1], flush=True)
            if not arguments.quick:  # a run that is broken off keeps what it has
                write_atomic(RESULTS / "own-data-cpu.md", "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
