"""From a trained model to the engines that serve: GGUF for llama.cpp, CTranslate2, ONNX, and transformers.

`export(folder, to="gguf", out="served")` writes what the engine opens and returns its path. `FORMATS` says for each
format which models it takes. The packages that write all but the folder of
transformers come with `pip install 'course-lib[engines]'`.
"""

import importlib
import os
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from course_lib.checks import check_choice
from course_lib.data.tokenizer import Tokenizer
from course_lib.transformer import LanguageModel, Transformer
from course_lib.variants import EncoderModel, from_pretrained, locate
from coursework.export.parts import DTYPES
from coursework.export.vocabulary import read_tokenizer, vocabulary

__all__ = ["DTYPES", "FORMATS", "Format", "export"]


@dataclass(frozen=True)
class Format:
    """A format: the engine that reads it, and the models and numbers that it takes."""

    engine: str
    models: tuple[type[nn.Module], ...]
    dtypes: tuple[str, ...] = DTYPES


FORMATS = {
    "transformers": Format("transformers", (LanguageModel,), ("float32", "float16", "bfloat16")),
    "gguf": Format("llama.cpp", (LanguageModel,)),
    "ctranslate2": Format("CTranslate2", (LanguageModel, Transformer)),
    "onnx": Format("ONNX Runtime", (LanguageModel, Transformer, EncoderModel), ("float32",)),
}


def export(
    model: nn.Module | str | os.PathLike[str],
    *,
    to: str,
    out: str | os.PathLike[str],
    dtype: str = "float32",
    tokenizer: Tokenizer | None = None,
) -> Path:
    """Write a model for an engine, and return the path that the engine opens.

    Args:
        model: a language model, an encoder-decoder or an encoder; or the folder of one, such as that of a run.
        to: a key of `FORMATS`.
        out: the folder to write; files of the same names are replaced once all are whole, others stay.
        dtype: of the weights, "float32", "float16", or "int8": 8 bits with a factor for each 32 numbers (GGUF's Q8_0)
            or for each row (CTranslate2).
        tokenizer: of a model that is given itself; a folder brings its own. Without one, the engine takes and gives
            ids, and a token is called by its id, as in "<17>".

    Raises:
        ValueError: a format, dtype or field of the config that the engine does not have, which names what it has; or
            a missing package, with what to install.
        FileNotFoundError: no such folder.
    """
    check_choice("to", to, FORMATS)
    chosen = FORMATS[to]
    check_choice("dtype", dtype, chosen.dtypes)
    content: Tokenizer | dict | None = tokenizer
    if not isinstance(model, nn.Module):
        folder = locate(model)
        content = tokenizer or read_tokenizer(folder)
        model = from_pretrained(folder)
    if not isinstance(model, chosen.models):
        kinds = " or ".join(f"a {kind.__name__}" for kind in chosen.models)
        others = [name for name, one in FORMATS.items() if isinstance(model, one.models)]
        hint = f"; it goes to {' and '.join(others)}" if others else ""
        raise ValueError(f"model: expected {kinds} for {chosen.engine}, got a {type(model).__name__}{hint}")
    writer = importlib.import_module(f"coursework.export.to_{to}")
    return writer.write(model, vocabulary(model, content), Path(out), dtype)
