"""Entries of a published config and the fields of `TransformerConfig` they stand for: one table, read both ways."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from course_lib.checks import check_choice
from course_lib.config import Activation, TransformerConfig
from course_lib.rotary_scaling import DynamicNTKScaling, LinearScaling, Llama3Scaling, NTKScaling, YarnScaling

ACTIVATIONS: dict[str, Activation] = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "silu": "silu",
    "swish": "silu",
}
_REQUIRED = object()


class Entries(Protocol):
    """Some entries of a published config and the fields that they stand for."""

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields of `TransformerConfig` that they set."""

    def read(self, found: Mapping[str, Any]) -> dict[str, Any]:
        """From a published config to the fields. Raises KeyError for a missing entry, ValueError for a bad one."""

    def write(self, config: TransformerConfig) -> dict[str, Any]:
        """From our config to the entries. Raises ValueError for what the published one cannot say."""


@dataclass(frozen=True)
class Entry:
    """One entry of a published config and the one field that it stands for.

    Args:
        key: of the entry.
        field: of `TransformerConfig`.
        default: what a published config means that lacks the entry. Without a default it must be there.
        values: their value -> ours, where they differ; the first of several that mean one of ours is written.
    """

    key: str
    field: str
    default: Any = _REQUIRED
    values: Mapping[Any, Any] | None = None

    @property
    def fields(self) -> tuple[str, ...]:
        """The field."""
        return (self.field,)

    def read(self, found: Mapping[str, Any]) -> dict[str, Any]:
        """From a published config to the field."""
        value = found[self.key] if self.default is _REQUIRED else found.get(self.key, self.default)
        if self.values is None:
            return {self.field: value}
        check_choice(self.key, value, self.values)
        return {self.field: self.values[value]}

    def write(self, config: TransformerConfig) -> dict[str, Any]:
        """From our config to the entry."""
        value = config.setting(self.field)
        if self.values is None:
            return {self.key: value}
        check_choice(self.field, value, self.values.values())
        return {self.key: next(theirs for theirs, ours in self.values.items() if ours == value)}


class RotaryEntries:
    """Base and scaling of rotary positions: `rope_parameters`, and the older `rope_theta` and `rope_scaling`.

    It reads either form and writes both.
    """

    fields = ("rotary_base", "rotary_scaling")

    def read(self, found: Mapping[str, Any]) -> dict[str, Any]:
        """From a published config to the fields."""
        said = found.get("rope_parameters") or found.get("rope_scaling") or {}
        base = said.get("rope_theta", found.get("rope_theta", 10000.0))
        return {"rotary_base": base, "rotary_scaling": read_scaling(said, found.get("max_position_embeddings", 2048))}

    def write(self, config: TransformerConfig) -> dict[str, Any]:
        """From our config to the entries."""
        base, scaling = write_scaling(config)
        return {
            "rope_theta": base,
            "rope_scaling": scaling,
            "rope_parameters": {"rope_theta": base, **(scaling or {"rope_type": "default"})},
        }


def read_scaling(said: Mapping[str, Any], length: int) -> Any:
    """The scaling that the entries of `rope_parameters` or `rope_scaling` say; `length` is the trained one."""
    kind = said.get("rope_type", said.get("type", "default"))
    refuse(said, partial_rotary_factor=1.0)
    if kind == "default":
        return None
    if kind == "linear":
        return LinearScaling(said["factor"])
    if kind == "dynamic":
        return DynamicNTKScaling(said["factor"], length)
    if kind == "llama3":
        return Llama3Scaling(
            factor=said["factor"],
            low_turns=said["low_freq_factor"],
            high_turns=said["high_freq_factor"],
            original_length=said.get("original_max_position_embeddings", length),
        )
    if kind == "yarn":
        refuse(said, mscale=None, mscale_all_dim=None)  # those of DeepSeek change the scale of the scores as well
        original = said.get("original_max_position_embeddings") or length
        return YarnScaling(
            factor=said.get("factor") or length / original,
            original_length=original,
            fast_turns=said.get("beta_fast") or 32.0,
            slow_turns=said.get("beta_slow") or 1.0,
            attention_factor=said.get("attention_factor"),
            rounded=said.get("truncate", True),
        )
    raise ValueError(f"rope_type: expected 'default', 'linear', 'dynamic', 'llama3' or 'yarn', got {kind!r}")


def write_scaling(config: TransformerConfig) -> tuple[float, dict[str, Any] | None]:
    """The published base and scaling of a config; NTK scaling is nothing but a larger base."""
    scaling, base = config.rotary_scaling, config.rotary_base
    if scaling is None:
        return base, None
    if isinstance(scaling, NTKScaling):
        width = config.setting("d_head")
        return base * scaling.factor ** (width / (width - 2)), None
    if isinstance(scaling, LinearScaling):
        return base, {"rope_type": "linear", "factor": scaling.factor}
    if isinstance(scaling, DynamicNTKScaling) and scaling.original_length == config.max_length:
        return base, {"rope_type": "dynamic", "factor": scaling.factor}
    if isinstance(scaling, Llama3Scaling):
        return base, {
            "rope_type": "llama3",
            "factor": scaling.factor,
            "low_freq_factor": scaling.low_turns,
            "high_freq_factor": scaling.high_turns,
            "original_max_position_embeddings": scaling.original_length,
        }
    if isinstance(scaling, YarnScaling):
        given = scaling.attention_factor
        return base, {
            "rope_type": "yarn",
            "factor": scaling.factor,
            "beta_fast": scaling.fast_turns,
            "beta_slow": scaling.slow_turns,
            **({} if given is None else {"attention_factor": given}),
            "truncate": scaling.rounded,
            "original_max_position_embeddings": scaling.original_length,
        }
    raise ValueError(
        "rotary_scaling: expected LinearScaling, NTKScaling, Llama3Scaling, YarnScaling, or DynamicNTKScaling of "
        f"original_length={config.max_length} like max_length, got {scaling!r}"
    )


def refuse(found: Mapping[str, Any], **expected: Any) -> None:
    """Refuse a published config with an option that is not built here."""
    for name, value in expected.items():
        if found.get(name, value) not in (value, None):
            raise ValueError(f"{name}: expected {value!r}, got {found[name]!r}; this option is not built here")
