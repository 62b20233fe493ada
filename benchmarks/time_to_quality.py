"""How much CPU time a small language model needs to the quality of a well-known recipe, and which change gives what.

    python benchmarks/time_to_quality.py [--seeds 3] [--ladder] [--quick]

The task is nanoGPT's CPU recipe on tiny Shakespeare: 4 layers, 4 heads, 128 wide, context 64, batches of 12 random
windows, the first 90 % of the characters to train on. The recipe takes 2000 steps; every other one here has the same
shape, data and batches. Quality is the loss on all of the last 10 %, cut into windows of 64, in float32. Time is that
of the CPU, one thread, for building the model and training it, without the evaluation at the end.

The recipe itself is run with the blocks of this package, which compute what GPT-2 computes, in a loop of its own:
LayerNorm without biases, learned positions, GELU, AdamW not fused, a cosine from 1e-3 to 1e-4 after 100 steps of
warm-up.
"""

import argparse
import math
import os
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from harness import environment, save, shared_machine
from torch import Tensor, nn
from torch.nn import functional as F

from course_lib.data import CharTokenizer, tiny_shakespeare
from course_lib.training import Run, Silent, TrainingConfig, evaluate, tasks
from course_lib.transformer import LanguageModel, TransformerConfig

T, B = 64, 12
SHAPE = {"d_model": 128, "n_heads": 4, "n_encoder_layers": 0, "n_decoder_layers": 4, "dropout": 0.0}
GPT = {
    "positions": "learned",
    "max_length": T,
    "activation": "gelu",
    "norm_place": "pre",
    "bias": False,
    "scale_embeddings": False,
    "init": "normal",
    "scale_residual_init": True,
}
ADAMW = {"betas": (0.9, 0.99), "eps": 1e-8, "weight_decay": 0.1, "clip": 1.0}


@dataclass(frozen=True)
class Recipe:
    """What differs from the recipe to beat."""

    steps: int
    model: dict[str, Any] = field(default_factory=dict)
    training: dict[str, Any] = field(default_factory=dict)


class ShortAttention(nn.Module):
    """Causal attention by two batched products: in bfloat16 on a CPU, at 64 positions, faster than the fused kernel."""

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        *,
        causal: bool = False,
        scale: float | None = None,
        **others: Any,
    ) -> Tensor:
        """Query, key and value (B, H, T, E) to (B, H, T, E)."""
        if not causal or any(others.values()):
            raise ValueError("others: expected plain causal attention")
        n, E = query.size(-2), query.size(-1)
        mask = torch.full((n, n), -math.inf, dtype=query.dtype).triu(1)
        flat = [x.flatten(0, 1) for x in (query, key, value)]  # (B, H, T, E) -> (B * H, T, E)
        scores = torch.baddbmm(mask, flat[0], flat[1].mT, alpha=E**-0.5 if scale is None else scale)
        return (scores.softmax(dim=-1).to(value.dtype) @ flat[2]).view_as(query)


class Windows:
    """Batches of random windows, as nanoGPT draws them."""

    def __init__(self, ids: Tensor, seed: int) -> None:
        self.ids, self.draw = ids, torch.Generator().manual_seed(seed)

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        """Yield batches without end."""
        while True:
            starts = torch.randint(len(self.ids) - T, (B,), generator=self.draw)
            yield {"tokens": self.ids[starts[:, None] + torch.arange(T + 1)]}  # (B, T + 1)


class Text:
    """Tiny Shakespeare as ids, in its two parts."""

    def __init__(self) -> None:
        text = tiny_shakespeare()
        tokenizer = CharTokenizer.train([text])
        # The five special ids never occur: without them the vocabulary is the recipe's, 65 characters.
        ids = torch.tensor(tokenizer.encode(text)) - 5
        self.vocab_size = tokenizer.vocab_size - 5
        cut = int(0.9 * len(ids))
        self.train, held_out = ids[:cut], ids[cut:]
        n = (len(held_out) - 1) // T
        windows = held_out[torch.arange(n)[:, None] * T + torch.arange(T + 1)]  # (n, T + 1)
        self.held_out = [{"tokens": part} for part in windows.split(200)]

    def quality(self, model: LanguageModel) -> float:
        """Loss in nats a character on the whole held-out part."""
        return evaluate(model, tasks.LanguageModelling().loss, self.held_out)


def rate(step: int) -> float:
    """nanoGPT's schedule, its steps counted from 0."""
    if step < 100:
        return 1e-3 * (step + 1) / 101
    return 1e-4 + (1e-3 - 1e-4) * (1 + math.cos(math.pi * (step - 100) / 1900)) / 2


def original(text: Text, seed: int) -> tuple[LanguageModel, float]:
    """Train by the recipe to beat; returns the model and CPU seconds."""
    began = time.process_time()
    torch.manual_seed(seed)
    model = LanguageModel(TransformerConfig(**SHAPE, **GPT, vocab_size=text.vocab_size))
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    others = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.99))
    windows = iter(Windows(text.train, seed))
    for step in range(2000):
        for group in optimizer.param_groups:
            group["lr"] = rate(step)
        tokens = next(windows)["tokens"]
        loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return model, time.process_time() - began


