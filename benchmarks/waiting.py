"""How long the commands of the course let a learner wait: to the first line, to the end, and in CPU time.

    python benchmarks/waiting.py [--rounds 5] [--before FOLDER] [--quick]

Each command runs in fresh processes, in an order that rotates, in a learner's folder of its own. `--before` names
another checkout of the course; each of its commands is then run beside its counterpart in every round.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

from harness import environment, medians, save, shared_machine

HERE = Path(__file__).resolve().parents[1]
ANSWER = "def causal_mask(T, S):\n    return torch.ones(T, S, dtype=torch.bool).tril(S - T)\n"
FIRST_LINE, STATUS, CHECK = 0.5, 1.0, 2.0  # the goals, seconds
COMMANDS = (
    "--help",
    "train --help",
    "status",
    "status --chapter 1",
    "next",
    "check causal_mask --file answer.py",
    "hint causal_mask",
    "doctor",
    "verify .",
    "generate model",
    "train lm --steps 1 --data answer.py",
)


def waited(command: str, checkout: Path, folder: Path) -> tuple[float, float, float]:
    """Seconds by the clock to the first line and to the end, and CPU seconds, of a command with its own processes."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    child = subprocess.Popen(
        [sys.executable, "-m", "coursework.cli", *command.split()],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(checkout)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert child.stdout is not None
    child.stdout.readline()
    first = time.perf_counter() - began
    child.communicate()
    last, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return first, last, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure(checkouts: dict[str, Path], commands: list[str], rounds: int) -> dict[str, dict[str, list[float]]]:
    """Median seconds [first line, end, CPU] of each command and checkout, after one round that is not counted."""
    with tempfile.TemporaryDirectory() as place:
        folders = {}
        for name, checkout in checkouts.items():
            folders[name] = Path(place, name)
            waited(f"start --folder {folders[name]}", checkout, Path(place))
            (folders[name] / "answer.py").write_text(ANSWER, encoding="utf-8")
        taken: dict[str, dict[str, list]] = {command: {name: [] for name in checkouts} for command in commands}
        for number in range(rounds + 1):
            shift = number % len(commands)
            for command in commands[shift:] + commands[:shift]:
                for name, checkout in checkouts.items():
                    found = waited(command, checkout, folders[name])
                    if number:
                        taken[command][name].append(found)
    return {
        command: {name: list(medians(dict(enumerate(zip(*times, strict=True)))).values()) for name, times in by.items()}
        for command, by in taken.items()
    }


def page(result: dict) -> str:
    """The table."""
    where = result["environment"]
    names = list(next(iter(result["seconds"].values())))
    lines = [
        "# Waiting",
        "",
        f"`{where['command']}`: {where['device']}, Python {where['python']}, torch {where['torch']}. Median seconds of "
        f"{result['rounds']} interleaved rounds of fresh processes: by the clock to the first line and to the end, and "
        "CPU time with that of the processes a command starts. Goals on a quiet machine: first line "
        f"{FIRST_LINE} s, `status` {STATUS:g} s, `check` {CHECK:g} s."
        f"{shared_machine(where)}",
        "",
        "| `course …` | " + " | ".join(f"{name}: first line | end | CPU" for name in names) + " |",
        "|---|" + "--:|--:|--:|" * len(names),
    ]
    for command, by in result["seconds"].items():
        numbers = " | ".join(f"{value:.2f}" for name in names for value in by[name])
        lines.append(f"| `{command}` | {numbers} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure, write the results, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--before", type=Path, help="another checkout, for instance of an older edition")
    parser.add_argument("--quick", action="store_true", help="one round of a few commands; writes nothing")
    arguments = parser.parse_args()
    checkouts = {"now": HERE}
    if arguments.before:
        checkouts = {"before": arguments.before.resolve(), "now": HERE}
    commands = ["--help", "status"] if arguments.quick else list(COMMANDS)
    rounds = 1 if arguments.quick else arguments.rounds
    where = environment()
    result = {
        "name": "waiting",
        "environment": where,
        "rounds": rounds,
        "seconds": measure(checkouts, commands, rounds),
        "goals": {"first line": FIRST_LINE, "status": STATUS, "check": CHECK},
    }
    if not arguments.quick:
        save(result, page(result))
    print(page(result))


if __name__ == "__main__":
    main()
