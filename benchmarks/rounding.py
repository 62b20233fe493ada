"""Rounded weights by what they cost: bytes, held-out loss and speed of trained models, from 32 bits to 2.

    python benchmarks/rounding.py [--quick] [--runs FOLDER] [--seeds 5]

The course's language model of tiny Shakespeare, trained from several seeds, and its translator of numbers and dates are
rounded by `course_lib.variants.int8.quantize_` and judged on text that they never saw, all formats on the same. With
the extra `pretrained`, the sentence encoder all-MiniLM-L6-v2 is judged by how well the similarities of its sentences
agree with the unrounded ones. Runs that lie in the folder [runs/rounding] are opened; what is missing is trained first,
which takes about 7 minutes of CPU time.
"""

import argparse
import copy
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import matplotlib.pyplot as plt
import torch
from harness import environment, interleave, medians, save, save_picture, shared_machine
from matplotlib.figure import Figure
from torch import Tensor, nn

from course_lib.data import Tokenizer, load_tokenizer
from course_lib.generation import generate
from course_lib.training import RunFolder, tasks
from course_lib.variants import BERT, from_pretrained
from course_lib.variants.int8 import quantize_
from course_lib.variants.minilm import minilm_folder
from coursework.commands.measures import translate_texts
from coursework.commands.tasks import LanguageTask, TranslateTask
from coursework.pictures.style import palette, styled

FLOAT, HALF, INPUTS = "float32", "bfloat16", "8 bits, inputs too"
FORMATS: dict[str, dict[str, Any]] = {  # name -> what `quantize_` is told
    FLOAT: {},
    HALF: {},
    "8 bits": {"bits": 8},
    INPUTS: {"bits": 8, "round_inputs": True},
    "8 bits, groups of 32": {"bits": 8, "group": 32},
    "4 bits": {"bits": 4},
    "4 bits, groups of 64": {"bits": 4, "group": 64},
    "4 bits, groups of 32": {"bits": 4, "group": 32},
    "3 bits": {"bits": 3},
    "3 bits, groups of 32": {"bits": 3, "group": 32},
    "2 bits": {"bits": 2},
    "2 bits, groups of 32": {"bits": 2, "group": 32},
}
COMMANDS = {
    "lm": "lm --data tinyshakespeare --device cpu",
    "translate": "translate --device cpu --steps 700",
}
CHARACTERS, TESTS = 32_768, 500  # of held-out text; pairs to translate
PROMPT, NEW = 16, 64


def trained(kind: str, seed: int, runs: Path) -> tuple[nn.Module, Tokenizer, RunFolder]:
    """A model of the course's own commands, its tokenizer and its folder; trained now if it is not there."""
    folder = RunFolder(runs / f"{kind}{seed}")
    if not folder.results.exists():
        arguments = ["train", *shlex.split(COMMANDS[kind]), "--seed", str(seed), "--out", str(folder), "--resume"]
        subprocess.run([sys.executable, "-m", "coursework.cli", *arguments], check=True, stdout=sys.stderr)
    return from_pretrained(folder.path).eval(), load_tokenizer(folder.path), folder


def rounded(model: nn.Module, name: str) -> nn.Module:
    """A copy of a model in one of the formats."""
    found = copy.deepcopy(model)
    if name == HALF:
        return found.bfloat16()
    if name != FLOAT:
        quantize_(found, **FORMATS[name])
    return found


def n_bytes(model: nn.Module) -> int:
    """Bytes of all weights, what is shared counted once."""
    return sum({t.data_ptr(): t.nbytes for t in model.state_dict().values()}.values())


def bits(model: nn.Module, name: str) -> float:
    """Bits of a weight of a linear map in a format, steps included."""
    maps = {part: map_ for part, map_ in model.named_modules() if isinstance(map_, nn.Linear)}
    small = rounded(model, name)
    size = sum(
        tensor.nbytes
        for part in maps
        for key, tensor in small.get_submodule(part).state_dict().items()
        if key != "bias"
    )
    return 8 * size / sum(map_.weight.numel() for map_ in maps.values())


