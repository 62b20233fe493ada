"""Faults thrown at training runs: how many were tried, how many survived.

    python benchmarks/training_faults.py [--kills 200] [--seed 0] [--quick]

A fault is survived if no checkpoint that was confirmed is lost, the newest one has bit for bit the weights of an
undisturbed run at its step, and the run that goes on from there ends with the same weights. The runs write a checkpoint
at each step. Everything is on a CPU and needs `os.fork`.
"""

import argparse
import os
import signal
import sys
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "training"))

import fault_simulation as faults
from harness import environment, save


def main() -> None:
    """Try every fault and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="few of each, and write nothing")
    options = parser.parse_args()
    n, seed = 8 if options.quick else options.kills, options.seed
    trials = {
        "kill -9 at a random moment": lambda: faults.signals(n, signal.SIGKILL, seed),
        "kill -9 at each call of saving": faults.kills_while_saving,
        "interrupt at a random moment": lambda: faults.signals(n // 4, signal.SIGINT, seed),
        "request to terminate at a random moment": lambda: faults.signals(n // 4, signal.SIGTERM, seed),
        "disk full while saving, at a random byte": lambda: faults.full_disks(n // 2, seed),
        "newest checkpoint cut short at a random byte": lambda: faults.damages(n, "cut short", seed),
        "a random bit of the newest checkpoint flipped": lambda: faults.damages(n, "bit flipped", seed),
        "checkpoint of another architecture": faults.other_architectures,
    }
    result = {"name": "training-faults", "environment": environment(), "faults": {}}
    began = time.monotonic()
    for name, trial in trials.items():
        result["faults"][name] = trial()
        print(f"{name}: {result['faults'][name]}", flush=True)
    result["seconds"] = round(time.monotonic() - began)
    lines = ["# Faults in training", "", f"`{result['environment']['command']}`, {result['seconds']} s", ""]
    lines += [__doc__.strip().split("\n\n")[2].replace("\n", " "), "", "| fault | tried | survived |", "|---|---|---|"]
    lines += [f"| {name} | {found['tried']} | {found['survived']} |" for name, found in result["faults"].items()]
    lines += ["", "A rank killed under torchrun is part of the tests: `tests/training/test_commands.py`.", ""]
    print("\n".join(lines)) if options.quick else save(result, "\n".join(lines))


if __name__ == "__main__":
    main()
