"""Faults thrown at a training run with a checkpoint at each step: kills, interrupts, damage, full disks.

Each function tries a fault n times and returns how many times all was well afterwards: the newest checkpoint is one
that was complete, none that had been confirmed is lost, its weights are those that an undisturbed run has at that step,
and the run that goes on from it ends with the same weights.

A program of its own, for it forks, which is safe only where no other thread runs; it prints a line of JSON for each
fault. `benchmarks/training_faults.py` tries many more.
"""

import errno
import json
import os
import random
import resource
import signal
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

import torch
from bounded import FAILED, fork
from training_samples import small_model, small_run, weights_hash

from course_lib.training import CheckpointError, load_checkpoint, save_checkpoint
from course_lib.training.checkpoints import read_checkpoint

STEPS = 40
LIMIT = 120  # seconds for a forked process


def new_run(folder, **changes):
    sizes = {"n_encoder_layers": 1, "n_decoder_layers": 1}
    settings = {"steps": STEPS, "checkpoint_every": 1, "log_every": 5, **changes}
    return small_run(folder, model=small_model(**sizes), **settings)


def hash_of(tensors):
    model = small_model(n_encoder_layers=1, n_decoder_layers=1)
    model.load_state_dict(tensors, strict=False)
    return weights_hash(model)


def undisturbed():
    """The hash of the weights after each step of a run that nothing disturbs."""
    with tempfile.TemporaryDirectory() as folder:
        new_run(folder, keep=STEPS).train()
        paths = sorted(Path(folder, "checkpoints").glob("*.json"))
        return {found.step: hash_of(found.part("model")) for found in map(read_checkpoint, paths)}


@contextmanager
def child(job):
    """Run a job in a forked process, and give a function that waits for it and returns its exit code, and its id."""
    began, number, codes = time.monotonic(), fork(job, LIMIT), []

    def wait():
        codes.append(os.waitstatus_to_exitcode(os.waitpid(number, 0)[1]))
        if time.monotonic() - began > LIMIT or codes[0] == FAILED:
            raise RuntimeError(f"a forked process hung or failed, exit code {codes[0]}; it said where above")
        return codes[0]

    try:
        yield wait, number
    finally:
        if not codes:
            os.kill(number, signal.SIGKILL)
            wait()


def confirming(folder, pipe):
    """A life of the run that says on a pipe which checkpoints were complete."""

    def job():
        run = new_run(folder)
        save = run._save

        def saved(*args, **kwargs):
            save(*args, **kwargs)
            os.write(pipe, bytes([run._saved_step]))

        run._save = saved
        run.train(resume=True)
        os.write(pipe, bytes([run._saved_step]))  # also where the life before ended between the last save and its word

    return job


def is_well(folder, confirmed, expected):
    """Whether the newest checkpoint is none older than those confirmed, and has the weights of its step."""
    try:
        found = read_checkpoint(Path(folder, "checkpoints"))
    except FileNotFoundError:
        return confirmed == 0
    return found.step >= confirmed and hash_of(found.part("model")) == expected[found.step] and not found.passed_over


def signals(n, sent, seed=0):
    """Send a signal at n random moments of runs, and go on after each; returns tried, survived, runs that ended."""
    draw, expected = random.Random(seed), undisturbed()
    survived = ended = tried = 0
    while tried < n:
        with tempfile.TemporaryDirectory() as folder:
            confirmed, over, lives = 0, False, 0
            while not over:
                lives += 1
                if lives > 10 * STEPS:
                    raise RuntimeError(f"a run is still at step {confirmed} of {STEPS} after {lives} lives")
                reader, writer = os.pipe()
                with child(confirming(folder, writer)) as (wait, number):
                    os.close(writer)
                    told, gap = b"", 0.05
                    if tried < n:  # after a random number of checkpoints, and a random part of a step
                        began = time.monotonic()
                        for _ in range(draw.randrange(12)):
                            told += os.read(reader, 1)
                            gap, began = time.monotonic() - began, time.monotonic()
                        time.sleep(draw.uniform(0, min(gap, 0.5)))
                        os.kill(number, sent)
                    code = wait()
                while part := os.read(reader, 4096):
                    told += part
                os.close(reader)
                confirmed = max([confirmed, *told])
                over = confirmed == STEPS
                if code != 0 or not over:
                    tried += 1
                    survived += is_well(folder, confirmed, expected) and (sent != signal.SIGINT or code in (0, 1))
            ended += hash_of(read_checkpoint(Path(folder, "checkpoints")).part("model")) == expected[STEPS]
            if not is_well(folder, STEPS, expected):
                raise RuntimeError("a run that ended has other weights than an undisturbed one")
    return {"tried": tried, "survived": survived, "runs ended alike": ended}


