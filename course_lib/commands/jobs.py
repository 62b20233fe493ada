"""One training command from beginning to end: build, train, keep the result as a folder, measure it."""

import json
import sys
import time
from typing import Any

import psutil
import torch

from course_lib.commands.tasks import Task
from course_lib.commands.terminal import for_the_terminal
from course_lib.files import write_atomic
from course_lib.training import Run, RunFolder, average_checkpoints, join_processes, list_checkpoints
from course_lib.training.state import load_model, model_tensors
from course_lib.variants import save_pretrained

__all__ = ["train_job"]


def train_job(task: Task, folder: RunFolder, *, device: str | None, resume: bool) -> dict[str, Any] | None:
    """Train the task's model, and return what was measured; None if it was interrupted.

    The folder then holds all that `RunFolder` names. Under torchrun all processes call this.
    """
    began = time.perf_counter(), time.process_time()
    if list_checkpoints(folder.checkpoints) and not resume:
        raise ValueError(f"{folder} holds a run already; go on with it by --resume, or name another folder by --out")
    with join_processes(device) as processes:
        shown = for_the_terminal()
        task.load(folder)
        waste = task.padding_waste
        torch.manual_seed(task.seed)
        model = task.model()
        parameters = sum(p.numel() for p in model.parameters())
        if processes.main:
            task.tokenizer.save(folder.path)
            recipe = {"task": task.name, "labels": task.labels, **task.recipe}
            write_atomic(folder.recipe, json.dumps(recipe, indent=1))
            said = [f"{parameters:,} parameters", f"vocabulary {task.tokenizer.vocab_size:,}", str(processes.device)]
            said += [] if waste is None else [f"{waste:.1%} of the batches is padding"]
            shown.say(", ".join(said))
        run = Run(
            model,
            task.objective(),
            task.train,
            task.config,
            folder=folder.path,
            evaluation=task.validation,
            processes=processes,
            shown=shown,
        ).train(resume=resume)
        if run.interrupted:
            return None
        if task.config.patience and run.best is not None:
            run.restore_best()
        tensors = model_tensors(run.model)
        if not processes.main:
            return {}
        if (last := task.recipe["result"]["average"]) > 1:
            tensors = average_checkpoints(folder.checkpoints, last)
        final = task.model()
        load_model(final, tensors, "the trained weights")
        save_pretrained(final, folder.path)
        trained = time.perf_counter() - began[0]
        scores = task.measure(final.to(processes.device))
    results = {
        "task": task.name,
        "command": " ".join(["course", *sys.argv[1:]]),
        "steps": run.step,
        "held_out_loss": next((r["evaluation"] for r in run.history[::-1] if "evaluation" in r), None),
        **scores,
        "parameters": parameters,
        "tokens": run.tokens,
        **({} if waste is None else {"padding_waste": waste}),
        "seconds_until_trained": round(trained, 1),
        "seconds": round(time.perf_counter() - began[0], 1),
        "cpu_seconds": round(time.process_time() - began[1], 1),
        "tokens_per_second": round(run.tokens / trained),
        "peak_memory_mb": round(peak_resident_bytes() / 2**20),
        "processes": processes.world,
        "threads": torch.get_num_threads(),
    }
    write_atomic(folder.results, json.dumps(results, indent=1, ensure_ascii=False))
    return results


def peak_resident_bytes() -> int:
    """Return the most memory that this process had in use at any time so far."""
    now = psutil.Process().memory_info()
    if hasattr(now, "peak_wset"):  # Windows
        return now.peak_wset
    try:
        import resource
    except ImportError:  # a system that keeps no record
        return now.rss
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
