"""Figures of single notebooks, named after what they show; each takes plain values and returns the figure."""
