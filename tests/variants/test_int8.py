"""Linear maps with 8-bit weights: errors within their bounds, the same tokens, states that come back."""

import copy
import io
import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from thorough import rounds
from torch import nn

from course_lib import testing as laws
from course_lib.generation import generate
from course_lib.transformer import LanguageModel, Transformer, TransformerConfig
from course_lib.variants import int8, packed
from course_lib.variants.experts import MixtureOfExperts
from course_lib.variants.int8 import QuantizedLinear, quantize_
from course_lib.variants.lora import add_lora, remove_lora

LENGTH, V = 24, 11


def linear(d_in=64, d_out=20, bias=True, dtype=torch.float32):
    base = nn.Linear(d_in, d_out, bias=bias)
    nn.init.normal_(base.weight)
    return base.to(dtype)


def config(**changes):
    sizes = {"d_model": 32, "n_heads": 4, "n_encoder_layers": 1, "n_decoder_layers": 2, "vocab_size": V}
    return TransformerConfig(**{**sizes, "positions": "rotary", "dropout": 0.1, **changes})


def counting():
    """Sequences that count up modulo V from any start: what a small model learns at once."""
    return (torch.randint(V, (16, 1)) + torch.arange(LENGTH + 1)) % V


@pytest.fixture(scope="module")
def trained():
    """A language model that has learned to count."""
    torch.manual_seed(0)
    model = LanguageModel(config(dropout=0.0))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(60):
        tokens = counting()
        loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss < 0.3
    return model.eval()


def sizes(base, x):
    """What each output is a sum of, by size: (N, D_out)."""
    products = x.double().abs() @ base.weight.double().abs().T
    return products if base.bias is None else products + base.bias.double().abs()


@given(
    n=st.sampled_from([1, 3, 16, 17]),
    d_in=st.sampled_from([1, 7, 64, 130, 160]),
    d_out=st.sampled_from([1, 5, 33]),
    bias=st.booleans(),
    size=st.sampled_from([1e-3, 1.0, 300.0]),
    shift=st.sampled_from([0.0, 2.0]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float64]),
    seed=st.integers(0, 2**16),
)
@settings(max_examples=rounds(40, 200), deadline=None)
@torch.no_grad()
def test_each_output_is_off_by_at_most_half_a_step_of_each_weight(n, d_in, d_out, bias, size, shift, dtype, seed):
    torch.manual_seed(seed)
    base = linear(d_in, d_out, bias)
    base.weight.mul_(torch.logspace(-3, 1, d_out)[:, None])  # rows of very different sizes
    base, x = base.to(dtype), ((torch.randn(n, d_in) + shift) * size).to(dtype)
    layer, rough = QuantizedLinear(base), QuantizedLinear(base, round_inputs=True)
    step = layer.step.double()[:, None]
    assert (layer.levels * step - base.weight.double()).abs().le(step.abs() * 0.5001).all()

    expected = F.linear(x.double(), base.weight.double(), None if base.bias is None else base.bias.double())
    half_steps = layer.step.double().abs() / 2 * x.double().abs().sum(-1, keepdim=True)  # (N, 1) * (D_out,)
    exact = dtype == torch.float64 or (dtype == torch.float32 and (n > 16 or d_in % 32 > 0))
    bound = half_steps * 1.001 + (1e-6 if exact else 2**-7) * sizes(base, x) + 1e-12  # what the dtypes round
    assert ((layer(x) - expected).abs() <= bound).all()

    # Rounded inputs: a step of theirs on top, their range over 127 where there are only seven bits, or over 255.
    input_step = (x.max().clamp(min=0) - x.min().clamp(max=0)).double() / 127
    slack = input_step * (layer.levels * step).abs().sum(-1)
    assert ((rough(x) - expected).abs() <= bound + slack).all()


