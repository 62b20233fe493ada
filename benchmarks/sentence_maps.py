"""What one head of a real model reads, in two sentences that differ in one word: all-MiniLM-L6-v2.

    python benchmarks/sentence_maps.py        needs the extra `pretrained`

Chapter 1 shows the record, and checks it where the extra is installed.
"""

import json

import torch
from harness import environment
from minilm import checkpoint
from tokenizers import Tokenizer

from course_lib.attention import record_weights
from course_lib.files import write_atomic
from course_lib.variants import BERT
from coursework.records.record import MEASURED

SENTENCES = {
    "tired": "The animal did not cross the street because it was too tired.",
    "wide": "The animal did not cross the street because it was too wide.",
}
LAYER, HEAD = 5, 11  # the last of both, counted from 0


def main() -> None:
    """Run the model over the sentences and write the weights of one head, and what every head reads for "it"."""
    folder = checkpoint()
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    model = BERT.from_pretrained(folder)
    found = {}
    for name, sentence in SENTENCES.items():
        read = tokenizer.encode(sentence)
        with torch.no_grad(), record_weights(model) as maps:
            model.encode(torch.tensor([read.ids]))
        weights = torch.cat(list(maps.values()))  # (layers, H, T, T)
        it = read.tokens.index("it")
        found[name] = {
            "sentence": sentence,
            "tokens": read.tokens,
            "weights": [[round(value, 4) for value in row] for row in weights[LAYER, HEAD].tolist()],
            "it": [[round(value, 4) for value in row] for row in weights[:, :, it].flatten(0, 1).tolist()],
        }
    record = {"name": "sentence-maps-cpu", "model": "all-MiniLM-L6-v2", "layer": LAYER, "head": HEAD}
    record |= {"environment": environment(), "maps": found}
    write_atomic(MEASURED / "sentence-maps-cpu.json", json.dumps(record) + "\n")
    for name, one in found.items():
        places = [one["tokens"].index(word) for word in ("animal", "street")]
        it = one["tokens"].index("it")
        print(name, "of this head:", [one["weights"][it][place] for place in places])
        print("   heads with more on animal, on street:", [sum(row[a] > row[b] for row in one["it"]) for a, b in
              (places, places[::-1])], "over one half on animal:", sum(row[places[0]] > 0.5 for row in one["it"]),
              "on street:", sum(row[places[1]] > 0.5 for row in one["it"]))  # fmt: skip


if __name__ == "__main__":
    main()
