"""What every explorer's output must be before any script runs, and that its numbers are torch's."""

import html
import json
import math
import os
import re
import subprocess
import sys
from functools import cache
from html.parser import HTMLParser
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from explorer_samples import (
    MAKERS,
    SENTENCE,
    STACKS,
    attention,
    head_weights,
    heads,
    mask,
    position,
    stream,
    stream_gradients,
    stream_vectors,
    tensors,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from notebook_files import SOURCES
from torch import nn

from course_lib.attention import scaled_dot_product_attention
from course_lib.masks import causal_mask, combine_masks, length_mask, sliding_window_mask
from course_lib.positions import SinusoidalPositionalEncoding
from coursework import explorers
from coursework.explorers import (
    AttentionExplorer,
    HeadExplorer,
    MaskComposer,
    PositionExplorer,
    StreamExplorer,
)
from coursework.explorers.explorer import Explorer, Table
from coursework.pictures.arrays import number


class Document(HTMLParser):
    """Tags with attributes, the state, and the cells of the table."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.rows, self.caption, self.script = [], [], "", ""
        self._open = []
        self.feed(text)
        self.state = json.loads(next(a["data-state"] for _, a in self.tags if "data-state" in a))

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self._open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag):
        while self._open and self._open.pop() != tag:
            pass

    def handle_data(self, data):
        if "script" in self._open:
            self.script += data
        elif self._open and self._open[-1] in ("td", "th"):
            self.rows[-1][-1] += data
        elif "figcaption" in self._open:
            self.caption += data


def document(explorer):
    return Document(explorer._repr_mimebundle_()["text/html"])


@pytest.fixture(params=list(MAKERS))
def make(request):
    """Each explorer in turn, as a function that makes it anew."""
    return MAKERS[request.param]


@cache
def text_of(make):
    return make()._repr_mimebundle_()["text/html"]


def test_every_explorer_has_a_sample_a_script_and_a_notebook():
    assert {type(make()) for make in MAKERS.values()} == set(explorers.every().values())
    scripts = {path.stem for path in Path(explorers.__file__).parent.glob("*.js")} - {"explorer"}
    assert {explorer.script for explorer in explorers.every().values()} == scripts
    code = "\n".join(path.read_text(encoding="utf-8") for path in SOURCES)
    assert [name for name in dir(explorers) if f"{name}(" not in code] == []


def test_shown_again_it_has_the_same_html_and_text_and_leaves_no_figure(make):
    before = plt.get_fignums()
    explorer = make()
    for _ in range(2):
        bundle = explorer._repr_mimebundle_(include=None, exclude=None)
        assert bundle == {"text/html": text_of(make), "text/plain": repr(make())}
    assert not hasattr(explorer, "_repr_html_")
    assert plt.get_fignums() == before


def test_static_part_has_alternative_text_caption_and_table(make):
    explorer, found = make(), Document(text_of(make))
    images = [attributes for tag, attributes in found.tags if tag == "img"]
    assert len(images) == 1
    assert images[0]["alt"] == explorer.alt
    assert len(explorer.alt) >= 40
    assert found.caption == explorer.caption != ""
    assert [tag for tag, _ in found.tags if tag in ("figure", "figcaption", "details", "table")] == [
        "figure", "figcaption", "details", "table",
    ]  # fmt: skip
    heads = [attributes.get("scope") for tag, attributes in found.tags if tag == "th"]
    assert set(heads) == {"col", "row"}
    assert "hidden" not in images[0]


def test_nothing_is_fetched(make):
    text = re.sub(r"data:image/png;base64,[^\"]+", "", text_of(make))
    for forbidden in (
        "http",
        "://",
        "src=",
        "@import",
        "url(",
        "import(",
        "require(",
        "<iframe",
        "<link",
        "fetch(",
        "<svg",
    ):
        assert forbidden not in text.replace('src=""', ""), forbidden
    assert not re.search(r"^\s*import\s", text, re.MULTILINE)


def test_output_is_small(make):
    assert len(text_of(make).encode()) <= 100_000


def test_another_process_gives_the_same_bytes():
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); from explorer_samples import MAKERS\n"
        "for make in MAKERS.values(): sys.stdout.write(make()._repr_mimebundle_()['text/html'])"
    )
    seed = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONUTF8": "1"}
    command = [sys.executable, "-c", code, os.path.dirname(__file__)]
    done = subprocess.run(command, env=environment, capture_output=True, encoding="utf-8", timeout=300)
    assert done.stderr == ""
    assert done.stdout == "".join(map(text_of, MAKERS.values()))


def test_every_control_keeps_its_keys_from_the_notebook(make):
    script = Document(text_of(make)).script
    for creation in re.findall(r'h\("(?:select|input|button)", \{([^}]*)', script):
        assert "...FOCUSABLE" in creation, creation
    assert "...FOCUSABLE" in script
    assert all("...FOCUSABLE" in part for part in re.findall(r'h\("[a-z]+", \{([^}]*tabindex[^}]*)', script))


def test_own_words_replace_the_computed_ones(make):
    words = {"alt": "Words of the author, long enough to say what is seen.", "caption": "A conclusion <b>."}
    found = document(make(**words))
    assert next(a for tag, a in found.tags if tag == "img")["alt"] == words["alt"]
    assert found.caption == words["caption"]
    with pytest.raises(ValueError, match="alt: expected at least 40 characters"):
        make(alt="short")
    with pytest.raises(ValueError, match="caption: expected a sentence"):
        make(caption=" ")


@pytest.mark.filterwarnings("error")
def test_hostile_tokens_stay_text():
    tokens = ["</script><script>alert(1)</script>", '"', "'><img src=x>", "&lt;", "$x$"]
    query = torch.eye(5)
    text = AttentionExplorer(query, query, query, tokens)._repr_mimebundle_()["text/html"]
    found = Document(text)
    assert found.state["tokens"] == tokens
    assert text.count("<script>") == text.count("</script>") == 1
    assert sum(tag == "img" for tag, _ in found.tags) == 1
    assert [row[0] for row in found.rows[1:]] == tokens


def test_state_holds_the_exact_float32_values():
    query, key, value = tensors()
    state = Document(text_of(attention)).state
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        assert torch.equal(torch.tensor(state[name], dtype=torch.float32), tensor)
    assert state["mask"] == ["1110000", "1111000", "1111100", "1111110", "1111111"]


def test_attention_table_and_caption_are_torchs():
    query, key, value = tensors()
    _, weights = scaled_dot_product_attention(query, key, value, mask=causal_mask(5, 7), return_weights=True)
    rows = Document(text_of(attention)).rows
    assert rows[0] == ["query", *SENTENCE]
    assert rows[1:] == [[SENTENCE[2 + i], *(number(w) for w in row)] for i, row in enumerate(weights.tolist())]
    best, raw = weights[1].max().item(), (query @ key.T).masked_fill(~causal_mask(5, 7), -math.inf).softmax(-1)[1].max()
    assert f"{best:.2f} of its weight" in attention().caption
    assert f"would be {raw:.2f}" in attention().caption
    for weight in weights[1].topk(4).values.tolist():
        assert f"{weight:.2f} on" in attention().alt


def test_attention_of_a_query_that_sees_nothing_says_so():
    query, key, value = tensors()
    explorer = AttentionExplorer(query, key, value, list("abcde"), mask=torch.zeros(5, 7, dtype=torch.bool))
    assert "may attend to nothing" in explorer.caption
    assert document(explorer).rows[1][1:] == ["0.000"] * 7


@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (16, 16, 32, 32), (11, 2, 5, 3)])
def test_attention_of_any_size_can_be_drawn(shape):
    T, S, E, width = shape
    query, key, value = tensors(T, S, E, width)
    tokens = [f"word{i}" for i in range(T)]
    assert document(AttentionExplorer(query, key, value, tokens)).state["scaled"] is True


def test_heads_table_and_words_are_measured_from_the_weights():
    weights = head_weights().double()
    entropy = torch.special.entr(weights).sum(-1).mean(-1)
    largest = weights.amax(-1).mean(-1)
    place = torch.arange(7)
    distance = (weights * (place[:, None] - place).abs()).sum(-1).mean(-1)
    previous = weights.diagonal(-1, 1, 2).mean(-1)
    begin = weights[:, 1:, 0].mean(-1)
    rows = Document(text_of(heads)).rows
    assert rows[0] == ["head", "entropy", "largest", "distance", "previous", "first"]
    columns = zip(*(column.tolist() for column in (entropy, largest, distance, previous, begin)), strict=True)
    assert rows[1:] == [[f"head {h}", *map(number, row)] for h, row in enumerate(columns)]
    sharpest = int(entropy.argmin())
    assert f"is head {sharpest}, entropy {entropy[sharpest]:.2f}" in heads().caption
    assert f"{previous.max():.2f} of its weight" in heads().caption
    assert f"{weights[sharpest, -1].max():.2f} on" in heads().alt
    state = Document(text_of(heads)).state
    assert torch.allclose(torch.tensor(state["weights"]) / 1000, weights.float(), atol=0.000501)


@pytest.mark.parametrize("shape", [(1, 1, 1), (16, 12, 12), (8, 3, 5), (5, 24, 24)])
def test_heads_of_any_size_can_be_drawn(shape):
    H, T, S = shape
    explorer = HeadExplorer(
        head_weights(H, T, S), [f"word{i}" for i in range(T)], key_tokens=[f"k{j}" for j in range(S)]
    )
    found = document(explorer)
    assert len(found.state["weights"]) == H
    assert ("previous" in found.rows[0]) == (T == S)


def test_without_averages_the_table_says_what_the_chosen_query_reads():
    explorer = HeadExplorer(head_weights(), SENTENCE, selected=1, query=2, averages=False)
    assert explorer.state()["head"] == explorer.state()["measures"] == []
    assert explorer.table().head == ["key", "weight"]
    assert [float(row[1]) for row in explorer.table().rows] == pytest.approx(explorer.weights[1, 2], abs=0.00051)


def test_too_much_data_is_refused_with_advice():
    query, key, value = tensors(24, 24, 128, 128)
    with pytest.raises(ValueError, match=r"at most 100 kB, got \d+ kB; show fewer tokens or a narrower head"):
        AttentionExplorer(query, key, value, [str(i) for i in range(24)])._repr_mimebundle_()


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_mask_is_that_of_the_package(data):
    T, S = data.draw(st.integers(1, 12)), data.draw(st.integers(1, 12))
    lengths = data.draw(st.lists(st.integers(0, S), min_size=1, max_size=4))
    causal, padding = data.draw(st.booleans()), data.draw(st.booleans())
    window = data.draw(st.none() | st.integers(1, S))
    example = data.draw(st.integers(0, len(lengths) - 1))
    explorer = MaskComposer(
        T, S, lengths=torch.tensor(lengths), causal=causal, padding=padding, window=window, example=example
    )
    parts = [
        causal_mask(T, S) if causal else None,
        sliding_window_mask(T, S, window=window, causal=False) if window else None,
        length_mask(lengths, S)[example, 0] if padding else None,
        torch.ones(T, S, dtype=torch.bool),
    ]
    expected = combine_masks(*parts)
    assert (explorer.mask() == expected.numpy()).all()
    assert [row[1:] for row in explorer.table().rows] == [
        ["01"[cell] for cell in row] for row in expected.int().tolist()
    ]
    assert ("Nothing is left" in explorer.caption) == (not expected.any(-1).all())
    seen = ", ".join(map(str, expected.sum(-1).tolist()))
    assert f"may attend to {seen} keys" in explorer.alt


def test_mask_queries_are_the_last_tokens():
    found = Document(text_of(mask))
    assert [row[0] for row in found.rows[1:]] == SENTENCE[2:]
    assert found.state["lengths"] == [7, 4, 2]
    assert found.state["example"] == 1


@pytest.mark.parametrize("training", [True, False])
def test_what_is_said_of_torchs_attention_on_empty_rows_is_true(training):
    layer = nn.MultiheadAttention(8, 2, batch_first=True).train(training)
    x = torch.randn(1, 3, 8)
    hidden = torch.zeros(3, 3, dtype=torch.bool)
    hidden[0] = True
    output, _ = layer(x, x, x, attn_mask=hidden)
    assert output[0, 0].isnan().all()
    assert output[0, 1:].isfinite().all()
    assert (scaled_dot_product_attention(x, x, x, mask=~hidden)[0, 0] == 0).all()


def test_stream_measures_are_torchs():
    explorer = stream()
    off = ~torch.eye(7, dtype=torch.bool)
    for n, name in enumerate(STACKS):
        for place, vectors in enumerate(stream_vectors(name)):
            vectors = vectors.double()
            cosines = torch.cosine_similarity(vectors[:, None], vectors[None], dim=-1)
            assert np.allclose(explorer.cosines[n, place], cosines.numpy(), atol=1e-9)
            found = explorer.state()["measures"][n][place]
            assert found[0] == number(cosines[off].mean().item())
            length = vectors.square().mean(-1).sqrt().mean().item()
            assert float(found[1]) == pytest.approx(length, abs=0.000501)
            assert float(found[2].replace("−", "-")) == pytest.approx(stream_gradients(name)[place], rel=0.05)
    assert (explorer.stack, explorer.layer) == (0, 4)  # the one whose tokens end alike
    assert "In “alike” all tokens are nearly one vector from layer" in explorer.caption
    steady = StreamExplorer({"steady": stream_vectors("steady")}, SENTENCE)
    assert "Tokens stay apart" in steady.caption
    assert document(steady).state["head"] == ["similarity", "length"]


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"streams": {}}, ValueError, "streams: expected 1 to 6 stacks"),
        ({"streams": {"a": [torch.ones(3, 2)]}}, ValueError, "streams..a..: expected at least two tensors"),
        ({"streams": {"a": [torch.ones(3, 2), torch.ones(4, 2)]}}, ValueError, "of one shape"),
        ({"streams": {"a": [torch.ones(3, 2), torch.full((3, 2), torch.nan)]}}, ValueError, "finite numbers"),
        ({"streams": {"a": [torch.ones(13, 2)] * 2}, "tokens": list("abcdefghijklm")}, ValueError, "2 to 12 tokens"),
        ({"streams": {"a": [torch.ones(12, 2)] * 100}, "tokens": list("abcdefghijkl")}, ValueError, "12,000 cosines"),
        ({"streams": {"a": [[["x"], ["y"]]] * 2}, "tokens": list("ab")}, TypeError, "expected numbers"),
        (
            {"streams": {"a": [torch.ones(3, 2)] * 2, "b": [torch.ones(3, 2)] * 3}},
            ValueError,
            "the same layers and tokens",
        ),
        ({"tokens": list("ab")}, ValueError, "tokens: expected 3 labels"),
        ({"gradients": {"b": [1, 1]}}, ValueError, "gradients: expected one entry for each"),
        ({"gradients": {"a": [1, 1, 1]}}, ValueError, "gradients: expected 2 finite sizes"),
        ({"stack": 1}, ValueError, "stack: expected an integer from 0 to 0, got 1"),
        ({"layer": 2}, ValueError, "layer: expected an integer from 0 to 1, got 2"),
    ],
)
def test_wrong_streams_are_named(change, error, message):
    right = {"streams": {"a": [torch.ones(3, 2)] * 2}, "tokens": list("abc")}
    with pytest.raises(error, match=message):
        StreamExplorer(**(right | change))


def test_positions_are_those_of_the_package():
    explorer = position()
    codes = SinusoidalPositionalEncoding(14)(torch.arange(37)).numpy()
    assert np.allclose(explorer.codes(), codes, atol=1e-5)
    assert np.allclose(explorer.similarity(), codes @ codes[0] / 7, atol=1e-5)
    assert f"{number(explorer.similarity()[3], 2)} at 3" in explorer.caption
    assert "rises for the first time" in explorer.caption
    assert "it only falls" in PositionExplorer([0.01, 0.02], length=20).caption
    assert explorer.table().rows[0] == ["0", "1.0000", "6.3", "171.9"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1.0, -1.0], {}), "frequencies: expected at most 16 positive numbers"),
        (([1.0] * 17, {}), "frequencies: expected at most 16 positive numbers"),
        (([1.0], {"position": 48}), "position: expected an integer from 0 to 47, got 48"),
        (([1.0], {"shift": -1}), "shift: expected an integer from 0 to 47, got -1"),
        (([1.0], {"pair": 1}), "pair: expected an integer from 0 to 0, got 1"),
        (([1.0], {"length": 97}), "length: expected an integer from 2 to 96, got 97"),
    ],
)
def test_wrong_positions_are_named(arguments, message):
    rates, options = arguments
    with pytest.raises(ValueError, match=message):
        PositionExplorer(rates, **options)


@pytest.mark.parametrize(
    ("make_wrong", "error", "message"),
    [
        (lambda q, k, v: AttentionExplorer(q, k[:, :2], v, list("abcde")), ValueError, "key: expected width E=3"),
        (lambda q, k, v: AttentionExplorer(q, k, v[:4], list("abcde")), ValueError, "value: expected length S=7"),
        (lambda q, k, v: AttentionExplorer(q, k, v, list("abc")), ValueError, "tokens: expected 5 labels"),
        (lambda q, k, v: AttentionExplorer(q, k, v, "abcde"), TypeError, "tokens: expected a list"),
        (
            lambda q, k, v: AttentionExplorer(q, k, v, list("abcde"), selected=5),
            ValueError,
            "selected: .* 0 to 4, got 5",
        ),
        (lambda q, k, v: AttentionExplorer(q[None], k, v, list("abcde")), ValueError, "query: expected two dimensions"),
        (lambda q, k, v: HeadExplorer(q, list("abcde")), ValueError, r"weights: expected \(H, T, S\), got shape"),
        (lambda q, k, v: HeadExplorer(q[None], list("abcde")), ValueError, "weights: expected numbers from 0 to 1"),
        (
            lambda q, k, v: HeadExplorer(torch.ones(17, 2, 2), list("ab")),
            ValueError,
            "weights: expected at most 16 heads, got 17",
        ),
        (lambda q, k, v: HeadExplorer(head_weights(), list("ab")), ValueError, "tokens: expected 7 labels"),
        (
            lambda q, k, v: HeadExplorer(head_weights(), SENTENCE, selected=3),
            ValueError,
            "selected: expected an integer from 0 to 2, got 3",
        ),
        (lambda q, k, v: MaskComposer(0, 3), ValueError, "T: expected an integer from 1 to 12, got 0"),
        (lambda q, k, v: MaskComposer(3, 13), ValueError, "S: expected an integer from 1 to 12, got 13"),
        (lambda q, k, v: MaskComposer(3, lengths=[4]), ValueError, "lengths: expected an integer from 0 to 3, got 4"),
        (
            lambda q, k, v: MaskComposer(3, lengths=[1.5]),
            TypeError,
            "lengths: expected an integer from 0 to 3, got 1.5",
        ),
        (lambda q, k, v: MaskComposer(3, lengths=[]), ValueError, "lengths: expected 1 to 8 lengths"),
        (lambda q, k, v: MaskComposer(3, window=0), ValueError, "window: expected an integer from 1 to 3, got 0"),
        (lambda q, k, v: MaskComposer(3, tokens=list("ab")), ValueError, "tokens: expected 3 labels"),
        (
            lambda q, k, v: MaskComposer(3, lengths=[3], example=1),
            ValueError,
            "example: expected an integer from 0 to 0",
        ),
    ],
)
def test_wrong_arguments_are_named(make_wrong, error, message):
    with pytest.raises(error, match=message):
        make_wrong(*tensors())


def test_a_reader_can_write_an_explorer(tmp_path, monkeypatch):
    class Smallest(Explorer):
        script = "attention"

        def state(self):
            return {"numbers": [1]}

        def figure(self):
            return plt.figure()

        def table(self):
            return Table("numbers", ["name", "value"], [["a & b", "1"]])

        def default_alt(self):
            return "An empty figure with nothing on it but white."

        def default_caption(self):
            return "Nothing follows."

    text = Smallest()._repr_mimebundle_()["text/html"]
    assert Document(text).rows == [["name", "value"], ["a & b", "1"]]
    assert html.escape("a & b") in text


def test_base_class_asks_for_its_parts():
    with pytest.raises(NotImplementedError):
        Explorer(caption="c")


def test_shown_as_float32_whatever_came():
    query, key, value = (t.double() for t in tensors())
    a = AttentionExplorer(query, key, value, list("abcde"))
    b = AttentionExplorer(query.float(), key.numpy(), value.tolist(), list("abcde"))
    assert a._repr_mimebundle_() == b._repr_mimebundle_()
    assert a.weights().dtype == np.float64
