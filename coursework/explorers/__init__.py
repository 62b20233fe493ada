"""Explorers: pictures of this package's formulas that a reader can take hold of. They take tensors and plain values.

Nothing heavy is imported until a name is used.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
