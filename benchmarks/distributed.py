"""Several processes on one machine: equal losses, tokens a second, and memory by stage of sharding beside the formula.

    python benchmarks/distributed.py [--quick] [--part losses | memory]

Each case runs in processes of its own under torchrun, one thread each. "losses": 20 steps of a small model on the same
batches, in 1, 2 and 4 processes, DDP and FSDP2; the clock is the wall's, and the fastest step
counts, which other work on the machine disturbs least.
"memory": the stages of sharding on a GPT-2 of 124 million parameters in two processes. Bytes that lie in weights,
gradients and optimizer between two steps are counted exactly; the peak is that of resident memory beyond what the
process held before it built the model, during the steps (Linux).
"""

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import psutil
import torch
from harness import RESULTS, environment, save, shared_machine
from torch import Tensor, nn

from course_lib.scaling import count_parameters, ring_all_reduce_bytes, training_memory
from course_lib.training import Processes, build_optimizers, join_processes, recompute_activations, tasks, update
from course_lib.training.config import TrainingConfig
from course_lib.transformer import LanguageModel, TransformerConfig

GPT = {"n_encoder_layers": 0, "positions": "learned", "norm_place": "pre", "activation": "gelu_tanh", "dropout": 0.0}
MODELS = {
    "4x128": TransformerConfig(
        d_model=128, n_heads=4, n_decoder_layers=4, vocab_size=65, max_length=64, tie_embeddings=False, **GPT
    ),
    "12x256": TransformerConfig(d_model=256, n_heads=4, n_decoder_layers=12, vocab_size=65, max_length=1024, **GPT),
    "124M": TransformerConfig(d_model=768, n_heads=12, n_decoder_layers=12, vocab_size=50257, max_length=1024, **GPT),
}
ROUNDS = 2  # of all cases in turn
STAGES = {
    0: "nothing (DDP)",
    1: "optimizer (DDP, ZeroRedundancyOptimizer)",
    2: "optimizer, gradients (FSDP2, weights kept after use)",
    3: "optimizer, gradients, weights (FSDP2)",
}


@dataclass(frozen=True)
class Case:
    """What the processes of one run do."""

    model: str = "4x128"
    world: int = 1
    stage: int = 0  # of sharding, as `training_memory` counts them
    recompute: bool = False
    batch: int = 32  # sequences a step, over all processes
    length: int = 64
    steps: int = 20


def wrap(case: Case, model: nn.Module, processes: Processes) -> nn.Module:
    """The module to call: a copy in each process, or shards."""
    if case.world == 1 or case.stage != 2:
        return processes.wrap(model, "fsdp" if case.stage == 3 else "ddp")
    from torch.distributed.fsdp import fully_shard

    for layer in model.decoder.layers:  # type: ignore[union-attr]
        fully_shard(layer, reshard_after_forward=False)
    return fully_shard(model, reshard_after_forward=False)


def optimizers_of(case: Case, model: nn.Module) -> list[torch.optim.Optimizer]:
    """AdamW, of all parameters or of this process's part."""
    if case.stage != 1 or case.world == 1:
        return build_optimizers(model, TrainingConfig(learning_rate=1e-3))
    from torch.distributed.optim import ZeroRedundancyOptimizer

    settings = {"lr": 1e-3, "betas": (0.9, 0.98), "eps": 1e-9, "weight_decay": 0.01, "fused": True}
    return [ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, **settings)]


def local_bytes(tensors: Iterable[Any]) -> int:
    """Bytes that lie in this process: of shards their own part."""
    locals_ = [tensor.to_local() if hasattr(tensor, "to_local") else tensor for tensor in tensors]
    return sum({t.data_ptr(): t.numel() * t.itemsize for t in locals_ if t.numel()}.values())


