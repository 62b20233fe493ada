"""Computes the tables of `scale_out.md` from the formulas of `course_lib.scaling`.

python docs/scale_out.py            write them into the page
python docs/scale_out.py --check    only say whether the page has them
"""

import re
import sys
from pathlib import Path
from typing import NamedTuple

import torch

from course_lib.config import TransformerConfig
from course_lib.files import write_atomic
from course_lib.scaling import (
    activation_bytes,
    count_flops,
    count_parameters,
    published_peak,
    ring_all_reduce_bytes,
    training_memory,
)
from course_lib.variants import PUBLISHED

PAGE = Path(__file__).with_name("scale_out.md")
GPU, UTILISATION = "H100", 0.4  # of the dense peak in bfloat16
NETWORK = 50e9  # bytes a second that a GPU can send to other nodes: a port of 400 Gb/s for each
GPUS = (8, 64, 512)
DAY = 24 * 60 * 60


class Plan(NamedTuple):
    """A model and what it is trained on."""

    label: str
    model: str  # its name in `PUBLISHED`
    tokens: dict[str, float]  # how many, and why so many
    texts: int  # of its full length that a GPU reads in a step

    @property
    def config(self) -> TransformerConfig:
        """Its sizes and switches."""
        return PUBLISHED[self.model].config()

    @property
    def parameters(self) -> int:
        """How many."""
        return count_parameters(self.config).total()

    @property
    def flops_per_token(self) -> float:
        """Operations of training, at the full length."""
        length = self.config.max_length
        return count_flops(self.config, 1, length, backward=True, halve_causal=True).total() / length


PLANS = [
    Plan("1.5 B", "gpt2-xl", {"20 a parameter": 20 * 1.558e9}, texts=8),
    Plan("8 B", "llama-3-8b", {"20 a parameter": 20 * 8.03e9, "as published": 15e12}, texts=1),
    Plan("70 B", "llama-3-70b", {"20 a parameter": 20 * 70.55e9, "as published": 15e12}, texts=1),
]


def models() -> list[list[str]]:
    """What is counted: sizes and operations."""
    rows = [["", "shape", "parameters", "text length", "GFLOP a token, training", "tokens", "FLOP in all"]]
    for plan in PLANS:
        c = plan.config
        for why, tokens in plan.tokens.items():
            rows.append(
                [
                    plan.label,
                    f"{plan.model}: {c.n_decoder_layers} layers, {c.d_model} wide",
                    f"{plan.parameters:,}",
                    f"{c.max_length:,}",
                    f"{plan.flops_per_token / 1e9:.1f}",
                    f"{tokens / 1e12:.2f} T ({why})",
                    f"{plan.flops_per_token * tokens:.1e}",
                ]
            )
    return rows


def memory() -> list[list[str]]:
    """GiB of one GPU among 64, by stage of sharding."""
    rows = [["", "DDP", "+ optimizer split", "+ gradients", "+ weights (FSDP)", "activations", "recomputed", "least"]]
    for plan in PLANS:
        states = []
        for stage in range(4):
            counted = training_memory(plan.config, 1, 1, ranks=64, sharding=stage)  # type: ignore[arg-type]
            states.append(counted["weights"] + counted["gradients"] + counted["optimizer"])
        kept = [
            activation_bytes(plan.config, 1, plan.config.max_length, dtype=torch.bfloat16, recompute=recompute)
            for recompute in (False, True)
        ]
        rows.append([plan.label, *(f"{n_bytes / 2**30:,.1f}" for n_bytes in (*states, *kept, states[-1] + kept[-1]))])
    return rows


def days() -> list[list[str]]:
    """Time to train on so many GPUs."""
    rows = [["", "tokens", *(f"{n} GPUs" for n in GPUS)]]
    for plan in PLANS:
        for why, tokens in plan.tokens.items():
            seconds = plan.flops_per_token * tokens / (UTILISATION * published_peak(GPU))
            needed = [seconds / n / DAY for n in GPUS]
            shown = [f"{x:,.0f} days" if x >= 10 else f"{x:.2g} days" for x in needed]
            rows.append([plan.label, f"{tokens / 1e12:.2f} T ({why})", *shown])
    return rows


def communication() -> list[list[str]]:
    """What each GPU sends in a step, and how long that takes beside the work of the step."""
    rows = [["", "tokens a GPU", "work, s", "DDP sends, GB", "at the network's speed, s", "FSDP sends, GB", "s"]]
    for plan in PLANS:
        tokens = plan.texts * plan.config.max_length
        work = plan.flops_per_token * tokens / (UTILISATION * published_peak(GPU))
        ddp = ring_all_reduce_bytes(4 * plan.parameters, 64)
        fsdp = ddp * 3 // 2  # weights gathered twice, gradients reduced once
        rows.append(
            [
                plan.label,
                f"{tokens:,}",
                f"{work:.2f}",
                f"{ddp / 1e9:,.1f}",
                f"{ddp / NETWORK:.2f}",
                f"{fsdp / 1e9:,.1f}",
                f"{fsdp / NETWORK:.2f}",
            ]
        )
    return rows


def checkpoints() -> list[list[str]]:
    """Bytes of a checkpoint: weights and two averages, float32."""
    rows = [["", "checkpoint, GB", "host memory of a node while it is written, GB"]]
    for plan in PLANS:
        n_bytes = 12 * plan.parameters
        rows.append([plan.label, f"{n_bytes / 1e9:,.0f}", f"{8 * n_bytes / 1e9:,.0f}"])
    return rows


TABLES = {function.__name__: function for function in (models, memory, days, communication, checkpoints)}


def markdown(rows: list[list[str]]) -> str:
    """A table whose first column is text and whose others are numbers."""
    head, *body = rows
    lines = [head, ["---", *(["--:"] * (len(head) - 1))], *body]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def filled(page: str) -> str:
    """The page with each table between its marks computed anew."""
    for name, function in TABLES.items():
        mark = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        if not mark.search(page):
            raise ValueError(f"{PAGE.name}: no place for the table {name!r}")
        table = markdown(function())
        page = mark.sub(lambda found, table=table: f"{found[1]}{table}\n{found[2]}", page)
    return page


if __name__ == "__main__":
    text = PAGE.read_text(encoding="utf-8")
    if "--check" in sys.argv[1:]:
        sys.exit(0 if filled(text) == text else f"{PAGE.name}: tables differ; run python docs/{Path(__file__).name}")
    write_atomic(PAGE, filled(text))
