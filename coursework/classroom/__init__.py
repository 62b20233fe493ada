"""For instructors: judge the notebooks of a class, give the results out, and say what to teach again.

Modules are imported when one of their names is used.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