@pytest.mark.parametrize("rows", [1, 16, 17])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@torch.no_grad()
def test_every_kernel_multiplies_by_the_weights_in_force(dtype, rows, parity):
    base = linear(dtype=dtype)
    layer, x = QuantizedLinear(base), torch.randn(rows, 64, dtype=dtype)
    expected = F.linear(x.double(), layer.weight.double(), base.bias.double())
    found = layer(x)
    assert found.dtype == dtype
    error = ((found - expected).abs().max() / expected.abs().max()).item()
    few = rows <= 16 and dtype == torch.float32  # through bfloat16
    assert error < (2e-2 if few else {torch.float32: 1e-6, torch.bfloat16: 2e-2, torch.float64: 1e-12}[dtype])
    parity("QuantizedLinear", "nn.Linear of the weights in force", (error, math.nan), dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@torch.no_grad()
def test_without_torchs_kernel_for_8_bit_inputs(monkeypatch, dtype):
    layer, x = QuantizedLinear(linear(dtype=dtype), round_inputs=True), torch.randn(2, 5, 64, dtype=dtype)
    assert layer._packed is None
    rounded = layer(x)
    assert callable(layer._packed), "this machine has the kernel"
    monkeypatch.setattr(int8, "_pack8", lambda *_: packed.NO_KERNEL)
    torch.testing.assert_close(copy.deepcopy(layer)(x), rounded, rtol=0.05, atol=0.4)


@torch.no_grad()
def test_shapes_and_what_it_says():
    layer = QuantizedLinear(linear(8, 5, bias=False), round_inputs=True)
    for shape in ((), (3,), (2, 3), (0,)):
        assert layer(torch.randn(*shape, 8)).shape == (*shape, 5)
    assert (layer.in_features, layer.out_features, layer.levels.dtype) == (8, 5, torch.int8)
    assert layer.bias is None
    assert repr(layer) == "QuantizedLinear(in_features=8, out_features=5, bias=False, bits=8, round_inputs=True)"


@torch.no_grad()
def test_rows_of_zeros_and_unusable_numbers():
    base = linear()
    base.weight[3] = 0
    layer = QuantizedLinear(base)
    x = torch.randn(2, 64)
    torch.testing.assert_close(layer(x)[:, 3], base.bias[3].expand(2))
    torch.testing.assert_close(layer(torch.zeros(1, 64))[0], base.bias)
    assert layer(x * torch.nan).isnan().all()  # as nn.Linear
    with pytest.raises(RuntimeError, match="shape"):
        layer(torch.randn(2, 63))


def assert_copies_write(model, tokens, expected):
    """A copy of a model and one that was saved and loaded give the expected logits."""
    assert torch.equal(copy.deepcopy(model)(tokens), expected)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    assert torch.equal(torch.load(file, weights_only=False)(tokens), expected)


def test_gradients_are_refused():
    layer = QuantizedLinear(linear())
    with pytest.raises(RuntimeError, match="gradients do not pass through integers"):
        layer(torch.randn(2, 64, requires_grad=True))
    with pytest.raises(RuntimeError, match="gradients do not pass through integers"):
        layer.train()(torch.randn(2, 64))
    layer.eval()(torch.randn(2, 64))
    with torch.no_grad():
        layer.train()(torch.randn(2, 64))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: QuantizedLinear(nn.Conv1d(2, 2, 1)), "base: expected an nn.Linear, got Conv1d"),
        (lambda: quantize_(nn.Linear(2, 2)), "model: a bare nn.Linear"),
        (lambda: quantize_(nn.Sequential(nn.ReLU())), "model: expected one with nn.Linear maps"),
        (lambda: QuantizedLinear(_with_nan()), "base: expected finite weights"),
        (lambda: _quantized_with_lora(), "model: merge its updates first"),
    ],
)
def test_bad_input_names_the_argument(make, message):
    with pytest.raises((ValueError, TypeError), match=message):
        make()


def _with_nan():
    base = linear()
    base.weight.data[0, 0] = torch.nan
    return base


def _quantized_with_lora():
    model = LanguageModel(config())
    add_lora(model, 2)
    quantize_(model)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("round_inputs", [False, True])
def test_a_trained_model_writes_the_same_tokens(trained, dtype, round_inputs):
    small = copy.deepcopy(trained).to(dtype)
    names = quantize_(small, round_inputs=round_inputs)
    assert len(names) == 2 * 4 + 1  # qkv, output, up, down of each layer, and the head
    prompt = counting()[:, :5]
    expected = generate(trained, prompt, max_new_tokens=15, temperature=0)
    assert torch.equal(generate(small, prompt, max_new_tokens=15, temperature=0), expected)
    with torch.no_grad():
        logits, reference = small(expected).float(), trained(expected)
    assert (logits - reference).abs().max() < 0.05 * reference.abs().max()


def test_cached_decoding_equals_the_full_pass(trained):
    small = copy.deepcopy(trained)
    quantize_(small)
    tokens = counting()[:3, :12]
    for prefill in (1, 5, 11):
        with torch.no_grad():
            full, cache = small(tokens), small.new_cache(12)
            steps = [small(tokens[:, :prefill], cache=cache)]
            steps += [small(tokens[:, t : t + 1], cache=cache) for t in range(prefill, 12)]
        torch.testing.assert_close(
            torch.cat(steps, dim=1), full, rtol=0.02, atol=0.05
        )  # few rows and many take different kernels


