"""What a Transformer costs, by formula and by measurement, and what it gains from size."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
