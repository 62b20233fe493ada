"""The laws: properties that every right implementation has, written once.

A law takes callables and tensors, knows nothing of this package, and raises AssertionError with a sentence that says
what moved where: "changing token 3 changed the output at position 1 by 0.24". It passes in silence, except those that
return what they measured. Laws draw their changes from fixed seeds and leave torch's generators, the mode of modules
and the gradients of parameters as they found them.

`prove` stops at a false claim and remembers a true one in `proved`; `complaint` turns what a law raises into a text.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
