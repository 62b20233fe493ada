"""Parts that make small models learn fast: attention by products equals the fused kernel, and runs have their rows."""

import pytest
import torch

from course_lib import attention
from course_lib import testing as laws
from course_lib.attention import scaled_dot_product_attention
from course_lib.generation import beam_search, compile_step, generate
from course_lib.layers import NGramEmbedding
from course_lib.masks import length_mask
from course_lib.scaling import count_parameters
from course_lib.training import parameter_groups
from course_lib.transformer import LanguageModel, Transformer, TransformerConfig
from course_lib.variants import from_pretrained, save_pretrained
from coursework.export.parts import check_plain

V = 13
SIZES = {"d_model": 16, "n_heads": 2, "n_encoder_layers": 1, "n_decoder_layers": 2, "vocab_size": V, "dropout": 0.0}


def inputs(T=17, S=17, dtype=torch.bfloat16):
    torch.manual_seed(0)
    return [torch.randn(2, 3, size, 8).to(dtype).requires_grad_() for size in (T, S, S)]


@pytest.fixture
def short(monkeypatch):
    """How often attention went by two products."""
    calls = []
    products = attention.short_attention
    monkeypatch.setattr(attention, "short_attention", lambda *inputs: calls.append(1) or products(*inputs))
    return calls


@pytest.mark.parametrize("scale", [None, 0.5])
def test_attention_by_products_equals_the_fused_kernel(scale, short):
    ours = inputs()
    exact = [x.detach().double().requires_grad_() for x in ours]
    found = scaled_dot_product_attention(*ours, causal=True, scale=scale)
    assert short
    expected = scaled_dot_product_attention(*exact, causal=True, scale=scale)
    torch.testing.assert_close(found.double(), expected, atol=0.03, rtol=0.03)
    direction = torch.randn_like(expected)
    found.backward(direction.bfloat16())
    expected.backward(direction)
    for a, b in zip(ours, exact, strict=True):
        torch.testing.assert_close(a.grad.double(), b.grad, atol=0.05, rtol=0.05)


@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ({"dtype": torch.float32}, {"causal": True}),
        ({"dtype": torch.float16}, {"causal": True}),
        ({}, {"causal": False}),
        ({"T": 5}, {"causal": True}),
        ({}, {"causal": True, "mask": length_mask([17, 9], 17)}),
        ({}, {"causal": True, "dropout": 0.1}),
        ({"T": 600, "S": 600}, {"causal": True}),
    ],
)
def test_all_else_goes_to_the_fused_kernel(shape, options, short):
    scaled_dot_product_attention(*inputs(**shape), **options)
    with torch.no_grad():
        scaled_dot_product_attention(*inputs(), causal=True)
    assert not short


def test_laws_in_a_model_in_bfloat16(short):
    model = LanguageModel(TransformerConfig(**SIZES)).bfloat16()
    tokens = torch.randint(V, (2, 9))
    changed = tokens.clone()
    changed[:, 6:] = (changed[:, 6:] + 1) % V
    a, b = model(tokens), model(changed)
    assert short
    assert torch.equal(a[:, :6], b[:, :6])
    assert not torch.equal(a[:, 6:], b[:, 6:])


def drawn(kind=LanguageModel, **more):
    torch.manual_seed(0)
    model = kind(TransformerConfig(**SIZES, **more)).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model


@pytest.mark.parametrize(("n", "n_rows"), [(2, V * V), (3, 20)])
def test_runs_have_their_rows(n, n_rows):
    table = NGramEmbedding([n], 3, V, n_rows=n_rows)
    assert (table.weight == 0).all()
    torch.nn.init.normal_(table.weight)
    tokens = torch.randint(V, (2, 9))
    found = table(tokens, torch.arange(9))
    assert (found[:, : n - 1] == 0).all()
    for b in range(2):
        for t in range(n - 1, 9):
            alone = table(tokens[b : b + 1, t - n + 1 : t + 1], torch.arange(n))[0, -1]
            assert torch.equal(found[b, t], alone)
    every = torch.cartesian_prod(*[torch.arange(V)] * n)
    distinct = len({tuple(row) for row in table(every, torch.arange(n))[:, -1].tolist()})
    assert distinct == n_rows  # each pair its own; triples share, and leave no row empty


