"""Training: losses, schedules, optimizers, and a run that can be watched, interrupted and taken up again bit for bit.

Knows models through `forward` and a task's `loss(model, batch) -> (sum of losses, number of tokens)` only.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
