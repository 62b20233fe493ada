"""The families on each other's tasks at equal parameters, for equal steps and for equal compute; LoRA; experts.

    python benchmarks/variants.py [--quick] [--part equal_steps | equal_compute | fine_tuning | experts]

Every number is the mean over seeds of a held-out measure, with a 95 % interval (Student's t). A seed draws the initial
weights, the order of the data and the examples. All runs are small: what they show is the direction, not the size.
A part takes some minutes on one thread; alone, it replaces only its own part of the record. Chapter 7 of the course
loads the record.
"""

import argparse
import copy
import json
import math
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial

import safetensors.torch
import torch
import torch.nn.functional as F
from harness import environment, place, save, shared_machine
from scipy.stats import t as student
from small_families import (
    BATCH,
    FAMILIES,
    HEADS,
    KIND,
    LANGUAGES,
    PAD,
    TASKS,
    WIDTH,
    Classify,
    V,
    count,
    encode,
    equal_width,
)
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from course_lib.transformer import LanguageModel
from course_lib.variants import GPT
from course_lib.variants.experts import MixtureOfExperts, balance_loss
from course_lib.variants.lora import add_lora
from coursework.corpora import number_languages, number_pairs, reference_text


def train(loss_of: Callable[[torch.Generator], Tensor], model: nn.Module, steps: int, rate: float, seed: int) -> None:
    """AdamW with warm-up and a cosine."""
    generator = torch.Generator().manual_seed(seed)
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=rate, weight_decay=0.01)
    model.train()
    for step in range(steps):
        part = min(1.0, (step + 1) / (0.1 * steps)) * 0.5 * (1 + math.cos(math.pi * step / steps))
        for group in optimizer.param_groups:
            group["lr"] = rate * part
        optimizer.zero_grad()
        loss_of(generator).backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
    model.eval()


def loss(logits: Tensor, target: Tensor) -> Tensor:
    """Mean over the real target tokens."""
    return F.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=PAD)


@torch.no_grad()
def evaluate(model: nn.Module, task: Classify) -> float:
    """The measure of the task on held-out examples."""
    source, target = task.test()
    if task.measure == "nats a letter":
        return loss(model(source, target), target).item()
    written = model.generate(source, task.T)  # type: ignore[operator]
    real = (target != PAD).int().cummax(-1).values.bool() & (target != PAD)
    return ((written == target) | ~real).all(-1).float().mean().item()


def flops_of(family: str, task: Classify) -> int:
    """Operations of one training step, forward and backward, those of attention's products included."""
    model = FAMILIES[family](equal_width(FAMILIES[family]))
    source, target = task.batch(BATCH, torch.Generator().manual_seed(0))
    # The counter does not know the CPU's fused attention, so count the matrix products it stands for.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        loss(model(source, target), target).backward()
    return int(counter.get_total_flops())


def train_on(family: str, task: Classify, steps: int, seed: int) -> nn.Module:
    """A family's model of PARAMETERS parameters, trained on a task."""
    torch.manual_seed(seed)
    model = FAMILIES[family](equal_width(FAMILIES[family]))

    def loss_of(generator: torch.Generator) -> Tensor:
        source, target = task.batch(BATCH, generator)
        return loss(model(source, target), target)

    train(loss_of, model, steps, 2e-3, seed)
    return model


def architectures(seeds: int, steps: int, *, equal_compute: bool) -> list[dict]:
    """Every family on every task, for as many steps, or for the operations of the dearest family's `steps`."""
    rows = []
    for name, kind in TASKS.items():
        tasks = [kind(seed) for seed in range(seeds)]
        flops = {family: flops_of(family, tasks[0]) for family in FAMILIES}
        for family in FAMILIES:
            taken = round(steps * max(flops.values()) / flops[family]) if equal_compute else steps
            began = time.process_time()
            models = [train_on(family, task, taken, seed) for seed, task in enumerate(tasks)]
            scores = [evaluate(model, task) for model, task in zip(models, tasks, strict=True)]
            row = {"family": family, "stacks": KIND[family], "task": name, "measure": kind.measure, "scores": scores}
            row |= interval(scores) | {"parameters": count(models[0]), "steps": taken, "flops_a_step": flops[family]}
            row |= {"d_ff": equal_width(FAMILIES[family]), "cpu_seconds": (time.process_time() - began) / seeds}
            rows.append(row)
            print(family, name, taken, [round(score, 3) for score in scores], file=sys.stderr, flush=True)
    return rows


def interval(values: list[float]) -> dict:
    """Mean and half of the 95 % interval."""
    spread = statistics.stdev(values) if len(values) > 1 else math.nan
    half = float(student.ppf(0.975, len(values) - 1)) * spread / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return {"mean": statistics.mean(values), "half_interval": half}


def gpt(**changes: object) -> LanguageModel:
    """A small GPT over letters."""
    sizes = {"d_model": WIDTH, "n_heads": HEADS, "n_decoder_layers": 2, "vocab_size": V, "max_length": 80}
    return LanguageModel(GPT.configure(**{**sizes, "dropout": 0.0, **changes}))


