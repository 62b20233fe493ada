"""Generation: greedy, sampling, beam search and speculative decoding.

A model is a `LanguageModel`, a `Transformer` (with its `source`), or any function from tokens (B, T) to logits
(B, T, V). Prompts of different lengths are padded on the left: see `pad_left`.
"""

from course_lib.generation.beam import BeamOutput, beam_search
from course_lib.generation.incremental import pad_left
from course_lib.generation.loop import generate, stream
from course_lib.generation.sampling import (
    Sampling,
    min_p_filter,
    penalise_repetition,
    top_k_filter,
    top_p_filter,
)
from course_lib.generation.speculative import SpeculativeOutput, speculative_generate

__all__ = [
    "BeamOutput",
    "Sampling",
    "SpeculativeOutput",
    "beam_search",
    "generate",
    "min_p_filter",
    "pad_left",
    "penalise_repetition",
    "speculative_generate",
    "stream",
    "top_k_filter",
    "top_p_filter",
]
