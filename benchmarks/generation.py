"""Generation: tokens per second in float32, bfloat16 and int8, packed and compiled, against `generate` of transformers.

    python benchmarks/generation.py [--quick] [--device cpu|cuda] [--shapes 6x384 gpt2] [--batches 1 16] [--new 256]

A GPT-2 with random weights is saved by transformers and opened by `course_lib.variants.GPT`. All continue the same
prompt of 16 tokens greedily. In each round every way runs once, in an order that rotates; a ratio is taken within the
round, to transformers with its cache: in bfloat16 to theirs in bfloat16, else, int8 included, to theirs in float32. The
ways without a cache, which are many times slower, run once, at batch 16 for 64 new tokens. Packed is what
`course_lib.variants.packed.pack_` does; compiled is `model.decoder.compile(dynamic=True)`, which takes a minute before
the first token.

Each run replaces the rows that it measured in the record and leaves the others. The rows of the record are those of
`--shapes 4x128 6x384 --batches 1 --compile`, `--shapes 4x128 6x384 --batches 16`, `--shapes gpt2 --new 64 --rounds 3`,
and `--shapes 4x128 6x384 --batches 1 --new 1024 --rounds 3`.
"""

import argparse
import copy
import json
import sys
import tempfile
from collections.abc import Callable
from functools import partial

import torch
from harness import RESULTS, environment, interleave, medians, ratios, save, seconds, shared_machine
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel

from course_lib.generation import generate
from course_lib.variants import GPT
from course_lib.variants.int8 import quantize_
from course_lib.variants.packed import pack_

SHAPES = {  # layers, width, heads, vocabulary
    "4x128": (4, 128, 4, 65),
    "6x384": (6, 384, 6, 65),
    "gpt2": (12, 768, 12, 50257),
}
PROMPT, POSITIONS = 16, 1152
NEW_WITHOUT_CACHE = {1: 256, 16: 64}
OURS, PACKED, INT8, BOTH_INT8 = "ours", "ours, packed", "ours, int8 weights", "ours, int8 weights and inputs"
HALF, PACKED_HALF = "ours, bfloat16", "ours, bfloat16, packed"
THEIRS, THEIR_HALF = "transformers", "transformers, bfloat16"
# way -> what its ratio is to
WAYS = {
    OURS: THEIRS,
    PACKED: THEIRS,
    INT8: THEIRS,
    BOTH_INT8: THEIRS,
    THEIRS: THEIRS,
    HALF: THEIR_HALF,
    PACKED_HALF: THEIR_HALF,
    THEIR_HALF: THEIR_HALF,
}
COMPILED = {PACKED: "ours, packed, compiled", INT8: "ours, int8 weights, compiled"}  # with --compile


def make_models(shape: str, batch: int, device: str) -> dict[str, nn.Module]:
    """The same random weights for every way; large enough that greedy choices are clear."""
    layers, width, heads, vocabulary = SHAPES[shape]
    torch.manual_seed(0)
    sizes = {"n_layer": layers, "n_embd": width, "n_head": heads, "n_positions": POSITIONS, "vocab_size": vocabulary}
    theirs = GPT2LMHeadModel(
        GPT2Config(**sizes, initializer_range=0.1, bos_token_id=0, eos_token_id=None, pad_token_id=0)
    )
    with tempfile.TemporaryDirectory() as folder:
        theirs.save_pretrained(folder)
        ours = GPT.from_pretrained(folder)
    found = {THEIRS: theirs.to(device).eval(), OURS: ours.to(device).eval()}
    for plain, half in ((OURS, HALF), (THEIRS, THEIR_HALF)):
        found[half] = copy.deepcopy(found[plain]).bfloat16()
    for plain, name in ((OURS, PACKED), (HALF, PACKED_HALF)):
        found[name] = copy.deepcopy(found[plain])
        pack_(found[name], rows=batch)
    for name, round_inputs in ((INT8, False), (BOTH_INT8, True)):
        found[name] = copy.deepcopy(ours)
        quantize_(found[name], round_inputs=round_inputs)
    for plain, name in COMPILED.items():
        if name in WAYS:
            found[name] = copy.deepcopy(found[plain])
            found[name].decoder.compile(dynamic=True)  # type: ignore[operator]  # the cache grows by one each step
    return found


def way(model: nn.Module, prompt: Tensor, new: int, use_cache: bool = True) -> Callable[[], Tensor]:
    """Continue the prompt greedily, by us or by them."""
    if isinstance(model, GPT2LMHeadModel):
        options = {"do_sample": False, "attention_mask": torch.ones_like(prompt), "use_cache": use_cache}
        return partial(model.generate, prompt, max_new_tokens=new, **options)
    return partial(generate, model, prompt, max_new_tokens=new, temperature=0, use_cache=use_cache)  # type: ignore[arg-type]


def logit_error(model: nn.Module, reference: nn.Module, tokens: Tensor) -> dict[str, float]:
    """How far the logits on these tokens are from the reference's: largest, mean, and the logits' own deviation."""
    expected = torch.cat([reference(rows) for rows in tokens.split(1)])
    difference = (torch.cat([model(rows).float() for rows in tokens.split(1)]) - expected).abs()
    return {"max": difference.max().item(), "mean": difference.mean().item(), "logits": expected.std().item()}