def states(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """What an optimizer remembers of each parameter, without its counters."""
    inner = getattr(optimizer, "optim", optimizer)
    return [
        value for state in inner.state.values() for value in state.values() if torch.is_tensor(value) and value.dim()
    ]


def train(
    case: Case, config: TransformerConfig, text: Tensor, processes: Processes
) -> tuple[nn.Module, list[torch.optim.Optimizer], list[float], list[float]]:
    """A new model trained on text (steps, B, T + 1), its optimizers, the losses and the seconds of each step."""
    torch.manual_seed(0)
    model = LanguageModel(config)
    if case.recompute:
        recompute_activations(model)
    wrapped = wrap(case, model, processes)
    optimizers = optimizers_of(case, model)
    losses, seconds = [], []
    task = tasks.LanguageModelling()
    Path("/proc/self/clear_refs").write_text("5")  # forget the highest resident size so far
    for tokens in text:
        processes.barrier()
        began = time.perf_counter()
        losses.append(update(wrapped, task.loss, [{"tokens": tokens}], optimizers, clip=1.0, processes=processes).loss)
        processes.barrier()
        seconds.append(time.perf_counter() - began)
    return model, optimizers, losses, seconds


def work(case: Case, out: Path) -> None:
    """One process: train, and write what it saw."""
    torch.set_num_threads(1)
    with join_processes("cpu") as processes:
        config = MODELS[case.model]
        draw = torch.Generator().manual_seed(0)
        text = torch.randint(config.vocab_size or 0, (case.steps, case.batch, case.length + 1), generator=draw)
        train(
            case, replace(config, d_model=48, n_decoder_layers=2, vocab_size=11), text[:1] % 11, processes
        )  # loads kernels
        gc.collect()
        before = psutil.Process().memory_info().rss
        model, optimizers, losses, seconds = train(case, config, text, processes)
        status = Path("/proc/self/status").read_text()
        found = {
            "losses": losses,
            "seconds": seconds,
            "weights": local_bytes(model.parameters()),
            "gradients": local_bytes(p.grad for p in model.parameters() if p.grad is not None),
            "optimizer": local_bytes(value for optimizer in optimizers for value in states(optimizer)),
            "peak": int(status.split("VmHWM:")[1].split()[0]) * 1024 - before,
        }
        everyone = processes.gather(found)
        if processes.main:
            out.write_text(json.dumps(everyone))


def run(case: Case) -> list[dict[str, Any]]:
    """What each process of a case saw."""
    print(case, flush=True)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "found.json")
        torchrun = f"torch.distributed.run --standalone --local-addr=127.0.0.1 --nproc-per-node={case.world}"
        launcher = ["-m", *torchrun.split()]
        command = [sys.executable, *(launcher if case.world > 1 else []), __file__]
        # Freed blocks go back to the system at once, so that resident memory is what is in use.
        environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"} if case.model != "4x128" else None
        command += ["--work", json.dumps(asdict(case)), str(out)]
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
        if done.returncode:
            raise RuntimeError(done.stderr[-4000:])
        return json.loads(out.read_text())


def compare_losses(steps: int) -> list[dict[str, Any]]:
    """Losses and tokens a second in 1, 2 and 4 processes."""
    cases = [Case(world=world, stage=stage, steps=steps) for world, stage in ((1, 0), (2, 0), (4, 0), (2, 3), (4, 3))]
    found = [[run(case)[0] for case in cases] for _ in range(ROUNDS)]
    first: list[float] = found[0][0]["losses"]
    rows: list[dict[str, Any]] = []
    for number, case in enumerate(cases):
        seen = [each[number] for each in found]
        fastest = min(seconds for each in seen for seconds in each["seconds"][3:])
        rows.append(
            {
                "processes": case.world,
                "how": "alone" if case.world == 1 else ("DDP" if case.stage == 0 else "FSDP2"),
                "largest_difference": max(
                    abs(a - b) for each in seen for a, b in zip(each["losses"], first, strict=True)
                ),
                "first_loss": seen[0]["losses"][0],
                "last_loss": seen[0]["losses"][-1],
                "tokens_per_second": case.batch * case.length / fastest,
                "median_tokens_per_second": [
                    case.batch * case.length / statistics.median(each["seconds"][3:]) for each in seen
                ],
                "sent_per_step": ring_all_reduce_bytes(4 * count_parameters(MODELS[case.model]).total(), case.world)
                * (3 if case.stage == 3 else 2)
                // 2,
            }
        )
    return rows


def compare_memory(quick: bool) -> list[dict[str, Any]]:
    """Bytes in each process by stage of sharding, and with recomputation, beside the formula."""
    long = [("12x256", 1, 0, again, 4, 1024) for again in (False, True)]  # activations are most of it
    long += [("124M", 1, 0, again, 1, 1024) for again in (False, True)]
    short = [("124M", 2, stage, False, 1, 256) for stage in STAGES]
    if quick:
        long, short = [], [("4x128", *case[1:5], 64) for case in short]
    rows = []
    for model, world, stage, recompute, texts, length in [*long, *short]:
        config = MODELS[model]
        case = Case(model, world, stage, recompute, batch=texts * world, length=length, steps=2)
        found = run(case)
        formula = training_memory(config, texts, length, ranks=world, sharding=stage, recompute=recompute)  # type: ignore[arg-type]
        rows.append(
            {
                "model": model,
                "processes": world,
                "texts": texts,
                "stage": stage,
                "recompute": recompute,
                "length": length,
                "formula": dict(formula),
                "formula_total": formula.total(),
                **{name: [each[name] for each in found] for name in ("weights", "gradients", "optimizer", "peak")},
                "seconds_per_step": found[0]["seconds"][-1],
            }
        )
    return rows


