"""Write the folder that `transformers` opens by `AutoModelForCausalLM`, and vLLM with it: model, config and tokenizer.

A decoder of the course becomes the published family whose switches are those of its config. Norms without weights get
weights of one.
"""

import dataclasses
import json
from pathlib import Path
from typing import Any

import torch

from course_lib.multi_head import MultiHeadAttention
from course_lib.transformer import LanguageModel
from course_lib.variants import GPT, Llama, Qwen3
from course_lib.variants.published_model import PublishedModel
from coursework.export.parts import before_norm, check_plain, norm_eps
from coursework.export.vocabulary import Vocabulary

FAMILIES: tuple[Any, ...] = (Llama, Qwen3, GPT)


def write(model: LanguageModel, vocabulary: Vocabulary, out: Path, dtype: str) -> Path:
    """Write the folder; see `coursework.export.export`."""
    config = check_plain(model)
    written = model if isinstance(model, PublishedModel) else _as_published(model, vocabulary)
    more = {} if vocabulary.json is None else {"tokenizer.json": vocabulary.json}
    if vocabulary.json is not None:
        names = {f"{name}_token": getattr(vocabulary, name) for name in ("bos", "eos", "unk", "pad")}
        known = {name: vocabulary.name_of(id) for name, id in names.items() if id is not None}
        about = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": config.window or config.max_length}
        more["tokenizer_config.json"] = json.dumps({**about, **known, "clean_up_tokenization_spaces": False}, indent=1)
    written.to(getattr(torch, dtype)).save_pretrained(out, more=more)
    return out


def _as_published(model: LanguageModel, vocabulary: Vocabulary) -> PublishedModel:
    """The same decoder as a family that is published. Raises ValueError that names what no family has."""
    config = model.config
    factor = before_norm(config)[0]  # of queries and keys, where their norm has another eps than the rest
    changes: dict[str, Any] = {"norm_eps": norm_eps(config), "n_encoder_layers": 0, "pad_id": None}
    changes |= {name: "rms" for name in ("norm", "qk_norm") if getattr(config, name) in ("unit", "rms_offset")}
    named = dataclasses.replace(config, **changes)
    unsaid = {family: family.unsaid(named) for family in FAMILIES}
    family = min(FAMILIES, key=lambda one: len(unsaid[one]))
    if unsaid[family]:
        lacking = [f"{name}: expected {has!r}, got {getattr(config, name)!r}" for name, has in unsaid[family].items()]
        raise ValueError(
            f"transformers has no model for this config. The nearest is {family.__name__}: {'; '.join(lacking)}"
        )
    made = family(named)
    weights = model.state_dict()
    if config.norm == "rms_offset" or config.qk_norm == "rms_offset":
        offset = {name for name, part in model.named_modules() if getattr(part, "offset", False)}
        weights |= {f"{name}.weight": weights[f"{name}.weight"] + 1 for name in offset}
    absent, strange = made.load_state_dict(weights, strict=False)  # norms that train nothing have ones already
    if strange or any("norm" not in name for name in absent):
        raise ValueError(f"model: {(strange or absent)[0]} is not as its config says")
    with torch.no_grad():
        for part in made.modules() if factor != 1 else ():
            if isinstance(part, MultiHeadAttention):
                whole = part.separate(part.qkv.weight) if part.fused else (part.query.weight, part.key.weight)
                for rows in whole[:2]:
                    rows *= factor
    made.metadata = {f"{name}_token_id": getattr(vocabulary, name) for name in ("bos", "eos", "pad")}
    return made.eval()
