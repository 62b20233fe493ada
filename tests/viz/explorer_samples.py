"""Explorers as a reader makes them, from tensors of distinct prime sizes."""

import torch

from course_lib.masks import causal_mask
from course_lib.viz import AttentionExplorer, MaskComposer, ProductExplorer

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


MAKERS = {"attention": attention, "product": product, "mask": mask}
