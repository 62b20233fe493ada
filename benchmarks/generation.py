"""Generation: tokens per second beside transformers and the engines that serve, CTranslate2 and llama.cpp.

    python benchmarks/generation.py [--quick] [--no-peers] [--device cpu|cuda] [--shapes 6x384 gpt2] [--batches 1 16]

A GPT-2 with random weights is saved by transformers, opened by `course_lib.variants.GPT`, and exported to the engines.
All continue the same prompt of 16 tokens greedily by 128 on one thread. In each round every way runs once, in an order
that rotates; ratios are taken within the round. What is written is compared with what transformers wrote.

Each run replaces the rows that it measured in the record and leaves the others. The engines come with the extra
`bench`; `--no-peers` leaves them out. On a GPU only transformers is beside ours.
"""

import argparse
import copy
import json
import os
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import engines
import matplotlib.pyplot as plt
import torch
from harness import RESULTS, environment, interleave, medians, ratios, save, save_picture, shared_machine
from matplotlib.figure import Figure
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel

from course_lib.generation import compile_step, generate
from course_lib.variants import GPT
from course_lib.variants.int8 import quantize_
from course_lib.variants.packed import pack_
from coursework.pictures.style import palette, styled

SHAPES = {  # layers, width, heads, vocabulary
    "4x128": (4, 128, 4, 65),
    "6x384": (6, 384, 6, 65),
    "gpt2": (12, 768, 12, 50257),
}
PROMPT, POSITIONS = 16, 1152
OURS, THEIRS = "ours", "transformers"
PLAIN, PACKED, INT8, BOTH_INT8, INT4 = (
    f"{OURS}, {what}" for what in ("plain", "packed", "int8", "int8, inputs too", "int4, groups of 32")
)
QUANTIZED: dict[str, dict[str, Any]] = {INT8: {}, BOTH_INT8: {"round_inputs": True}, INT4: {"bits": 4, "group": 32}}
COMPILED = {f"{OURS}, compiled step": PLAIN, f"{INT8}, compiled step": INT8}  # `generate(..., compile=True)`
HALF = ", bfloat16"
ROUNDED = ("int8", "int4", "Q8_0", "bfloat16")  # in the names of the ways that do not compute in float32


def make_models(shape: str, batch: int, device: str, rounded: bool = True) -> dict[str, nn.Module]:
    """The same random weights for every way; large enough that greedy choices are clear.

    Without `rounded`, only those that suit a GPU: plain ones, in float32 and in bfloat16.
    """
    layers, width, heads, vocabulary = SHAPES[shape]
    torch.manual_seed(0)
    sizes = {"n_layer": layers, "n_embd": width, "n_head": heads, "n_positions": POSITIONS, "vocab_size": vocabulary}
    theirs = GPT2LMHeadModel(
        GPT2Config(**sizes, initializer_range=0.1, bos_token_id=0, eos_token_id=None, pad_token_id=0)
    )
    with tempfile.TemporaryDirectory() as folder:
        theirs.save_pretrained(folder)
        ours = GPT.from_pretrained(folder)
    found: dict[str, nn.Module] = {THEIRS: theirs.to(device).eval(), PLAIN: ours.to(device).eval()}
    found[THEIRS + HALF] = copy.deepcopy(theirs).bfloat16()
    if not rounded:
        return found | {PLAIN + HALF: copy.deepcopy(ours).bfloat16()}
    for name in (PACKED, PACKED + HALF):
        found[name] = copy.deepcopy(ours).to(torch.bfloat16 if HALF in name else None)
        pack_(found[name], rows=batch)
    for name, options in QUANTIZED.items():
        found[name] = copy.deepcopy(ours)
        quantize_(found[name], **options)
    return found


def way(model: nn.Module, prompt: Tensor, new: int, compile: bool = False) -> Callable[[], Tensor]:
    """Continue the prompt greedily, by us or by transformers."""
    if isinstance(model, GPT2LMHeadModel):
        options = {"do_sample": False, "attention_mask": torch.ones_like(prompt)}
        return partial(model.generate, prompt, max_new_tokens=new, **options)
    return partial(generate, model, prompt, max_new_tokens=new, temperature=0, compile=compile)  # type: ignore[arg-type]


def first_difference(model: nn.Module, expected: Tensor, found: Tensor) -> dict[str, float] | None:
    """Where two continuations (B, T) differ first, counted in new tokens, and how close the choice was there.

    That is the gap between the two largest logits of the model, which wrote `expected`. None if all is the same.
    """
    differ = (expected != found).any(0).nonzero()
    if not len(differ):
        return None
    place = int(differ[0])
    row = int((expected[:, place] != found[:, place]).nonzero()[0])
    largest = model(expected[row : row + 1, :place]).logits[0, -1].float().topk(2).values
    return {"position": place - PROMPT, "gap": (largest[0] - largest[1]).item()}


