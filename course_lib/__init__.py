"""Real, GPU-capable Transformer implementations: the package that the course's notebooks build up to."""

from course_lib import forwarding

__version__ = "0.1.0"

forwarding.install()
