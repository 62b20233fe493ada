"""One training command from beginning to end: build, train, keep the result as a folder, measure it."""

import contextlib
import json
import sys
import time
from typing import Any

import psutil
import torch

from course_lib.data import Tokenizer, load_tokenizer
from course_lib.files import write_atomic
from course_lib.reading import check_shape, read_json, shown
from course_lib.training import Run, RunFolder, average_checkpoints, evaluate, join_processes, list_checkpoints
from course_lib.training.state import load_model, model_tensors
from course_lib.variants import save_pretrained
from course_lib.variants.lora import remove_lora
from coursework.commands.start import begin_from, train_updates
from coursework.commands.tasks import Task
from coursework.commands.terminal import for_the_terminal

__all__ = ["train_job"]

_COSTS = ("seconds_until_trained", "seconds", "cpu_seconds", "tokens_per_second", "peak_memory_mb")
WORSE = 1.02  # a last held-out loss so many times the lowest is spoken of

# What a resumed run must have as it began, by table of the recipe; all settings of the table where none is named.
_FIXED: dict[str, set[str]] = {
    "data": set(),
    "start": set(),
    "tokenizer": set(),
    "batches": set(),
    "model": set(),
    "training": {"optimizer", "seed"},
    "fingerprints": set(),
}


def train_job(task: Task, folder: RunFolder, *, device: str | None, resume: bool) -> dict[str, Any] | None:
    """Train the task's model, and return what was measured; None if it was interrupted.

    The folder then holds all that `RunFolder` names. Under torchrun all processes call this.
    """
    began = time.perf_counter(), time.process_time()
    goes_on = bool(list_checkpoints(folder.checkpoints))
    if goes_on and not resume:
        raise ValueError(f"{folder} holds a run already; go on with it by --resume, or name another folder by --out")
    if resume and not goes_on and (folder.weights.exists() or folder.recipe.exists()):
        raise ValueError(
            f"--resume: {folder} holds a model, and no checkpoint to go on from; go on from the model by --from, in "
            "another folder"
        )
    anew = f"There is no checkpoint in {folder}: the run begins at step 0." if resume and not goes_on else ""
    with contextlib.ExitStack() as stack:
        processes = stack.enter_context(join_processes(device))
        if processes.main:
            stack.enter_context(folder.locked())
        shown = for_the_terminal()
        start = task.recipe["start"]
        task.read()
        task.load(_tokenizer_of(folder) if goes_on else load_tokenizer(start["model"]) if start["model"] else None)
        recipe = {"task": task.name, "labels": task.labels, **task.recipe, "fingerprints": task.fingerprints()}
        recipe["training"] = task.config.to_dict()  # with the defaults, which another version may change
        if goes_on:
            _same_run(recipe, folder)
        waste = task.padding_waste
        torch.manual_seed(task.seed)
        model = task.model()
        parameters = sum(p.numel() for p in model.parameters())
        new = begin_from(model, start["model"], task.labels) if start["model"] else set()
        train_updates(model, start["lora"], new)
        if processes.main:
            write_atomic(folder.begun_tokenizer, task.tokenizer.to_text())
            write_atomic(folder.begun, json.dumps(recipe, indent=1))
            said = [f"{parameters:,} parameters", f"vocabulary {task.tokenizer.vocab_size:,}", str(processes.device)]
            said += [] if waste is None else [f"{waste:.1%} of the batches is padding"]
            said = [anew, *task.parts, *task.remarks, ", ".join(said), task.changed, _two_losses(task)]
            for line in filter(None, said):
                shown.say(line)
            if start["model"]:
                updated = sum(p.numel() for p in model.parameters() if p.requires_grad)
                rate = task.recipe["training"]["learning_rate"]
                what = f"updates of rank {start['lora']} to its attention, {updated:,} numbers"
                what = "all weights" if start["lora"] is None else what
                what += " and a new head" * bool(new)
                shown.say(f"Goes on from {start['model']}, training {what}, at a rate of {rate:g}.")
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
        held_out = next((r["evaluation"] for r in run.history[::-1] if "evaluation" in r), None)
        if task.config.patience and run.best is not None:
            held_out = run.restore_best()
        elif held_out is not None and run.best is not None and held_out > WORSE * run.best[0] and processes.main:
            lowest = f"The held-out loss was lowest at step {run.best[1]}, {run.best[0]:.4f}"
            shown.say(f"{lowest}. A new run with --set training.patience=2 keeps that model, and stops soon after.")
        tensors = model_tensors(run.model)
        if not processes.main:
            return {}
        if (last := task.recipe["result"]["average"]) > 1:
            last = min(last, len(list_checkpoints(folder.checkpoints)))  # patience may have left fewer
            tensors, held_out = average_checkpoints(folder.checkpoints, last), None
        final = task.model()
        train_updates(final, start["lora"], new)
        load_model(final, tensors, "the trained weights")
        if start["lora"] is not None:
            remove_lora(final)
        more = {folder.tokenizer.name: task.tokenizer.to_text(), folder.recipe.name: json.dumps(recipe, indent=1)}
        save_pretrained(final, folder.path, more=more)
        trained = time.perf_counter() - began[0]
        final.to(processes.device)
        if held_out is None:
            held_out = evaluate(final, task.objective().loss, task.validation, precision=task.config.precision)
        scores = task.measure(final, held_out) | task.baseline()
    best = {"best_step": run.best[1]} if task.config.patience and run.best is not None else {}
    results = {
        "task": task.name,
        "command": " ".join(["course", *sys.argv[1:]]),
        "steps": run.step,
        **best,
        "held_out_loss": held_out,
        **scores,
        **({} if task.left_out is None else {"rows_left_out": task.left_out}),
        "parameters": parameters,
        "tokens": run.tokens,
        **({} if waste is None else {"padding_waste": waste}),
        "seconds_until_trained": round(trained, 1),
        "seconds": round(time.perf_counter() - began[0], 1),
        "cpu_seconds": round(time.process_time() - began[1], 1),
        "tokens_per_second": round(run.new_tokens / trained),
        "peak_memory_mb": round(peak_resident_bytes() / 2**20),
        "processes": processes.world,
        "threads": torch.get_num_threads(),
    }
    if not run.new_tokens and folder.results.exists():  # it was finished: what training cost is as it was
        before = read_json(folder.results, advice="delete it")
        results |= {name: before[name] for name in _COSTS if name in before}
    write_atomic(folder.results, json.dumps(results, indent=1, ensure_ascii=False))
    return results