@torch.no_grad()
def measure(shape: str, batch: int, new: int, rounds: int, device: str, without_cache: bool) -> dict:
    """Tokens per second of each way, its ratio, the tokens it has in common with transformers, its logits' error."""
    torch.compiler.reset()  # what it knows of other shapes counts towards its limit, after which it gives up
    torch._dynamo.config.recompile_limit = 32
    models = make_models(shape, batch, device)
    prompt = torch.randint(SHAPES[shape][-1], (batch, PROMPT), device=device)
    work = {name: way(models[name], prompt, new) for name in WAYS}
    written = {name: fn()[:, PROMPT:] for name, fn in work.items()}
    taken = interleave(work, rounds, device)
    speeds = {name: batch * new / time for name, time in medians(taken).items()}
    found = {name: ratios(taken, reference)[name] for name, reference in WAYS.items()}
    tokens = torch.cat([prompt, written[OURS]], dim=1)[:, :512]
    row = {
        "shape": shape,
        "batch": batch,
        "new": new,
        "rounds": rounds,
        "tokens_per_second": speeds,
        "ratio": found,
        "same_tokens": {n: (written[n] == written[WAYS[n]]).float().mean().item() for n in WAYS if n != WAYS[n]},
        "logit_error": {n: logit_error(models[n], models[OURS], tokens) for n in WAYS if n.startswith(f"{OURS}, ")},
    }
    if without_cache:
        fewer = min(new, NEW_WITHOUT_CACHE.get(batch, new))
        row["without_cache"] = {
            "new": fewer,
            "tokens_per_second": {
                name: batch * fewer / seconds(way(models[name], prompt, fewer, use_cache=False), device)
                for name in (OURS, THEIRS)
            },
        }
    return row


def table(result: dict) -> str:
    """The result as a page of Markdown."""
    rows = result["rows"]
    where = rows[-1]["environment"]
    lines = [
        f"# Generation on {where['device']}",
        "",
        f"Greedy, {PROMPT} tokens of prompt, the same random weights everywhere: torch {where['torch']}, transformers "
        f"{where['transformers']}, Python {where['python']}, {where['threads']} thread(s). Tokens per second are "
        f"medians of interleaved rounds of {where['clock']}. A ratio is to transformers with its cache in the same "
        "round, in bfloat16 to theirs in bfloat16 and else to theirs in float32, with the 95 % interval of its median. "
        "Same tokens: those that equal what that one wrote; where a choice is close, one other token changes all that "
        "follow. Error: of the logits on what float32 wrote, up to 512 tokens, against float32; beside it the standard "
        "deviation of the logits. The ways without a cache ran once.",
        "",
        "| model | batch | new | way | tokens/s | ratio | 95 % interval | same tokens | largest error | mean error |"
        " logits |",
        "|---|--:|--:|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for row in rows:
        start = f"| {row['shape']} | {row['batch']}"
        for name, speed in row["tokens_per_second"].items():
            middle, low, high = row["ratio"][name]
            interval = f"{low:.2f} to {high:.2f}" if low < high else ""
            same = f"{row['same_tokens'][name]:.1%}" if name in row["same_tokens"] else ""
            error = row["logit_error"].get(name)
            errors = f"{error['max']:.3f} | {error['mean']:.4f} | {error['logits']:.2f}" if error else "| |"
            lines.append(
                f"{start} | {row['new']} | {name} | {speed:,.0f} | {middle:.2f} | {interval} | {same} | {errors} |"
            )
        slow = row.get("without_cache", {"tokens_per_second": {}})
        for name, speed in slow["tokens_per_second"].items():
            ratio = speed / row["tokens_per_second"][THEIRS]
            lines.append(f"{start} | {slow['new']} | {name}, no cache | {speed:,.0f} | {ratio:.3f} | | | | | |")
    lines += ["", "Measured by", ""]
    environments = {row["environment"]["command"]: row["environment"] for row in rows}
    lines += [f"- `{command}`:{shared_machine(e) or ' alone.'}" for command, e in environments.items()]
    return "\n".join(lines) + "\n"


def merged(rows: list[dict], device: str) -> list[dict]:
    """The rows of the record, these in place of those of the same model, batch and length."""
    path = RESULTS / f"generation-{device}.json"
    known = json.loads(path.read_text())["rows"] if path.exists() else []
    place = {(row["shape"], row["batch"], row["new"]): row for row in known if "environment" in row} | {
        (row["shape"], row["batch"], row["new"]): row for row in rows
    }
    order = list(SHAPES)
    return sorted(place.values(), key=lambda row: (order.index(row["shape"]), row["new"], row["batch"]))


def main() -> None:
    """Measure, write the results, and print the table."""
    import transformers

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a small model and few tokens; writes nothing")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=["cpu", "cuda"])
    parser.add_argument("--shapes", nargs="+", choices=list(SHAPES), default=["4x128", "6x384"])
    parser.add_argument("--batches", nargs="+", type=int, default=[1, 16])
    parser.add_argument("--new", type=int, default=256, help="how many tokens to write")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--compile", action="store_true", help="also with the decoder compiled by torch.compile")
    arguments = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    if arguments.quick:
        arguments.shapes, arguments.new, arguments.rounds = ["4x128"], 24, 3
    if arguments.compile:
        WAYS.update(dict.fromkeys(COMPILED.values(), THEIRS))
    rows = []
    for shape in arguments.shapes:
        for batch in arguments.batches:
            where = environment(arguments.device, transformers=transformers.__version__)
            without_cache = arguments.new <= 256 and shape != "gpt2"
            row = measure(shape, batch, arguments.new, arguments.rounds, arguments.device, without_cache)
            rows.append({**row, "environment": where})
            print(f"{shape}, batch {batch}", file=sys.stderr, flush=True)
    result = {"name": f"generation-{arguments.device}"}
    result["rows"] = rows if arguments.quick else merged(rows, arguments.device)
    page = table(result)
    if not arguments.quick:
        save(result, page)
    print(page)


if __name__ == "__main__":
    main()
