"""What each change gives to the speed of a training step, one after the other, with torch.compile and its compile time.

    python benchmarks/speed_ladder.py [--quick] [--device cuda]

The model is that of chapter 08: 4 layers, 192 wide, texts of 128 tokens. A rung keeps what the one before it changed,
unless it says "instead". The JSON goes into the package, where the chapter reads it.
"""

import argparse
import json
import os
import time
from dataclasses import dataclass, replace

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
import torch.nn.functional as F
from harness import RESULTS, environment, interleave, medians, place, ratios, shared_machine
from torch.nn.attention import SDPBackend, sdpa_kernel

from course_lib import scaling
from course_lib.files import write_atomic
from course_lib.transformer import LanguageModel, TransformerConfig

CONFIG = TransformerConfig(d_model=192, n_heads=6, n_decoder_layers=4, vocab_size=108, norm_place="pre", dropout=0.0)
LENGTH = 128


@dataclass(frozen=True)
class Rung:
    """The switches of a step."""

    fused_attention: bool = False
    fused_optimizer: bool = False
    bfloat16: bool = False
    compiled: bool = False
    batch: int = 8


FULL = Rung(fused_attention=True, fused_optimizer=True)
RUNGS = {
    "explicit attention, plain Adam": Rung(),
    "+ fused attention": Rung(fused_attention=True),
    "+ fused optimizer": FULL,
    "one text at a time instead of 8": replace(FULL, batch=1),
    "+ torch.compile": replace(FULL, compiled=True),
    "+ bfloat16 autocast": replace(FULL, bfloat16=True),
    "+ both": replace(FULL, bfloat16=True, compiled=True),
}


def step_of(rung: Rung, device: str):
    """A training step with these switches."""
    torch.manual_seed(0)
    model = LanguageModel(CONFIG).to(device)
    if rung.compiled:
        model.compile()
    optimizer = torch.optim.AdamW(model.parameters(), fused=rung.fused_optimizer, foreach=False)
    tokens = torch.randint(CONFIG.vocab_size, (rung.batch, LENGTH + 1), device=device)
    backends = [SDPBackend.FLASH_ATTENTION] if rung.fused_attention else []

    def step():
        with (
            sdpa_kernel([*backends, SDPBackend.MATH], set_priority=True),
            torch.autocast(device, torch.bfloat16, enabled=rung.bfloat16),
        ):
            loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def main() -> None:
    """Run the ladder and write it down."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--quick", action="store_true", help="two rounds, without writing")
    arguments = parser.parse_args()
    device = arguments.device
    if device == "cpu":
        torch.set_num_threads(1)
    where = environment(device)

    steps, first = {}, {}
    for name, rung in RUNGS.items():
        steps[name] = step_of(rung, device)
        began = time.perf_counter()
        steps[name]()
        first[name] = time.perf_counter() - began
    taken = interleave(steps, 2 if arguments.quick else 15, device)
    # ... of tokens, not of steps
    for name, rung in RUNGS.items():
        taken[name] = [seconds / (rung.batch * LENGTH) for seconds in taken[name]]
    reference = next(iter(RUNGS))
    gain, speed = ratios(taken, reference), {name: 1 / seconds for name, seconds in medians(taken).items()}
    flops = scaling.count_flops(CONFIG, 1, LENGTH, backward=True).total() / LENGTH
    result = {
        "name": f"speed-ladder-{device}",
        **where,
        "parameters": scaling.count_parameters(CONFIG).total(),
        "flops_per_token": flops,
        "rungs": [
            {"rung": name, "tokens_per_second": speed[name], "ratio": gain[name], "first_step_seconds": first[name]}
            for name in RUNGS
        ],
    }
    lines = [
        "# A ladder of speed",
        "",
        f"`{where['command']}`: training steps of a model of {result['parameters']:,} parameters on {where['device']}, "
        f"{where['threads']} thread(s), {where['clock']}, torch {where['torch']}; texts of {LENGTH} tokens, eight at a "
        "time. Ratios are medians over interleaved rounds with 95 % intervals. The first step of a compiled model is "
        f"mostly compilation, by the wall clock.{shared_machine(where)}",
        "",
        "| | tokens a second | against the first rung | first step, s |",
        "|---|--:|--:|--:|",
    ]
    for row in result["rungs"]:
        middle, low, high = row["ratio"]
        lines.append(
            f"| {row['rung']} | {row['tokens_per_second']:,.0f} | {middle:.2f} ({low:.2f} to {high:.2f}) "
            f"| {row['first_step_seconds']:.1f} |"
        )
    page = "\n".join(lines) + "\n"
    print(page)
    if not arguments.quick:
        write_atomic(place(result["name"]), json.dumps(result, indent=1) + "\n")
        write_atomic(RESULTS / f"{result['name']}.md", page)


if __name__ == "__main__":
    main()
