"""The scaling law of chapter 08: small models of many sizes at three budgets of operations, and one at a larger budget.

    python benchmarks/isoflop.py              runs what is missing, then writes the record and results/isoflop.md
    python benchmarks/isoflop.py --only 2x24  the runs of one shape, so that several processes can share the work

Depth and width grow together. For each size and seed one run at a constant rate, the trunk, serves all budgets: at 80 %
of each budget's tokens a copy branches off, whose rate falls to zero in a line over the last 20 % (Hägele et al. 2024,
arXiv:2405.18392). Rates are tried with seed 0 until, at every budget of a size, the best one has a worse one on each
side; the other seeds train at the best ones. Rates are chosen on one part of the held-out text, losses are reported on
another. Each trunk is saved when it ends; the same command goes on from there.
Smaller budgets (5e9 and 2e10 were tried) are left out: there the loss does not yet fall as it does here.
"""

import argparse
import copy
import json
import math
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from harness import RESULTS, environment
from torch import Tensor

from course_lib.config import TransformerConfig
from course_lib.data import CharTokenizer
from course_lib.files import write_atomic
from course_lib.scaling import count_flops, count_parameters
from course_lib.transformer import LanguageModel
from coursework.commands.points import gpt_config
from coursework.corpora import tiny_shakespeare
from coursework.records.record import MEASURED

NAME = "isoflop"
POINTS = Path("runs") / NAME
SHAPES = [(1, 24), (2, 24), (2, 32), (3, 36), (3, 48), (4, 64)]  # layers, width
BUDGETS = (8e10, 1.6e11, 3.2e11)  # operations
FEWEST, MOST = 50_000, 2_500_000  # tokens of a run: 200 steps at least, at most two and a half times the text
HELD_OUT = 4 * BUDGETS[-1]
RATES = [0.00125 * 2**k for k in range(7)]
LENGTH, BATCH, WARM_UP, DECAY = 64, 4, 25, 0.2


def model_config(layers: int, width: int, vocab_size: int) -> TransformerConfig:
    """The GPT of chapter 05 with as many heads as layers."""
    return gpt_config(layers, width, n_heads=layers, vocab_size=vocab_size)


