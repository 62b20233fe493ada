"""What some heads of a pretrained model look at, for chapter 2: all-MiniLM-L6-v2, a small relative of BERT.

    python benchmarks/minilm_heads.py            needs the extra `pretrained`

Writes `coursework/records/measured/minilm-heads.json`: the maps of four heads on one sentence, and for each of the 72
heads the share of its attention that goes to the token before, to the one after, to the first and to the last, over the
twelve sentences of `benchmarks/minilm.py`.
"""

import json

import torch
from minilm import SENTENCES, checkpoint, tokens_of
from tokenizers import Tokenizer

from course_lib.attention import record_weights
from course_lib.files import write_atomic
from course_lib.variants import BERT
from coursework.records.record import MEASURED

SENTENCE = "The queen near the king paints herself."
SHOWN = ((1, 3), (2, 9), (5, 6), (6, 3))  # layer and head, counted from one


def main() -> None:
    """Look at the heads and write the record."""
    folder = checkpoint()
    model = BERT.from_pretrained(folder).eval()
    shares = {name: torch.zeros(6, 12) for name in ("previous", "next", "first", "last")}
    for sentence in SENTENCES:
        with torch.no_grad(), record_weights(model) as maps:
            model.encode(tokens_of(folder, [sentence]))
        weights = torch.cat(list(maps.values()))  # (layers, H, T, T)
        shares["previous"] += weights.diagonal(-1, -2, -1).mean(-1) / len(SENTENCES)
        shares["next"] += weights.diagonal(1, -2, -1).mean(-1) / len(SENTENCES)
        shares["first"] += weights[..., 0].mean(-1) / len(SENTENCES)
        shares["last"] += weights[..., -1].mean(-1) / len(SENTENCES)
    with torch.no_grad(), record_weights(model) as maps:
        model.encode(tokens_of(folder, [SENTENCE]))
    weights = torch.cat(list(maps.values()))
    record = {
        "command": "python benchmarks/minilm_heads.py",
        "sentence": SENTENCE,
        "tokens": Tokenizer.from_file(str(folder / "tokenizer.json")).encode(SENTENCE).tokens[: weights.size(-1)],
        "maps": {f"{layer}.{head}": _rounded(weights[layer - 1, head - 1]) for layer, head in SHOWN},
        "shares": {name: _rounded(table) for name, table in shares.items()},
    }
    write_atomic(MEASURED / "minilm-heads.json", json.dumps(record) + "\n")
    print({name: round(table.max().item(), 2) for name, table in shares.items()})


def _rounded(table: torch.Tensor) -> list[list[float]]:
    return [[round(value, 3) for value in row] for row in table.tolist()]


if __name__ == "__main__":
    main()
