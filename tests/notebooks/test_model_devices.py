"""The models that notebooks write obey the law of devices: what a reader takes away runs on an accelerator.

Imports, functions, classes and plain numbers of a source are executed, and nothing else of it.
"""

import ast
import functools
import re

import pytest
import torch
from notebook_files import FOLDER
from torch import nn

from course_lib.attention import SelfAttention
from course_lib.transformer import LanguageModel, Transformer, TransformerConfig
from coursework.assembly.pretended_device import assert_follows_device
from coursework.exercises import registry

LLAMA_LAYER = "LlamaLayer(8, 4, n_kv_heads=2, d_head=4, d_ff=9, eps=1e-6, base=50.0, bias=True, qk_norm=True)"
# A model, and what it is called with: x are vectors, ids tokens.
MODELS = {
    "00_overview": [("GPT(11, 16)", "ids(2, 9)"), ("EncoderDecoder(11, 16)", "ids(2, 7), ids(2, 5)")],
    "01_attention": [("Head(8, 4)", "x(2, 5, 8)"), ("Reader()", "ids(2, 6)")],
    "02_multi_head": [
        ("TwoPlaces(2)", "ids(2, 16)"),
        ("MultiHead(8, 2)", "x(2, 5, 8)"),
        ("AttentionOnly(2)", "ids(2, 9)"),
    ],
    "03_positional_encoding": [("LearnedTable(9, 8)", "torch.arange(5)")],
    "04_encoder": [("Classifier(Encoder(11))", "ids(2, 9)")],
    "05_decoder": [
        ("NextToken(masks.causal_mask(13))", "ids(2, 13)"),
        ("EncoderDecoder(11, 16)", "ids(2, 7), ids(2, 5)"),
        ("fresh_gpt(11)", "ids(2, 9)"),
    ],
    "07_variants": [
        ("RMSNorm(8)", "x(2, 5, 8)"),
        ("GPT2Layer(8, 2)", "x(2, 5, 8), torch.arange(5), masks.causal_mask(5)"),
        (LLAMA_LAYER, "x(2, 5, 8), torch.arange(5), masks.causal_mask(5)"),
        (f"Local({LLAMA_LAYER}, 2)", "x(2, 5, 8), torch.arange(5), masks.causal_mask(5)"),
    ],
    "08_scaling": [("Loss(LanguageModel(SMALL))", "ids(2, 9)")],
    "labs/01_reach": [
        ("FirstSymbol(SelfAttention(32), 9)", "ids(2, 9)"),
        ("LastState()", "ids(2, 5), ids(2, 5), ids(2, 1)"),
        ("Attending()", "ids(2, 5), ids(2, 5), ids(2, 1)"),
    ],
    "labs/01_who_sees_what": [
        ("NextToken(masks.causal_mask(T))", "ids(2, T)"),
        ("RecallHead(8)", "ids(2, 5), ids(2, 5), ids(2, 1)"),
    ],
    "labs/02_heads": [("AttentionOnly()", "ids(2, 9)")],
    "labs/03_bugs": [("WithDropout(8)", "x(2, 5, 8)")],
    "labs/03_positions": [("PlaceNamer(True, True)", "ids(2, 8)"), ("WithBuffer(8)", "x(2, 5, 8)")],
    "labs/04_bugs": [("TextEncoder(SMALL)", "ids(2, 7)")],
    "labs/04_padding": [("Classifier(SMALL)", "ids(2, 7)")],
    "labs/05_inside_a_model": [("SmallGPT()", "ids(2, 9)")],
    "labs/07_efficient_attention": [("Leaky(8, 16)", "x(1, 2, 7, 8), x(1, 2, 7, 8), x(1, 2, 7, 8)")],
    "labs/07_bugs": [("InFloat16(8)", "x(2, 5, 8)")],
    "labs/07_experts": [("Facts(nn.Linear(32, 32))", "ids(5), ids(5)")],
    "labs/07_linear_memory": [("Reader()", "ids(2, 7), ids(2, 7)")],
    "labs/07_masked_diffusion": [("Writer(False)", "ids(2, 9)"), ("Writer(True)", "ids(2, 9)")],
    "labs/08_width_and_rates": [("GPT(16)", "ids(2, 9)")],
}
# What is done with a model, or without one: the model, the function, and what it gets.
CALLS = {
    "04_encoder": [("nn.Identity()", "hide", "ids(2, 9)")],
    "05_decoder": [
        ("fresh_gpt(11)", "lambda t: write_greedily(model, t, 4)", "ids(2, 3)"),
        ("fresh_gpt(11)", "lambda t: generate(model, t, 4, most_likely)", "ids(2, 3)"),
        ("EncoderDecoder(11, 16)", "lambda s: write_backwards(model, s)", "ids(2, 5)"),
    ],
    "06_training": [
        ("Transformer(SMALL)", "lambda s, t: sums_of(model, {'source': s, 'target': t})", "ids(2, 5), ids(2, 6)"),
    ],
    "labs/05_choosing": [("LanguageModel(SMALL)", "lambda t: search(model, t, 3, 2)[0]", "ids(1, 3)")],
}
# Written for one place, a CPU: with the mask that it is given, or one made beside it.
ON_THE_CPU = {
    ("04_encoder", "hide"),
    ("05_decoder", "NextToken(masks.causal_mask(13))"),
    ("labs/01_who_sees_what", "NextToken(masks.causal_mask(T))"),
    ("labs/03_positions", "PlaceNamer(True, True)"),
}
CASES = [(source, model, given) for source, rows in MODELS.items() for model, given in rows]


