"""Linear maps in the order that the processor reads: nothing but the order of the sums differs from `nn.Linear`."""

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
from course_lib.variants import GPT, packed, save_pretrained
from course_lib.variants.int8 import quantize_
from course_lib.variants.lora import add_lora, remove_lora
from course_lib.variants.packed import PackedLinear, pack_

V = 11
DTYPES = [torch.float32, torch.bfloat16, torch.float64]
# largest difference allowed, over the sum of the sizes of what is added
NEAR = {torch.float32: 1e-6, torch.bfloat16: 2**-7, torch.float64: 1e-14}


@pytest.fixture(autouse=True, scope="module")
def _small_maps_are_packed_too():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packed, "_SMALL", 0)
        yield


def config(**changes):
    sizes = {"d_model": 32, "n_heads": 4, "n_encoder_layers": 1, "n_decoder_layers": 2, "vocab_size": V}
    return TransformerConfig(**{**sizes, "positions": "rotary", "dropout": 0.1, **changes})


@given(
    shape=st.sampled_from([(), (1,), (3,), (1, 1), (2, 5), (17,), (0,), (4, 1)]),
    d_in=st.sampled_from([1, 7, 64, 130]),
    d_out=st.sampled_from([1, 5, 96]),
    bias=st.booleans(),
    rows=st.sampled_from([1, 4, 16]),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 2**16),
)
@settings(max_examples=rounds(40, 200), deadline=None)
@torch.no_grad()
def test_equals_nn_linear(shape, d_in, d_out, bias, rows, dtype, seed):
    torch.manual_seed(seed)
    base = nn.Linear(d_in, d_out, bias=bias).to(dtype)
    layer, x = PackedLinear(base, rows=rows), torch.randn(*shape, d_in).to(dtype)
    expected, found = base(x), layer(x)
    assert (found.shape, found.dtype) == (expected.shape, dtype)
    sizes = F.linear(x.double().abs(), base.weight.double().abs(), None if not bias else base.bias.double().abs())
    assert ((found.double() - expected.double()).abs() <= NEAR[dtype] * sizes + 1e-12).all()
    assert torch.equal(layer.weight, base.weight)


@torch.no_grad()
def test_strided_inputs_and_every_dtype_against_torch(parity):
    for dtype in DTYPES:
        base = nn.Linear(64, 96).to(dtype)
        x = torch.randn(3, 64, 10).to(dtype).transpose(1, 2)
        expected = F.linear(x.double(), base.weight.double(), base.bias.double())
        for rows in (1, 16):
            error = ((PackedLinear(base, rows=rows)(x) - expected).abs().max() / expected.abs().max()).item()
            assert error < 2 * NEAR[dtype]
        parity("PackedLinear", "nn.Linear in float64", (error, math.nan), dtype)


def test_gradients_reach_the_input_and_not_the_weights():
    base = nn.Linear(8, 12)
    for rows in (1, 16):
        x = torch.randn(4, 8, requires_grad=True)
        layer = PackedLinear(base, rows=rows)
        assert not list(layer.parameters())
        layer(x).square().sum().backward()
        found, x.grad = x.grad, None
        base(x).square().sum().backward()
        torch.testing.assert_close(found, x.grad)


@torch.no_grad()
def test_it_compiles():
    base, x = nn.Linear(32, 64), torch.randn(3, 32)
    layer = PackedLinear(base, rows=16)
    torch.testing.assert_close(torch.compile(layer, backend="aot_eager", fullgraph=True)(x), base(x))


@torch.no_grad()
def test_which_kernel_runs(monkeypatch):
    wide, narrow, x = nn.Linear(32, 64), nn.Linear(64, 32), torch.randn(1, 32)
    assert PackedLinear(wide).weight.stride() == (1, 64)
    assert PackedLinear(narrow).weight.stride() == (64, 1)
    half = [(1, torch.bfloat16)] * torch.ops.mkldnn._is_mkldnn_bf16_supported()  # not without AVX-512
    for rows, dtype in ((16, torch.float32), *half):
        layer = PackedLinear(copy.deepcopy(wide).to(dtype), rows=rows)
        expected = layer(x.to(dtype))
        assert isinstance(layer._packed, torch.Tensor), "this machine has oneDNN"
        monkeypatch.setattr(packed, "_pack", lambda *_: packed.NO_KERNEL)
        torch.testing.assert_close(copy.deepcopy(layer)(x.to(dtype)), expected)
        monkeypatch.undo()
    monkeypatch.setattr(packed, "_SMALL", 32 * 64 + 1)
    layer = PackedLinear(wide, rows=16)
    assert torch.equal(layer(x), wide(x))
    assert layer._packed is packed.NO_KERNEL
    assert repr(layer) == "PackedLinear(in_features=32, out_features=64, bias=True)"
    with pytest.raises(RuntimeError, match="shape"):
        layer(torch.randn(2, 31))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PackedLinear(nn.Conv1d(2, 2, 1)), "base: expected an nn.Linear, got Conv1d"),
        (lambda: PackedLinear(nn.Linear(2, 2), rows=0), "rows: expected an integer of at least 1, got 0"),
        (lambda: PackedLinear(nn.Linear(2, 2), rows=True), "rows: expected an integer of at least 1, got True"),
        (lambda: pack_(nn.Linear(2, 2)), "model: a bare nn.Linear"),
        (lambda: pack_(nn.Sequential(nn.ReLU())), "model: expected one with nn.Linear maps"),
        (lambda: pack_(_with_lora()), "model: merge its updates first"),
    ],
)
def test_bad_input_names_the_argument(make, message):
    with pytest.raises((ValueError, TypeError), match=message):
        make()


