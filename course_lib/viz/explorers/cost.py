"""What a Transformer costs: parameters, operations, training memory by sharding stage and cache, for any sizes."""

from dataclasses import dataclass
from typing import Any, ClassVar

from matplotlib.figure import Figure

from course_lib.viz.explorer import Explorer, Table
from course_lib.viz.style import palette, styled

FAMILIES = ("paper", "GPT", "Llama")  # encoder-decoder with ReLU; decoder with biases; gated decoder without
HEAD_WIDTHS = (16, 32, 64, 80, 96, 128, 256)
LENGTHS = (64, 128, 256, 512, 1024, 2048, 4096, 8192, 32_768, 131_072)
BATCHES = (1, 2, 4, 8, 16, 32, 64)
PROCESSES = (1, 2, 4, 8, 16, 64, 512)
SHARED = (0, 8, 1)  # heads of keys and values; 0 for one each
MOST = 128  # layers, and heads
PARTS = ("weights", "gradients", "optimizer", "activations")
PIECES = ("token tables", "positions", "attention", "feed-forward", "norms", "head")
PRODUCTS = ("projections", "scores and mixing", "feed-forward", "head")


@dataclass(frozen=True)
class Preset:
    """Sizes of a model: its family, layers (of each stack), heads, their width, inner width, vocabulary."""

    name: str
    family: str
    layers: int
    heads: int
    head_width: int
    inner: float  # times the width
    vocab: int
    max_length: int = 0  # rows of a learned table of positions
    kv_heads: int = 0


PRESETS = (
    Preset("the paper, base", "paper", 6, 8, 64, 4, 37_000),
    Preset("the paper, big", "paper", 6, 16, 64, 4, 37_000),
    Preset("GPT-2", "GPT", 12, 12, 64, 4, 50_257, 1024),
    Preset("GPT-2 XL", "GPT", 48, 25, 64, 4, 50_257, 1024),
    Preset("GPT-3", "GPT", 96, 96, 128, 4, 50_257, 2048),
    Preset("Llama 2 7B", "Llama", 32, 32, 128, 2.6875, 32_000),
    Preset("Llama 3 8B", "Llama", 32, 32, 128, 3.5, 128_256, kv_heads=8),
    Preset("Llama 3 70B", "Llama", 80, 64, 128, 3.5, 128_256, kv_heads=8),
    Preset("Llama 3 405B", "Llama", 126, 128, 128, 3.25, 128_256, kv_heads=8),
)


