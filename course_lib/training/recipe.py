"""The fastest recipe that we measured for small language models on a CPU (`benchmarks/time_to_quality.py`)."""

from typing import TYPE_CHECKING, Any

from course_lib.training.config import TrainingConfig

if TYPE_CHECKING:
    from course_lib.config import TransformerConfig

__all__ = ["FAST_BATCHES", "FAST_MODEL", "FAST_TRAINING", "fast_recipe"]

FAST_BATCHES = {"length": 64, "batch_size": 12}
FAST_MODEL: dict[str, Any] = {
    "d_model": 128,
    "n_heads": 4,
    "n_encoder_layers": 0,
    "n_decoder_layers": 4,
    "dropout": 0.0,
    "norm": "unit",
    "norm_place": "pre",
    "positions": "rotary",
    "rotary_base": 100.0,
    "activation": "silu",
    "gated": True,
    "d_ff": 320,
    "qk_norm": "unit",
    "bias": False,
    "scale_embeddings": False,
    "tie_embeddings": False,
    "init": "normal",
    "zero_residual_init": True,
}
FAST_TRAINING: dict[str, Any] = {  # rates for models about this wide
    "steps": 500,
    "learning_rate": 0.015,
    "schedule": "linear",
    "warmup": 0,
    "optimizer": "muon",
    "muon_learning_rate": 0.025,
    "muon_momentum": 0.9,
    "weight_decay": 0.0,
    "betas": [0.9, 0.99],
    "eps": 1e-8,
}


def fast_recipe(vocab_size: int, *, length: int = 64, **training: Any) -> "tuple[TransformerConfig, TrainingConfig]":
    """Return the configs of a `LanguageModel` and of a `Run` that reads windows of `length` tokens, 12 at a time.

    `training` are fields of `TrainingConfig` in place of the recipe's, such as `steps`. For another model change the
    config with `dataclasses.replace`; the rates fit widths near 128.
    """
    from course_lib.config import TransformerConfig

    model = TransformerConfig(**FAST_MODEL, vocab_size=vocab_size, window=length)
    return model, TrainingConfig(**{**FAST_TRAINING, **training})
