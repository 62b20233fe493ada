"""One training command from beginning to end: build, train, keep the result as a folder, measure it."""

import json
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import torch

from course_lib.commands.corpora import build_corpus, build_model, build_task
from course_lib.commands.measures import examine
from course_lib.commands.recipes import Recipe
from course_lib.commands.terminal import for_the_terminal
from course_lib.files import write_atomic
from course_lib.training import Run, TrainingConfig, average_checkpoints, join_processes, list_checkpoints
from course_lib.training.state import load_model, model_tensors
from course_lib.variants import save_pretrained

__all__ = ["train_job"]


def train_job(task: str, recipe: Recipe, folder: Path, *, device: str | None, resume: bool) -> dict[str, Any] | None:
    """Train what the recipe describes, and return what was measured; None if it was interrupted.

    The folder then holds `config.json`, `model.safetensors` and `tokenizer.json`, which `from_pretrained` opens,
    `recipe.json`, `results.json`, `log.jsonl` and `checkpoints/`. Under torchrun all processes call this.
    """
    config = TrainingConfig.from_dict(recipe["training"])
    began = time.perf_counter(), time.process_time()
    if list_checkpoints(folder / "checkpoints") and not resume:
        raise ValueError(f"{folder} holds a run already; go on with it by --resume, or name another folder by --out")
    with join_processes(device) as processes:
        shown = for_the_terminal()
        corpus = build_corpus(task, recipe, seed=config.seed, folder=folder)
        waste = {"padding_waste": corpus.train.padding_waste()} if hasattr(corpus.train, "padding_waste") else {}
        torch.manual_seed(config.seed)
        model = build_model(task, recipe, corpus.tokenizer, corpus.labels)
        if processes.main:
            corpus.tokenizer.save(folder)
            write_atomic(
                folder / "recipe.json", json.dumps({"task": task, "labels": corpus.labels, **recipe}, indent=1)
            )
            parameters = sum(p.numel() for p in model.parameters())
            said = [f"{parameters:,} parameters", f"vocabulary {corpus.tokenizer.vocab_size:,}", str(processes.device)]
            said += [f"{share:.1%} of the batches is padding" for share in waste.values()]
            shown.say(", ".join(said))
        run = Run(
            model,
            build_task(task, recipe, corpus.tokenizer),
            corpus.train,
            config,
            folder=folder,
            evaluation=corpus.validation,
            processes=processes,
            shown=shown,
        ).train(resume=resume)
        if run.interrupted:
            return None
        if config.patience and run.best is not None:
            run.restore_best()
        tensors = model_tensors(run.model)
        if not processes.main:
            return {}
        if recipe["result"]["average"] > 1:
            tensors = average_checkpoints(folder / "checkpoints", recipe["result"]["average"])
        final = build_model(task, recipe, corpus.tokenizer, corpus.labels)
        load_model(final, tensors, "the trained weights")
        save_pretrained(final, folder)
        trained = time.perf_counter() - began[0]
        known = (corpus.tokenizer, corpus.test, corpus.labels, corpus.examples, recipe["result"])
        scores = examine(task, final.to(processes.device), *known)
    results = {
        "task": task,
        "command": " ".join(["course", *sys.argv[1:]]),
        "steps": run.step,
        "held_out_loss": next((r["evaluation"] for r in run.history[::-1] if "evaluation" in r), None),
        **scores,
        "parameters": sum(p.numel() for p in final.parameters()),
        "tokens": run.tokens,
        **waste,
        "seconds_until_trained": round(trained, 1),
        "seconds": round(time.perf_counter() - began[0], 1),
        "cpu_seconds": round(time.process_time() - began[1], 1),
        "tokens_per_second": round(run.tokens / trained),
        "peak_memory_mb": round(peak_resident_bytes() / 2**20),
        "processes": processes.world,
        "threads": torch.get_num_threads(),
    }
    write_atomic(folder / "results.json", json.dumps(results, indent=1, ensure_ascii=False))
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
