"""Generation: greedy, sampling, beam search and speculative decoding.

A model is a `LanguageModel`, a `Transformer` (with its `source`), or any function from tokens (B, T) to logits
(B, T, V). Prompts of different lengths are padded on the left: see `pad_left`.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
