"""Generation: tokens per second with and without a cache, against `generate` of transformers on the same weights.

    python benchmarks/generation.py [--quick] [--device cpu|cuda] [--shapes 6x384 gpt2] [--rounds 5]

A GPT-2 with random weights is saved by transformers and opened by `course_lib.variants.GPT`. Both continue the same
prompt of 16 tokens by 256, greedily, and must write the same tokens. In each round every way runs once, in an order
that rotates; a ratio is taken within the round. The ways without a cache, which are many times slower, run once.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable
from functools import partial

import torch
from harness import environment, interleave, medians, ratios, save, shared_machine
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel

from course_lib.generation import generate
from course_lib.variants import GPT

SHAPES = {  # layers, width, heads, positions, vocabulary
    "4x128": (4, 128, 4, 512, 65),
    "6x384": (6, 384, 6, 512, 65),
    "gpt2": (12, 768, 12, 1024, 50257),
}
PROMPT, NEW = 16, 256
OURS, THEIRS = "ours, cache", "transformers, cache"


def make_models(shape: str, device: str) -> tuple[GPT, GPT2LMHeadModel]:
    """The same random weights twice; large enough that greedy choices are clear."""
    layers, width, heads, positions, vocabulary = SHAPES[shape]
    torch.manual_seed(0)
    sizes = {"n_layer": layers, "n_embd": width, "n_head": heads, "n_positions": positions, "vocab_size": vocabulary}
    theirs = GPT2LMHeadModel(
        GPT2Config(**sizes, initializer_range=0.1, bos_token_id=0, eos_token_id=None, pad_token_id=0)
    )
    with tempfile.TemporaryDirectory() as folder:
        theirs.save_pretrained(folder)
        ours = GPT.from_pretrained(folder)
    return ours.to(device).eval(), theirs.to(device).eval()


def ways(ours: GPT, theirs: GPT2LMHeadModel, prompt: Tensor, new: int) -> dict[str, Callable[[], Tensor]]:
    """Every way to continue the prompt."""
    options = {"max_new_tokens": new, "do_sample": False, "attention_mask": torch.ones_like(prompt)}
    return {
        OURS: partial(generate, ours, prompt, max_new_tokens=new, temperature=0),
        THEIRS: partial(theirs.generate, prompt, **options),
        "ours, no cache": partial(generate, ours, prompt, max_new_tokens=new, temperature=0, use_cache=False),
        "transformers, no cache": partial(theirs.generate, prompt, use_cache=False, **options),
    }


def measure(shape: str, batch: int, rounds: int, new: int, device: str) -> dict:
    """Tokens per second of each way, and how many times as fast as transformers with its cache it is."""
    ours, theirs = make_models(shape, device)
    prompt = torch.randint(SHAPES[shape][-1], (batch, PROMPT), device=device)
    work = ways(ours, theirs, prompt, new)
    with torch.no_grad():
        written = [work[name]() for name in (OURS, THEIRS)]
        agree = (written[0] == written[1]).float().mean().item()
        taken = interleave({name: work[name] for name in (OURS, THEIRS)}, rounds, device)
        found = ratios(taken, THEIRS)
        if shape != "gpt2":
            slow = interleave({n: fn for n, fn in work.items() if "no cache" in n}, 1, device)
            for name, times in slow.items():
                taken[name] = times
                found[name] = [medians(taken)[THEIRS] / times[0]] * 3
    return {
        "shape": shape,
        "batch": batch,
        "rounds": rounds,
        "tokens_that_agree": agree,
        "tokens_per_second": {name: batch * new / time for name, time in medians(taken).items()},
        "ratio": found,
    }


def table(result: dict) -> str:
    """The result as a page of Markdown."""
    where = result["environment"]
    lines = [
        f"# Generation on {where['device']}",
        "",
        f"`{where['command']}`: torch {where['torch']}, transformers {where['transformers']}, "
        f"Python {where['python']}, {where['threads']} thread(s), {where['dtype']}. {PROMPT} tokens of prompt, "
        f"{result['new']} new ones, greedy, the same weights. Tokens per second are medians of interleaved rounds of "
        f"{where['clock']}; a ratio is to transformers with its cache in the same round, with the 95 % interval of its "
        f"median; the ways without a cache ran once.{shared_machine(where)}",
        "",
        "| model | batch | way | tokens/s | ratio | 95 % interval | same tokens |",
        "|---|--:|---|--:|--:|--:|--:|",
    ]
    for row in result["rows"]:
        for name, speed in row["tokens_per_second"].items():
            middle, low, high = row["ratio"][name]
            interval = f"{low:.2f} to {high:.2f}" if low < high else ""
            same = f"{row['tokens_that_agree']:.1%}" if name == OURS else ""
            lines.append(
                f"| {row['shape']} | {row['batch']} | {name} | {speed:,.0f} | {middle:.3g} | {interval} | {same} |"
            )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure, write the results, and print the table."""
    import transformers

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a small model and few tokens; writes nothing")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=["cpu", "cuda"])
    parser.add_argument("--shapes", nargs="+", choices=list(SHAPES), default=["4x128", "6x384"])
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    new = 24 if arguments.quick else NEW
    where = environment(arguments.device, dtype="float32", transformers=transformers.__version__)
    result: dict = {"name": f"generation-{arguments.device}", "environment": where, "new": new, "rows": []}
    for shape in ["4x128"] if arguments.quick else arguments.shapes:
        for batch in (1, 16):
            result["rows"].append(measure(shape, batch, arguments.rounds, new, arguments.device))
            print(f"{shape}, batch {batch}", file=sys.stderr, flush=True)
    page = table(result)
    if not arguments.quick:
        save(result, page)
    print(page)


if __name__ == "__main__":
    main()