def test_an_encoder_decoder_and_its_laws():
    model = Transformer(config(positions="sinusoidal", pad_id=0)).eval()
    reference = copy.deepcopy(model)
    names = quantize_(model)
    assert "encoder.layers.0.self_attention.qkv" in names
    source, target = torch.randint(1, V, (2, 7)), torch.randint(1, V, (2, 6))
    with torch.no_grad():
        expected, found = reference(source, target), model(source, target)
        assert (found - expected).abs().max() < 0.05 * expected.abs().max()
        laws.assert_causal(lambda x: model.decoder(x, torch.zeros(2, 7, 32)), torch.randn(2, 6, 32), tolerance=1e-6)
    assert generate(model, target[:, :1], source=source, max_new_tokens=3, temperature=0).shape == (2, 4)


def test_state_dicts_copies_and_pickles_come_back(trained):
    first = copy.deepcopy(trained)
    quantize_(first)
    tokens = counting()[:2, :9]
    with torch.no_grad():
        expected = first(tokens)
        second = LanguageModel(config())
        quantize_(second)
        second(tokens)  # packed already: loading must pack anew
        second.load_state_dict(first.state_dict())
        assert torch.equal(second(tokens), expected)
        assert_copies_write(first, tokens, expected)
    with pytest.raises(RuntimeError, match="levels"):
        LanguageModel(config()).load_state_dict(first.state_dict())


def test_what_is_replaced_and_what_is_not():
    model = LanguageModel(config(tie_embeddings=True))
    quantize_(model, keep=("head",))
    assert isinstance(model.head, nn.Linear)
    assert not any(p.requires_grad for p in model.parameters())
    assert not model.training
    model = LanguageModel(config(tie_embeddings=True))
    table = model.embedding.tokens.weight
    quantize_(model)
    assert isinstance(model.head, QuantizedLinear)
    assert model.embedding.tokens.weight is table
    experts = LanguageModel(config(feed_forward=lambda c: MixtureOfExperts(c.d_model, c.setting("d_ff"), n_experts=4)))
    assert not any(name.endswith("router") for name in quantize_(experts))
    merged = LanguageModel(config())
    add_lora(merged, 2)
    remove_lora(merged)
    assert quantize_(merged)


def test_a_map_in_two_places_stays_one():
    shared = linear(8, 8)
    model = nn.Sequential(shared, nn.ReLU(), shared)
    assert quantize_(model) == ["0", "2"]
    assert model[0] is model[2]


def test_four_times_less_memory():
    base = linear(256, 256)
    layer = QuantizedLinear(base)
    n_bytes = sum(t.nbytes for t in layer.state_dict().values())
    assert n_bytes == 256 * 256 + (2 + 4) * 256  # levels, steps, bias
    assert n_bytes < sum(t.nbytes for t in base.state_dict().values()) / 3.8


# Fewer bits, and groups ----------------------------------------------------------------------------------------------


