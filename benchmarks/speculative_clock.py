"""How much speculative decoding gains by the clock: a small GPT alone, and the same one with a table that guesses.

    python benchmarks/speculative_clock.py      about three minutes; writes the record that chapter 5 shows

Two GPTs are trained on the text of chapter 5: the small one of the chapter, and one of 6 layers of width 256. Each
continues four prompts greedily by 96 characters, with its cache, one text at a time, on one thread: alone, and with a
table of followers that guesses 2, 4 or 8 characters before each check. The least processor time of three rounds, which
says nothing about training: one seed each.
"""

import functools
import json
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from experiments.chapter_05 import text, trained_gpt, windows
from harness import environment
from torch import Tensor

from course_lib.config import TransformerConfig
from course_lib.files import write_atomic
from course_lib.generation import generate, speculative_generate
from course_lib.transformer import LanguageModel
from coursework.records.record import MEASURED

NAME = "speculative-clock-cpu"
NEW, GUESSES, ROUNDS = 96, (2, 4, 8), 3


def wide_gpt(steps: int = 250, peak: float = 2e-3) -> LanguageModel:
    """Train a GPT of about five million weights for a short while."""
    training, _, alphabet = text()
    torch.manual_seed(0)
    model = LanguageModel(
        TransformerConfig(
            vocab_size=len(alphabet), d_model=256, n_heads=4, n_decoder_layers=6, n_encoder_layers=0,
            positions="rotary", norm_place="pre", activation="gelu", scale_embeddings=False, dropout=0.0,
            init="normal", init_std=0.03,
        )
    )  # fmt: skip
    generator = torch.Generator().manual_seed(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=peak, betas=(0.9, 0.95), weight_decay=0.01)
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = peak * min(1, (step + 1) / 20) * (1 - step / steps)
        inputs, targets = windows(training, 6, generator)
        loss = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


def clocked(run: Callable[[], object]) -> float:
    """Processor time of one run."""
    start = time.process_time()
    run()
    return time.process_time() - start


def measure(model: LanguageModel) -> dict[str, dict[str, float]]:
    """Characters per second, and characters for each pass of the GPT, by way of writing."""
    training, held_out, alphabet = text()
    V = len(alphabet)
    followers = (1.0 + torch.bincount(V * training[:-1] + training[1:], minlength=V * V).view(V, V)).log()

    def draft(tokens: Tensor) -> Tensor:
        return followers[tokens]  # (B, T) -> (B, T, V): a model without any layer

    prompts = windows(held_out, 4, torch.Generator().manual_seed(5))[0][:, :16]
    ways: dict[str, Callable[[Tensor], object]] = {
        "alone": functools.partial(generate, model, max_new_tokens=NEW, temperature=0)
    }
    for n in GUESSES:
        ways[f"{n} guesses"] = functools.partial(
            speculative_generate, model, draft, max_new_tokens=NEW, n_guesses=n, temperature=0
        )
    spent, passes = {name: [0.0] * ROUNDS for name in ways}, dict.fromkeys(ways, len(prompts) * NEW)
    for n in GUESSES:
        found = [
            speculative_generate(model, draft, row[None], max_new_tokens=NEW, n_guesses=n, temperature=0)
            for row in prompts
        ]
        passes[f"{n} guesses"] = sum(each.passes for each in found)
        for row, each in zip(prompts, found, strict=True):
            alone = generate(model, row[None], max_new_tokens=NEW, temperature=0)
            assert torch.equal(each.tokens, alone), "it wrote something else"
    for number in range(ROUNDS):
        for row in prompts:
            for name, write in ways.items():
                spent[name][number] += clocked(functools.partial(write, row[None]))
    total = len(prompts) * NEW
    return {
        name: {"per second": round(total / min(spent[name]), 1), "per pass": round(total / passes[name], 3)}
        for name in ways
    }


@torch.no_grad()
def passes_by_length(model: LanguageModel) -> dict[int, float]:
    """Milliseconds of one pass over 1, 5 and 9 new tokens after 64 cached ones; the least of 30."""
    tokens, found = torch.zeros(1, 80, dtype=torch.int64), {}
    for n in (1, 5, 9):
        times = []
        for _ in range(30):
            cache = model.new_cache()
            model(tokens[:, :64], cache=cache)
            times.append(clocked(functools.partial(model, tokens[:, :n], cache=cache)))
        found[n] = round(1000 * min(times), 3)
    return found


def main() -> None:
    """Measure, write the record and print it."""
    torch.set_num_threads(1)
    found = {}
    for name, make in (("2 layers of 64", functools.partial(trained_gpt, 0, 6e-3)), ("6 layers of 256", wide_gpt)):
        model = make()
        found[name] = {"writing": measure(model), "milliseconds for n tokens": passes_by_length(model)}
    record = {"name": NAME, "environment": environment(), "new": NEW, "models": found}
    write_atomic(MEASURED / f"{NAME}.json", json.dumps(record, indent=1) + "\n")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