@torch.no_grad()
def measure(shape: str, batch: int, options: argparse.Namespace) -> dict:
    """Tokens per second of each way, its ratios, and where its tokens leave those of transformers."""
    new, device = options.new, options.device
    models = make_models(shape, batch, device)
    prompt = torch.randint(SHAPES[shape][-1], (batch, PROMPT), device=device)
    work = {name: way(model, prompt, new) for name, model in models.items()}
    compiled = COMPILED if options.compile else {}
    work |= {name: way(models[plain], prompt, new, compile=True) for name, plain in compiled.items()}
    steps = {name: compile_step(models[plain], rows=batch) for name, plain in compiled.items()}
    with tempfile.TemporaryDirectory() as folder:
        if options.peers:
            work |= engines.engine_ways(models[PLAIN], prompt, new, Path(folder))  # type: ignore[arg-type]
        written = {name: fn() for name, fn in work.items()}
        taken = interleave(work, options.rounds, device)
    speeds = {name: batch * new / time for name, time in medians(taken).items()}
    row: dict[str, Any] = {"shape": shape, "batch": batch, "new": new, "rounds": options.rounds}
    row |= {"tokens_per_second": speeds, "ratio": ratios(taken, THEIRS)}
    row["seconds_to_compile"] = {name: step.seconds for name, step in steps.items() if step is not None}
    served = {name: speeds[name] for name in engines.ENGINES if name in speeds}
    if served:
        row["best_engine"] = best = max(served, key=served.__getitem__)
        row["ratio_to_best_engine"] = ratios(taken, best)
    expected = written[THEIRS]
    row["same_tokens"] = {n: (w == expected)[:, PROMPT:].float().mean().item() for n, w in written.items()}
    row["first_difference"] = {n: first_difference(models[THEIRS], expected, w) for n, w in written.items()}
    return row


def is_rounded(name: str) -> bool:
    """Whether a way computes with fewer bits than float32."""
    return any(word in name for word in ROUNDED)


def best(row: dict, of_ours: bool, rounded: bool) -> str | None:
    """The fastest of our ways, or of the engines, in float32 or with rounded numbers."""
    names = [n for n in row["tokens_per_second"] if is_rounded(n) == rounded]
    names = [n for n in names if (n.startswith(OURS) if of_ours else n in engines.ENGINES)]
    return max(names, key=row["tokens_per_second"].__getitem__) if names else None


def summary(rows: list[dict]) -> list[str]:
    """The short table: for each model and batch the best of ours beside the best engine."""
    lines = [
        "| model | batch | transformers | weights | best of ours | best engine | ours / transformers | ours / engine |"
    ]
    lines.append("|---|--:|--:|---|---|---|--:|--:|")
    for row in rows:
        speeds = row["tokens_per_second"]
        for rounded in (False, True):
            our, engine = best(row, True, rounded), best(row, False, rounded)
            cells = [
                f"{name.split(', ', 1)[-1] if name == our else name}: {speeds[name]:,.0f}" if name else ""
                for name in (our, engine)
            ]
            beside = f"{speeds[our] / speeds[engine]:.2f}" if engine else ""
            lines.append(
                f"| {row['shape']} | {row['batch']} | {speeds[THEIRS]:,.0f} | {'rounded' if rounded else 'float32'} | "
                f"{cells[0]} | {cells[1]} | {speeds[our] / speeds[THEIRS]:.2f} | {beside} |"
            )
    return lines


def picture(rows: list[dict]) -> Figure:
    """Bars: how many times as fast as transformers the best of ours and each engine is."""
    with styled():
        shapes, batches = (list(dict.fromkeys(row[key] for row in rows)) for key in ("shape", "batch"))
        figure, axes = plt.subplots(
            len(batches), len(shapes), squeeze=False, figsize=(3.4 * len(shapes), 2.3 * len(batches))
        )
        for ax in axes.flat:
            ax.set_visible(False)  # not every model was measured with every batch
        for row in rows:
            ax = axes[batches.index(row["batch"])][shapes.index(row["shape"])]
            ax.set_visible(True)
            ours = [best(row, True, rounded) for rounded in (False, True)]
            names = [THEIRS, *(name for name in ours if name), *(n for n in engines.ENGINES if n in row["ratio"])]
            values = [row["ratio"][name][0] for name in names]
            colours = [palette.series[4 if name == THEIRS else 0 if name in ours else 1] for name in names]
            places = range(len(names), 0, -1)
            ax.barh(places, values, color=colours)
            for place, value in zip(places, values, strict=True):
                ax.text(value, place, f" {value:.1f}", va="center")
            ax.set_yticks(places, names)
            ax.set_xlim(0, 1.2 * max(values))
            ax.grid(axis="y", visible=False)
            ax.set_title(f"{row['shape']}, batch {row['batch']}")
            ax.set_xlabel("times as fast as transformers")
    return figure