def text_loss(model: nn.Module, text: Tensor, size: int, generator: torch.Generator) -> Tensor:
    """Next-letter loss on windows of 64."""
    windows = text[torch.randint(len(text) - 65, (size,), generator=generator)[:, None] + torch.arange(65)]
    return F.cross_entropy(model(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten())


@torch.no_grad()
def held_out(model: nn.Module, text: Tensor, windows: int = 150) -> float:
    """Next-letter loss on windows side by side."""
    rows = text[: windows * 65].view(-1, 65)
    return F.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten()).item()


def fine_tuning(seeds: int, steps: int) -> list[dict]:
    """A letter model of English prose, taken to Italian number words with few examples, in several ways."""
    prose = torch.tensor(encode(reference_text()[:300_000], 300_000))
    ways: dict[str, Callable[[nn.Module], object]] = {
        "as it is": lambda model: model.requires_grad_(False),
        "from nothing": lambda model: None,
        "all parameters": lambda model: None,
        "LoRA, rank 1": lambda model: add_lora(model, 1, alpha=2.0, targets=("qkv", "output", "up", "down")),
        "LoRA, rank 4": lambda model: add_lora(model, 4, alpha=8.0, targets=("qkv", "output", "up", "down")),
        "LoRA, rank 16": lambda model: add_lora(model, 16, alpha=32.0, targets=("qkv", "output", "up", "down")),
        "LoRA, rank 4, attention only": lambda model: add_lora(model, 4, alpha=8.0),
    }
    rates = {"from nothing": 2e-3, "all parameters": 1e-3}
    found: dict[str, dict] = {name: {"way": name, "scores": []} for name in ways}
    for seed in range(seeds):
        torch.manual_seed(seed)
        base = gpt()
        train(lambda generator, base=base: text_loss(base, prose, 32, generator), base, 2 * steps, 2e-3, seed)
        texts = {}
        for split, n in (("train", 300), ("test", 400)):
            pairs = number_pairs(n, split, source="it", target="en", largest=99_999, seed=seed)
            words = "\n".join(pair.source for pair in pairs)
            texts[split] = torch.tensor(encode(words, len(words)))
        for name, change in ways.items():
            model = gpt() if name == "from nothing" else copy.deepcopy(base)
            change(model)
            trainable = sum(p.numel() for p in model.parameters() if p.requires_grad)
            if trainable:
                train(
                    lambda generator, model=model, text=texts["train"]: text_loss(model, text, 16, generator),
                    model,
                    steps,
                    rates.get(name, 5e-3),
                    seed,
                )
            found[name]["trainable"] = trainable
            found[name]["file_bytes"] = saved_bytes(model) if name.startswith("LoRA") else 4 * trainable
            found[name]["scores"].append(held_out(model, texts["test"]))
    for row in found.values():
        row |= interval(row["scores"])
        print(row["way"], row["trainable"], row["scores"], file=sys.stderr, flush=True)
    return list(found.values())


def saved_bytes(model: nn.Module) -> int:
    """Size of a file of the updates, which are all that is trained."""
    return len(safetensors.torch.save({n: p.detach() for n, p in model.named_parameters() if p.requires_grad}))


def experts(seeds: int, steps: int) -> list[dict]:
    """Letter models whose tokens each use as many parameters: dense, and mixtures of experts."""
    ids = torch.tensor(encode(reference_text()[:400_000], 400_000))
    ways = {
        "dense, F = 256": (None, 0.0),
        "8 experts of 128, top 2, balanced": (partial(MixtureOfExperts.from_config, n_experts=8, top_k=2), 0.01),
        "8 experts of 128, top 2, not balanced": (partial(MixtureOfExperts.from_config, n_experts=8, top_k=2), 0.0),
        "8 experts of 256, top 1, balanced": (partial(MixtureOfExperts.from_config, n_experts=8, top_k=1), 0.01),
        "dense, F = 1024": (None, 0.0),
    }
    rows = []
    for name, (feed_forward, weight) in ways.items():
        d_ff = {"top 2": 128, "top 1": 256}.get(name.split(", ")[1], 1024 if "1024" in name else 256)
        scores, loads, began = [], [], time.process_time()
        for seed in range(seeds):
            torch.manual_seed(seed)
            model = gpt(d_ff=d_ff, feed_forward=feed_forward)

            def loss_of(generator: torch.Generator, model=model, weight=weight) -> Tensor:
                plain = text_loss(model, ids[:360_000], 32, generator)
                return plain + weight * balance_loss(model) if weight else plain

            train(loss_of, model, steps, 2e-3, seed)
            scores.append(held_out(model, ids[360_000:]))
            mixtures = [part for part in model.modules() if isinstance(part, MixtureOfExperts)]
            loads += [part.load.max().item() for part in mixtures]
        idle = sum(p.numel() for part in mixtures for e in part.experts[part.top_k :] for p in e.parameters())
        row = {"way": name, "scores": scores, "parameters": count(model), "active": count(model) - idle}
        row |= {"largest_load": statistics.mean(loads) if loads else None}
        row |= interval(scores) | {"cpu_seconds": (time.process_time() - began) / seeds}
        rows.append(row)
        print(name, scores, row["largest_load"], file=sys.stderr, flush=True)
    return rows


