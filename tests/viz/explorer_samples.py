"""Explorers as a reader makes them, from tensors of distinct prime sizes."""

import torch

from course_lib.masks import causal_mask
from course_lib.positions import frequencies
from course_lib.viz import AttentionExplorer, HeadExplorer, MaskComposer, PositionExplorer, ProductExplorer

SENTENCE = ["the", "animal", "did", "not", "cross", "the", "street"]


def tensors(T=5, S=7, E=3, width=2, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(*shape, generator=generator) for shape in ((T, E), (S, E), (S, width)))


def attention(**options):
    query, key, value = tensors()
    return AttentionExplorer(
        query, key, value, SENTENCE[2:], key_tokens=SENTENCE, mask=causal_mask(5, 7), selected=1, **options
    )


def product(**options):
    query, key, _ = tensors()
    return ProductExplorer(query, key, SENTENCE[2:], key_tokens=SENTENCE, **options)


def mask(**options):
    return MaskComposer(5, 7, tokens=SENTENCE, lengths=[7, 4, 2], **options)


def position(**options):
    return PositionExplorer(frequencies(14), position=5, shift=3, length=37, pair=1, **options)


def head_weights(H=3, T=7, S=7, seed=0):
    scores = 2 * torch.randn(H, T, S, generator=torch.Generator().manual_seed(seed))
    return scores.masked_fill(~causal_mask(T, S), -torch.inf).softmax(-1)


def heads(**options):
    return HeadExplorer(head_weights(), SENTENCE, **options)


MAKERS = {"attention": attention, "product": product, "mask": mask, "heads": heads, "position": position}
