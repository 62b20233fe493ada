"""The published models by name, with what their publishers say of their size, and the table of switches.

The sizes are those of the published configs; sources of the stated numbers stand beside them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from torch import nn

from course_lib.config import FALLBACKS, TransformerConfig
from course_lib.variants.bert import BERT
from course_lib.variants.gpt import GPT
from course_lib.variants.llama import Llama
from course_lib.variants.published_model import PublishedModel
from course_lib.variants.t5 import T5
from course_lib.variants.vit import ViT


@dataclass(frozen=True)
class Published:
    """A published model: its family, sizes, and the number of parameters that its publisher states."""

    family: type[PublishedModel]
    sizes: Mapping[str, Any]
    stated: float  # parameters
    source: str
    arguments: Mapping[str, Any] = field(default_factory=dict)  # of the class, beside the config

    def config(self) -> TransformerConfig:
        """The row of switches with the sizes filled in."""
        return self.family.configure(**self.sizes)

    def build(self, device: torch.device | str = "meta") -> nn.Module:
        """The model with new weights; on the meta device it has shapes only, so that any size fits."""
        with torch.device(device):
            return self.family(self.config(), **self.arguments)


def _bert(D: int, H: int, layers: int, stated: float) -> Published:
    sizes = {"d_model": D, "n_heads": H, "n_encoder_layers": layers, "vocab_size": 30_522}
    return Published(BERT, sizes, stated, "Devlin et al. 2019, section 3", {"pooler": True})


def _gpt2(D: int, H: int, layers: int, stated: float) -> Published:
    sizes = {"d_model": D, "n_heads": H, "n_decoder_layers": layers, "vocab_size": 50_257, "max_length": 1024}
    # Table 2 of the paper says 117M, 345M, 762M, 1542M; its repository corrects that.
    return Published(GPT, sizes, stated, "openai/gpt-2, DEVELOPERS.md")


def _t5(D: int, F: int, H: int, layers: int, stated: float, E: int = 64) -> Published:
    sizes = {"d_model": D, "d_ff": F, "n_heads": H, "d_head": E, "vocab_size": 32_128}
    stacks = {"n_encoder_layers": layers, "n_decoder_layers": layers}
    return Published(T5, {**sizes, **stacks}, stated, "Raffel et al. 2020, section 3.7")


def _llama(D: int, F: int, H: int, layers: int, stated: float, source: str, **changes: Any) -> Published:
    sizes = {"d_model": D, "d_ff": F, "n_heads": H, "n_decoder_layers": layers, "norm_eps": 1e-5}
    return Published(Llama, {**sizes, "vocab_size": 32_000, "max_length": 4096, **changes}, stated, source)


def _vit(D: int, H: int, layers: int, stated: float) -> Published:
    sizes = {"d_model": D, "n_heads": H, "n_encoder_layers": layers}
    return Published(ViT, sizes, stated, "torchvision, num_params of the weights", {"n_classes": 1000})


_LLAMA_2 = "Touvron et al. 2023 (Llama 2), table 1"
_LLAMA_3 = "Dubey et al. 2024, section 1"
_LLAMA_3_2 = "model card of Llama 3.2"
_THREE = {"vocab_size": 128_256, "rotary_base": 500_000.0, "n_kv_heads": 8, "max_length": 8192}

PUBLISHED: dict[str, Published] = {
    "bert-base-uncased": _bert(768, 12, 12, 110e6),
    "bert-large-uncased": _bert(1024, 16, 24, 340e6),
    "gpt2": _gpt2(768, 12, 12, 124e6),
    "gpt2-medium": _gpt2(1024, 16, 24, 355e6),
    "gpt2-large": _gpt2(1280, 20, 36, 774e6),
    "gpt2-xl": _gpt2(1600, 25, 48, 1558e6),
    "t5-small": _t5(512, 2048, 8, 6, 60e6),
    "t5-base": _t5(768, 3072, 12, 12, 220e6),
    "t5-large": _t5(1024, 4096, 16, 24, 770e6),
    "t5-3b": _t5(1024, 16_384, 32, 24, 2.8e9, E=128),
    "t5-11b": _t5(1024, 65_536, 128, 24, 11e9, E=128),
    "llama-2-7b": _llama(4096, 11_008, 32, 32, 7e9, _LLAMA_2),
    "llama-2-13b": _llama(5120, 13_824, 40, 40, 13e9, _LLAMA_2),
    "llama-2-70b": _llama(8192, 28_672, 64, 80, 70e9, _LLAMA_2, n_kv_heads=8),
    "llama-3-8b": _llama(4096, 14_336, 32, 32, 8e9, _LLAMA_3, **_THREE),
    "llama-3-70b": _llama(8192, 28_672, 64, 80, 70e9, _LLAMA_3, **_THREE),
    "llama-3-405b": _llama(16_384, 53_248, 128, 126, 405e9, _LLAMA_3, **_THREE),
    "llama-3.2-1b": _llama(2048, 8192, 32, 16, 1.23e9, _LLAMA_3_2, **_THREE, d_head=64, tie_embeddings=True),
    "llama-3.2-3b": _llama(3072, 8192, 24, 28, 3.21e9, _LLAMA_3_2, **_THREE, d_head=128, tie_embeddings=True),
    "vit-base-patch16-224": _vit(768, 12, 12, 86_567_656),
    "vit-large-patch16-224": _vit(1024, 16, 24, 304_326_632),
}

_SIZES = {"d_model", "n_heads", "n_kv_heads", "d_head", "d_ff", "n_encoder_layers", "n_decoder_layers", "max_length"}
_SIZES |= {"vocab_size", "target_vocab_size", "pad_id", "relative_buckets", "relative_max_distance", "init_std"}


@dataclass(frozen=True)
class SwitchTable:
    """Models and the switches in which they differ: `rows[model][switch]` is the value; printing it aligns them."""

    rows: Mapping[str, Mapping[str, Any]]

    def __str__(self) -> str:
        """One line a switch, one column a model."""
        names = list(self.rows)
        lines = [["", *names]]
        for switch in self.rows[names[0]]:
            lines.append([switch, *(_word(self.rows[name][switch]) for name in names)])
        widths = [max(len(line[column]) for line in lines) for column in range(len(names) + 1)]
        return "\n".join(
            "  ".join(f"{word:<{width}}" for word, width in zip(line, widths, strict=True)).rstrip() for line in lines
        )


def switch_table(configs: Mapping[str, TransformerConfig] | None = None) -> SwitchTable:
    """Return the switches in which configs differ, sizes left out; the published families unless given.

    The first switch says which stacks a model has.
    """
    if configs is None:
        configs = family_configs()
    if not configs:
        raise ValueError("configs: expected at least one")
    rows: dict[str, dict[str, Any]] = {name: {"stacks": _stacks(config)} for name, config in configs.items()}
    for each in fields(TransformerConfig):
        if each.name in _SIZES:
            continue
        values = {name: _shown(config, each.name) for name, config in configs.items()}
        general = FALLBACKS.get(each.name)
        if general is not None and values == {name: _shown(config, general) for name, config in configs.items()}:
            continue  # says nothing that the other switch does not
        if len(set(map(repr, values.values()))) > 1:
            for name, value in values.items():
                rows[name][each.name] = value
    return SwitchTable(rows)


def family_configs() -> dict[str, TransformerConfig]:
    """The base models of the families, the original first, as rows of the table of switches."""
    names = {"BERT": "bert-base-uncased", "GPT-2": "gpt2", "T5": "t5-base", "Llama": "llama-2-7b"}
    rows = {"Transformer": TransformerConfig(vocab_size=37_000, share_vocabulary=True)}
    rows |= {family: PUBLISHED[name].config() for family, name in names.items()}
    rows["T5 1.1"] = T5.configure(**{**PUBLISHED["t5-base"].sizes, **T5.version_1_1, "d_ff": 2048})
    rows["ViT"] = PUBLISHED["vit-base-patch16-224"].config()
    return {name: rows[name] for name in ("Transformer", "BERT", "GPT-2", "T5", "T5 1.1", "Llama", "ViT")}


def _stacks(config: TransformerConfig) -> str:
    if config.n_encoder_layers and config.n_decoder_layers:
        return "both"
    return "encoder" if config.n_encoder_layers else "decoder"


def _shown(config: TransformerConfig, name: str) -> Any:
    """The value that holds, where None stands for another field."""
    if name == "final_norm":
        return config.has_final_norm
    value = config.setting(name)
    if name == "logit_scale" and value == config.d_model**-0.5:
        return "D^-0.5"
    return value


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "-" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
