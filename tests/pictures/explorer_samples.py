"""Explorers as a reader makes them, from tensors of distinct prime sizes."""

import torch

from course_lib.masks import causal_mask
from course_lib.positions import frequencies
from coursework.explorers import (
    AttentionExplorer,
    CostExplorer,
    DecodingExplorer,
    HeadExplorer,
    MaskComposer,
    PatternExplorer,
    PositionExplorer,
    SamplingExplorer,
    ScheduleExplorer,
    StreamExplorer,
)

MAKERS = {}  # a function for each explorer, by its name


def sample(make):
    MAKERS[make.__name__] = make
    return make


SENTENCE = ["the", "animal", "did", "not", "cross", "the", "street"]


def tensors(T=5, S=7, E=3, width=2, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(*shape, generator=generator) for shape in ((T, E), (S, E), (S, width)))


@sample
def attention(**options):
    query, key, value = tensors()
    return AttentionExplorer(
        query, key, value, SENTENCE[2:], key_tokens=SENTENCE, mask=causal_mask(5, 7), selected=1, **options
    )


@sample
def mask(**options):
    return MaskComposer(5, 7, tokens=SENTENCE, lengths=[7, 4, 2], **options)


@sample
def position(**options):
    return PositionExplorer(frequencies(14), position=5, shift=3, length=37, pair=1, **options)


def head_weights(H=3, T=7, S=7, seed=0):
    scores = 2 * torch.randn(H, T, S, generator=torch.Generator().manual_seed(seed))
    return scores.masked_fill(~causal_mask(T, S), -torch.inf).softmax(-1)


@sample
def heads(**options):
    return HeadExplorer(head_weights(), SENTENCE, **options)


def decoding_parts():
    encoder = head_weights(3, 5, 5, seed=1).flip(1, 2)  # any rows that sum to one
    cross = (2 * torch.randn(3, 7, 5, generator=torch.Generator().manual_seed(2))).softmax(-1)
    chances = torch.rand(7, generator=torch.Generator().manual_seed(3))
    return encoder, head_weights(3, 7, 7, seed=4), cross, chances


@sample
def decoding(**options):
    encoder, decoder, cross, chances = decoding_parts()
    source, read, written = list("abcab"), ["<s>", *"bacbad"], [*"bacbad", "</s>"]
    return DecodingExplorer(
        encoder, decoder, cross, source=source, read=read, written=written, probabilities=chances, **options
    )


def sampling_logits():
    return 2 * torch.randn(3, 19, generator=torch.Generator().manual_seed(5))


@sample
def sampling(**options):
    tokens = [chr(97 + i) for i in range(18)] + [" "]
    contexts = ["the", "cat", "sat"]
    settings = {"temperature": 0.8, "top_p": 0.9} | options
    return SamplingExplorer(sampling_logits(), tokens, contexts=contexts, selected=1, **settings)


def stream_vectors(name, layers=4, T=7, D=5):
    """Vectors (T, D) at the input and after each layer: tokens that drift to one vector, or grow, or stay."""
    generator = torch.Generator().manual_seed(3)
    start, common = torch.randn(T, D, generator=generator), torch.randn(D, generator=generator)
    shares = torch.arange(layers + 1) / layers
    drift = {
        "alike": [(1 - s) * start + s * common for s in shares],
        "growing": [10 ** (3 * s) * start for s in shares],
    }
    return drift.get(name, [start + 0.1 * s for s in shares])


def stream_gradients(name, layers=4):
    return [10.0 ** (-2 * place if name == "alike" else 0) for place in range(layers + 1)]


STACKS = ["alike", "growing", "steady"]


@sample
def stream(**options):
    return StreamExplorer(
        {name: stream_vectors(name) for name in STACKS},
        SENTENCE,
        gradients={name: stream_gradients(name) for name in STACKS},
        **options,
    )


@sample
def schedule(**options):
    return ScheduleExplorer(steps=97, peak=0.003, warmup=11, decay=23, step=7, **options)


@sample
def pattern(**options):
    return PatternExplorer(**{"window": 3, "n_global": 1, "n_random": 2, "tokens": 64} | options)


@sample
def cost(**options):
    return CostExplorer(**{"model": "Llama 3 8B", "length": 2048, "batch": 2} | options)
