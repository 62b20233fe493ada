"""How long attention takes as its text grows, and a race with a recurrent network, on one thread.

    python benchmarks/attention_clock.py      about a minute; writes the record that the lab on costs shows

Milliseconds of processor time, the fastest of a few runs.
"""

import functools
import json
import math
import time
from collections.abc import Callable

import torch
from harness import environment
from torch import Tensor, nn

from course_lib.attention import SelfAttention
from course_lib.attention import scaled_dot_product_attention as sdpa
from course_lib.files import write_atomic
from coursework.records.record import MEASURED

NAME = "attention-clock-cpu"
Rows = list[list[float]]


def milliseconds(run: Callable[[], object], repeats: int = 5) -> float:
    """The fastest of a few runs, in milliseconds of processor time."""
    times = []
    for _ in range(repeats):
        start = time.process_time()
        run()
        times.append(1000 * (time.process_time() - start))
    return round(min(times), 3)


def loops(query: Rows, key: Rows, value: Rows) -> Rows:
    """Attention as plain Python loops over lists of rows."""
    outputs = []
    for q in query:
        scores = [sum(a * b for a, b in zip(q, k, strict=True)) / math.sqrt(len(q)) for k in key]
        top = max(scores)
        powers = [math.exp(score - top) for score in scores]
        total = sum(powers)
        columns = zip(*value, strict=True)
        outputs.append([sum(w * v for w, v in zip(powers, column, strict=True)) / total for column in columns])
    return outputs


def by_length() -> dict[str, dict[int, float]]:
    """One head of width 64, forward, at several lengths."""
    found: dict[str, dict[int, float]] = {"explicit": {}, "fused": {}, "Python loops": {}}
    for n in (256, 512, 1024, 2048, 4096):
        qkv = torch.randn(3, 1, 1, n, 64)
        for name in ("explicit", "fused"):
            found[name][n] = milliseconds(functools.partial(sdpa, *qkv, backend=name))
    for n in (32, 64, 128):
        rows = [t.tolist() for t in torch.randn(3, n, 64)]
        found["Python loops"][n] = milliseconds(functools.partial(loops, *rows), 3)
    return found


def race() -> dict[str, dict[int, float]]:
    """Batches of 16 texts of width 64, one pass forward and back."""
    cell, lstm = nn.LSTMCell(64, 64), nn.LSTM(64, 64, batch_first=True)

    def lstm_loop(x: Tensor) -> Tensor:
        h = c = torch.zeros(x.size(0), 64)
        outputs = []
        for token in x.unbind(dim=1):
            h, c = cell(token, (h, c))
            outputs.append(h)
        return torch.stack(outputs, dim=1)

    readers: dict[str, Callable[[Tensor], Tensor]] = {
        "LSTM": lambda x: lstm(x)[0],
        "LSTM as a Python loop": lstm_loop,
        "one head of attention": SelfAttention(64),
        "Transformer layer": nn.TransformerEncoderLayer(64, 4, 256, dropout=0.0, batch_first=True),
    }
    inputs = {T: torch.randn(16, T, 64) for T in (32, 128, 512)}
    return {
        name: {T: milliseconds(lambda read=read, x=x: read(x).sum().backward()) for T, x in inputs.items()}
        for name, read in readers.items()
    }


def main() -> None:
    """Measure, write the record and print it."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    record = {"name": NAME, "environment": environment(), "by length": by_length(), "race": race()}
    write_atomic(MEASURED / f"{NAME}.json", json.dumps(record, indent=1) + "\n")
    print(json.dumps({name: record[name] for name in ("by length", "race")}, indent=1))


if __name__ == "__main__":
    main()
