"""Real, GPU-capable Transformer implementations: the package that the course's notebooks build up to."""

__version__ = "0.1.0"