def trained(text: Text, recipe: Recipe, seed: int) -> tuple[LanguageModel, float]:
    """Train by a recipe of this package; returns the model and CPU seconds."""
    began = time.process_time()
    torch.manual_seed(seed)
    model = LanguageModel(TransformerConfig(**{**SHAPE, **GPT, **recipe.model}, vocab_size=text.vocab_size))
    settings = {"learning_rate": 1e-3, "warmup": min(100, recipe.steps // 5), "final_rate": 0.1, "log_every": 1000}
    config = TrainingConfig(**{**ADAMW, **settings, **recipe.training}, steps=recipe.steps)
    Run(model, tasks.LanguageModelling(), Windows(text.train, seed), config, shown=Silent()).train()
    return model, time.process_time() - began


FAST_RATE = {"learning_rate": 8e-3, "schedule": "linear", "final_rate": 0.0}
MUON = {"optimizer": "muon", "muon_learning_rate": 0.02, "muon_momentum": 0.9, "weight_decay": 0.0}
ZERO = {"zero_residual_init": True, "scale_residual_init": False}
CHANGES = {  # each one alone: (model, training)
    "nothing": ({}, {}),
    "learning rate 8e-3, linear to 0": ({}, FAST_RATE),
    "rotary positions": ({"positions": "rotary"}, {}),
    "RMSNorm": ({"norm": "rms"}, {}),
    "squared ReLU": ({"activation": "relu2"}, {}),
    "QK-norm": ({"qk_norm": True}, {}),
    "outputs of layers start at zero": (ZERO, {}),
    "head not tied": ({"tie_embeddings": False}, {}),
    "pairs of characters": ({"bigram_rows": 65 * 65}, {}),
    "Muon for the matrices": ({}, MUON),
    "bfloat16": ({"inner_attention": ShortAttention}, {"precision": "bfloat16"}),
}


def together(names: list[str], steps: int, **training: Any) -> Recipe:
    """The recipe with several changes."""
    model: dict[str, Any] = {}
    settings: dict[str, Any] = {}
    for name in names:
        model |= CHANGES[name][0]
        settings |= CHANGES[name][1]
    return Recipe(steps, model, {**settings, **training})


ALL = [name for name in CHANGES if name != "nothing"]
# RMSNorm costs more time than it saves here: LayerNorm is one kernel.
BEST = together(
    [name for name in ALL if name != "RMSNorm"],
    200,
    warmup=0,
    learning_rate=1.5e-2,
    muon_learning_rate=0.015,
    muon_steps=4,
)


def main() -> None:
    """Run what was asked for and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--ladder", action="store_true", help="also each change alone, and one after the other")
    parser.add_argument("--quick", action="store_true", help="one seed of ours, and write nothing")
    options = parser.parse_args()
    torch.set_num_threads(1)
    text = Text()
    if options.quick:
        model, seconds = trained(text, BEST, 0)
        print(f"loss {text.quality(model):.4f} after {seconds:.1f} s of CPU time")
        return
    result: dict[str, Any] = {"name": "time-to-quality", "environment": environment(), "pairs": [], "ladder": []}
    for seed in range(options.seeds):
        row = {}
        for name, run in {"theirs": original, "ours": lambda text, seed: trained(text, BEST, seed)}.items():
            model, seconds = run(text, seed)
            row[name] = {"loss": text.quality(model), "cpu_seconds": seconds}
            print(seed, name, row[name], flush=True)
        result["pairs"].append(row)
        result["best"] = described(BEST)
        save(result, page(result))  # what is done is kept
    if options.ladder:
        for names, steps in [*(([name], 500) for name in CHANGES), *((ALL[:n], 500) for n in range(2, len(ALL) + 1))]:
            recipe = together([name for name in names if name != "nothing"], steps)
            model, seconds = trained(text, recipe, 0)
            entry = {"changes": names, "steps": steps, "loss": text.quality(model), "cpu_seconds": seconds}
            result["ladder"].append(entry)
            print(entry, flush=True)
    save(result, page(result))


def described(recipe: Recipe) -> dict[str, Any]:
    """A recipe as JSON can hold it."""
    model = {name: value.__name__ if isinstance(value, type) else value for name, value in recipe.model.items()}
    return {"steps": recipe.steps, "model": model, "training": recipe.training}


def page(result: dict[str, Any]) -> str:
    """The table."""
    pairs = result["pairs"]
    ratios = [row["ours"]["cpu_seconds"] / row["theirs"]["cpu_seconds"] for row in pairs]
    lines = ["# Time to quality on tiny Shakespeare", "", f"`{result['environment']['command']}`", ""]
    lines += [f"{result['environment']['device']}, one thread.{shared_machine(result['environment'])}", ""]
    lines += ["| seed | recipe: loss | CPU s | ours: loss | CPU s | ratio |", "|---|---|---|---|---|---|"]
    for seed, (row, ratio) in enumerate(zip(pairs, ratios, strict=True)):
        theirs, ours = row["theirs"], row["ours"]
        lines.append(
            f"| {seed} | {theirs['loss']:.4f} | {theirs['cpu_seconds']:.1f} | {ours['loss']:.4f} | "
            f"{ours['cpu_seconds']:.1f} | 1/{1 / ratio:.1f} |"
        )
    middle = statistics.median(ratios)
    lines += ["", f"Median ratio of CPU time: 1/{1 / middle:.1f}, with {result['best']['steps']} steps for 2000.", ""]
    if result["ladder"]:
        lines += ["Each change alone, 500 steps, seed 0; then one after the other.", ""]
        lines += ["| changes | loss | CPU s |", "|---|---|---|"]
        for entry in result["ladder"]:
            names = entry["changes"]
            title = names[0] if len(names) == 1 else f"the {len(names)} down to: {names[-1]}"
            lines.append(f"| {title} | {entry['loss']:.3f} | {entry['cpu_seconds']:.1f} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
