"""Position schemes: how a Transformer learns the order of its tokens.

Two are added to the token vectors (sinusoidal, learned), one turns queries and keys (rotary), two are added to the
attention scores (ALiBi, relative buckets). Each says of itself where it acts; `SCHEMES`, at the end, names them all.

Shapes: B batch, T query positions, S key positions, H heads, D model width, E head width. Positions are integers,
(T,) for a whole batch or (B, T) where examples differ, as with padding on the left.
"""

import math
from collections.abc import Callable
from typing import Any, ClassVar, Literal, NamedTuple, Self

import torch
from torch import Tensor, nn

from course_lib.checks import Count, check_device, check_integer, check_integers, check_number, check_width, checked
from course_lib.rotary_scaling import DynamicNTKScaling

Place = Literal["input", "queries and keys", "scores"]
RotaryLayout = Literal["half", "interleaved"]


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


def _even(name: str, width: int) -> int:
    if not isinstance(width, int) or width < 2 or width % 2:
        raise ValueError(
            f"{name}: expected an even integer of at least 2, sines and cosines come in pairs; got {width!r}"
        )
    return width


def frequencies(width: int, base: float = 10000.0) -> Tensor:
    """Angular frequencies in radians a position, one a pair of dimensions: base^(-2i / width), float32 (width / 2,)."""
    check_number("base", base, above=1)
    return 1.0 / base ** (torch.arange(0, width, 2, dtype=torch.float32, device="cpu") / width)


class _Frequencies(PositionScheme):
    """Keeps float32 frequencies through `.to(bfloat16)`, which would spoil a buffer: 0.0316 would become 0.0317."""

    def __init__(self, values: Tensor) -> None:
        super().__init__()
        self.values = values

    def angles(self, positions: Tensor) -> Tensor:
        """Integer positions (...) -> angles in radians, float32 (..., width / 2)."""
        check_integers("positions", positions)
        if self.values.device != positions.device:
            self.values = self.values.to(positions.device)
        return positions[..., None].float() * self.values


class SinusoidalPositionalEncoding(_Frequencies):
    """Fixed sines (even dimensions) and cosines (odd ones) of each position, to be added to the token vectors.

    Needs no training, and has a value at any position. Raises ValueError for an odd width.
    Source: Vaswani et al. 2017, section 3.5.
    """

    acts_on = "input"
    fields = ("d_model",)

    def __init__(self, d_model: int, *, base: float = 10000.0) -> None:
        super().__init__(frequencies(_even("d_model", d_model), base))

    @classmethod
    def check_config(cls, config: Any) -> None:
        """Refuse an odd D."""
        if config.d_model % 2:
            raise ValueError(f"d_model: sinusoidal positions need an even width, got {config.d_model}")

    def forward(self, positions: Tensor) -> Tensor:
        """Encode integer positions: (..., T) -> float32 (..., T, D)."""
        return sines_and_cosines(self.angles(positions))


def sines_and_cosines(angles: Tensor) -> Tensor:
    """The sine and the cosine of each angle, side by side: (..., D / 2) -> (..., D)."""
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2)  # (..., D / 2, 2) -> (..., D)


@checked
def position_shift_matrix(shift: float, d_model: int, *, base: float = 10000.0) -> Tensor:
    """Return the matrix M (D, D) with M @ encoding(p) = encoding(p + shift) at every position p.

    It turns each pair (sine, cosine) by the angle shift * frequency, so it does not depend on p.
    Source: Vaswani et al. 2017, section 3.5, the sentence on linear functions of PE.
    """
    angle = shift * frequencies(_even("d_model", d_model), base).double()
    blocks = torch.stack([angle.cos(), angle.sin(), -angle.sin(), angle.cos()], dim=-1).view(-1, 2, 2)
    return torch.block_diag(*blocks).float()


