"""Figures and live widgets. They take tensors and plain Python values, never a model.

Nothing heavy is imported until a name is used.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
