"""Runs the same training in one process and in several, DDP and FSDP2; prints losses and held-out losses as JSON.

A program of its own, because it forks, which is cheap once torch is imported. Usage: several_processes.py FOLDER
"""

import functools
import json
import os
import socket
import sys
from pathlib import Path

from bounded import fork
from training_samples import batches, losses, small_model, small_run

from course_lib.training import join_processes

# name: what differs from one process; "first" processes do the first half and are lost, then `world` go on.
CASES = {
    "1 process": {"world": 1},
    "DDP, 2 processes": {"world": 2},
    "DDP, 4 processes": {"world": 4},
    "DDP, 2 processes, then 4": {"world": 4, "first": 2},
    "1 process, Muon": {"world": 1, "optimizer": "muon"},
    "FSDP2, 2 processes, Muon": {"world": 2, "optimizer": "muon", "parallel": "fsdp"},
    "1 process, no accumulation": {"world": 1, "accumulation": 1, "layers": 0},
    "FSDP2, 4 processes, no accumulation": {"world": 4, "accumulation": 1, "layers": 0, "parallel": "fsdp"},
    "FSDP2, 2 processes, computing again, no accumulation": {
        "world": 2,
        "accumulation": 1,
        "layers": 0,
        "parallel": "fsdp",
        "recompute": True,
    },
    "FSDP2, 2 processes, then 1, no accumulation": {
        "world": 1,
        "first": 2,
        "accumulation": 1,
        "layers": 0,
        "parallel": "fsdp",
    },
}
if os.environ.get("COURSE_TESTS") != "all":
    for name in (
        "DDP, 4 processes",
        "1 process, Muon",
        "FSDP2, 2 processes, Muon",
        "FSDP2, 4 processes, no accumulation",
    ):
        del CASES[name]
SETTINGS = {"steps": 50, "accumulation": 2, "learning_rate": 1e-3, "warmup": 10, "checkpoint_every": 25}


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def train(folder, layers=1, **changes):
    """One process's part, with batches whose rows do not divide evenly among the processes."""
    with join_processes("cpu") as processes:
        run = small_run(
            folder,
            processes=processes,
            model=small_model(dropout=0.0, n_encoder_layers=layers, n_decoder_layers=1),
            data=batches(5, rows=6) + batches(2, rows=3, seed=1),
            evaluation=batches(2, rows=5, seed=2),
            **{**SETTINGS, **changes},
        )
        run.train(resume=True)
        if processes.main:
            Path(folder, "losses.json").write_text(json.dumps([losses(run), run.history[-1]["evaluation"]]))


def together(world, job):
    """Fork so many processes with the environment that torchrun gives them; returns their exit codes."""
    port = free_port()

    def as_rank(rank):
        names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world, "MASTER_PORT": port}
        if world > 1:
            os.environ.update({name: str(value) for name, value in names.items()}, MASTER_ADDR="127.0.0.1")
        job()

    children = [fork(functools.partial(as_rank, rank)) for rank in range(world)]
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


def run_case(folder, world, first=0, **changes):
    codes = []
    if first:
        codes += together(first, lambda: train(folder, **changes))
        for path in (folder / "checkpoints").glob("step-00000050*"):
            path.unlink()  # as if all had been lost between the steps 25 and 50
    codes += together(world, lambda: train(folder, **changes))
    return json.loads((folder / "losses.json").read_text()) if not any(codes) else codes


if __name__ == "__main__":
    print(
        json.dumps({name: run_case(Path(sys.argv[1], str(i)), **case) for i, (name, case) in enumerate(CASES.items())})
    )
