"""What benchmarks count: where two texts differ first, and the bytes of rounded models."""

import sys
from pathlib import Path
from types import SimpleNamespace

import torch

from course_lib.transformer import LanguageModel, TransformerConfig

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))
import generation
import rounding

V = 13


def test_the_first_difference_of_two_texts_and_how_close_the_choice_was():
    V, T = 7, generation.PROMPT + 5
    expected = torch.arange(2 * T).reshape(2, T) % V

    def model(tokens):  # what follows is the next number, ahead of the one after it by 0.25
        nearest = torch.nn.functional.one_hot((tokens + 1) % V, V) + 0.75 * torch.nn.functional.one_hot(
            (tokens + 2) % V, V
        )
        return SimpleNamespace(logits=nearest.float())

    assert generation.first_difference(model, expected, expected.clone()) is None
    other = expected.clone()
    other[1, generation.PROMPT + 2] += 1
    other[0, generation.PROMPT + 3] += 1
    assert generation.first_difference(model, expected, other) == {"position": 2, "gap": 0.25}


def test_bytes_and_bits_of_rounded_models():
    config = TransformerConfig(
        d_model=64, n_heads=4, n_encoder_layers=0, n_decoder_layers=1, vocab_size=V, bias=False, tie_embeddings=True
    )
    model = LanguageModel(config)
    in_maps = sum(part.weight.numel() for part in model.modules() if isinstance(part, torch.nn.Linear))
    table = model.embedding.tokens.weight
    assert rounding.n_bytes(rounding.rounded(model, rounding.FLOAT)) == rounding.n_bytes(model)
    assert model.head.weight.data_ptr() == table.data_ptr()  # and is counted once
    assert rounding.n_bytes(model) < 4 * (in_maps + table.numel())
    for name, expected in {
        rounding.FLOAT: 32,
        rounding.HALF: 16,
        "4 bits, groups of 32": 4.5,
        "2 bits, groups of 32": 2.5,
    }.items():
        assert rounding.bits(model, name) == expected
    small = rounding.rounded(model, "4 bits, groups of 32")
    assert rounding.n_bytes(small) == rounding.n_bytes(model) + in_maps * 4.5 / 8 - 4 * (in_maps - table.numel())