def split() -> tuple[int, Tensor, Tensor, Tensor]:
    """How many characters there are, and the text in three parts: 90 % to train, 5 % to choose rates, 5 % to report."""
    text = tiny_shakespeare()
    tokenizer = CharTokenizer.train([text])
    ids = torch.tensor(tokenizer.encode(text))
    train, choose, report = ids.tensor_split([len(ids) * 90 // 100, len(ids) * 95 // 100])
    return tokenizer.vocab_size, train, *(windows(part) for part in (choose, report))


def windows(ids: Tensor) -> Tensor:
    """(n, T + 1): each predicts the T characters after its first; none is predicted twice."""
    return ids.unfold(0, LENGTH + 1, LENGTH)


def loss_of(model: LanguageModel, rows: Tensor) -> Tensor:
    """Mean loss in nats per character of (B, T + 1)."""
    return F.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())


class Trunk:
    """One model, its optimizer and its stream of text, which can be copied as they are."""

    def __init__(self, config: TransformerConfig, rate: float, seed: int, train: Tensor) -> None:
        torch.manual_seed(seed)
        self.model, self.rate, self.train, self.step = LanguageModel(config), rate, train, 0
        self.optimizer = torch.optim.AdamW(self.model.parameters(), betas=(0.9, 0.95), weight_decay=0.1, fused=True)
        self.generator = torch.Generator().manual_seed(seed)

    def branch(self) -> "Trunk":
        """A copy that goes its own way."""
        other = copy.copy(self)
        other.model, other.optimizer = copy.deepcopy((self.model, self.optimizer))  # together: they share weights
        other.generator = torch.Generator()
        other.generator.set_state(self.generator.get_state())
        return other

    def advance(self, steps: int, falls: bool = False) -> None:
        """Train for some steps at the constant rate, or at one that falls to zero over them."""
        for n in range(steps):
            share = (steps - n) / (steps + 1) if falls else min(1.0, (self.step + 1) / WARM_UP)
            self.optimizer.param_groups[0]["lr"] = self.rate * share
            start = torch.randint(len(self.train) - LENGTH - 1, (BATCH, 1), generator=self.generator)
            loss = loss_of(self.model, self.train[start + torch.arange(LENGTH + 1)])
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.step += 1


def per_token(config: TransformerConfig) -> float:
    """Operations of training for each token, attention included."""
    return count_flops(config, 1, LENGTH, backward=True).total() / LENGTH


def budgets_of(config: TransformerConfig) -> list[float]:
    """Those at which a model of this size sees neither too few tokens nor the text too often."""
    return [budget for budget in BUDGETS if FEWEST <= budget / per_token(config) <= MOST]


def run(shape: tuple[int, int], rate: float, seed: int, budgets: list[float], texts: tuple) -> list[dict]:
    """The rows of one trunk, one for each budget, from its file as far as they have been run."""
    vocab_size, train, choose, report = texts
    name = f"{shape[0]}x{shape[1]}-rate{rate:g}-seed{seed}"
    path = POINTS / f"{name}.json"
    rows = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
    missing = [budget for budget in budgets if budget not in {row["budget"] for row in rows}]
    config = model_config(*shape, vocab_size)
    count = count_parameters(config)
    trunk = Trunk(config, rate, seed, train) if missing else None
    for budget in missing:
        began, steps = time.process_time(), round(budget / per_token(config) / (LENGTH * BATCH))
        trunk.advance(round((1 - DECAY) * steps) - trunk.step)
        branch = trunk.branch()
        branch.advance(steps - branch.step, falls=True)
        with torch.no_grad():
            chosen, reported = (loss_of(branch.model, text).item() for text in (choose, report))
        row = {"layers": shape[0], "width": shape[1], "rate": rate, "seed": seed, "budget": budget}
        row |= {"all_parameters": count.total(), "parameters": count.total() - count["token tables"]}
        row |= {"tokens": steps * LENGTH * BATCH, "passes": round(steps * LENGTH * BATCH / len(train), 3)}
        row |= {"choosing_loss": finite(chosen), "loss": finite(reported)}
        rows.append(row | {"cpu_seconds": round(time.process_time() - began, 1)})
    if missing:  # another process may have written meanwhile
        others = json.loads(path.read_text(encoding="utf-8")) if path.exists() else []
        rows += [row for row in others if row["budget"] not in {one["budget"] for one in rows}]
        write_atomic(path, json.dumps(rows, indent=1) + "\n")
        print(name, {f"{row['budget']:g}": round(row["choosing_loss"], 4) for row in rows}, flush=True)
    return [row for row in rows if row["budget"] in budgets]


def finite(loss: float) -> float:
    """A run that broke counts as a very bad one."""
    return loss if math.isfinite(loss) else 99.0


def bracketed(shape: tuple[int, int], budgets: list[float], texts: tuple) -> tuple[list[dict], dict[float, float]]:
    """The rows of all rates tried with seed 0, and the best rate at each budget, which has worse ones at both sides."""
    middle = min(range(len(RATES)), key=lambda k: abs(math.log(RATES[k] * shape[1] / 0.32)))
    wanted, tried, best = {middle - 1, middle, middle + 1}, {}, {}
    while wanted - set(tried):
        for k in sorted(wanted - set(tried)):
            tried[k] = {row["budget"]: row for row in run(shape, RATES[k], 0, budgets, texts)}
        best = {b: min(tried, key=lambda k, b=b: tried[k][b]["choosing_loss"]) for b in budgets}
        wanted = {k + side for k in best.values() for side in (-1, 1) if 0 <= k + side < len(RATES)}
    return [row for rows in tried.values() for row in rows.values()], {b: RATES[k] for b, k in best.items()}


def sweep(shape: tuple[int, int], budgets: list[float], seeds: int, texts: tuple) -> list[dict]:
    """All rows of one size; those at the best rate of their budget are marked."""
    rows, best = bracketed(shape, budgets, texts)
    for seed in range(1, seeds):
        for rate in sorted(set(best.values())):
            rows += run(shape, rate, seed, [b for b in budgets if best[b] == rate], texts)
    return [row | {"best": best[row["budget"]] == row["rate"]} for row in rows]


def page(record: dict) -> str:
    """The table of the runs at their best rates."""
    where, rows = record["environment"], record["rows"] + record["held_out"]
    minutes = sum(row["cpu_seconds"] for row in rows) / 60
    lines = [
        "# Small models at equal operations",
        "",
        f"`{where['command']}` on {where['device']}, one thread, torch {where['torch']}: {len(rows)} runs, "
        f"{minutes:.0f} CPU minutes. Tiny Shakespeare, losses in nats per character of text that no choice has seen. "
        "`parameters` leaves out the table that is only looked up. The last rows are the larger budget.",
        "",
        "| operations | layers x width | parameters | tokens | passes | best rate | rates tried | loss of each seed |",
        "|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    points = sorted({(row["budget"], row["parameters"]) for row in rows})
    for budget, size in points:
        found = [row for row in rows if (row["budget"], row["parameters"]) == (budget, size)]
        best = sorted((row for row in found if row["best"]), key=lambda row: row["seed"])
        lines.append(
            f"| {budget:.3g} | {best[0]['layers']}x{best[0]['width']} | {size:,} | {best[0]['tokens']:,} "
            f"| {best[0]['passes']:.2f} | {best[0]['rate']:g} | {len({row['rate'] for row in found})} | "
            + ", ".join(f"{row['loss']:.4f}" for row in best)
            + " |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Run what is missing; write the record once all is there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="shapes, LAYERSxWIDTH with commas; writes no record")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each point at its best rate")
    parser.add_argument("--as-it-is", action="store_true", help="train nothing: the record of the runs that are there")
    parser.add_argument("--held-out", default="3x48", help="shapes at the larger budget, with commas")
    options = parser.parse_args()
    torch.set_num_threads(1)
    texts = split()
    held_out = [tuple(map(int, text.split("x"))) for text in options.held_out.split(",")]
    only = options.only.split(",") if options.only else []
    if options.as_it_is:
        write(finished(SHAPES, BUDGETS), finished(held_out, (HELD_OUT,)), options)
        return
    rows = []
    for shape in SHAPES:
        if not only or f"{shape[0]}x{shape[1]}" in only:
            rows += sweep(shape, budgets_of(model_config(*shape, texts[0])), options.seeds, texts)
    larger = [
        row
        for shape in held_out
        if not only or f"{shape[0]}x{shape[1]}" in only
        for row in sweep(shape, [HELD_OUT], options.seeds, texts)
    ]
    if only:
        return
    write(rows, larger, options)


def finished(shapes: list[tuple[int, int]], budgets: tuple[float, ...]) -> list[dict]:
    """The rows that lie in files, those at the best rate of their size and budget marked."""
    rows = [row for path in sorted(POINTS.glob("*.json")) for row in json.loads(path.read_text(encoding="utf-8"))]
    rows = [row for row in rows if (row["layers"], row["width"]) in shapes and row["budget"] in budgets]
    best = {}
    for row in sorted((row for row in rows if row["seed"] == 0), key=lambda row: -row["choosing_loss"]):
        best[row["parameters"], row["budget"]] = row["rate"]
    return [row | {"best": best[row["parameters"], row["budget"]] == row["rate"]} for row in rows]


def write(rows: list[dict], larger: list[dict], options: argparse.Namespace) -> None:
    """Write the record and its page."""
    where = environment() | {"command": f"python benchmarks/{NAME}.py --seeds {options.seeds}"}
    record = {"name": NAME, "environment": where, "seeds": options.seeds, "rows": rows, "held_out": larger}
    write_atomic(MEASURED / f"{NAME}.json", json.dumps(record, indent=1) + "\n")
    write_atomic(RESULTS / f"{NAME}.md", page(record))
    print(page(record))


if __name__ == "__main__":
    main()
