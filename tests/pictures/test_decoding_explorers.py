"""The explorers of generation: their numbers are torch's and the package's, and what does not fit is refused."""

import numpy as np
import pytest
import torch
from explorer_samples import decoding, decoding_parts, sampling, sampling_logits

from course_lib.generation.sampling import Sampling
from coursework.explorers import DecodingExplorer, SamplingExplorer
from coursework.pictures.arrays import number

LETTERS = [chr(97 + i) for i in range(18)] + [" "]


@pytest.mark.parametrize("head", [None, 0, 2])
def test_decoding_table_and_words_are_the_weights(head):
    encoder, decoder, cross, chances = decoding_parts()
    explorer = decoding(head=head, step=3)
    decoder, cross = (w.double().mean(0) if head is None else w[head].double() for w in (decoder, cross))
    for t, row in enumerate(explorer.table().rows):
        assert row[:2] == [str(t + 1), ["<s>", *"bacbad"][t]]
        assert float(row[3]) == pytest.approx(chances[t].item(), abs=0.000501)
        for cell, weights in ((row[4], decoder[t]), (row[5], cross[t])):
            assert float(cell.split("(")[1][:-1]) == pytest.approx(weights.max().item(), abs=0.0056)
        assert row[5].startswith("abcab"[int(cross[t].argmax())])
    assert "At step 3 the model writes “c”" in explorer.alt
    assert f"is {number(cross[:3].amax(-1).mean().item(), 2)} on the source" in explorer.caption
    shown = torch.tensor(explorer.state()["maps"][0][0]) / 1000
    assert torch.allclose(shown.double(), encoder.double().mean(0), atol=0.00051)


def test_decoding_starts_with_everything_written():
    state = decoding().state()
    assert (state["step"], state["head"]) == (7, 0)
    assert len(state["maps"]) == 4  # the mean, then each head


def _decoding(**changes):
    encoder, decoder, cross, chances = decoding_parts()
    arguments = {"encoder": encoder, "decoder": decoder, "cross": cross, "probabilities": chances}
    arguments |= {"source": list("abcab"), "read": list("abcdefg"), "written": list("bcdefgh")} | changes
    return DecodingExplorer(arguments.pop("encoder"), arguments.pop("decoder"), arguments.pop("cross"), **arguments)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"encoder": torch.zeros(3, 7, 7)}, r"encoder: expected \(3, 5, 5\)"),
        ({"decoder": torch.zeros(2, 7, 7)}, r"decoder: expected \(3, 7, 7\)"),
        ({"cross": torch.zeros(2, 3, 7, 5)}, "cross: .* take one example"),
        ({"cross": torch.full((3, 7, 5), 1.5)}, "cross: expected numbers from 0 to 1"),
        ({"cross": torch.full((3, 7, 5), torch.nan)}, "cross: expected numbers from 0 to 1"),
        ({"source": ["a"]}, "source: expected 5 labels"),
        ({"written": ["a"]}, "written: expected 7 labels"),
        ({"probabilities": torch.ones(3)}, "probabilities: expected 7 numbers"),
        ({"probabilities": torch.full((7,), 1.5)}, "probabilities: expected 7 numbers from 0 to 1"),
        ({"step": 0}, "step: expected an integer from 1 to 7, got 0"),
        ({"step": 8}, "step: expected an integer from 1 to 7, got 8"),
        ({"head": 3}, "head: expected an integer from -1 to 2, got 3"),
    ],
)
def test_decoding_refuses_what_does_not_fit(changes, message):
    with pytest.raises(ValueError, match=message):
        _decoding(**changes)


def test_decoding_refuses_too_many_tokens():
    big = torch.full((1, 13, 13), 0.01)
    names = [str(i) for i in range(13)]
    with pytest.raises(ValueError, match="cross: expected at most 12 tokens on a side, got 13 by 13"):
        DecodingExplorer(big, big, big, source=names, read=names, written=names, probabilities=torch.ones(13))


SETTINGS = [
    {"temperature": 1.0},
    {"temperature": 0.0},
    {"temperature": 0.5, "top_k": 3},
    {"temperature": 2.0, "top_p": 0.7},
    {"temperature": 1.3, "min_p": 0.2},
    {"temperature": 1.5, "top_k": 7, "top_p": 0.8, "min_p": 0.3},
    {"temperature": 1.0, "top_k": 1},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("selected", [0, 2])
def test_sampling_probabilities_are_those_of_the_package(settings, selected):
    explorer = SamplingExplorer(sampling_logits(), LETTERS, selected=selected, **settings)
    before, after = explorer.probabilities()
    expected = Sampling(**settings).probabilities(sampling_logits()[selected])
    assert np.allclose(after, expected.numpy(), atol=1e-6)
    assert ((after > 0) == (expected > 0).numpy()).all()
    assert before.sum() == pytest.approx(1)
    assert after.sum() == pytest.approx(1)
    assert f"keep {int((expected > 0).sum())} of 19 tokens" in explorer.caption


def test_sampling_table_shows_the_most_likely_first():
    explorer = sampling()
    before, after = explorer.probabilities()
    rows = explorer.table().rows
    assert len(rows) == 16
    assert rows[0][0] == LETTERS[before.argmax()]
    assert [row[1] for row in rows] == [number(p) for p in sorted(before, reverse=True)[:16]]
    assert sum(row[2] != "cut" for row in rows) == int((after > 0).sum())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokens": ["a"]}, "tokens: expected 19 labels"),
        ({"logits": torch.full((2, 19), torch.inf)}, "logits: expected finite numbers"),
        ({"logits": torch.zeros(300, 19)}, "logits: expected at most 4000 numbers"),
        ({"selected": 3}, "selected: expected an integer from 0 to 2, got 3"),
        ({"temperature": -0.1}, "temperature: expected a number from 0 to 2.0"),
        ({"top_k": 0}, "top_k: expected an integer from 1 to 19, got 0"),
        ({"top_p": 0.0}, "top_p: expected a number"),
        ({"min_p": 1.2}, "min_p: expected a number from 0 to 1.0"),
    ],
)
def test_sampling_refuses_what_does_not_fit(changes, message):
    arguments = {"logits": sampling_logits(), "tokens": LETTERS} | changes
    with pytest.raises(ValueError, match=message):
        SamplingExplorer(arguments.pop("logits"), arguments.pop("tokens"), **arguments)