class CostExplorer(Explorer):
    """Choose a model or your own sizes; read parameters, operations of a step, bytes of training and of the cache.

    The formulas are those of `course_lib.scaling`, for AdamW, without dropout, with fused attention; the code that the
    page prints gives the same config there.

    Args:
        model: a name of `PRESETS`, whose switches and vocabulary hold.
        layers, heads, head_width, kv_heads: in place of the preset's; `kv_heads` 0 gives each head its own.
        length: tokens of a sequence (of both, source and target), one of `LENGTHS`.
        batch: sequences in a process, one of `BATCHES`.
        number_bytes: 4 for float32, 2 for bfloat16.
        processes: that share the work, one of `PROCESSES`.
        recompute: keep only the input of each layer for the backward pass.
        alt, caption: computed from the numbers unless given.

    Raises:
        ValueError: a size outside its choices.
    """

    script: ClassVar[str] = "cost"

    def __init__(
        self,
        *,
        model: str = "GPT-2",
        layers: int | None = None,
        heads: int | None = None,
        head_width: int | None = None,
        kv_heads: int | None = None,
        length: int = 1024,
        batch: int = 1,
        number_bytes: int = 4,
        processes: int = 8,
        recompute: bool = False,
        alt: str | None = None,
        caption: str | None = None,
    ) -> None:
        found = {preset.name: preset for preset in PRESETS}
        if model not in found:
            raise ValueError(f"model: expected one of {', '.join(found)}, got {model!r}")
        self.preset = found[model]
        self.layers = self.preset.layers if layers is None else layers
        self.heads = self.preset.heads if heads is None else heads
        self.head_width = self.preset.head_width if head_width is None else head_width
        self.kv_heads = self.preset.kv_heads if kv_heads is None else kv_heads
        self.length, self.batch, self.number_bytes = length, batch, number_bytes
        self.processes, self.recompute = processes, bool(recompute)
        for name, value in (("layers", self.layers), ("heads", self.heads)):
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST:
                raise ValueError(f"{name}: expected an integer from 1 to {MOST}, got {value!r}")
        for name, value, choices in (
            ("head_width", self.head_width, HEAD_WIDTHS),
            ("kv_heads", self.kv_heads, SHARED),
            ("length", length, LENGTHS),
            ("batch", batch, BATCHES),
            ("number_bytes", number_bytes, (4, 2)),
            ("processes", processes, PROCESSES),
        ):
            if value not in choices:
                raise ValueError(f"{name}: expected one of {choices}, got {value!r}")
        super().__init__(alt=alt, caption=caption)

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """D, F, H and G: widths, heads, and heads of keys and values that really divide them."""
        D = self.heads * self.head_width
        G = self.kv_heads if self.kv_heads and self.heads % self.kv_heads == 0 else self.heads
        return D, int(self.preset.inner * D + 0.5), self.heads, G

    def parameters(self) -> dict[str, int]:
        """Parameters by piece."""
        D, F, H, G = self.sizes
        E, L, V, family = self.head_width, self.layers, self.preset.vocab, self.preset.family
        bias, gated = family != "Llama", family == "Llama"
        attention = 2 * D * H * E + 2 * D * G * E + (H * E + 2 * G * E + D if bias else 0)
        feed_forward = (3 if gated else 2) * D * F + (F + D if bias else 0)
        norm = 2 * D if bias else D
        attentions, norms, layers = (3, 5, 2) if family == "paper" else (1, 2, 1)  # of both stacks together
        return {
            "token tables": V * D,
            "positions": self.preset.max_length * D,
            "attention": L * attentions * attention,
            "feed-forward": L * layers * feed_forward,
            "norms": (L * norms + (family != "paper")) * norm,
            "head": V * D if gated else 0,
        }

    def operations(self) -> dict[str, int]:
        """Operations of a training step by piece, in one process."""
        D, F, H, G = self.sizes
        E, L, B, T, family = self.head_width, self.layers, self.batch, self.length, self.preset.family
        attentions, layers = (3, 2) if family == "paper" else (1, 1)
        times = 4 if self.recompute else 3
        return {
            "projections": times * L * attentions * 2 * B * T * (2 * D * H * E + 2 * D * G * E),
            "scores and mixing": times * L * attentions * 4 * B * H * T * T * E,
            "feed-forward": times * L * layers * 2 * B * T * (3 if family == "Llama" else 2) * D * F,
            "head": 3 * 2 * B * T * D * self.preset.vocab,
        }

    def six_n_d(self) -> int:
        """Six operations for each token and each parameter that is not in a table, the head included."""
        count = self.parameters()
        N = sum(count.values()) - count["token tables"] - count["positions"] - count["head"]
        return 6 * (N + self.preset.vocab * self.sizes[0]) * self.batch * self.length

    def activations(self) -> int:
        """Bytes kept for the backward pass."""
        D, F, H, G = self.sizes
        E, L, B, T, w, family = self.head_width, self.layers, self.batch, self.length, self.number_bytes, self.family
        n = B * T
        stream, heads = n * D * w, n * H * E * w
        norm = 2 * stream + 4 * n if family == "Llama" else stream + 8 * n
        copies = 2 * heads if G < H else 0
        if family == "Llama":  # rotary: what attention reads is not what the projections gave
            kept = 2 * heads + (copies or heads) + (3 * heads if G == H else 0)
        else:
            kept = n * (H + 2 * G) * E * w + copies
        own = kept + 4 * n * H + heads
        inner = {"paper": 1, "GPT": 2, "Llama": 4}[family] * n * F * w
        layer = 2 * (stream + norm) + own + inner
        stack = (L * stream + layer if self.recompute else L * layer) + stream
        total = stack + n * self.preset.vocab * w
        if family == "paper":  # the encoder's stack, and in the decoder's a third sublayer
            cross = stream + norm + 4 * heads + 4 * n * H
            return total + stack + (cross if self.recompute else L * cross)
        return total + norm + (8 * T if family == "GPT" else 8 * T * (E // 2))

    @property
    def family(self) -> str:
        """Of the preset."""
        return self.preset.family

    def memory(self, stage: int) -> dict[str, int]:
        """Bytes in one process by part, at a stage of sharding from 0 (nothing) to 3 (all but activations)."""
        whole = sum(self.parameters().values()) * self.number_bytes
        part = -(-whole // self.processes)
        return {
            "weights": part if stage >= 3 else whole,
            "gradients": part if stage >= 2 else whole,
            "optimizer": 2 * (part if stage >= 1 else whole),
            "activations": self.activations(),
        }

    def cache(self) -> int:
        """Bytes of the keys and values of a batch; an encoder-decoder also keeps those of the source."""
        positions = self.length * (2 if self.preset.family == "paper" else 1)
        return 2 * self.layers * self.batch * self.sizes[3] * positions * self.head_width * self.number_bytes

    def state(self) -> dict[str, Any]:
        """Return the presets and where the controls stand."""
        fields = ("name", "family", "layers", "heads", "head_width", "inner", "vocab", "max_length", "kv_heads")
        return {
            "presets": [[getattr(preset, name) for name in fields] for preset in PRESETS],
            "choices": {
                "head_width": HEAD_WIDTHS,
                "kv_heads": SHARED,
                "length": LENGTHS,
                "batch": BATCHES,
                "processes": PROCESSES,
            },
            "model": PRESETS.index(self.preset),
            "layers": self.layers,
            "heads": self.heads,
            "head_width": self.head_width,
            "kv_heads": self.kv_heads,
            "length": self.length,
            "batch": self.batch,
            "number_bytes": self.number_bytes,
            "processes": self.processes,
            "recompute": self.recompute,
        }

    def figure(self) -> Figure:
        """Draw the bytes of one process at each stage, part upon part."""
        with styled():
            fig = Figure(figsize=(7.2, 2.8))
            ax = fig.subplots()
            colors = [palette.query, palette.key, palette.value, palette.output]
            for stage in range(4):
                left = 0.0
                for (part, n_bytes), color in zip(self.memory(stage).items(), colors, strict=True):
                    label = part if stage == 0 else None
                    ax.barh(f"stage {stage}", n_bytes / 2**30, left=left, color=color, label=label)
                    left += n_bytes / 2**30
                ax.text(left, stage, f" {left:.2f}", va="center", fontsize=9)
            ax.invert_yaxis()
            ax.margins(x=0.12)
            ax.set(title=f"{self.preset.name}: bytes in each of {self.processes} processes", xlabel="GiB")
            fig.legend(loc="outside lower center", ncols=4, frameon=False)
        return fig

    def table(self) -> Table:
        """Return the bytes by part and stage."""
        stages = [self.memory(stage) for stage in range(4)]
        rows = [[part, *(gib(stage[part]) for stage in stages)] for part in PARTS]
        rows.append(["all", *(gib(sum(stage.values())) for stage in stages)])
        return Table(f"GiB in one of {self.processes} processes", ["part", *(f"stage {n}" for n in range(4))], rows)

    def default_alt(self) -> str:
        """Say what the bars show."""
        first, last = (sum(self.memory(stage).values()) for stage in (0, 3))
        return (
            f"Memory of {self.preset.name} in training, {self.batch} times {self.length} tokens in each of "
            f"{self.processes} processes: {gib(first)} GiB with nothing split, {gib(last)} GiB when weights, gradients "
            f"and optimizer are split. Activations take {gib(self.activations())} GiB at every stage."
        )

    def default_caption(self) -> str:
        """Say how much splitting saves, and what the count is."""
        total = sum(self.parameters().values())
        first, last = (sum(self.memory(stage).values()) for stage in (0, 3))
        return (
            f"{self.preset.name}: {total:,} parameters. Splitting everything over {self.processes} processes takes a "
            f"process from {gib(first)} to {gib(last)} GiB; what remains is mostly "
            f"{'activations' if self.activations() * 2 > last else 'weights and their states'}."
        )


def gib(n_bytes: int) -> str:
    """Bytes in GiB with two decimals."""
    return f"{n_bytes / 2**30:.2f}"