def _with_lora():
    model = LanguageModel(config())
    add_lora(model, 2)
    return model


@pytest.mark.parametrize("rows", [1, 16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_model_writes_the_same_tokens(dtype, rows):
    plain = LanguageModel(config(tie_embeddings=True)).eval().to(dtype)
    model = copy.deepcopy(plain)
    assert len(pack_(model, rows=rows)) == 2 * 4 + 1  # qkv, output, up, down of each layer, and the head
    assert not any(parameter.requires_grad for parameter in model.parameters())
    prompt = torch.randint(V, (3, 5))
    expected = generate(plain, prompt, max_new_tokens=15, temperature=0)
    if dtype == torch.float32:
        assert torch.equal(generate(model, prompt, max_new_tokens=15, temperature=0), expected)
    with torch.no_grad():
        torch.testing.assert_close(
            model(expected), plain(expected), rtol=1e-4, atol=0.05 if dtype.itemsize == 2 else 1e-5
        )


def test_an_encoder_decoder_and_its_laws():
    model = Transformer(config(positions="sinusoidal", pad_id=0)).eval()
    reference = copy.deepcopy(model)
    assert "encoder.layers.0.self_attention.qkv" in pack_(model, rows=2, keep=("head",))
    assert isinstance(model.head, nn.Linear)
    source, target = torch.randint(1, V, (2, 7)), torch.randint(1, V, (2, 6))
    with torch.no_grad():
        torch.testing.assert_close(model(source, target), reference(source, target))
        laws.assert_causal(lambda x: model.decoder(x, torch.zeros(2, 7, 32)), torch.randn(2, 6, 32), tolerance=1e-6)


def test_state_dicts_moves_copies_and_pickles_come_back():
    base, other = LanguageModel(config()).eval(), LanguageModel(config()).eval()
    model, tokens = copy.deepcopy(base), torch.randint(V, (2, 9))
    pack_(model, rows=16)
    assert model.state_dict().keys() == base.state_dict().keys()
    with torch.no_grad():
        expected = model(tokens)  # packed now: whatever follows must pack anew
        assert torch.equal(copy.deepcopy(model)(tokens), expected)
        file = io.BytesIO()
        torch.save(model, file)
        file.seek(0)
        assert torch.equal(torch.load(file, weights_only=False)(tokens), expected)
        plain = LanguageModel(config()).eval()
        plain.load_state_dict(model.state_dict())
        torch.testing.assert_close(plain(tokens), expected)
        model.load_state_dict(other.state_dict())
        torch.testing.assert_close(model(tokens), other(tokens))
        torch.testing.assert_close(model.double()(tokens), other.double()(tokens))
        torch.testing.assert_close(model.bfloat16()(tokens), other.bfloat16()(tokens), rtol=0.05, atol=0.05)


@pytest.mark.parametrize("freeze", [pack_, quantize_])
def test_a_folder_without_its_weights_is_not_written(tmp_path, freeze):
    sizes = {"d_model": 32, "n_heads": 4, "n_decoder_layers": 1, "vocab_size": V, "max_length": 8}
    for model in (GPT(GPT.configure(**sizes)), LanguageModel(config())):
        freeze(model)
        with pytest.raises(ValueError, match=r"decoder\.layers\.0.*: (expected a trained map|not as the config says)"):
            save_pretrained(model, tmp_path / "model")
        assert not list(tmp_path.iterdir())


def test_a_map_in_two_places_stays_one_and_merged_updates_are_packed():
    shared = nn.Linear(8, 8)
    model = nn.Sequential(shared, nn.ReLU(), shared)
    assert pack_(model) == ["0", "2"]
    assert model[0] is model[2]
    merged = _with_lora()
    remove_lora(merged)
    assert pack_(merged)