def damages(n, kind, seed=0):
    """Damage the newest checkpoint n times: it must be noticed and the one before be loaded."""
    draw, survived = random.Random(seed), 0
    with tempfile.TemporaryDirectory() as folder:
        model = small_model()
        save_checkpoint(folder, 1, model)
        good = weights_hash(model)
        with torch.no_grad():
            next(model.parameters()).add_(1)
        for _ in range(n):
            path = save_checkpoint(folder, 2, model)
            path = draw.choice([path, path.with_suffix(".safetensors")])
            data = bytearray(path.read_bytes())
            if kind == "cut short":
                data = data[: draw.randrange(len(data))]
            else:
                data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
            path.write_bytes(data)
            other = small_model(seed=1)
            found = load_checkpoint(folder, other)
            survived += found.step == 1 and weights_hash(other) == good and path.name in found.passed_over[0]
    return {"tried": n, "survived": survived}


def full_disks(n, seed=0):
    """The operating system refuses to write beyond a size, at n random sizes; the first checkpoint must stay."""
    draw, survived = random.Random(seed), 0
    with tempfile.TemporaryDirectory() as folder:
        model = small_model()
        size = save_checkpoint(folder, 1, model).with_suffix(".safetensors").stat().st_size
        for _ in range(n):
            limit = draw.randrange(size)

            def job(limit=limit):
                signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
                resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
                try:
                    save_checkpoint(folder, 2, model)
                except OSError as error:
                    os._exit(0 if error.errno in (errno.EFBIG, errno.ENOSPC) else 3)
                os._exit(4)

            with child(job) as (wait, _):
                code = wait()
            files = sorted(path.name for path in Path(folder).iterdir())
            survived += code == 0 and files == ["step-00000001.json", "step-00000001.safetensors"]
            survived -= load_checkpoint(folder, small_model(seed=1)).step != 1
    return {"tried": n, "survived": survived}


def kills_while_saving(expected_calls=8):
    """Kill at each call that puts something on the disk while the second checkpoint is written."""
    survived = 0
    for n in range(1, expected_calls + 1):
        with tempfile.TemporaryDirectory() as folder:
            model = small_model()
            save_checkpoint(folder, 1, model)

            def job(n=n, folder=folder, model=model):
                calls = 0

                def deadly(original):
                    def call(*args, **kwargs):
                        nonlocal calls
                        calls += 1
                        if calls == n:
                            os.kill(os.getpid(), signal.SIGKILL)
                        return original(*args, **kwargs)

                    return call

                for name in ("fsync", "chmod", "replace", "fdopen"):
                    setattr(os, name, deadly(getattr(os, name)))
                save_checkpoint(folder, 2, model)

            with child(job) as (wait, _):
                code = wait()
            survived += code == -signal.SIGKILL and load_checkpoint(folder, small_model(seed=1)).step == 1
    return {"tried": expected_calls, "survived": survived}


def other_architectures():
    """A checkpoint meets models of other sizes: refused with tensor and file named, and nothing is changed."""
    changes = [
        {"d_model": 32},
        {"n_heads": 1, "d_head": 4},
        {"n_decoder_layers": 3},
        {"n_decoder_layers": 1},
        {"bias": False},
    ]
    survived = 0
    with tempfile.TemporaryDirectory() as folder:
        save_checkpoint(folder, 1, small_model())
        for change in changes:
            other = small_model(seed=1, **change)
            before = weights_hash(other)
            try:
                load_checkpoint(folder, other)
            except CheckpointError as error:
                named = "step-00000001.safetensors" in str(error) and "tensor '" in str(error)
                survived += named and weights_hash(other) == before
    return {"tried": len(changes), "survived": survived}


MANY = 3 if os.environ.get("COURSE_TESTS") == "all" else 1
TRIALS = {
    "killed at random moments": lambda: signals(8 * MANY, signal.SIGKILL),
    "interrupted at random moments": lambda: signals(3 * MANY, signal.SIGINT),
    "killed at each step of saving": kills_while_saving,
    "newest checkpoint cut short": lambda: damages(8 * MANY, "cut short"),
    "a bit of it flipped": lambda: damages(8 * MANY, "bit flipped"),
    "disk full": lambda: full_disks(3 * MANY),
}

if __name__ == "__main__":
    for fault, trial in TRIALS.items():
        print(json.dumps([fault, trial()]), flush=True)
