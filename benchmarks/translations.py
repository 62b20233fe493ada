"""How well `course train translate` translates what it never saw, and what that takes.

    python benchmarks/translations.py numbers|multi30k [--out FOLDER]

"numbers" are number words and dates, German to English, from nothing. "multi30k" are captions of pictures, with the
same architecture by the same command; the files are downloaded, or lie in the folder that COURSE_DATA names. A run
that was interrupted goes on. Time is that of the CPU, one thread, tokenizer, evaluations and test included.
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from harness import environment, save

from course_lib.training import RunFolder
from course_lib.training.logs import read_log
from coursework.corpora import load_pairs

COMMANDS = {
    "numbers": "--plain --bf16 --device cpu",
    "multi30k": "--plain --data multi30k --device cpu --steps 700 --learning-rate 0.003 --set data.train=0 "
    "--set data.validation=0 --set data.test=0 --set tokenizer.vocab_size=4000 --set batches.max_tokens=2048 "
    "--set training.optimizer=muon --set training.evaluate_every=100 --set training.log_every=20",
}
NAMES = {"numbers": "translate-cpu", "multi30k": "translate-multi30k"}
TITLES = {
    "numbers": "Translating numbers and dates, from nothing",
    "multi30k": "Translating captions of pictures (Multi30k), from nothing",
}


def main() -> None:
    """Train, or go on, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pairs", choices=COMMANDS)
    parser.add_argument("--out", type=Path, help="folder of the run [runs/NAME]")
    options = parser.parse_args()
    where = environment() | {"command": f"python benchmarks/translations.py {options.pairs}"}  # wherever its run lies
    folder = RunFolder(options.out or Path("runs") / NAMES[options.pairs])
    arguments = ["train", "translate", *shlex.split(COMMANDS[options.pairs]), "--out", str(folder), "--resume"]
    subprocess.run([sys.executable, "-m", "coursework.cli", *arguments], check=True)
    found = json.loads(folder.results.read_text())
    found["command"] = f"course train translate {COMMANDS[options.pairs]}"
    recipe = json.loads(folder.recipe.read_text())
    log = read_log(folder.log)
    result = {"name": NAMES[options.pairs], "environment": where, **found, "data": recipe["data"]}
    result |= sizes(recipe) | {"held_out": [record for record in log if "evaluation" in record]}
    save(result, page(TITLES[options.pairs], result))


def sizes(recipe: dict[str, Any]) -> dict[str, int]:
    """How many pairs there were to train on, and how many sources of the test occur among them."""
    data, seed = recipe["data"], recipe["training"].get("seed", 0)
    languages = {"source": data["source"], "target": data["target"], "seed": seed}
    train, test = (load_pairs(data["name"], split, data[split] or None, **languages) for split in ("train", "test"))
    known = {pair.source for pair in train}
    return {"training_pairs": len(train), "test_sources_in_training": sum(pair.source in known for pair in test)}


def page(title: str, r: dict[str, Any]) -> str:
    """The table, the curve in numbers, and the first mistakes."""
    where = r["environment"]
    a_second = round(r["tokens"] / r["cpu_seconds"])
    exact, nearest = (f"{100 * r[name]:.1f} %" for name in ("exact_match", "exact_match_of_the_nearest_example"))
    lines = [f"# {title}", "", f"`{r['command']}`, by `{where['command']}`", ""]
    lines += [
        f"German to English; {r['parameters']:,} parameters (2 + 2 layers, 128 wide), byte pairs learned from the "
        f"training part, {r['training_pairs']:,} pairs to train on. Of the {r['test_examples']:,} sources of the test, "
        f"{r['test_sources_in_training']} occur in training. {where['device']}, one thread.",
        "",
        "| | exact match | BLEU |",
        "|---|---|---|",
        f"| the model, most likely token at each step | {exact} | {r['bleu']:.1f} |",
        f"| the translation of the most similar training source | {nearest} | {r['bleu_of_the_nearest_example']:.1f} |",
        "",
        f"{r['cpu_seconds']:,.0f} s of CPU time in all, tokenizer, evaluations and test included; {r['tokens']:,} "
        f"target tokens, so {a_second:,} a second of CPU time. The clock showed {r['seconds']:,.0f} s, of which "
        f"{r['seconds_until_trained']:,.0f} s until it was trained: {r['tokens_per_second']:,} tokens a second. "
        f"Peak memory {r['peak_memory_mb']:,} MB. The load of the machine was {where['load_before']:.1f} before the "
        "run: other work slows the clock, and hardly the CPU time.",
        "",
        f"Mistakes, the first of {round((1 - r['exact_match']) * r['test_examples'])}:",
        "",
        "| source | right | the model |",
        "|---|---|---|",
        *(f"| {' | '.join(mistake)} |" for mistake in r["first_wrong"]),
        "",
        "| step | tokens | training loss, smoothed | held-out loss |",
        "|---|---|---|---|",
    ]
    lines += [f"| {h['step']} | {h['tokens']:,} | {h['loss']:.3f} | {h['evaluation']:.4f} |" for h in r["held_out"]]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