def document_positions(documents: Tensor) -> Tensor:
    """Count from 0 again in each document of a packed row: integer numbers (B, T) -> int64 (B, T)."""
    check_integers("documents", documents)
    places = torch.arange(documents.size(1), device=documents.device)  # (T,)
    begins = documents[:, 1:] != documents[:, :-1]
    starts = nn.functional.pad(begins, (1, 0)) * places  # (B, T), 0 inside a document
    return places - starts.cummax(dim=1).values


class LearnedPositionalEmbedding(PositionScheme):
    """A table with one trained vector per position, to be added to the token vectors.

    Args:
        max_length: positions in the table; there is no vector for any other.
        d_model: width D.

    Source: Gehring et al. 2017, section 3.1; used by BERT and GPT-2.
    """

    acts_on = "input"
    fields = ("max_length", "d_model")

    @checked
    def __init__(self, max_length: Count, d_model: Count) -> None:
        super().__init__()
        self.max_length: int = max_length
        self.weight = nn.Parameter(torch.empty(max_length, d_model))
        nn.init.normal_(self.weight, std=d_model**-0.5)

    @classmethod
    def n_weights(cls, config: Any) -> int:
        """The whole table."""
        return config.max_length * config.d_model

    @classmethod
    def kept_bytes(cls, config: Any, T: int) -> int:
        """The positions, int64, which say where the gradient goes."""
        return T * 8

    def draw_weights(self, config: Any) -> None:
        """Start as the table of tokens does."""
        nn.init.normal_(self.weight, std=config.table_std)

    def forward(self, positions: Tensor) -> Tensor:
        """Look up integer positions: (..., T) -> (..., T, D). Raises ValueError if one is past the table."""
        check_integers("positions", positions)
        try:
            return nn.functional.embedding(positions, self.weight)
        except IndexError:
            raise ValueError(
                f"positions: expected 0 to {self.max_length - 1}, the table has max_length={self.max_length}; "
                f"got {positions.min().item()} to {positions.max().item()}"
            ) from None


class Rotation(NamedTuple):
    """The turn of each position: what `RotaryEmbedding` gives and `apply_rotary` takes."""

    cos: Tensor  # (T, E / 2), or (B, 1, T, E / 2) where the examples differ
    sin: Tensor
    layout: RotaryLayout


