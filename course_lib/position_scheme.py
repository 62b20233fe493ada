"""What a position scheme says of itself: where it acts, what it trains, what it keeps. `positions` has the schemes."""

from typing import Any, ClassVar, Literal, Self

from torch import nn

Place = Literal["input", "queries and keys", "scores"]


class PositionScheme(nn.Module):
    """What the rest of the package asks of a scheme; as it stands here, none: it acts on nothing and has no weights.

    `acts_on` decides how it is called and what it returns:

    - "input": `scheme(positions)`, integers (T,) or (B, T) -> vectors (..., T, D), added to the token vectors;
    - "queries and keys": `scheme(positions)` -> a `Rotation` that turns both;
    - "scores": `scheme(T, S, device=device)` -> a bias (1, H, T, S), the last query on the last key.

    The caller brings vectors and biases to the dtype of the model. `config` is always a `TransformerConfig`.
    """

    acts_on: ClassVar[Place | None] = None
    fields: ClassVar[tuple[str, ...]] = ()  # those of the config that its constructor takes, in order
    decays: ClassVar[bool] = False  # whether weight decay shrinks its weights
    max_length: int | None = None  # how many positions it has; None for any number

    @classmethod
    def from_config(cls, config: Any, *, bidirectional: bool) -> Self:
        """Return the scheme of a stack whose queries see keys on both sides, or only earlier ones."""
        return cls(*(getattr(config, name) for name in cls.fields))

    @classmethod
    def check_config(cls, config: Any) -> None:
        """Refuse sizes that the scheme cannot work with, by an error that names the field."""

    @classmethod
    def n_weights(cls, config: Any) -> int:
        """How many numbers are trained, by formula."""
        return 0

    @classmethod
    def kept_bytes(cls, config: Any, T: int) -> int:
        """Bytes of its own kept for the backward pass over T positions, by formula."""
        return 0

    def draw_weights(self, config: Any) -> None:
        """Start the weights as the config says; those that its constructor drew may stay."""
