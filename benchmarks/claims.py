"""What the overview says about its two models, trained again with other seeds.

    python benchmarks/claims.py               five seeds, about three minutes; writes results/claims.*
    python benchmarks/claims.py --quick       one seed, writes nothing

The code is that of the notebook itself: its cells run once for each seed, which decides the sentences, the weights and
the batches. A sentence of the overview about a trained model must be true of every row.
"""

import argparse
import contextlib
import io
import re
import time
from pathlib import Path

import jupytext
import matplotlib
import torch
from harness import environment, save

matplotlib.use("Agg")
SOURCE = Path(__file__).parents[1] / "notebooks" / "sources" / "00_overview.py"
SEEDS = range(5)
SEEDED = {"sentences": "random.Random(0)", "numbers": "random.Random(0)", "train-translator": "torch.manual_seed(0)"}
BATCHES = "random.Random(step)"  # of the translator
LAST = "crossing-drawn"  # the last cell that a claim rests on
TRANSLATED = ["twenty seven", "twenty eight", "thirty seven"]


def cells() -> dict[str, str]:
    """The notebook's code by cell id, up to the last cell that is needed."""
    notebook = jupytext.reads(SOURCE.read_text(encoding="utf-8"), fmt="py:percent")
    code = {cell.metadata["id"]: cell.source for cell in notebook.cells if cell.cell_type == "code"}
    return {name: code[name] for name in list(code)[: list(code).index(LAST) + 1]}


def with_seed(seed: int) -> dict[str, object]:
    """Run the cells with another seed, and return what the overview speaks of."""
    names: dict = {"__name__": "overview"}
    said: dict[str, str] = {}
    began = time.process_time()
    for name, code in cells().items():
        if name in SEEDED:
            if SEEDED[name] not in code:
                raise ValueError(f"{SOURCE.name}: the cell {name} no longer holds {SEEDED[name]}")
            code = code.replace(SEEDED[name], SEEDED[name].replace("0", str(seed)))
            code = code.replace(BATCHES, f"random.Random(step + {1000 * seed})")
        if name == "train":
            torch.manual_seed(seed)
        with contextlib.redirect_stdout(io.StringIO()) as stream:
            exec(code, names)
        said[name] = stream.getvalue()
        if name == "look":  # the last place, in the second layer
            on_queen = names["rows"][4:, names["words"].index("queen")].max().item()
    shares = {name: [float(number) for number in re.findall(r"\d\.\d\d", text)] for name, text in said.items()}
    translated = [line.split(" → ")[1].strip() for line in said["crossing"].splitlines()]
    crossed = names["weights"]  # (T, S) of the cross-attention, for twenty seven
    return {
        "seed": seed,
        "written right": shares["written-counted"][0],
        "herself": shares["guess-answer"][0],
        "word before": shares["measured"][0],
        "nearest person": shares["measured"][1],
        "model": shares["measured"][2],
        "weight on queen": round(on_queen, 2),
        "subject hidden": shares["hidden"][0],
        "other hidden": shares["hidden"][1],
        "unseen numbers": shares["translated"][0],
        "27, 28, 37": "right" if translated == TRANSLATED else "wrong",
        "twenty on zwanzig": round(crossed[0, 2].item(), 2),
        "seven on sieben": round(crossed[1, 0].item(), 2),
        "CPU seconds": round(time.process_time() - began),
    }


def page(result: dict) -> str:
    """The table."""
    where, rows = result["environment"], result["seeds"]
    lines = [
        "# The claims of the overview, with other seeds",
        "",
        f"`{where['command']}`: {where['device']}, torch {where['torch']}. The cells of the notebook `00_overview`, "
        "run with other seeds for sentences, weights, batches. Shares of 200 sentences written, of 500 sentences "
        "and 100 numbers never read; the weights are those of the maps that the notebook draws.",
        "",
        "| " + " | ".join(rows[0]) + " |",
        "|" + "--:|" * len(rows[0]),
    ]
    lines += ["| " + " | ".join(str(value) for value in row.values()) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Train again for each seed, write the results, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one seed; writes nothing")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    where = environment()
    result = {
        "name": "claims",
        "environment": where,
        "seeds": [with_seed(seed) for seed in SEEDS[: 1 if quick else None]],
    }
    if not quick:
        save(result, page(result))
    print(page(result))


if __name__ == "__main__":
    main()