def _two_losses(task: Task) -> str:
    """How the two losses that stand side by side differ."""
    dropout, smoothing = task.recipe["model"]["dropout"], task.recipe["result"].get("smoothing", 0)
    extra = [f"dropout {dropout}"] * bool(dropout) + [f"labels smoothed by {smoothing}"] * bool(smoothing)
    with_them = f", with {' and '.join(extra)}" if extra else ""
    without = ", without" if extra else ""
    return f"loss: mean of the updates since the line before{with_them}; held-out: at that step{without}"


def _tokenizer_of(folder: RunFolder) -> Tokenizer | None:
    """The tokenizer with which the run in the folder began; None if it left none."""
    paths = [folder.begun_tokenizer, folder.tokenizer]  # the second of runs before there was the first
    return next((load_tokenizer(path) for path in paths if path.exists()), None)


def begun_recipe(folder: RunFolder) -> dict[str, Any] | None:
    """What the run in the folder was told, None if there is none to go on with."""
    path = next((path for path in (folder.begun, folder.recipe) if path.exists()), None)
    if path is None or not list_checkpoints(folder.checkpoints):
        return None
    advice = "name another folder by --out"
    was = read_json(path, expected="what the run was told", advice=advice)
    tables = {table: was.get(table, {}) for table in _FIXED}
    check_shape(tables, path, {str: {str: object}}, "what the run was told", advice)
    return was


def _same_run(recipe: dict[str, Any], folder: RunFolder) -> None:
    """Raise ValueError that names all that differs from what the run in the folder was begun with, and must not.

    Lengths, rates and what is looked at may change; the data, what is made of them, and the model may not.
    """
    was = begun_recipe(folder)
    if was is None:
        return
    tables = {table: was.get(table, {}) for table in _FIXED}
    differ = [f"task is {recipe['task']!r}, not {shown(was.get('task'))}"] if was.get("task") != recipe["task"] else []
    for table, fixed in _FIXED.items():
        for name in tables[table].keys() & (fixed or recipe[table].keys()) & recipe[table].keys():
            old, new = tables[table][name], json.loads(json.dumps(recipe[table][name]))
            if old != new:
                differ.append(f"{table}.{name} is {shown(new)}, not {shown(old)}")
    if differ:
        raise ValueError(f"--resume: {folder} holds another run: {'; '.join(sorted(differ))}")


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