def table(result: dict) -> str:
    """The result as a page of Markdown."""
    where = result["environment"]
    lines = [
        "# Variants: the families on each other's tasks, LoRA, experts",
        "",
        f"`python benchmarks/variants.py` on {where['device']}: torch {where['torch']}, Python {where['python']}, "
        f"{where['threads']} thread(s), width {WIDTH}; mean ± half of the 95 % interval over "
        f"seeds.{shared_machine(where)}",
    ]
    for part, title in (("equal_steps", "for equal steps"), ("equal_compute", "for equal compute")):
        if part in result:
            lines += ["", f"## Architectures of equal parameters, {title}", "", _setting(result, part), ""]
            lines += _architectures_table(result[part])
    if "fine_tuning" in result:
        lines += ["", "## LoRA against full fine-tuning", "", _setting(result, "fine_tuning"), ""]
        lines += ["| way | trained parameters | file, kB | held-out nats a letter |", "|---|--:|--:|--:|"]
        for row in result["fine_tuning"]:
            score = f"{row['mean']:.3f} ± {row['half_interval']:.3f}"
            lines.append(f"| {row['way']} | {row['trainable']:,} | {row['file_bytes'] / 1e3:.0f} | {score} |")
    if "experts" in result:
        lines += ["", "## Experts against dense", "", _setting(result, "experts"), ""]
        lines.append("| feed-forward | parameters | active | largest load | nats a letter | CPU seconds |")
        lines.append("|---|--:|--:|--:|--:|--:|")
        for row in result["experts"]:
            load = "-" if row["largest_load"] is None else f"{row['largest_load']:.2f}"
            lines.append(
                f"| {row['way']} | {row['parameters']:,} | {row['active']:,} | {load} | "
                f"{row['mean']:.3f} ± {row['half_interval']:.3f} | {row['cpu_seconds']:.0f} |"
            )
    return "\n".join(lines) + "\n"


def _setting(result: dict, part: str) -> str:
    words = "{seeds} seeds, {steps} steps".format(**result["settings"][part])
    if part == "equal_compute":
        words += " of the dearest family on each task, and as many operations of every other"
    return words + "."


def _architectures_table(rows: list[dict]) -> list[str]:
    names = " | ".join(f"{name} ({task.measure})" for name, task in TASKS.items())
    lines = [f"| family | stacks | parameters | {names} | MFLOP of a step, task by task | steps |"]
    lines.append("|---|---|--:|" + "--:|" * (len(TASKS) + 2))
    for family in FAMILIES:
        own = {row["task"]: row for row in rows if row["family"] == family}
        cells = " | ".join(f"{own[task]['mean']:.3f} ± {own[task]['half_interval']:.3f}" for task in TASKS)
        flops = " / ".join(f"{own[task]['flops_a_step'] / 1e6:.0f}" for task in TASKS)
        steps = " / ".join(str(own[task]["steps"]) for task in TASKS)
        first = own[next(iter(TASKS))]
        lines.append(f"| {family} | {first['stacks']} | {first['parameters']:,} | {cells} | {flops} | {steps} |")
    return lines


PARTS: dict[str, tuple[Callable[[int, int], list[dict]], int]] = {  # what measures it, and its steps
    "equal_steps": (partial(architectures, equal_compute=False), 300),
    "equal_compute": (partial(architectures, equal_compute=True), 300),
    "fine_tuning": (fine_tuning, 150),
    "experts": (experts, 150),
}


def main() -> None:
    """Train, write the results, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="two seeds, few steps; writes nothing")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--part", choices=PARTS, help="measure this one and keep the others of the record")
    arguments = parser.parse_args()
    seeds = 2 if arguments.quick else arguments.seeds
    unknown = set(LANGUAGES) - set(number_languages())
    if unknown:
        raise SystemExit(f"no number words for {sorted(unknown)}")
    result: dict = {"name": "variants-cpu", "environment": environment(), "settings": {}}
    if arguments.part and not arguments.quick:
        recorded = json.loads(place("variants-cpu").read_text(encoding="utf-8"))
        result |= {part: recorded[part] for part in PARTS if part in recorded}
        result["settings"] = {part: recorded["settings"][part] for part in PARTS if part in recorded}
    for part in [arguments.part] if arguments.part else PARTS:
        run, steps = PARTS[part]
        steps = 20 if arguments.quick else steps
        result[part] = run(seeds, steps)
        result["settings"][part] = {"seeds": seeds, "steps": steps, "environment": environment()}
        print(part, file=sys.stderr, flush=True)
    if not arguments.quick:
        save(result, table(result))
    print(table(result))


if __name__ == "__main__":
    main()
