"""Encoder-decoders in CTranslate2: each writes the tokens that it writes here, for sources of several lengths."""

import json

import pytest
import tokenizers
import torch
from exported import T5, in_translator, ours_of_pair, shaken, t5, translator

from course_lib.data import BPETokenizer
from course_lib.variants import save_pretrained
from coursework.export import export

COURSE = {"norm": "rms", "norm_place": "pre", "positions": "rotary", "activation": "gelu", "scale_embeddings": False}
PAIRS = {
    "T5": t5,
    "T5 1.1": lambda: t5(**T5.version_1_1),
    "as course train translate": lambda: translator(**COURSE, bias=False),
    "the paper's": translator,
    "grouped heads, neighbours turned": lambda: translator(**COURSE, n_kv_heads=2, rotary_layout="interleaved"),
    "factors, wide heads": lambda: translator(
        norm_place="pre", embedding_norm=True, head_bias=True, logit_scale=0.5, attention_scale=0.3, d_head=24
    ),
    "two vocabularies, learned positions": lambda: translator(
        positions="learned", tie_embeddings=False, share_vocabulary=False, activation="relu2", target_vocab_size=41
    ),
}  # fmt: skip
SOURCES = [[5, 9, 33, 60, 12, 1], [8, 8, 20, 1], [*range(70, 90), 1]]


@pytest.mark.parametrize("name", PAIRS)
def test_the_engine_writes_the_same_tokens(name, tmp_path):
    model = shaken(PAIRS[name])
    if isinstance(model, T5):
        with torch.no_grad():  # so that positions matter as much as tokens
            model.encoder.positions.weight.mul_(5)
            model.decoder.positions.weight.mul_(5)
    expected = ours_of_pair(model, SOURCES)
    written = in_translator(export(model, to="ctranslate2", out=tmp_path), [[f"<{id}>" for id in s] for s in SOURCES])
    print(f"ctranslate2  {name:<42} {sum(map(len, expected))} tokens compared")
    assert written == expected


def test_a_translators_folder_goes_over_with_its_tokenizer(tmp_path):
    """The engine puts the end after the source, begins with the start and stops at the end by itself."""
    tokenizer = BPETokenizer.train(["one two three four\n" * 3], 270)
    model = shaken(lambda: translator(**COURSE, vocab_size=tokenizer.vocab_size))
    save_pretrained(model, tmp_path / "run", more={"tokenizer.json": tokenizer.to_text()})
    out = export(tmp_path / "run", to="ctranslate2", out=tmp_path / "out")
    pieces = tokenizers.Tokenizer.from_file(str(out / "tokenizer.json")).encode("three one").tokens
    written = in_translator(out, [pieces], end_token="<eos>")
    ids = tokenizer.encode("three one", eos=True)
    expected = ours_of_pair(model, [ids], start=tokenizer.bos_id, stop=tokenizer.eos_id)
    assert [row[: len(e)] for row, e in zip(written, expected, strict=True)] == expected
    assert BPETokenizer.load(out).merges == tokenizer.merges
    assert json.loads((out / "config.json").read_text())["decoder_start_token"] == "<bos>"


@pytest.mark.parametrize(
    ("switches", "expected"),
    [
        ({"positions": "alibi"}, "positions: expected others than 'alibi' with an encoder"),
        ({**COURSE, "qk_norm": "rms"}, "qk_norm: expected 'none', got 'rms' with an encoder"),
    ],
)
def test_what_the_engine_lacks_is_named(switches, expected, tmp_path):
    with pytest.raises(ValueError, match=expected):
        export(translator(**switches), to="ctranslate2", out=tmp_path)
    with pytest.raises(ValueError, match=r"expected a LanguageModel for llama.cpp, got a Transformer; it goes to ctr"):
        export(translator(), to="gguf", out=tmp_path)
