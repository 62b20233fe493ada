"""Data: real text and synthetic tasks that need no network, opt-in downloads, tokenizers, pairs, batches.

Nothing here knows of models. Modules are imported when one of their names is used.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
