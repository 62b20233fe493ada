"""The compiled step of generation: logits and tokens as without it, and the model itself where it cannot be made."""

import shutil
import warnings
import weakref

import pytest
import torch
from tiny_models import small_model

from course_lib.attention import record_weights
from course_lib.cache import KVCache
from course_lib.generation import captured, compile_step, compiled, generate, pad_left
from course_lib.generation.incremental import IncrementalModel
from course_lib.transformer import Transformer, TransformerConfig
from course_lib.variants.efficient import LinearAttention
from course_lib.variants.int8 import quantize_
from course_lib.variants.packed import pack_

V, NEW = 29, 30
MODELS = {
    "rotary, groups": {"n_kv_heads": 1, "norm": "rms", "norm_place": "pre", "activation": "silu", "gated": True},
    "interleaved, norms": {"rotary_layout": "interleaved", "qk_norm": "rms", "norm_place": "both", "bias": False},
    "learned": {"positions": "learned", "norm_place": "pre", "activation": "gelu_tanh"},
    "sinusoidal": {"positions": "sinusoidal", "head_bias": True},
    "alibi": {"positions": "alibi"},
    "relative, groups": {"positions": "relative", "n_kv_heads": 1},
    "window": {"window": 5},
    "features": {"inner_attention": LinearAttention},
    "some windows": {"window": 5, "local_layers": (True, False), "local_rotary_base": 100.0, "n_kv_heads": 1},
}


@pytest.fixture
def traced(monkeypatch):
    """The graph of the step as torch runs it, without a compiler; the list of graphs that were made."""
    graphs = []
    monkeypatch.setattr(compiled, "_build", lambda graph, inputs, on_cpu: graphs.append(graph) or graph.forward)
    torch._dynamo.reset()
    return graphs


def model_of(**changes):
    torch.manual_seed(0)
    return small_model(V, **{"init": "normal", "init_std": 0.3, **changes})


def prompt(rows, length=4):
    torch.manual_seed(1)
    return torch.randint(V, (rows, length))


def written(model, tokens, **options):
    """The tokens and the logits of each step."""
    incremental = IncrementalModel(model, tokens, NEW, **options)
    chosen, logits = tokens, []
    with torch.no_grad():
        for _ in range(NEW):
            logits.append(incremental.feed(chosen)[:, -1])
            chosen = logits[-1].argmax(dim=-1, keepdim=True)
    return torch.stack(logits, dim=1)


@pytest.mark.parametrize(("name", "rows"), [*((name, 1) for name in MODELS), ("learned", 3), ("some windows", 3)])
def test_same_logits_at_every_length(traced, name, rows):
    model = model_of(**MODELS[name])
    expected = written(model, prompt(rows))
    torch.testing.assert_close(written(model, prompt(rows), compile=True), expected, rtol=1e-3, atol=1e-4)
    assert len(traced) == 1, "one graph for all lengths"
    found = generate(model, prompt(rows, 7), max_new_tokens=20, temperature=0, compile=True)
    assert torch.equal(found, generate(model, prompt(rows, 7), max_new_tokens=20, temperature=0))
    assert len(traced) == 1, "and for a cache of another size"
    assert len(found[0].unique()) > 3  # no text of one token, which any model would write


@pytest.mark.parametrize("name", ["learned", "window"])
def test_padding_on_the_left(traced, name):
    model = model_of(**MODELS[name])
    tokens, mask = pad_left([[3, 4, 5, 6], [7], [8, 9]], 0)
    expected = written(model, tokens, prompt_mask=mask)
    torch.testing.assert_close(written(model, tokens, prompt_mask=mask, compile=True), expected, rtol=1e-3, atol=1e-4)
    assert len(traced) == 1


