"""Data: tokenizers, batches, ids on the disk, pairs of texts, opt-in downloads.

Nothing here knows of models. Modules are imported when one of their names is used.
"""

from typing import Any

import lazy_loader

from course_lib.forwarding import moved_attribute

_own, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> Any:
    return _own(name) if name in __all__ else moved_attribute(__name__, name)
