"""Where things lie in the folder of a run."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

__all__ = ["RunFolder"]


class RunFolder:
    """The places in the folder of a run; nothing is made before something is written there.

    Once the run has ended, `from_pretrained` and `load_tokenizer` open the folder itself.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.checkpoints = self.path / "checkpoints"  # of `save_checkpoint`
        self.log = self.path / "log.jsonl"  # a record a line
        self.tensorboard = self.path / "tensorboard"  # the same as curves, on request
        self.recipe = self.path / "recipe.json"  # what `course train` was told
        self.results = self.path / "results.json"  # what it measured at the end
        self.begun = self.checkpoints / "recipe.json"  # the same, while it trains, and what its data were
        self.begun_tokenizer = self.checkpoints / "tokenizer.json"
        self.tokenizer = self.path / "tokenizer.json"
        self.config = self.path / "config.json"
        self.weights = self.path / "model.safetensors"

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other runs out of the folder, until the block or the process ends.

        Raises ValueError where another run is at work. On a file system without locks nobody is kept out.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        lock = FileLock(self.path / ".lock", timeout=0, is_singleton=True)  # the same run may lock it twice
        try:
            lock.acquire()
        except Timeout:
            raise ValueError(f"folder: another run is writing to {self}; wait for its end, or name another") from None
        except NotImplementedError:
            yield
            return
        try:
            yield
        finally:
            lock.release()

    def __str__(self) -> str:
        """Return the path, for messages."""
        return str(self.path)