@functools.cache
def names(source):
    """What a source defines, as far as it can be without running it."""
    sizes = {"d_model": 16, "n_heads": 2, "n_encoder_layers": 1, "n_decoder_layers": 1, "vocab_size": 11}
    found = {"torch": torch, "nn": nn, "SelfAttention": SelfAttention, "LanguageModel": LanguageModel}
    found |= {"Transformer": Transformer}
    for exercise in re.findall(r'exercise="(\w+)"', text(source)):
        spec = registry.get(exercise)
        if hasattr(spec, "reference"):
            found[spec.function_name] = spec.reference
    found |= {"SMALL": TransformerConfig(**sizes), "__name__": "notebook"}
    found |= {"x": lambda *shape: torch.randn(shape, requires_grad=True)}
    found |= {"ids": lambda *shape: torch.randint(3, 11, shape)}
    for node in tree(source).body:
        attribute = isinstance(node, ast.Assign) and any(
            isinstance(part, ast.Attribute) for target in node.targets for part in ast.walk(target)
        )
        plain = isinstance(node, ast.Assign) and all(
            isinstance(part, ast.Constant | ast.Tuple | ast.Name | ast.Call | ast.expr_context)
            and (not isinstance(part, ast.Call) or ast.unparse(part.func) == "len")
            for part in ast.walk(node.value)
        )
        part = isinstance(node, ast.Assign) and ".part()" in ast.unparse(node.value)
        if attribute or plain or part or isinstance(node, ast.Import | ast.ImportFrom | ast.FunctionDef | ast.ClassDef):
            try:
                exec(compile(ast.Module([node], []), source, "exec"), found)
            except Exception as error:  # a function of something that a cell computes
                print(f"{source}, line {node.lineno}: left out, {error!r}")
    return found


def tree(source):
    return ast.parse(text(source))


def text(source):
    return (FOLDER / "sources" / f"{source}.py").read_text(encoding="utf-8")


@pytest.mark.parametrize(("source", "model", "given"), CASES, ids=lambda text: str(text)[:40])
def test_a_model_of_a_notebook_runs_on_another_device(source, model, given, request, obeys):
    if (source, model) in ON_THE_CPU:
        request.applymarker(pytest.mark.xfail(reason="it holds a tensor of the CPU", raises=AssertionError))
    torch.manual_seed(0)
    here = names(source)
    made = eval(model, here)
    assert_follows_device(made, *eval(f"({given},)", here), module=made)
    obeys(f"{source} {model}"[:41], "device")


@pytest.mark.parametrize(
    ("source", "model", "function", "given"), [(source, *row) for source, rows in CALLS.items() for row in rows]
)
def test_what_is_done_with_it_runs_there(source, model, function, given, request):
    if (source, function) in ON_THE_CPU:
        request.applymarker(pytest.mark.xfail(reason="it makes a tensor on the CPU", raises=AssertionError))
    here = dict(names(source))
    here["model"] = eval(model, here)
    assert_follows_device(eval(function, here), *eval(f"({given},)", here), module=here["model"])


def test_no_model_of_a_notebook_is_forgotten():
    """Each class that is a module, but for the exhibits, which are wrong on purpose, is in a model above."""
    forgotten = []
    for path in sorted((FOLDER / "sources").rglob("*.py")):
        source = path.relative_to(FOLDER / "sources").with_suffix("").as_posix()
        written = [node.name for node in tree(source).body if isinstance(node, ast.ClassDef)]
        if not [name for name in written if not name.startswith("Exhibit")]:
            continue
        here = names(source)
        modules = {name for name in written if isinstance(here.get(name), type) and issubclass(here[name], nn.Module)}
        met = {
            kind.__name__
            for model, _ in MODELS.get(source, ())
            for part in eval(model, here).modules()
            for kind in type(part).__mro__
        }
        plugs = ("Exhibit", "OwnScheme")  # the latter asks the reader's own function
        forgotten += [f"{source}: {name}" for name in modules - met if not name.startswith(plugs)]
    assert forgotten == []
