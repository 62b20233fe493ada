"""What a Transformer costs: parameters, operations, training memory by sharding stage and cache, for any sizes."""

from collections import Counter
from dataclasses import astuple, dataclass
from typing import Any, ClassVar, Literal

import torch
from matplotlib.figure import Figure

from course_lib.checks import check_choice, check_integer
from course_lib.config import TransformerConfig
from course_lib.scaling import Architecture, count_flops, count_parameters, training_memory
from coursework.explorers.explorer import Explorer, Table
from coursework.pictures.style import palette, styled

Sharding = Literal[0, 1, 2, 3]
SWITCHES: dict[str, dict[str, Any]] = {  # of each family
    "paper": {"share_vocabulary": True},
    "GPT": {"positions": "learned", "activation": "gelu_tanh", "norm_place": "pre"},
    "Llama": {
        "positions": "rotary",
        "activation": "silu",
        "gated": True,
        "norm": "rms",
        "norm_place": "pre",
        "bias": False,
        "tie_embeddings": False,
    },
}
STAGES: tuple[Sharding, ...] = (0, 1, 2, 3)
HEAD_WIDTHS = (16, 32, 64, 80, 96, 128, 256)
LENGTHS = (64, 128, 256, 512, 1024, 2048, 4096, 8192, 32_768, 131_072)
BATCHES = (1, 2, 4, 8, 16, 32, 64)
PROCESSES = (1, 2, 4, 8, 16, 64, 512)
SHARED = (0, 8, 1)  # heads of keys and values; 0 for one each
MOST = 128  # layers, and heads
PARTS = ("weights", "gradients", "optimizer", "activations")


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
        check_choice("model", model, found)
        self.preset = found[model]
        self.layers = self.preset.layers if layers is None else layers
        self.heads = self.preset.heads if heads is None else heads
        self.head_width = self.preset.head_width if head_width is None else head_width
        self.kv_heads = self.preset.kv_heads if kv_heads is None else kv_heads
        self.length, self.batch, self.number_bytes = length, batch, number_bytes
        self.processes, self.recompute = processes, bool(recompute)
        check_integer("layers", self.layers, 1, MOST)
        check_integer("heads", self.heads, 1, MOST)
        check_choice("head_width", self.head_width, HEAD_WIDTHS)
        check_choice("kv_heads", self.kv_heads, SHARED)
        check_choice("length", length, LENGTHS)
        check_choice("batch", batch, BATCHES)
        check_choice("number_bytes", number_bytes, (4, 2))
        check_choice("processes", processes, PROCESSES)
        super().__init__(alt=alt, caption=caption)

    @property
    def config(self) -> TransformerConfig:
        """The switches of the family with the sizes chosen; heads of keys and values are shared where they divide."""
        D, H = self.heads * self.head_width, self.heads
        G = self.kv_heads if self.kv_heads and H % self.kv_heads == 0 else H
        sizes: dict[str, Any] = {"d_model": D, "n_heads": H, "n_kv_heads": G, "d_ff": int(self.preset.inner * D + 0.5)}
        sizes |= {"n_decoder_layers": self.layers, "n_encoder_layers": self.layers, "vocab_size": self.preset.vocab}
        return TransformerConfig(**sizes, **SWITCHES[self.preset.family], max_length=self.preset.max_length or 1)

    @property
    def architecture(self) -> Architecture:
        """Of the family."""
        return "encoder-decoder" if self.preset.family == "paper" else "decoder"

    @property
    def _dtype(self) -> torch.dtype:
        return torch.float32 if self.number_bytes == 4 else torch.bfloat16

    def parameters(self) -> Counter[str]:
        """Parameters by piece."""
        return count_parameters(self.config, self.architecture)

    def operations(self) -> Counter[str]:
        """Operations of a training step by piece, in one process."""
        options: dict[str, Any] = {"architecture": self.architecture, "recompute": self.recompute}
        return count_flops(self.config, self.batch, self.length, backward=True, **options)

    def memory(self, stage: Sharding) -> Counter[str]:
        """Bytes in one process by part, at a stage of sharding from 0 (nothing) to 3 (all but activations)."""
        return training_memory(
            self.config,
            self.batch,
            self.length,
            architecture=self.architecture,
            dtype=self._dtype,
            recompute=self.recompute,
            ranks=self.processes,
            sharding=stage,
        )

    def state(self) -> dict[str, Any]:
        """Return the presets and where the controls stand."""
        return {
            "presets": [astuple(preset) for preset in PRESETS],
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
            for stage in STAGES:
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
        stages = [self.memory(stage) for stage in STAGES]
        rows = [[part, *(gib(stage[part]) for stage in stages)] for part in PARTS]
        rows.append(["all", *(gib(stage.total()) for stage in stages)])
        return Table(f"GiB in one of {self.processes} processes", ["part", *(f"stage {n}" for n in STAGES)], rows)

    def default_alt(self) -> str:
        """Say what the bars show."""
        kept = self.memory(0)["activations"]
        first, last = (self.memory(stage).total() for stage in (0, 3))
        return (
            f"Memory of {self.preset.name} in training, {self.batch} times {self.length} tokens in each of "
            f"{self.processes} processes: {gib(first)} GiB with nothing split, {gib(last)} GiB when weights, gradients "
            f"and optimizer are split. Activations take {gib(kept)} GiB at every stage."
        )

    def default_caption(self) -> str:
        """Say how much splitting saves, and what the count is."""
        total, kept = self.parameters().total(), self.memory(0)["activations"]
        first, last = (self.memory(stage).total() for stage in (0, 3))
        return (
            f"{self.preset.name}: {total:,} parameters. Splitting all but activations over {self.processes} processes "
            f"takes a process from {gib(first)} to {gib(last)} GiB; what remains is mostly "
            f"{'activations' if kept * 2 > last else 'weights and their states'}."
        )


def gib(n_bytes: int) -> str:
    """Bytes in GiB with two decimals."""
    return f"{n_bytes / 2**30:.2f}"