@pytest.mark.parametrize(
    "change", [pack_, quantize_, lambda model: quantize_(model, group=8), torch.nn.Module.bfloat16]
)
def test_other_kinds_of_weights(traced, change):
    model = model_of()
    change(model)
    rounds = change in (quantize_, torch.nn.Module.bfloat16)  # without the step, products are made in bfloat16
    close = {"rtol": 0.05, "atol": 0.05} if rounds else {"rtol": 1e-3, "atol": 1e-3}
    expected = written(model, prompt(1), use_cache=False)
    # the same text for both, else one close choice would end the comparison
    tokens = torch.cat([prompt(1), expected.argmax(dim=-1)], dim=1)
    step = IncrementalModel(model, tokens[:, :4], NEW, compile=True)
    with torch.no_grad():
        found = [step.feed(tokens[:, :4])] + [step.feed(tokens[:, i : i + 1]) for i in range(4, NEW)]
    torch.testing.assert_close(torch.cat(found, dim=1), expected[:, : NEW - 3], **close)
    assert len(traced) == 1


def test_samples_stops_and_changed_weights(traced):
    model = model_of()
    options = {"max_new_tokens": NEW, "temperature": 0.9, "top_k": 9, "repetition_penalty": 1.2, "stop": [3, 5]}
    drawn = [
        generate(model, prompt(3), generator=torch.Generator().manual_seed(0), compile=compile, **options)
        for compile in (True, False)
    ]
    assert torch.equal(*drawn)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.1)  # in place: the step reads the model's own weights
    torch.testing.assert_close(written(model, prompt(3), compile=True), written(model, prompt(3)), rtol=1e-3, atol=1e-4)
    assert len(traced) == 1
    quantize_(model)  # another model now
    torch.testing.assert_close(written(model, prompt(3), compile=True), written(model, prompt(3)), rtol=1e-2, atol=1e-2)
    assert len(traced) == 2


def test_training_goes_on_as_before(traced):
    model = model_of(dropout=0.5).train()
    expected = generate(model, prompt(1), max_new_tokens=NEW, temperature=0)
    assert torch.equal(generate(model, prompt(1), max_new_tokens=NEW, temperature=0, compile=True), expected)
    assert all(part.training for part in model.modules())


def test_two_texts_at_a_time(traced):
    model = model_of()
    one, two = (IncrementalModel(model, prompt(1), NEW, compile=True) for _ in range(2))
    with torch.no_grad():
        one.feed(prompt(1)), two.feed(prompt(1))
        for i in range(8):
            token = torch.tensor([[i]])
            assert torch.equal(one.feed(token), two.feed(token))


def test_without_a_compiler_the_model_works_as_it_is(monkeypatch):
    model = model_of()
    monkeypatch.setattr(shutil, "which", lambda name: None)
    expected = generate(model, prompt(1), max_new_tokens=NEW, temperature=0)
    with pytest.warns(UserWarning, match="no C\\+\\+ compiler"):
        assert torch.equal(generate(model, prompt(1), max_new_tokens=NEW, temperature=0, compile=True), expected)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # said once
        generate(model, prompt(1), max_new_tokens=NEW, temperature=0, compile=True)


def test_what_is_not_compiled(traced, monkeypatch):
    config = TransformerConfig(d_model=16, n_heads=2, n_encoder_layers=1, n_decoder_layers=1, vocab_size=V)
    model = Transformer(config).eval()
    options = {"source": prompt(1, 6), "max_new_tokens": 5, "temperature": 0}
    with pytest.warns(UserWarning, match="It is a Transformer"):
        found = generate(model, prompt(1, 1), compile=True, **options)
    assert torch.equal(found, generate(model, prompt(1, 1), **options))
    model = model_of()
    with record_weights(model), pytest.warns(UserWarning, match="is being recorded"):
        assert compile_step(model) is None

    def fail(graph, inputs, on_cpu):
        raise RuntimeError("no such instruction")

    monkeypatch.setattr(compiled, "_build", fail)
    model = model_of(d_model=24)
    with pytest.warns(UserWarning, match="no such instruction"):
        found = generate(model, prompt(1), max_new_tokens=NEW, temperature=0, compile=True)
    assert torch.equal(found, generate(model, prompt(1), max_new_tokens=NEW, temperature=0))


