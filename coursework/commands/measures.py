"""How good a trained model is on examples that it never saw."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from course_lib.data import Pair, Tokenizer, pad_batch
from course_lib.generation import beam_search, generate

__all__ = [
    "classifications",
    "label_shares",
    "linear_guesses",
    "loss_of_text",
    "nearest_translations",
    "translate_texts",
    "translations",
]

_ROWS, _TOKENS = 200, 20_000  # of a batch at most


def _like_lengths(texts: Sequence[str], ids: Sequence[Sequence[int]]) -> Iterator[list[int]]:
    """Yield the numbers of texts with these ids in batches, like lengths together, so that little is padded."""
    batch: list[int] = []
    longest = 0
    for number in sorted(range(len(texts)), key=lambda i: len(texts[i])):
        longest = max(longest, len(ids[number]))
        if batch and (len(batch) == _ROWS or (len(batch) + 1) * longest > _TOKENS):
            yield batch
            batch, longest = [], len(ids[number])
        batch.append(number)
    if batch:
        yield batch


@torch.no_grad()
def translate_texts(
    model: nn.Module,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    *,
    beams: int = 1,
    max_new_tokens: int = 100,
    length_penalty: float = 1.0,
) -> list[str]:
    """Return a translation of each text, by the most likely token at each step or by beam search."""
    model.eval()
    device = next(model.parameters()).device
    ids = tokenizer.encode_batch(texts, eos=True)
    found: dict[int, str] = {}
    for chosen in _like_lengths(texts, ids):
        source = pad_batch([{"source": ids[i]} for i in chosen], tokenizer.pad_id)["source"].to(device)
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
def label_shares(model: nn.Module, tokenizer: Tokenizer, texts: Sequence[str]) -> Tensor:
    """Return what a classifier gives each label of each text, (number of texts, n_classes); rows sum to 1."""
    model.eval()
    device = next(model.parameters()).device
    ids = tokenizer.encode_batch(texts, bos=True, eos=True)
    found: dict[int, Tensor] = {}
    for chosen in _like_lengths(texts, ids):
        tokens = pad_batch([{"tokens": ids[i]} for i in chosen], tokenizer.pad_id)["tokens"]
        found |= zip(chosen, model(tokens.to(device)).float().softmax(dim=-1).cpu(), strict=True)  # (B, n_classes)
    return torch.stack([found[i] for i in range(len(texts))])


def linear_guesses(examples: Sequence[Pair], texts: Sequence[str]) -> list[str]:
    """Return the label that a linear model gives each text: TF-IDF of words and their pairs, logistic regression.

    The baseline of a classifier: what words tell without their order, but for two.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    words = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, token_pattern=r"\w+|[^\w\s]")
    model = make_pipeline(words, LogisticRegression(C=10.0, max_iter=1000))
    model.fit([pair.source for pair in examples], [pair.target for pair in examples])
    return [str(label) for label in model.predict(texts)] if texts else []


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
    model: nn.Module, tokenizer: Tokenizer, test: Sequence[Pair], *, beams: int, max_new_tokens: int
) -> dict[str, Any]:
    """Return how well a model translates the test."""
    if not test:
        return {}
    texts = [pair.source for pair in test]
    found = translate_texts(model, tokenizer, texts, beams=beams, max_new_tokens=max_new_tokens)
    wrong = [(pair.source, pair.target, guess) for pair, guess in zip(test, found, strict=True) if guess != pair.target]
    return {
        "test_examples": len(test),
        "exact_match": 1 - len(wrong) / len(test),
        **_bleu(found, test),
        "first_wrong": wrong[:5],
    }


def nearest_translations(test: Sequence[Pair], examples: Sequence[Pair]) -> dict[str, Any]:
    """Return how well the target of the nearest training example does as a translation."""
    if not test:
        return {}
    nearest = nearest_targets(examples, [pair.source for pair in test])
    right = sum(guess == pair.target for guess, pair in zip(nearest, test, strict=True))
    bleu = _bleu(nearest, test)
    exact = {"exact_match_of_the_nearest_example": right / len(test)}
    return exact | ({"bleu_of_the_nearest_example": bleu["bleu"]} if bleu else {})


def _bleu(found: Sequence[str], test: Sequence[Pair]) -> dict[str, Any]:
    """BLEU, and how it was computed, in the words that papers report; nothing if no target has four words to match."""
    import sacrebleu

    if max(len(pair.target.split()) for pair in test) < 4:
        return {}

    metric = sacrebleu.BLEU()
    score = metric.corpus_score(list(found), [[pair.target for pair in test]]).score
    return {"bleu": score, "bleu_signature": str(metric.get_signature())}


def classifications(
    model: nn.Module, tokenizer: Tokenizer, test: Sequence[Pair], labels: Sequence[str]
) -> dict[str, Any]:
    """Return how many texts of the test a model classifies right, beside always naming the commonest label."""
    if not test:
        return {}
    guesses = label_shares(model, tokenizer, [pair.source for pair in test]).argmax(dim=-1).tolist()
    right = sum(labels[guess] == pair.target for guess, pair in zip(guesses, test, strict=True))
    commonest = max(sum(pair.target == label for pair in test) for label in labels)
    return {
        "test_examples": len(test),
        "accuracy": right / len(test),
        "accuracy_of_the_commonest_label": commonest / len(test),
    }


def loss_of_text(loss: float, ids: Any, text: str, unk_id: int, *, whole: bool) -> dict[str, Any]:
    """Return a loss in nats a token and what it comes to; with `whole` also in bits per byte of the text.

    Those compare models whose tokenizers differ; but a token that stands for an unknown character costs less than
    that character, so their share is said, too.
    """
    found = {"held_out_loss": loss, "perplexity": math.exp(min(loss, 700.0))}
    if whole:
        found["bits_per_byte"] = loss * len(ids) / (math.log(2) * len(text.encode()))
    unknown = float(np.mean(np.asarray(ids) == unk_id))
    return found | ({"unknown_tokens": unknown} if unknown else {})
