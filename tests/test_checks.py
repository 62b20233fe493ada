"""The shared checks of arguments: what they let pass, and the sentence and the error of what they refuse."""

import importlib
import inspect
import math
import pkgutil
import re
import typing
from functools import partial

import numpy as np
import pytest
import torch

import course_lib
from course_lib import attention, cache, checks, encoder, layers, masks, multi_head, norms, positions, testing
from course_lib.rotary_scaling import Llama3Scaling, YarnScaling
from course_lib.transformer import LanguageModel, TransformerConfig


@pytest.mark.parametrize(
    ("check", "value"),
    [
        (checks.check_integer, 1),
        (partial(checks.check_integer, least=0), 0),
        (checks.check_number, -2.5),
        (partial(checks.check_number, above=0), np.int64(3)),
        (checks.check_probability, np.float32(0.5)),
        (partial(checks.check_number, least=0), 0),
        (partial(checks.check_number, above=0), 1e-9),
        (partial(checks.check_number, or_none=True), None),
        (checks.check_probability, 0),
        (partial(checks.check_probability, interval="(0, 1]"), 1.0),
        (partial(checks.check_probability, interval="[0, 1]"), 1),
        (partial(checks.check_choice, choices=("pre", "post")), "pre"),
        (checks.check_floating, torch.zeros(2, dtype=torch.bfloat16)),
        (checks.check_integers, torch.zeros(2, dtype=torch.uint8)),
        (checks.check_mask, torch.zeros(2, dtype=torch.bool)),
    ],
)
def test_what_passes(check, value):
    check("x", value)


@pytest.mark.parametrize(
    ("check", "value", "error", "message"),
    [
        (checks.check_integer, 0, ValueError, "x: expected an integer of at least 1, got 0"),
        (checks.check_integer, True, TypeError, "x: expected an integer of at least 1, got True"),
        (checks.check_integer, 2.0, TypeError, "x: expected an integer of at least 1, got 2.0"),
        (checks.check_number, "1", TypeError, "x: expected a finite number, got '1'"),
        (checks.check_number, float("nan"), ValueError, "x: expected a finite number, got nan"),
        (checks.check_number, float("-inf"), ValueError, "x: expected a finite number, got -inf"),
        (partial(checks.check_number, least=0), -1, ValueError, "x: expected a number of at least 0, got -1"),
        (partial(checks.check_number, above=0), 0.0, ValueError, "x: expected a positive number, got 0.0"),
        (partial(checks.check_number, above=1), float("nan"), ValueError, "x: expected a number above 1, got nan"),
        (checks.check_probability, 1.0, ValueError, "x: expected a probability in [0, 1), got 1.0"),
        (checks.check_probability, False, TypeError, "x: expected a probability in [0, 1), got False"),
        (checks.check_probability, float("nan"), ValueError, "x: expected a probability in [0, 1), got nan"),
        (partial(checks.check_probability, interval="(0, 1]"), 0, ValueError, "x: expected a probability in (0, 1]"),
        (partial(checks.check_choice, choices=("a", "b")), "c", ValueError, "x: expected one of a, b, got 'c'"),
        (checks.check_floating, torch.arange(2), TypeError, "x: expected a tensor of floating-point numbers, got "),
        (checks.check_integers, torch.zeros(2), TypeError, "x: expected a tensor of integers, got torch.float32"),
        (
            checks.check_token_ids,
            torch.zeros(2, dtype=torch.uint8),
            TypeError,
            "token ids, int64 or int32, got torch.uint8",
        ),
        (checks.check_flag, "no", TypeError, "x: expected True or False, got 'no'"),
        (checks.check_flag, 1, TypeError, "x: expected True or False, got 1"),
        (partial(checks.check_integers, what="integer token ids"), [1], TypeError, "integer token ids, got list"),
        (checks.check_mask, torch.zeros(2), TypeError, "x: expected a boolean mask (True = may attend), got torch.flo"),
    ],
)
def test_what_is_refused(check, value, error, message):
    with pytest.raises(error, match=re.escape(message)):
        check("x", value)


