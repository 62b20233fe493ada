"""The published Transformers as configurations of the same blocks, and folders that hold models.

- The families, such as `GPT`: each is a row of switches (`GPT.switches`) over the blocks of this package, a head, and
  a table of names. `GPT(GPT.configure(d_model=64, n_heads=4, n_decoder_layers=2, vocab_size=100))` has new weights;
  `GPT.from_pretrained(path_or_name)` and `.save_pretrained(path)` read and write what `transformers` does.
- Decoders such as GPT and Llama are called as `LanguageModel`, T5 as `Transformer`, BERT as `EncoderModel` (heads
  "none", "masked_lm", "classifier", and `embed_sentences`), ViT on images; `course_lib.generation` takes all but the
  last two.
- `from_pretrained(path_or_name)` finds the class by the folder's model_type; `save_pretrained(model, path)` also takes
  a `Transformer`, `LanguageModel` or `EncoderModel` of any config; `locate(path_or_name)` gives the folder.
- `PUBLISHED["gpt2"].config()` gives the sizes of published models, `.build("meta")` their shapes;
  `print(switch_table())` shows in which switches the families differ.
- `course_lib.variants.efficient`, `latent`, `lora`, `experts` and `balanced_experts` change what is inside; `packed`
  and `int8` make a finished model write faster: `pack_(model)` the same tokens, `quantize_(model)` nearly the same.
"""

from course_lib.variants.bert import BERT
from course_lib.variants.course_models import config_from_dict, config_to_dict
from course_lib.variants.encoder_model import EncoderModel
from course_lib.variants.folders import locate
from course_lib.variants.gemma3 import Gemma3
from course_lib.variants.gpt import GPT
from course_lib.variants.llama import Llama
from course_lib.variants.pretrained import from_pretrained, save_pretrained
from course_lib.variants.published_model import PUBLISHED, Published
from course_lib.variants.qwen3 import Qwen3
from course_lib.variants.t5 import T5
from course_lib.variants.table import SwitchTable, family_configs, switch_table
from course_lib.variants.vit import ViT, patchify

__all__ = [
    "BERT",
    "GPT",
    "PUBLISHED",
    "T5",
    "EncoderModel",
    "Gemma3",
    "Llama",
    "Published",
    "Qwen3",
    "SwitchTable",
    "ViT",
    "config_from_dict",
    "config_to_dict",
    "family_configs",
    "from_pretrained",
    "locate",
    "patchify",
    "save_pretrained",
    "switch_table",
]
