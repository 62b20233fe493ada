"""How good a trained model is on examples that it never saw."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from course_lib.data import Pair, Tokenizer, pad_batch
from course_lib.generation import beam_search, generate

__all__ = ["accuracy", "classifications", "translate_texts", "translations"]


@torch.no_grad()
def translate_texts(
    model: nn.Module,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    *,
    beams: int = 1,
    max_new_tokens: int = 100,
    batch_size: int = 200,
    length_penalty: float = 1.0,
) -> list[str]:
    """Return a translation of each text, by the most likely token at each step or by beam search."""
    model.eval()
    device = next(model.parameters()).device
    order = sorted(range(len(texts)), key=lambda i: len(texts[i]))  # like lengths together: less padding
    found: dict[int, str] = {}
    for start in range(0, len(order), batch_size):
        chosen = order[start : start + batch_size]
        rows = [{"source": tokenizer.encode(texts[i], eos=True)} for i in chosen]
        source = pad_batch(rows, tokenizer.pad_id)["source"].to(device)
        prompt = source.new_full((len(chosen), 1), tokenizer.bos_id)  # (B, 1)
        options: dict[str, Any] = {"max_new_tokens": max_new_tokens, "stop": tokenizer.eos_id, "source": source}
        if beams > 1:
            options |= {"n_beams": beams, "length_penalty": length_penalty, "pad_id": tokenizer.pad_id}
            tokens = beam_search(model, prompt, **options).tokens[:, 0]  # (B, 1, T) -> (B, T)
        else:
            tokens = generate(model, prompt, temperature=0, pad_id=tokenizer.pad_id, **options)
        found |= {i: tokenizer.decode(row) for i, row in zip(chosen, tokens.tolist(), strict=True)}
    return [found[i] for i in range(len(texts))]


@torch.no_grad()
def accuracy(model: nn.Module, tokenizer: Tokenizer, pairs: Sequence[Pair], labels: Sequence[str]) -> float:
    """Return the share of texts whose label is the most likely one."""
    model.eval()
    device = next(model.parameters()).device
    right = 0
    for start in range(0, len(pairs), 200):
        part = pairs[start : start + 200]
        rows = [{"tokens": tokenizer.encode(pair.source, bos=True, eos=True)} for pair in part]
        logits = model(pad_batch(rows, tokenizer.pad_id)["tokens"].to(device))  # (B, n_classes)
        guesses = logits.argmax(dim=-1).tolist()
        right += sum(labels[guess] == pair.target for guess, pair in zip(guesses, part, strict=True))
    return right / len(pairs)


def nearest_targets(examples: Sequence[Pair], texts: Sequence[str]) -> list[str]:
    """Return for each text the target of the training example most like it, by its triples of characters.

    The baseline of a translator: what a memory that understands nothing achieves.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer

    vectorizer = TfidfVectorizer(analyzer="char_wb", ngram_range=(1, 3))
    known = vectorizer.fit_transform([pair.source for pair in examples])
    asked = vectorizer.transform(texts)
    found: list[str] = []
    for start in range(0, len(texts), 200):
        alike = (asked[start : start + 200] @ known.T).toarray()  # (200, number of examples)
        found += [examples[i].target for i in alike.argmax(axis=1)]
    return found


def translations(
    model: nn.Module,
    tokenizer: Tokenizer,
    test: Sequence[Pair],
    examples: Sequence[Pair],
    *,
    beams: int,
    max_new_tokens: int,
) -> dict[str, Any]:
    """Return how well a model translates the test, beside the target of the nearest training example."""
    if not test:
        return {}
    texts = [pair.source for pair in test]
    found = translate_texts(model, tokenizer, texts, beams=beams, max_new_tokens=max_new_tokens)
    wrong = [(pair.source, pair.target, guess) for pair, guess in zip(test, found, strict=True) if guess != pair.target]
    import sacrebleu

    targets, nearest = [pair.target for pair in test], nearest_targets(examples, texts)
    return {
        "test_examples": len(test),
        "exact_match": 1 - len(wrong) / len(test),
        "exact_match_of_the_nearest_example": sum(a == b for a, b in zip(nearest, targets, strict=True)) / len(test),
        "bleu": sacrebleu.corpus_bleu(found, [targets]).score,
        "bleu_of_the_nearest_example": sacrebleu.corpus_bleu(nearest, [targets]).score,
        "first_wrong": wrong[:5],
    }


def classifications(
    model: nn.Module, tokenizer: Tokenizer, test: Sequence[Pair], labels: Sequence[str]
) -> dict[str, Any]:
    """Return how many texts of the test a model classifies right, beside always naming the commonest label."""
    if not test:
        return {}
    commonest = max(labels, key=lambda label: sum(pair.target == label for pair in test))
    return {
        "test_examples": len(test),
        "accuracy": accuracy(model, tokenizer, test, labels),
        "accuracy_of_the_commonest_label": sum(pair.target == commonest for pair in test) / len(test),
    }
