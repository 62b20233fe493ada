"""`course export`: a trained model for the engines that serve."""

from pathlib import Path
from typing import Annotated

import typer

from coursework.commands.use import model_name

__all__ = ["export"]


def export(
    model: Annotated[str, typer.Argument(help="The folder of the model, or hf:NAME for one on the hub.")],
    to: Annotated[
        str, typer.Option("--to", help="transformers, gguf (llama.cpp), ctranslate2 or onnx.", show_default=False)
    ],
    out: Annotated[Path | None, typer.Option(help="The folder to write [MODEL/FORMAT].", show_default=False)] = None,
    dtype: Annotated[str, typer.Option(help="float32, float16, bfloat16 or int8; each format has some.")] = "float32",
) -> None:
    """Write a trained model in the format of an engine that serves, which then writes the same tokens.

    Each of them takes what `course train lm` trains by default; what transformers opens, vLLM does, too. The engines
    come with `pip install 'course-lib[engines]'`; docs/serving.md says which to take, and how to serve over HTTP.

    Examples: course export runs/lm --to ctranslate2 · course export runs/lm --to gguf --dtype int8
    """
    from coursework import export as room

    name = model_name(model)
    if out is None and model.startswith("hf:"):
        raise ValueError("--out: expected a folder to write, as the model is on the hub")
    path = room.export(name, to=to, out=out or Path(model) / to, dtype=dtype)
    typer.echo(f"{room.FORMATS[to].engine} opens {path}")