@torch.no_grad()
def loss(model: nn.Module, task: Any, batches: list[dict[str, Tensor]]) -> float:
    """Nats per token."""
    parts = [task.loss(model, batch) for batch in batches]
    return float(sum(total for total, _ in parts) / sum(count for _, count in parts))


def of_language_model(runs: Path, seed: int, options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """For each format the held-out loss; of the first seed also bytes, bits of a weight, and tokens per second."""
    model, tokenizer, folder = trained("lm", seed, runs)
    recipe = json.loads(folder.recipe.read_text())
    task = LanguageTask({table: recipe[table] for table in ("data", "batches")})
    task.load(tokenizer)
    in_a_batch = recipe["batches"]["length"] * recipe["batches"]["batch_size"]
    held_out = list(islice(task.validation, options.characters // in_a_batch))
    models = {name: rounded(model, name) for name in FORMATS}
    found = {name: {"loss": loss(small, tasks.LanguageModelling(), held_out)} for name, small in models.items()}
    if seed:
        return found
    prompt = held_out[0]["tokens"][:1, :PROMPT]
    work: dict[str, Callable[[], Any]] = {
        name: partial(generate, small, prompt, max_new_tokens=NEW, temperature=0)  # type: ignore[arg-type]
        for name, small in models.items()
    }
    taken = medians(interleave(work, options.rounds))
    for name, small in models.items():
        found[name] |= {"bytes": n_bytes(small), "bits": bits(model, name), "tokens_per_second": NEW / taken[name]}
    return found


def of_translator(runs: Path, options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """For each format bytes, held-out loss, and the share of exact translations."""
    model, tokenizer, folder = trained("translate", 0, runs)
    recipe = json.loads(folder.recipe.read_text())
    task = TranslateTask({table: recipe[table] for table in ("data", "batches")})
    task.load(tokenizer)
    held_out, test = list(task.validation), task.pairs["test"][: options.tests]
    found = {}
    for name in FORMATS:
        small = rounded(model, name)
        written = translate_texts(small, tokenizer, [pair.source for pair in test])
        exact = sum(text == pair.target for text, pair in zip(written, test, strict=True)) / len(test)
        nats = loss(small, tasks.Translation(pad_id=tokenizer.pad_id), held_out)
        found[name] = {"loss": nats, "exact": exact, "bytes": n_bytes(small), "bits": bits(model, name)}
    return found


@torch.no_grad()
def of_minilm() -> dict[str, dict[str, float]]:
    """For each format bytes, and correlation and largest difference of the similarities with those in float32."""
    from minilm import SENTENCES, tokens_of

    folder = minilm_folder()
    if folder is None:
        return {}
    model, tokens = BERT.from_pretrained(folder).eval(), tokens_of(folder, SENTENCES)
    first, second = torch.triu_indices(len(SENTENCES), len(SENTENCES), offset=1)
    found, reference = {}, None
    for name in FORMATS:
        small = rounded(model, name)
        vectors = small.embed_sentences(tokens).float()  # type: ignore[operator]
        similar = (vectors @ vectors.T)[first, second]
        reference = similar if reference is None else reference
        together = torch.corrcoef(torch.stack([reference, similar]))[0, 1].item()
        found[name] = {
            "correlation": together,
            "largest": (similar - reference).abs().max().item(),
            "bytes": n_bytes(small),
            "bits": bits(model, name),
        }
    return found


def worse(rows: dict[str, list[float]], name: str) -> list[float]:
    """By how much each seed's loss is above its own in float32."""
    return [found - plain for found, plain in zip(rows[name], rows[FLOAT], strict=True)]


def picture(result: dict) -> Figure:
    """Loss and agreement against bits."""
    with styled():
        figure, axes = plt.subplots(1, 3, figsize=(9.6, 3.4))
        series = [("one step per output", palette.series[0], "o", ""), ("groups of 32", palette.series[1], "s", "32")]
        for label, colour, mark, group in series:
            names = [
                name for name in FORMATS if name.endswith("bits" if not group else f"groups of {group}") or name == HALF
            ]
            axes[0].set_title("Language model")
            axes[0].set_ylabel("held-out loss, nats per character")
            losses = result["lm"]["losses"]
            x = [result["lm"]["bits"][name] for name in names]
            middle = [sum(losses[name]) / len(losses[name]) for name in names]
            axes[0].plot(x, middle, marker=mark, color=colour, label=label)
            axes[0].fill_between(
                x, [min(losses[n]) for n in names], [max(losses[n]) for n in names], color=colour, alpha=0.15, lw=0
            )
            panels = [(1, "translator", "loss", "Translator", "held-out loss, nats per token")]
            panels += [(2, "minilm", "correlation", "Sentence encoder", "correlation with float32")]
            for place, kind, measure, title, said in panels:
                rows = result[kind]
                axes[place].set_title(title)
                axes[place].set_ylabel(said)
                if rows:
                    values = [rows[name][measure] for name in names]
                    axes[place].plot([rows[name]["bits"] for name in names], values, marker=mark, color=colour)
        for ax in axes:
            ax.set_xscale("log", base=2)
            ax.set_xticks([2, 3, 4, 8, 16], ["2", "3", "4", "8", "16"])
            ax.minorticks_off()
            ax.set_xlabel("bits of a weight, steps included")
        axes[0].legend()
    return figure


def page(result: dict) -> str:
    """The result as a page of Markdown."""
    where, lm, translator, minilm = (result[name] for name in ("environment", "lm", "translator", "minilm"))
    losses = lm["losses"]

    shown = [FLOAT, "8 bits", "4 bits, groups of 32", "2 bits, groups of 32"]
    mean = sum(losses[FLOAT]) / len(losses[FLOAT])
    extra = [sum(worse(losses, name)) / len(losses[name]) for name in shown[1:]]
    spread = max(losses[FLOAT]) - min(losses[FLOAT])
    lines = [
        "# What rounded weights cost",
        "",
        "Weights of 8 bits cost these models nothing that can be told. Those of 4 bits in groups of 32 cost little, "
        "and those of 2 bits clearly more. A model that is sure of what it writes, as the translator is, writes nearly "
        "the same even then.",
        "",
        f"| | {' | '.join(shown)} |",
        "|---|--:|--:|--:|--:|",
        f"| language model, held-out loss in nats per character | {mean:.3f} | "
        + " | ".join(f"{more:+.4f}" for more in extra)
        + " |",
        "| translator, held-out loss in nats per token | "
        + " | ".join(f"{translator[name]['loss']:.3f}" for name in shown)
        + " |",
        "| translator, exact translations | " + " | ".join(f"{translator[name]['exact']:.1%}" for name in shown) + " |",
    ]
    if minilm:
        together = (f"{minilm[name]['correlation']:.4f}" for name in shown)
        lines.append(f"| sentence encoder, correlation of its similarities with float32 | {' | '.join(together)} |")
    lines += [
        "",
        f"For comparison: two seeds of the language model differ by up to {spread:.3f} in float32.",
        "",
        "![Three panels against the bits of a weight, from 16 down to 2: the held-out losses of the language model and "
        "of the translator, and the agreement of similarities. The curves are level down to 8 bits, bend at 4 and 3, "
        "and turn away at 2, where those with a step for each 32 weights stay nearer than those with one for each "
        f"output.]({result['name']}.svg)",
        "",
        "The weights of all linear maps are rounded to the nearest level; tables of tokens, norms and biases stay. A "
        "step belongs to all weights of an output, or to a group of neighbours among them, and is stored in bfloat16: "
        "half a bit more for each weight in groups of 32. Everything is measured on text that no training saw.",
        "",
        f"## The language model, {len(lm['seeds'])} seeds",
        "",
        "| format | bits of a weight | bytes | held-out loss (least to greatest) | more than float32 | tokens/s |"
        " times float32 |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for name in FORMATS:
        low, high = min(losses[name]), max(losses[name])
        extra, speed = worse(losses, name), lm["tokens_per_second"][name]
        lines.append(
            f"| {name} | {lm['bits'][name]:.2f} | {lm['bytes'][name]:,} | {sum(losses[name]) / len(extra):.4f} "
            f"({low:.4f} to {high:.4f}) | {sum(extra) / len(extra):+.4f} ({min(extra):+.4f} to {max(extra):+.4f}) | "
            f"{speed:,.0f} | {speed / lm['tokens_per_second'][FLOAT]:.2f} |"
        )
    lines += [
        "",
        f"Speed is that of writing {NEW} characters after {PROMPT}, one text at a time. So small a model waits for "
        "Python more than for its weights; [the page on generation](generation-cpu.md) has larger ones. What torch has "
        "no kernel for is made float in each call, which is slow: 8 bits in groups, and 3 and 2 bits.",
        "",
        "## The translator",
        "",
        "| format | bits of a weight | bytes | held-out loss, nats per token | exact translations |",
        "|---|--:|--:|--:|--:|",
    ]
    lines += [
        f"| {name} | {row['bits']:.2f} | {row['bytes']:,} | {row['loss']:.4f} | {row['exact']:.1%} |"
        for name, row in translator.items()
    ]
    if minilm:
        lines += [
            "",
            "## The sentence encoder all-MiniLM-L6-v2",
            "",
            "Similarities of the 66 pairs of twelve sentences, beside those in float32. Half of its bytes are its table"
            " of tokens, which stays. Rounded inputs cost it more than rounded weights: a whole call has one step.",
            "",
            "| format | bits of a weight | bytes | correlation | largest difference |",
            "|---|--:|--:|--:|--:|",
        ]
        lines += [
            f"| {name} | {row['bits']:.2f} | {row['bytes']:,} | {row['correlation']:.5f} | {row['largest']:.4f} |"
            for name, row in minilm.items()
        ]
    lines += [
        "",
        "## How to repeat it",
        "",
        f"`python benchmarks/rounding.py`; {where['device']}, {where['threads']} thread(s), torch {where['torch']}, "
        f"{where['clock']}.{shared_machine(where)} The models are those of `course train {COMMANDS['lm']}`, with "
        f"`--seed` 0 to {len(lm['seeds']) - 1}, and of `course train {COMMANDS['translate']}`. The language model "
        f"reads {result['characters']:,} held-out characters, and the translator {result['tests']} sources.",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Train or open, round, measure, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one seed and little text; writes nothing")
    parser.add_argument("--runs", type=Path, default=Path("runs/rounding"), help="folder of the trained models")
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    options.characters, options.tests, options.rounds = (4096, 20, 1) if options.quick else (CHARACTERS, TESTS, 5)
    where = environment() | {"command": "python benchmarks/rounding.py"}  # wherever its runs lie
    seeds = range(1 if options.quick else options.seeds)
    each = []
    for seed in seeds:
        each.append(of_language_model(options.runs, seed, options))
        print(f"language model, seed {seed}", file=sys.stderr, flush=True)
    result = {
        "name": "rounding-cpu",
        "environment": where,
        "characters": options.characters,
        "tests": options.tests,
        "lm": {
            "seeds": list(seeds),
            "losses": {name: [found[name]["loss"] for found in each] for name in FORMATS},
            **{m: {n: each[0][n][m] for n in FORMATS} for m in ("bits", "bytes", "tokens_per_second")},
        },
        "translator": of_translator(options.runs, options),
        "minilm": of_minilm(),
    }
    text = page(result)
    if not options.quick:
        save(result, text)
        save_picture(result["name"], picture(result))
    print(text)


if __name__ == "__main__":
    main()