def test_symbols_pass_through_compile():
    def double(x):
        checks.check_integer("T", x.size(0), least=0)
        checks.check_floating("x", x)
        return 2 * x

    compiled = torch.compile(double, dynamic=True, fullgraph=True, backend="eager")
    for length in (3, 4, 7):
        torch.testing.assert_close(compiled(torch.ones(length)), torch.full((length,), 2.0))


def all_checked():
    """Every function of the library that is checked by what it declares, by its full name."""
    for part in pkgutil.walk_packages(course_lib.__path__, "course_lib."):
        module = importlib.import_module(part.name)
        for owner in [module, *(one for _, one in inspect.getmembers(module, inspect.isclass))]:
            for found in (getattr(one, "__func__", one) for one in vars(owner).values()):
                ours = getattr(found, "__code__", None) is checks.checked(all_checked).__code__
                if ours and found.__module__ == part.name:
                    yield f"{found.__module__}.{found.__qualname__}", found


FUNCTIONS = dict(all_checked())
ODD = object()  # what no argument takes


def asks(declared):
    """Whether a declared type says anything about a value."""
    try:
        checks.check_declared("x", ODD, declared)
    except (TypeError, ValueError):
        return True
    return False


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_checked_function_names_every_bad_argument(name):
    """Its annotations can be read, and each that says anything refuses by the argument's name what it is not."""
    declared = checks.declarations(inspect.unwrap(FUNCTIONS[name]))
    refused = 0
    for argument, kind in declared.items():
        for bad in (ODD, *numbers_outside(kind)) if argument != "return" and asks(kind) else ():
            with pytest.raises((TypeError, ValueError), match=f"^{argument}: expected .+, got "):
                FUNCTIONS[name](**{argument: bad})
            refused += 1
    assert refused, "nothing is declared: it need not be checked"


def numbers_outside(kind):
    """Numbers beyond the ranges that a type declares, whether it stands alone or beside others."""
    for part in (kind, *typing.get_args(kind)):
        if typing.get_origin(part) is typing.Annotated and typing.get_args(part)[0] in (int, float):
            number, within = typing.get_args(part)[:2]
            yield from [math.nan, math.inf] if number is float else []
            ends = {within.least: -1, within.most: 1, within.above: 0, within.below: 0}
            yield from (number(end) + sign * max(1, abs(number(end))) for end, sign in ends.items() if end is not None)


def test_there_are_checked_functions():
    assert len(FUNCTIONS) > 60
    assert "course_lib.multi_head.MultiHeadAttention.__init__" in FUNCTIONS


def test_what_is_declared_passes():
    @checks.checked
    def example(size: checks.Count, share: checks.Share | None = None, names: typing.Sequence[str] = (), **more: int):
        return size, share, names, more

    assert example(3) == (3, None, (), {})
    assert example(3, None, names=["a"], other="anything") == (3, None, ["a"], {"other": "anything"})
    assert example(size=2, share=0.5)[:2] == (2, 0.5)
    with pytest.raises(TypeError, match="names: expected a list of texts, got 'ab'"):
        example(3, names="ab")
    assert inspect.signature(example).parameters["size"].annotation == checks.Count