def plain_levels(packed, bits):
    """The levels out of their bytes, one bit after the other."""
    rows = []
    for row in packed.tolist():
        whole = int.from_bytes(bytes(row), "little")
        rows.append([(whole >> bits * i & 2**bits - 1) - 2 ** (bits - 1) for i in range(len(row) * 8 // bits)])
    return torch.tensor(rows)


@given(
    bits=st.integers(2, 8),
    group=st.sampled_from([None, 8, 32, 64]),
    d_in=st.sampled_from([1, 7, 32, 64, 130]),
    shift=st.sampled_from([0.0, 3.0]),
    seed=st.integers(0, 2**16),
)
@settings(max_examples=rounds(40, 200), deadline=None)
@torch.no_grad()
def test_any_bits_and_groups_are_off_by_at_most_half_a_step(bits, group, d_in, shift, seed):
    torch.manual_seed(seed)
    base = linear(d_in, 9)
    base.weight.add_(shift).mul_(torch.logspace(-3, 1, 9)[:, None])
    base.weight[4] = 0
    layer = QuantizedLinear(base, bits=bits, group=group)
    levels = layer.levels.long() if bits == 8 else plain_levels(layer.levels, bits)
    assert levels.min() >= -(2 ** (bits - 1))
    assert levels.max() < 2 ** (bits - 1)
    steps = layer.step.reshape(9, -1).double().repeat_interleave(group or levels.size(1), 1)[:, :d_in]
    expected = levels[:, :d_in] * steps
    assert torch.equal(layer.weight.double(), expected)
    assert (expected - base.weight.double()).abs().le(steps.abs() * 0.5001).all()
    # No finer steps do: with those smaller by more than bfloat16 rounds, each group has an end too far from its level.
    finer = base.weight.double() / (steps * (1 - 2**-6))  # (D_out, D_in)
    too_far = (finer < -(2 ** (bits - 1)) - 0.5) | (finer > 2 ** (bits - 1) - 0.5)
    too_far[4] = True  # zeros fit any
    assert all(part.any(1).all() for part in too_far.split(group or d_in, dim=1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("group", [None, 32, 64, 128, 256])
@torch.no_grad()
def test_the_kernel_for_4_bits_equals_a_plain_product(group, dtype, parity):
    for d_in, d_out, rows in ((256, 65, 1), (130, 20, 3), (64, 16, 40)):
        base = linear(d_in, d_out, dtype=dtype)
        layer, x = QuantizedLinear(base, bits=4, group=group), torch.randn(2, rows, d_in, dtype=dtype)
        weight = layer.weight
        expected = F.linear(x.bfloat16().double(), weight.double(), base.bias.double())
        found = layer(x)
        assert (layer.levels is None) == (group is not None or d_in % 32 == 0), "the kernel was asked"
        assert found.shape == (2, rows, d_out)
        assert found.dtype == dtype
        error = ((found - expected).abs().max() / expected.abs().max()).item()
        assert error < 1e-2
        assert torch.equal(layer.weight, weight)  # out of the kernel's order again
        parity("QuantizedLinear, 4 bits", "a plain product", (error, math.nan), dtype)


@torch.no_grad()
def test_4_bits_without_the_kernel(monkeypatch):
    layer, x = QuantizedLinear(linear(), bits=4, group=32), torch.randn(3, 64)
    found = layer(x)
    monkeypatch.setattr(int8, "_pack4", lambda *_: packed.NO_KERNEL)
    other = copy.deepcopy(layer)
    torch.testing.assert_close(other(x), found, rtol=0.02, atol=0.1)
    torch.testing.assert_close(other(x), F.linear(x, layer.weight, layer.bias))
    assert layer(torch.randn(0, 64)).shape == (0, 20)


@pytest.mark.parametrize(("bits", "a_weight"), [(8, 1.0625), (4, 0.5625), (3, 0.4375), (2, 0.3125)])
@torch.no_grad()
def test_bytes_of_a_weight_before_and_after_the_kernel_took_it(bits, a_weight):
    layer = QuantizedLinear(linear(256, 256, bias=False), bits=bits, group=32)
    for _ in range(2):
        assert sum(t.nbytes for t in layer.state_dict().values()) == a_weight * 256 * 256
        layer(torch.randn(1, 256))
    if bits == 4:  # the weights are held once, in the kernel's order; steps twice
        packed_levels, _, steps = layer._packed
        assert layer.levels is None
        assert packed_levels.nbytes == 256 * 256 / 2
        assert steps.nbytes == 2 * layer.step.nbytes


@pytest.mark.parametrize(("bits", "group"), [(8, 32), (4, 32), (4, None), (3, 16), (2, 32)])
def test_state_dicts_copies_and_pickles_of_fewer_bits_come_back(trained, bits, group):
    first, tokens = copy.deepcopy(trained), counting()[:2, :9]
    quantize_(first, bits=bits, group=group)
    with torch.no_grad():
        before, expected = first.state_dict(), first(tokens)
        after = first.state_dict()
        assert all(torch.equal(before[name], after[name]) for name in before)
        second = LanguageModel(config())
        quantize_(second, bits=bits, group=group)
        second(tokens)
        second.load_state_dict(after)
        assert torch.equal(second(tokens), expected)
        assert_copies_write(first, tokens, expected)
        assert torch.equal(first(tokens), expected)
        exact = copy.deepcopy(first).double()
        torch.testing.assert_close(exact(tokens).float(), expected, rtol=0.05, atol=0.05 * expected.abs().max().item())


def test_a_trained_model_writes_the_same_tokens_with_4_bits(trained):
    small = copy.deepcopy(trained)
    quantize_(small, bits=4, group=32)
    prompt = counting()[:, :5]
    expected = generate(trained, prompt, max_new_tokens=15, temperature=0)
    assert torch.equal(generate(small, prompt, max_new_tokens=15, temperature=0), expected)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bits": 1}, "bits: expected an integer from 2 to 8, got 1"),
        ({"bits": 16}, "bits: expected an integer from 2 to 8, got 16"),
        ({"bits": 4.0}, "bits: expected an integer from 2 to 8, got 4.0"),
        ({"group": 0}, "group: expected an integer of at least 8, got 0"),
        ({"group": 20}, "group: expected a multiple of 8, or None, got 20"),
        ({"bits": 4, "round_inputs": True}, "round_inputs: expected bits 8 and no group with it, got bits 4"),
    ],
)
def test_bad_bits_and_groups_are_named(options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        QuantizedLinear(linear(), **options)