@pytest.mark.thorough
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
def test_compiled_by_inductor():
    torch._dynamo.reset()
    model = model_of(n_kv_heads=1, norm_place="pre")
    quantize_(model, keep=("head",))
    step = compile_step(model)
    assert step is not None
    tokens = prompt(1, NEW)
    with torch.no_grad():
        expected = model(tokens)[:, 3:]  # so many tokens at once are multiplied in float32
        fed = IncrementalModel(model, tokens[:, :4], NEW, compile=True)
        found = [fed.feed(tokens[:, :4])] + [fed.feed(tokens[:, i : i + 1]) for i in range(4, NEW)]
    torch.testing.assert_close(torch.cat(found, dim=1), expected, rtol=1e-3, atol=1e-3)


# -- on a CUDA device, where the step is recorded ----------------------------------------------------------------------

CUDA = pytest.param("cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")])
RECORDED = [name for name in MODELS if name not in ("alibi", "relative, groups", "features")]


@pytest.fixture(params=["cpu", CUDA])
def device(request, monkeypatch):
    """A device that records steps; on the CPU, one that runs anew what it would record."""
    if request.param == "cpu":
        monkeypatch.setattr(compiled, "CompiledStep", captured.CapturedStep)
        monkeypatch.setattr(captured, "_capture", lambda step: step)
    return request.param


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("name", RECORDED)
def test_a_recorded_step_sees_all_slots_and_gives_the_same_logits(device, name, rows):
    model, tokens = model_of(**MODELS[name]).to(device), prompt(rows).to(device)
    for _ in range(2):  # one step for two caches
        found = written(model, tokens, compile=True)
        torch.testing.assert_close(found, written(model, tokens), rtol=1e-3, atol=1e-3)
    assert isinstance(compile_step(model, rows=rows), captured.CapturedStep)
    padded, mask = pad_left([[3, 4, 5, 6], [7], [8, 9]], 0, device=device)
    found = written(model, padded, prompt_mask=mask, compile=True)
    torch.testing.assert_close(found, written(model, padded, prompt_mask=mask), rtol=1e-3, atol=1e-3)


def test_what_free_slots_held_is_not_seen(device, monkeypatch):
    model, tokens = model_of().to(device), prompt(1).to(device)
    expected, reserve = written(model, tokens), KVCache._reserve

    def reserve_nan(cache, *args):
        reserve(cache, *args)
        for slots in cache.slots:
            slots.fill_(torch.nan)

    monkeypatch.setattr(KVCache, "_reserve", reserve_nan)
    torch.testing.assert_close(written(model, tokens, compile=True), expected, rtol=1e-3, atol=1e-3)


def test_what_a_graph_reads_is_kept_as_long_as_it_is_replayed(device, monkeypatch):
    def without_holding(step):
        read = weakref.ref(step)  # as a graph knows the memory of its tensors, and does not hold them
        return lambda: read()()

    monkeypatch.setattr(captured, "_capture", without_holding)
    model, tokens = model_of(), prompt(1)
    assert isinstance(compile_step(model), captured.CapturedStep)
    torch.testing.assert_close(written(model, tokens, compile=True), written(model, tokens), rtol=1e-3, atol=1e-3)


def test_a_replay_of_other_numbers_is_not_used(device, monkeypatch):
    def stale(step):
        first = step()
        return lambda: first

    monkeypatch.setattr(captured, "_capture", stale)
    with pytest.warns(UserWarning, match="what is replayed is not what the model computes"):
        assert compile_step(model_of()) is None


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", sorted(set(MODELS) - set(RECORDED)))
def test_what_cannot_be_recorded_is_used_as_it_is(name):
    model = model_of(**MODELS[name]).cuda()
    with pytest.warns(UserWarning, match="the model is used as it is"):
        assert compile_step(model) is None