CONFIG = TransformerConfig(d_model=8, n_heads=2, vocab_size=9, n_encoder_layers=1, n_decoder_layers=1, max_length=16)
X = torch.ones(2, 3, 8)
IDS = torch.zeros(2, 3, dtype=torch.int64)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: norms.LayerNorm(8)(X[..., :7]), r"x: expected \(..., D=8\), got \(2, 3, 7\)"),
        (lambda: norms.RMSNorm(8)(X.long()), "x: expected a tensor of floating-point numbers, got torch.int64"),
        (lambda: layers.FeedForward(8)(X[..., :7]), r"x: expected \(..., D=8\), got \(2, 3, 7\)"),
        (lambda: multi_head.MultiHeadAttention(8, 2)([1]), "x: expected a tensor"),
        (lambda: multi_head.MultiHeadAttention(8, 2)(X, causal="yes"), "causal: expected True or False"),
        (lambda: multi_head.MultiHeadAttention(8, 2)(X, cache={}), "cache: expected a KVCache, got dict"),
        (lambda: multi_head.MultiHeadAttention(8, 2)(X, bias="x"), "bias: expected a tensor"),
        (lambda: multi_head.MultiHeadAttention(8, 2)(X, rotation=(X, X)), "rotation: expected a Rotation, got tuple"),
        (lambda: encoder.TransformerEncoder(CONFIG)(X, positions=torch.arange(9)), "positions: expected .* T=3, got"),
        (lambda: LanguageModel(CONFIG)(IDS, positions=torch.arange(2)), "positions: expected .* T=3, got"),
        (lambda: LanguageModel(CONFIG)(IDS, last=0), "last: expected an integer of at least 1, got 0"),
        (lambda: LanguageModel(CONFIG)(IDS, cache=5), "cache: expected a DecoderCache, got int"),
        (lambda: LanguageModel(CONFIG)("text"), "tokens: expected a Tensor, got 'text'"),
        (lambda: filled().reorder(torch.tensor([0, 5])), r"rows: expected 0 to 1, got \[0, 5\]"),
        (lambda: masks.causal_mask(4, device="potato"), "device: expected one that is here, such as 'cpu', got 'pota"),
        (lambda: positions.ALiBi(2)(4.5), "T: expected an integer of at least 0, got 4.5"),
        (lambda: positions.RotaryEmbedding(8, scaling=lambda f: f[:1]), r"scaling: expected \(..., D=4\), got \(1,\)"),
        (lambda: positions.relative_bucket(X, bidirectional=True), "distance: expected a tensor of integers"),
        (lambda: YarnScaling(4, 100, fast_turns=1, slow_turns=32), "fast_turns: expected a number of at least 32"),
        (lambda: Llama3Scaling(low_turns=4, high_turns=1), "high_turns: expected a number above 4, got 1"),
        (lambda: attention.scaled_dot_product_attention(X, X, X, scale=-1e300), "scale: expected a number from -1e"),
        (lambda: TransformerConfig(attention_scale=1e39), "attention_scale: expected a number of at most 9"),
        (lambda: TransformerConfig(feed_forward="x"), "feed_forward: expected a function, got 'x'"),
        (lambda: testing.assert_causal(abs, X, positions=[99]), "positions: expected an integer from 0 to 2, got 99"),
        (lambda: testing.assert_cache_consistent(abs, abs, X, chunks=[0]), "chunks: expected an integer of at least 1"),
        (lambda: testing.assert_cache_consistent(abs, lambda x, c: x, X), r"step: expected a function that returns \("),
        (lambda: testing.assert_finite(abs, X, scales=[]), "scales: expected a list of at least one, got none"),
        (lambda: testing.assert_finite(abs, X, dtypes=[]), "dtypes: expected a list of at least one, got none"),
        (lambda: testing.assert_counts(layers.FeedForward(8), X), "parameters: expected a formula"),
    ],
)
def test_a_forward_pass_or_a_proof_names_what_does_not_fit(call, message):
    with pytest.raises((TypeError, ValueError), match=message):
        call()


def filled():
    kept = cache.KVCache(4)
    kept.append(torch.ones(2, 1, 3, 4), torch.ones(2, 1, 3, 4))
    return kept


@pytest.mark.parametrize("law", [name for name in testing.__all__ if name.startswith("assert_")])
@pytest.mark.parametrize("tolerance", [math.nan, math.inf, -1.0, 2.0, "1"])
def test_no_law_takes_a_tolerance_that_passes_anything(law, tolerance):
    takes = inspect.signature(getattr(testing, law)).parameters
    for name in [name for name in takes if "tolerance" in name]:
        with pytest.raises((TypeError, ValueError), match=f"{name}: expected a number from 0 to 1"):
            getattr(testing, law)(**{name: tolerance})
