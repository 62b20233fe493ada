"""The published Transformers as configurations of the same blocks, and folders that hold models.

- `save_pretrained(model, path)` writes a `Transformer`, a `LanguageModel` or an `EncoderModel` of any config as
  `config.json` and `model.safetensors`; `from_pretrained(path_or_name)` reads such a folder back.
- `EncoderModel(config, head=...)` is the encoder alone, with a head: classes, masked tokens, or none.
"""

from course_lib.variants.encoder_model import EncoderModel, mean_pool
from course_lib.variants.own import config_from_dict, config_to_dict
from course_lib.variants.pretrained import from_pretrained, save_pretrained

__all__ = ["EncoderModel", "config_from_dict", "config_to_dict", "from_pretrained", "mean_pool", "save_pretrained"]