def page(result: dict[str, Any]) -> str:
    """The result as Markdown."""
    lines = ["# Several processes"]
    if part := result.get("losses"):
        lines += [
            *heading(part, "Losses and tokens a second"),
            f"{part['steps']} steps of a model of 4 layers, 128 wide, on the same batches of 32 x 64 random tokens. "
            f"Tokens a second are those of {part['counted']}, bytes those that each process sends in a step, "
            "by formula.",
            "",
            "| processes | | last loss | largest difference from one process | tokens a second | sent, MB |",
            "|--:|---|--:|--:|--:|--:|",
        ]
        lines += [
            f"| {row['processes']} | {row['how']} | {row['last_loss']:.6f} | {row['largest_difference']:.1e} "
            f"| {row['tokens_per_second']:,.0f} | {row['sent_per_step'] / 1e6:.1f} |"
            for row in part["rows"]
        ]
    if part := result.get("memory"):
        lines += [
            *heading(part, "Memory by stage of sharding"),
            "float32, AdamW; 12x256 has 12 layers, 256 wide, and 124M is GPT-2. MiB in each process: counted "
            "between two steps, and at the peak of resident memory, the largest process of each run. Between two "
            "steps FSDP2 has given back what it gathered, at stage 2 too. The formula adds everything up as if it "
            "were there at once, and leaves out temporary buffers: what FSDP has gathered, the gradients of logits, "
            "a second gradient of a tied table.",
            "",
            "| model | texts x tokens | processes | split | recomputed | weights | gradients | optimizer | by formula "
            "| activations by formula | all by formula | peak | peak / formula | s a step |",
            "|---|--:|--:|---|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|",
        ]
        for row in part["rows"]:
            formula, peak = row["formula"], max(row["peak"])
            at_rest = sum(formula[name] for name in ("weights", "gradients", "optimizer"))
            counted = [f"{max(row[name]) / 2**20:,.0f}" for name in ("weights", "gradients", "optimizer")]
            lines.append(
                f"| {row['model']} | {row['texts']} x {row['length']} | {row['processes']} | {STAGES[row['stage']]} "
                f"| {'yes' if row['recompute'] else 'no'} "
                f"| {' | '.join(counted)} | {at_rest / 2**20:,.0f} | {formula['activations'] / 2**20:,.0f} "
                f"| {row['formula_total'] / 2**20:,.0f} | {peak / 2**20:,.0f} | {peak / row['formula_total']:.2f} "
                f"| {row['seconds_per_step']:.1f} |"
            )
    return "\n".join(lines) + "\n"


def heading(part: dict[str, Any], title: str) -> list[str]:
    """Title, command and machine of a part."""
    return [
        "",
        f"## {title}",
        "",
        f"`{part['command']}`: {part['device']}, {part['cpus']} CPUs, torch {part['torch']}, gloo, one thread a "
        f"process, wall clock.{shared_machine(part)}",
        "",
    ]


def main() -> None:
    """Run the parts and write them down."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few steps, a small model, without writing")
    parser.add_argument("--part", choices=("losses", "memory"), help="leave the other part of the result as it is")
    parser.add_argument("--work", nargs=2, metavar=("CASE", "FILE"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.work:
        work(Case(**json.loads(arguments.work[0])), Path(arguments.work[1]))
        return
    torch.set_num_threads(1)
    place = RESULTS / "distributed-cpu.json"
    result = json.loads(place.read_text()) if place.exists() and not arguments.quick else {"name": "distributed-cpu"}
    where = {**environment(), "clock": "wall time"}
    if arguments.part != "memory":
        steps = 4 if arguments.quick else 20
        counted = f"the fastest step of {ROUNDS} runs"
        result["losses"] = {**where, "steps": steps, "counted": counted, "rows": compare_losses(steps)}
    if arguments.part != "losses":
        result["memory"] = {**where, "rows": compare_memory(arguments.quick)}
    text = page(result)
    print(text)
    if not arguments.quick:
        save(result, text)


if __name__ == "__main__":
    main()
