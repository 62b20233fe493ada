"""The laws: properties that every right implementation has, written once.

A law takes callables and tensors, knows nothing of this package, and raises AssertionError with a sentence that says
what moved where: "changing token 3 changed the output at position 1 by 0.24". It passes in silence, except those that
return what they measured. Laws draw their changes from fixed seeds and leave torch's generators, the mode of modules
and the gradients of parameters as they found them.

`prove` stops at a false claim and remembers a true one in `proved`; `complaint` turns what a law raises into a text.
"""

from .claims import complaint, prove, proved
from .numeric import Counts, Differences, assert_counts, assert_equivalent, assert_finite, assert_gradients_flow
from .sequence import (
    assert_cache_consistent,
    assert_causal,
    assert_padding_invariant,
    assert_permutation_equivariant,
)

__all__ = [
    "Counts",
    "Differences",
    "assert_cache_consistent",
    "assert_causal",
    "assert_counts",
    "assert_equivalent",
    "assert_finite",
    "assert_gradients_flow",
    "assert_padding_invariant",
    "assert_permutation_equivariant",
    "complaint",
    "prove",
    "proved",
]
