"""Where things lie in the folder of a run."""

from pathlib import Path

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
        self.tokenizer = self.path / "tokenizer.json"
        self.config = self.path / "config.json"
        self.weights = self.path / "model.safetensors"

    def __str__(self) -> str:
        """Return the path, for messages."""
        return str(self.path)
