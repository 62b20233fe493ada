"""Data for the notebooks: real text and synthetic tasks that need no network, and opt-in downloads.

Nothing here knows of models.
"""

from .download import DataFile, DownloadError, data_folder, fetch, tiny_shakespeare
from .registry import FILES
from .synthetic import Recall, associative_recall, copy_task, noise_floor, noise_tokens
from .text import reference_text

__all__ = [
    "FILES",
    "DataFile",
    "DownloadError",
    "Recall",
    "associative_recall",
    "copy_task",
    "data_folder",
    "fetch",
    "noise_floor",
    "noise_tokens",
    "reference_text",
    "tiny_shakespeare",
]