class RotaryEmbedding(_Frequencies):
    """Turns each pair of dimensions of queries and keys by an angle that grows with the position.

    The product of a turned query and a turned key depends on how far apart they stand, not on where.

    Args:
        width: width E of a head, even.
        base: the slowest frequency is about 1 / base radians a position.
        layout: which dimensions form a pair: "half" pairs i with i + E / 2 (`transformers`), "interleaved" 2i with
            2i + 1 (the paper, and Meta's own code of Llama). Weights trained with one are wrong with the other.
        scaling: maps the frequencies (E / 2,) to those used, to reach beyond the trained length. One that has a
            `stretch`, as YaRN's, multiplies queries and keys by it, too.

    Source: Su et al. 2021 (RoFormer), section 3.2.
    """

    acts_on = "queries and keys"

    @checked
    def __init__(
        self,
        width: int,
        *,
        base: float = 10000.0,
        layout: RotaryLayout = "half",
        scaling: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        values = frequencies(_even("width", width), base)
        super().__init__(values if scaling is None else scaling(values))
        check_width("scaling", self.values, width // 2)
        self.dynamic = (values, scaling) if isinstance(scaling, DynamicNTKScaling) else None
        self.layout: RotaryLayout = layout
        self.stretch: float = getattr(scaling, "stretch", 1.0)

    @classmethod
    def from_config(cls, config: Any, *, bidirectional: bool) -> Self:
        """Return the rotation of heads of the width E."""
        scaling = config.rotary_scaling
        return cls(config.setting("d_head"), base=config.rotary_base, layout=config.rotary_layout, scaling=scaling)

    @classmethod
    def check_config(cls, config: Any) -> None:
        """Refuse an odd E."""
        if (width := config.setting("d_head")) % 2:
            raise ValueError(f"d_head: rotary positions need an even width, got {width} with d_model={config.d_model}")

    @classmethod
    def kept_bytes(cls, config: Any, T: int) -> int:
        """Cosines and sines, float32."""
        return 2 * T * (config.setting("d_head") // 2) * 4

    def forward(self, positions: Tensor) -> Rotation:
        """Integer positions (T,) or (B, T) -> the rotation at each."""
        if self.dynamic is not None:
            values, scaling = self.dynamic
            self.values = scaling(values, int(positions.max()) + 1)
        angles = self.angles(positions)
        if angles.dim() == 3:
            angles = angles[:, None]  # (B, T, E / 2) -> (B, 1, T, E / 2), alike in every head
        return Rotation(angles.cos() * self.stretch, angles.sin() * self.stretch, self.layout)


def apply_rotary(x: Tensor, rotation: Rotation) -> Tensor:
    """Turn queries or keys (B, H, T, E) by the rotation of their positions, computed in float32 or better."""
    if not isinstance(rotation, Rotation):
        raise TypeError(f"rotation: expected a Rotation, got {type(rotation).__name__}")
    cos, sin, layout = rotation
    if x.size(-1) != 2 * cos.size(-1) or x.size(-2) != cos.size(-2):
        raise ValueError(
            f"rotation: made for (T, E)={(cos.size(-2), 2 * cos.size(-1))}, got queries or keys {tuple(x.shape)}"
        )
    if layout == "half":
        first, second = x.chunk(2, dim=-1)  # (..., E) -> 2 times (..., E / 2)
        turned = torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)
    else:
        first, second = x[..., 0::2], x[..., 1::2]
        turned = torch.stack([first * cos - second * sin, second * cos + first * sin], dim=-1).flatten(-2)
    return turned.to(x.dtype)


def alibi_slopes(n_heads: int) -> Tensor:
    """The slope of each head, float32 (H,): 2^(-8/H), 2^(-16/H), ... for a power of two, else filled up from 2H."""
    check_integer("n_heads", n_heads)
    power = 2 ** int(math.log2(n_heads))
    slopes = [2 ** (-8 * (head + 1) / power) for head in range(power)]
    slopes += [2 ** (-4 * (head + 1) / power) for head in range(0, 2 * (n_heads - power), 2)]
    return torch.tensor(slopes, dtype=torch.float32, device="cpu")


class ALiBi(PositionScheme):
    """Lowers each score by the distance between query and key times a slope that differs by head.

    Nothing is trained, and any length will do. Source: Press et al. 2022, section 3.
    """

    acts_on = "scores"
    fields = ("n_heads",)

    def __init__(self, n_heads: int) -> None:
        super().__init__()
        self.slopes = alibi_slopes(n_heads)

    def forward(self, T: int, S: int | None = None, *, device: torch.device | str | None = None) -> Tensor:
        """The bias of T queries on S keys, the last query on the last key: float32 (1, H, T, S)."""
        check_device("device", device)
        if device is not None and self.slopes.device != torch.device(device):
            self.slopes = self.slopes.to(device)
        distance = _distance(T, T if S is None else S, self.slopes.device).abs()  # (T, S)
        return -(self.slopes[:, None, None] * distance)[None]  # (H, 1, 1) * (T, S) -> (1, H, T, S)


def _distance(T: int, S: int, device: torch.device) -> Tensor:
    """Position of each key minus that of each query, the last query on the last key: int (T, S)."""
    check_integer("T", T, 0)
    return torch.arange(S, device=device) - (torch.arange(T, device=device)[:, None] + (S - T))


def relative_bucket(distance: Tensor, *, n_buckets: int = 32, max_distance: int = 128, bidirectional: bool) -> Tensor:
    """Number the distances key - query: near ones one by one, far ones in buckets that widen, all beyond in the last.

    With `bidirectional`, half of the buckets are for later keys; without, later keys count as distance 0.
    Integers of any shape -> int64 of that shape. Source: Raffel et al. 2020 (T5), section 2.1 and its code.
    """
    check_integers("distance", distance)
    check_integer("n_buckets", n_buckets, 4 if bidirectional else 2)
    check_integer("max_distance", max_distance, n_buckets // (4 if bidirectional else 2) + 1)
    first = torch.zeros_like(distance)
    if bidirectional:
        n_buckets //= 2
        first = (distance > 0) * n_buckets
        distance = distance.abs()
    else:
        distance = (-distance).clamp(min=0)
    exact = n_buckets // 2
    ratio = (distance.float() / exact).clamp(min=1).log() / math.log(max_distance / exact)
    far = (exact + (ratio * (n_buckets - exact)).long()).clamp(max=n_buckets - 1)
    return first + torch.where(distance < exact, distance, far)


class RelativePositionBias(PositionScheme):
    """A trained number for each head and bucket of distances, added to the scores.

    Args:
        n_heads: H.
        n_buckets, max_distance, bidirectional: as in `relative_bucket`.

    Source: Raffel et al. 2020 (T5), section 2.1.
    """

    acts_on = "scores"

    def __init__(
        self, n_heads: int, *, n_buckets: int = 32, max_distance: int = 128, bidirectional: bool = True
    ) -> None:
        super().__init__()
        least = 4 if bidirectional else 2
        if not isinstance(n_buckets, int) or n_buckets < least or n_buckets % least:
            raise ValueError(f"n_buckets: expected a multiple of {least}, got {n_buckets!r}")
        if not isinstance(max_distance, int) or max_distance <= n_buckets // least:
            raise ValueError(f"max_distance: expected more than {n_buckets // least}, got {max_distance!r}")
        self.n_buckets, self.max_distance, self.bidirectional = n_buckets, max_distance, bidirectional
        self.weight = nn.Parameter(torch.empty(n_buckets, n_heads))
        nn.init.normal_(self.weight, std=0.02)

    @classmethod
    def from_config(cls, config: Any, *, bidirectional: bool) -> Self:
        """Return the table of H heads; a stack that sees both sides splits its buckets between them."""
        buckets, far = config.relative_buckets, config.relative_max_distance
        return cls(config.n_heads, n_buckets=buckets, max_distance=far, bidirectional=bidirectional)

    @classmethod
    def n_weights(cls, config: Any) -> int:
        """The whole table."""
        return config.relative_buckets * config.n_heads

    @classmethod
    def kept_bytes(cls, config: Any, T: int) -> int:
        """The bucket of each pair, int64."""
        return T * T * 8

    def forward(self, T: int, S: int | None = None, *, device: torch.device | str | None = None) -> Tensor:
        """The bias of T queries on S keys, the last query on the last key: (1, H, T, S), on the table's device."""
        distance = _distance(T, T if S is None else S, self.weight.device)
        buckets = relative_bucket(
            distance, n_buckets=self.n_buckets, max_distance=self.max_distance, bidirectional=self.bidirectional
        )
        return self.weight[buckets].permute(2, 0, 1)[None]  # (T, S, H) -> (1, H, T, S)


SCHEMES: dict[str, type[PositionScheme]] = {
    "none": PositionScheme,
    "sinusoidal": SinusoidalPositionalEncoding,
    "learned": LearnedPositionalEmbedding,
    "rotary": RotaryEmbedding,
    "alibi": ALiBi,
    "relative": RelativePositionBias,
}


def build_scheme(config: Any, *places: Place, bidirectional: bool = False) -> PositionScheme | None:
    """Return the scheme that the config names if it acts on one of the places, else None."""
    scheme = SCHEMES[config.positions]
    return scheme.from_config(config, bidirectional=bidirectional) if scheme.acts_on in places else None
