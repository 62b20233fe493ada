"""ONNX graphs in ONNX Runtime: logits to rounding, for any batch and length, and the same tokens step by step.

To trace a graph takes seconds, so few models hold all that a graph can get wrong.
"""

import numpy as np
import pytest
import torch
from exported import NEW, PROMPT, RMS, SIZES, V, decoder, ours, ours_of_pair, shaken, t5

from course_lib.data import pad_batch
from course_lib.rotary_scaling import DynamicNTKScaling
from course_lib.transformer import TransformerConfig
from course_lib.variants import GPT, EncoderModel
from coursework.export import export

MODELS = {
    "GPT": lambda: GPT(GPT.configure(**{**SIZES, "n_decoder_layers": 1})),
    "grouped heads, normed and turned, a window in one layer": lambda: decoder(
        **RMS, qk_norm="rms", n_kv_heads=2, window=6, local_layers=(True, False), activation="gelu"
    ),
}
SOURCES = [[5, 9, 33, 60, 12, 1], [8, 8, 20, 1]]


def session(path):
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(str(path), options)


def empty(graph, batch=1):
    """The past of a first step: no positions."""
    return {
        each.name: np.zeros((batch, each.shape[1], 0, each.shape[3]), np.float32)
        for each in graph.get_inputs()
        if each.name.startswith("past")
    }


def greedy(graph, prompt, new=NEW, **inputs):
    past, ids, written = empty(graph), prompt, []
    for _ in range(new):
        logits, *present = graph.run(None, {"input_ids": np.array([ids]), **past, **inputs})
        past = dict(zip(past, present, strict=True))
        ids = [int(logits[0, -1].argmax())]
        written += ids
    return written


@pytest.mark.parametrize("name", MODELS)
def test_a_decoder_gives_the_same_logits_and_tokens(name, tmp_path):
    model = shaken(MODELS[name])
    graph = session(export(model, to="onnx", out=tmp_path) / "model.onnx")
    for batch, length in ((1, 1), (1, 9), (3, 5)):
        tokens = torch.randint(V, (batch, length))
        logits = graph.run(None, {"input_ids": tokens.numpy(), **empty(graph, batch)})[0]
        np.testing.assert_allclose(logits, model(tokens).detach(), atol=1e-4, rtol=1e-4)
    print(f"onnx         {name:<42} {NEW} tokens compared")
    assert greedy(graph, PROMPT) == ours(model)


def test_t5_gives_the_same_tokens(tmp_path):
    """Also with padding in the source, which the mask hides."""
    model = shaken(lambda: t5(n_encoder_layers=1, n_decoder_layers=1))
    out = export(model, to="onnx", out=tmp_path)
    encoder, step = session(out / "encoder_model.onnx"), session(out / "decoder_model.onnx")
    source = pad_batch([{"source": ids} for ids in SOURCES], 0)["source"]
    mask = (source != 0).long().numpy()
    vectors = encoder.run(None, {"input_ids": source.numpy(), "attention_mask": mask})[0]
    rows = [
        greedy(step, [0], 20, encoder_hidden_states=vectors[i : i + 1], encoder_attention_mask=mask[i : i + 1])
        for i in range(len(SOURCES))
    ]
    print(f"onnx         {'T5':<42} {sum(map(len, rows))} tokens compared")
    assert rows == ours_of_pair(model, SOURCES, new=20)


@pytest.mark.parametrize("pooler", [True, False])
def test_a_classifier_gives_the_same_logits(tmp_path, pooler):
    config = TransformerConfig(**{**SIZES, "n_encoder_layers": 1, "n_decoder_layers": 0, "pad_id": 0})
    model = shaken(lambda: EncoderModel(config, head="classifier", n_classes=3, pooler=pooler))
    graph = session(export(model, to="onnx", out=tmp_path) / "model.onnx")
    tokens = torch.tensor([[5, 6, 7, 0, 0], [9, 8, 7, 6, 5]])
    logits = graph.run(None, {"input_ids": tokens.numpy(), "attention_mask": (tokens != 0).long().numpy()})[0]
    np.testing.assert_allclose(logits, model(tokens).detach(), atol=1e-4, rtol=1e-4)


def test_what_a_graph_cannot_say_is_named(tmp_path):
    dynamic = decoder(**RMS, rotary_scaling=DynamicNTKScaling(2.0, 16))
    with pytest.raises(ValueError, match="rotary_scaling: expected one that does not depend on the length"):
        export(dynamic, to="onnx", out=tmp_path)
    with pytest.raises(ValueError, match="dtype: expected one of float32, got 'int8'"):
        export(dynamic, to="onnx", out=tmp_path, dtype="int8")
