"""What the formats share: packages that may be missing, weights as arrays, and models that cannot be exported."""

import importlib
from collections.abc import Collection, Mapping, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
from torch import Tensor, nn

from course_lib.config import TransformerConfig
from course_lib.layers import FeedForward
from course_lib.multi_head import MultiHeadAttention
from course_lib.transformer import Embedding
from course_lib.variants.packed import FrozenLinear

UNIT_EPS = 1e-6  # of `UnitNorm`
_EMBEDDING = {"tokens", "positions", "token_types", "norm", "dropout"}
DTYPES = ("float32", "float16", "int8")


def package(name: str) -> Any:
    """Import an optional package. Raises ValueError that says what to install."""
    if find_spec(name) is None:
        raise ValueError(f"the package {name} is missing; install it with: pip install 'course-lib[engines]'")
    return importlib.import_module(name)


def array(tensor: Tensor) -> np.ndarray:
    """A copy of the numbers as float32 on the CPU."""
    return tensor.detach().float().cpu().contiguous().numpy().copy()


def projections(
    attention: MultiHeadAttention, kind: str, factors: Sequence[float] = (1, 1, 1)
) -> list[np.ndarray] | None:
    """The weights or biases of queries, keys and values, each times its factor; None where there are no biases."""
    if attention.fused:
        whole = getattr(attention.qkv, kind)
        parts = None if whole is None else attention.separate(whole)
    else:
        parts = [getattr(part, kind) for part in (attention.query, attention.key, attention.value)]
    if parts is None or parts[0] is None:
        return None
    return [array(part) * np.float32(factor) for part, factor in zip(parts, factors, strict=True)]


def norm_weight(norm: nn.Module, width: int) -> np.ndarray:
    """The factors of a norm, ones where it trains none."""
    weight = getattr(norm, "weight", None)
    if weight is None:
        return np.ones(width, dtype=np.float32)
    return array(weight) + (1 if getattr(norm, "offset", False) else 0)


def norm_eps(config: TransformerConfig) -> float:
    """What a norm adds to the mean square."""
    return UNIT_EPS if config.norm == "unit" else config.norm_eps


def before_norm(config: TransformerConfig) -> tuple[float, float, float]:
    """Factors on queries, keys and values with which a norm of heads of the engine's one eps is that of ours."""
    factor = (norm_eps(config) / UNIT_EPS) ** 0.5 if config.qk_norm == "unit" else 1.0
    return factor, factor, 1.0


def check_plain(model: nn.Module) -> TransformerConfig:
    """Return the config. Raises ValueError for layers that are not as it says: rounded, packed, changed, replaced."""
    config: TransformerConfig = model.config  # type: ignore[assignment]
    for name, part in model.named_modules():
        if isinstance(part, FrozenLinear):
            raise ValueError(f"{name}: expected a trained map, got a {type(part).__name__}; export before that")
        if isinstance(part, Embedding) and (more := {each for each, _ in part.named_children()} - _EMBEDDING):
            raise ValueError(f"{name}.{min(more)}: expected tokens, positions and a norm alone; no engine has more")
        if hasattr(part, "feed_forward") and type(part.feed_forward) is not FeedForward:
            raise ValueError(f"{name}.feed_forward: expected a FeedForward, got a {type(part.feed_forward).__name__}")
        if isinstance(part, MultiHeadAttention) and (type(part) is not MultiHeadAttention or part.inner is not None):
            raise ValueError(f"{name}: expected plain attention, got a {type(part.inner or part).__name__}")
        if isinstance(part, nn.Linear) and type(part) is not nn.Linear:
            raise ValueError(f"{name}: expected a plain linear map, got a {type(part).__name__}; merge it first")
    return config


def unfit(config: TransformerConfig, expected: Mapping[str, Collection[Any]]) -> list[str]:
    """A sentence for each field of the config that has none of the expected values."""
    return [
        f"{name}: expected {' or '.join(repr(value) for value in values)}, got {config.setting(name)!r}"
        for name, values in expected.items()
        if config.setting(name) not in values
    ]
