"""How long `import course_lib` and its parts take beside `import torch`, in fresh processes.

    python benchmarks/import_time.py [--rounds 9] [--quick]

Each round starts Python once for each statement, in an order that rotates. Time is that of the CPU over the whole
process, less that of a process which imports nothing.
"""

import argparse
import os
import resource
import subprocess
import sys

os.environ.setdefault("OMP_NUM_THREADS", "1")

from harness import environment, medians, ratios, save, shared_machine

TORCH = "torch"
MODULES = (
    "course_lib",
    "coursework.cli",
    "course_lib.attention",
    "course_lib.transformer",
    "course_lib.generation",
    "course_lib.variants",
    "course_lib.training",
    "course_lib.scaling",
    "course_lib.data",
    "coursework.exercises",
    "coursework.pictures",
)
PEERS = ("transformers", "x_transformers")
GOAL = 1.2


def cpu_seconds(statement: str) -> float:
    """CPU seconds of a fresh Python that runs a statement."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", statement], check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure(modules: list[str], rounds: int) -> dict[str, list[float]]:
    """Seconds of each import in each round, after one round that is not counted: it fills the disk's cache."""
    taken: dict[str, list[float]] = {name: [] for name in modules}
    for number in range(rounds + 1):
        shift = number % len(modules)
        nothing = cpu_seconds("pass")
        for name in modules[shift:] + modules[:shift]:
            seconds = cpu_seconds(f"import {name}") - nothing
            if number:
                taken[name].append(max(seconds, 1e-4))
    return taken


def page(result: dict) -> str:
    """The table."""
    where = result["environment"]
    lines = [
        "# Import time",
        "",
        f"`{where['command']}`: {where['device']}, Python {where['python']}, torch {where['torch']}. Median CPU "
        f"seconds of {result['rounds']} interleaved rounds of fresh processes, and the ratio to `import torch` in the "
        f"same round with the 95 % interval of its median. Goal: below {GOAL}.{shared_machine(where)}",
        "",
        "| import | seconds | ratio to torch | 95 % interval |",
        "|---|--:|--:|--:|",
    ]
    for name, seconds in result["seconds"].items():
        middle, low, high = result["ratio"][name]
        lines.append(f"| `{name}` | {seconds:.2f} | {middle:.2f} | {low:.2f} to {high:.2f} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure, write the results, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--quick", action="store_true", help="two rounds of a few modules; writes nothing")
    arguments = parser.parse_args()
    modules = [TORCH, *MODULES, *PEERS]
    if arguments.quick:
        modules, arguments.rounds = [TORCH, "course_lib", "course_lib.transformer"], 2
    where = environment()
    taken = measure(modules, arguments.rounds)
    slower = ratios({name: taken[name] for name in modules}, TORCH)  # how many times as fast as torch
    result = {
        "name": "import-time",
        "environment": where,
        "rounds": arguments.rounds,
        "seconds": medians(taken),
        "ratio": {name: [1 / middle, 1 / high, 1 / low] for name, (middle, low, high) in slower.items()},
        "goal": GOAL,
    }
    if not arguments.quick:
        save(result, page(result))
    print(page(result))


if __name__ == "__main__":
    main()