def page(result: dict) -> str:
    """The result as a page of Markdown."""
    rows = result["rows"]
    where = rows[-1]["environment"]
    used = ", ".join(
        f"{name} {where[name]}" for name in ("torch", "transformers", *engines.PACKAGES.values()) if name in where
    )
    lines = [
        f"# Generation on {where['device']}",
        "",
        "How many tokens a second the same weights write, by this package, by transformers, and by two engines that "
        "people serve models with. One thread, greedy, 16 tokens of prompt; the tokens are compared.",
        "",
        *summary(rows),
        "",
        f"![Bars for each model and batch: how many times as fast as transformers the best of ours is in float32 and "
        f"with rounded weights, and each engine. The numbers are in the tables.]({result['name']}.svg)",
        "",
        f"To repeat it: `pip install -e '.[bench]'`, then the commands at the end. Measured with {used}, Python "
        f"{where['python']}, {where['threads']} thread(s), in {where['clock']}: medians of interleaved rounds.",
        "",
        "## All ways",
        "",
        "A ratio is taken within a round, with the 95 % interval of its median. Same tokens: those that transformers "
        "wrote as well; one other token changes all that follow. The first difference is at a position among the new "
        "tokens, and the gap is that of the two largest logits of transformers there: where it is small, the order of "
        "a sum, or a rounded weight, decides. What rounding costs a trained model is on "
        "[a page of its own](rounding-cpu.md), for these weights are random. Compiling the step comes before the first "
        "token; it takes so long where nothing of it is on the disk yet, and a few seconds in a later process.",
        "",
        "| model | batch | new | way | tokens/s | times transformers | 95 % interval | times the best engine |"
        " same tokens | first difference at | gap there | seconds to compile |",
        "|---|--:|--:|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for row in rows:
        for name, speed in row["tokens_per_second"].items():
            middle, low, high = row["ratio"][name]
            interval = f"{low:.2f} to {high:.2f}" if low < high else ""
            beside = f"{row['ratio_to_best_engine'][name][0]:.2f}" if "best_engine" in row else ""
            difference = row["first_difference"][name]
            at = f"{difference['position']} | {difference['gap']:.3g}" if difference else "none |"
            seconds = row.get("seconds_to_compile", {}).get(name)
            lines.append(
                f"| {row['shape']} | {row['batch']} | {row['new']} | {name} | {speed:,.0f} | {middle:.2f} | {interval} "
                f"| {beside} | {row['same_tokens'][name]:.1%} | {at} | {'' if seconds is None else f'{seconds:.0f}'} |"
            )
    lines += ["", "Measured by", ""]
    environments = {row["environment"]["command"]: row["environment"] for row in rows}
    lines += [f"- `{command}`:{shared_machine(e) or ' alone.'}" for command, e in environments.items()]
    return "\n".join(lines) + "\n"


def merged(rows: list[dict], device: str) -> list[dict]:
    """The rows of the record, these in place of those of the same model, batch and length."""
    path = RESULTS / f"generation-{device}.json"
    known = json.loads(path.read_text())["rows"] if path.exists() else []
    place = {(row["shape"], row["batch"], row["new"]): row for row in known if "first_difference" in row} | {
        (row["shape"], row["batch"], row["new"]): row for row in rows
    }
    order = list(SHAPES)
    return sorted(place.values(), key=lambda row: (order.index(row["shape"]), row["new"], row["batch"]))


def main() -> None:
    """Measure, write the results, and print the page."""
    import transformers

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a small model and few tokens; writes nothing")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=["cpu", "cuda"])
    parser.add_argument("--shapes", nargs="+", choices=list(SHAPES), default=list(SHAPES))
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 16])
    parser.add_argument("--new", type=int, default=128, help="how many tokens to write")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--compile", action=argparse.BooleanOptionalAction, default=True, help="also with a compiled step"
    )
    parser.add_argument("--peers", action=argparse.BooleanOptionalAction, help="the engines [if they are installed]")
    options = parser.parse_args()
    without = ["a CPU"] if options.device == "cuda" else engines.missing()
    if options.peers and without:
        parser.error(f"--peers: the engines need {', '.join(without)}; pip install -e '.[bench]'")
    options.peers = not without if options.peers is None else options.peers
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    if options.quick:
        options.shapes, options.new, options.rounds = ["4x128"], 24, 3
    more = {"transformers": transformers.__version__, **(engines.versions() if options.peers else {})}
    rows = []
    for shape in options.shapes:
        for batch in options.batches:
            where = environment(options.device, **more)
            rows.append({**measure(shape, batch, options), "environment": where})
            print(f"{shape}, batch {batch}", file=sys.stderr, flush=True)
    result = {"name": f"generation-{options.device}"}
    result["rows"] = rows if options.quick else merged(rows, options.device)  # type: ignore[assignment]
    text = page(result)
    if not options.quick:
        save(result, text)
        save_picture(result["name"], picture(result["rows"]))  # type: ignore[arg-type]
    print(text)


if __name__ == "__main__":
    main()