def test_several_lengths_are_added_up():
    torch.manual_seed(0)
    both = NGramEmbedding([3, 2], 4, V, n_rows=200)
    torch.nn.init.normal_(both.weight)
    parts = [NGramEmbedding([n], 4, V, n_rows=200) for n in (2, 3)]
    for part, weight in zip(parts, both.weight.split([V * V, 200]), strict=True):
        part.weight.data.copy_(weight)
    tokens = torch.randint(V, (2, 7))
    torch.testing.assert_close(both(tokens, torch.arange(7)), sum(part(tokens, torch.arange(7)) for part in parts))


def test_a_new_model_with_tables_computes_what_one_without_does():
    torch.manual_seed(0)
    plain = LanguageModel(TransformerConfig(**SIZES))
    model = LanguageModel(TransformerConfig(**SIZES, ngrams=(2, 4), ngram_rows=100))
    missing, unexpected = model.load_state_dict(plain.state_dict(), strict=False)
    assert (missing, unexpected) == (["embedding.ngrams.weight"], [])
    tokens = torch.randint(V, (2, 7))
    assert torch.equal(model(tokens), plain(tokens))
    counted = count_parameters(model.config).total()
    assert counted == sum(p.numel() for p in model.parameters()) == count_parameters(plain.config).total() + 200 * 16
    assert any(p is model.embedding.ngrams.weight for p in parameter_groups(model, 0.1)[1]["params"])  # does not decay


@pytest.mark.parametrize("positions", ["rotary", "learned"])
def test_laws_with_tables(positions):
    model = drawn(ngrams=(2, 3), positions=positions)
    laws.assert_causal(model, torch.randint(V, (2, 9)))
    prompt = torch.randint(V, (2, 5))
    texts = [generate(model, prompt, max_new_tokens=6, temperature=0, use_cache=cached) for cached in (True, False)]
    assert torch.equal(*texts)
    plain = drawn(ngrams=(), positions=positions)
    plain.load_state_dict({name: w for name, w in model.state_dict().items() if "ngrams" not in name})
    assert not torch.allclose(model(prompt), plain(prompt), atol=0.01)


def test_padding_on_the_left_belongs_to_no_run():
    model = drawn(ngrams=(2, 3), positions="rotary")
    prompt = torch.randint(V, (1, 4))
    padded = torch.cat([torch.randint(V, (1, 3)), prompt], dim=1)
    options = {"max_new_tokens": 5, "temperature": 0}
    alone = generate(model, prompt, **options)
    beside = generate(model, padded, prompt_mask=torch.tensor([[False] * 3 + [True] * 4]), **options)
    assert torch.equal(beside[:, 3:], alone)


def test_beams_remember_their_own_tokens():
    model = drawn(Transformer, ngrams=(2, 3), positions="rotary")
    source, start = torch.randint(V, (2, 6)), torch.zeros(2, 1, dtype=torch.long)
    options = {"source": source, "max_new_tokens": 6, "stop": 1, "n_beams": 3}
    cached, again = (beam_search(model, start, use_cache=use, **options) for use in (True, False))
    assert str(cached) == str(again)


def test_a_cache_without_the_tokens_before_is_refused():
    model = drawn(ngrams=(2,))
    with pytest.raises(ValueError, match="before: expected the 3 ids before the tokens"):
        model.embedding(torch.zeros(1, 1, dtype=torch.long), offset=3)


def test_a_compiled_step_and_exports_know_no_tables():
    model = drawn(ngrams=(2,))
    with pytest.warns(UserWarning, match="looks up runs of tokens"):
        assert compile_step(model) is None
    with pytest.raises(ValueError, match="ngrams: expected none"):
        check_plain(model)


def test_tables_are_saved_with_the_model(tmp_path):
    model = drawn(ngrams=[2, 3], ngram_rows=50)
    save_pretrained(model, tmp_path)
    tokens = torch.randint(V, (2, 6))
    assert torch.equal(from_pretrained(tmp_path)(tokens), model(tokens))


@pytest.mark.parametrize(
    ("field", "words"),
    [
        ({"ngrams": 2}, "ngrams: expected lengths"),
        ({"ngrams": (1,)}, "ngrams: expected an integer of at least 2"),
        ({"ngrams": (2, 2)}, "ngrams: expected each length once"),
        ({"ngram_rows": 0}, "ngram_rows: expected an integer"),
    ],
)
def test_bad_lengths(field, words):
    with pytest.raises((ValueError, TypeError), match=words):
        TransformerConfig(**SIZES, **field)
