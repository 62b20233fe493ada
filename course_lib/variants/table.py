"""The table of switches: in which of them models differ."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from course_lib.checks import checked
from course_lib.config import FALLBACKS, TransformerConfig
from course_lib.variants.published_model import PUBLISHED
from course_lib.variants.t5 import T5

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


@checked
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
    return {
        # Dropout after each sublayer and on the embeddings, nowhere else: Vaswani et al. 2017, section 5.4.
        "Transformer": TransformerConfig(
            vocab_size=37_000, share_vocabulary=True, attention_dropout=0.0, activation_dropout=0.0
        ),
        "BERT": PUBLISHED["bert-base-uncased"].config(),
        "GPT-2": PUBLISHED["gpt2"].config(),
        "T5": PUBLISHED["t5-base"].config(),
        "T5 1.1": T5.configure(**{**PUBLISHED["t5-base"].sizes, **T5.version_1_1, "d_ff": 2048}),
        "Llama": PUBLISHED["llama-2-7b"].config(),
        "ViT": PUBLISHED["vit-base-patch16-224"].config(),
    }


def _stacks(config: TransformerConfig) -> str:
    if config.n_encoder_layers and config.n_decoder_layers:
        return "both"
    return "encoder" if config.n_encoder_layers else "decoder"


def _shown(config: TransformerConfig, name: str) -> Any:
    """The value that holds, where None stands for another field."""
    value = config.setting(name)
    if name == "logit_scale" and value == config.d_model**-0.5:
        return "D^-0.5"
    return value


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "-" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
