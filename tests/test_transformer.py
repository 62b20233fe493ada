"""Whole models: equal to torch and transformers, lawful on their logits, and counted."""

import math
import shutil

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from published import LANGUAGE_MODELS, gradient_gap, t5
from tiny_models import insist_on_the_laws_of_an_encoder_decoder, padded
from torch import nn
from torch_masks import KINDS, for_torch, make_mask

from course_lib import testing as laws
from course_lib.attention import record_weights
from course_lib.masks import causal_mask
from course_lib.positions import SCHEMES
from course_lib.transformer import LanguageModel, Transformer, TransformerConfig

B, T, S, H, D, F, V, PAD = 3, 7, 5, 3, 12, 20, 23, 0


def config(**changes):
    sizes = {"d_model": D, "n_heads": H, "d_ff": F, "n_encoder_layers": 2, "n_decoder_layers": 2, "vocab_size": V}
    return TransformerConfig(**{**sizes, "max_length": 40, **changes})


def tokens(*shape):
    return torch.randint(1, V, shape)


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("pre", [True, False])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_equals_torch(kind, pre, activation, parity):
    batch_first = kind != "padding"
    theirs = nn.Transformer(D, H, 2, 3, F, dropout=0.0, activation=activation, norm_first=pre, batch_first=batch_first)
    for parameter in theirs.parameters():
        nn.init.normal_(parameter, std=0.3)
    ours, mask = Transformer.from_torch(theirs), make_mask(kind, B, H, S, S)
    context_mask = mask if kind == "padding" else None
    hidden = {
        "src_mask": for_torch(mask, B, H, S, S),
        "tgt_mask": ~causal_mask(T),
        "memory_mask": for_torch(context_mask, B, H, T, S),
    }

    def run(source, target):
        if batch_first:
            return theirs(source, target, **hidden)
        return theirs(source.transpose(0, 1), target.transpose(0, 1), **hidden).transpose(0, 1)

    found = laws.assert_equivalent(
        lambda s, t: ours.decode(t, ours.encode(s, source_mask=mask), context_mask=context_mask),
        run,
        torch.randn(B, S, D),
        torch.randn(B, T, D),
        names=["source", "target"],
        parameters=[
            (ours.encoder.layers[0].feed_forward.up.weight, theirs.encoder.layers[0].linear1.weight),
            (ours.encoder.final_norm.weight, theirs.encoder.norm.weight),
            (ours.decoder.layers[2].self_attention.qkv.weight, theirs.decoder.layers[2].self_attn.in_proj_weight),
            (ours.decoder.final_norm.bias, theirs.decoder.norm.bias),
        ],
    )
    parity(f"Transformer, {'pre' if pre else 'post'}-norm, {activation}", "torch.nn.Transformer", found)
    if kind == "padding":
        x, y = torch.randn(B, S, D), torch.randn(B, T, D)
        torch.testing.assert_close(ours(x, y, source_mask=mask), run(x, y), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", LANGUAGE_MODELS)
def test_language_models_equal_transformers(name, parity):
    pair, ids = LANGUAGE_MODELS[name](), torch.randint(3, 29, (B, 11))
    expected, found = pair.theirs(ids).logits, pair.ours(ids)
    gap = (found - expected).abs().max().item()
    direction = torch.randn_like(found)
    expected.backward(direction)
    found.backward(direction)
    gradient = gradient_gap(*pair)
    assert gap < 1e-5
    assert gradient < 1e-5
    parity(f"LanguageModel as {name}", "transformers; gradients relative", (gap, gradient))

    pair.ours.bfloat16(), pair.theirs.bfloat16()
    with torch.no_grad():
        gap = (pair.ours(ids) - pair.theirs(ids).logits).abs().max().item()
    assert gap < 0.2
    parity(f"LanguageModel as {name}", "transformers", (gap, math.nan), torch.bfloat16)


@pytest.mark.parametrize("gated", [True, False])
def test_encoder_decoder_equals_t5(gated, parity):
    pair, source, target = t5(gated), torch.randint(3, 29, (B, 9)), torch.randint(3, 29, (B, 8))
    source[0, 6:] = pair.ours.config.pad_id
    expected = pair.theirs(input_ids=source, attention_mask=source != 2, decoder_input_ids=target).logits
    found = pair.ours(source, target)
    gap = (found - expected).abs().max().item()
    direction = torch.randn_like(found)
    expected.backward(direction)
    found.backward(direction)
    gradient = gradient_gap(*pair)
    assert gap < 1e-5
    assert gradient < 1e-5
    parity(f"Transformer as T5{', gated' if gated else ''}", "transformers; gradients relative", (gap, gradient))


@pytest.mark.parametrize("positions", SCHEMES)
def test_language_model_laws(positions, obeys):
    model, ids, name = LanguageModel(config(positions=positions)), tokens(B, T), f"LanguageModel, {positions}"

    def after_prompt(prompt, rest):
        cache = model.new_cache()
        model(prompt, cache=cache)
        return model(rest, cache=cache)

    laws.assert_causal(model, ids, cached=after_prompt, vocab_size=V)
    obeys(name, "causal")

    left = lambda ids, real: padded(model, ids, real)  # noqa: E731
    laws.assert_padding_invariant(left, ids, side="left", module=model, vocab_size=V)
    laws.assert_padding_invariant(lambda ids, real: model(ids), ids, module=model, vocab_size=V)
    obeys(name, "padding")
    laws.assert_finite(model, ids)
    obeys(name, "finite")
    laws.assert_gradients_flow(model, ids)
    obeys(name, "gradients")


@pytest.mark.parametrize("positions", SCHEMES)
def test_language_model_cache_law(positions, obeys):
    """Cached logits equal those of the full pass: prefills 0, 1, 5, all but one; left padding; windows."""
    plain = LanguageModel(config(positions=positions)).eval()

    def model(window):
        if window is None:
            return plain
        other = LanguageModel(config(positions=positions, window=window))
        other.load_state_dict(plain.state_dict())
        return other.eval()

    def step(new, cache, real=None, window=None):
        cache = model(window).new_cache(capacity=9) if cache is None else cache
        return padded(model(window), new, real, cache=cache), cache

    laws.assert_cache_consistent(
        lambda ids, real=None, window=None: padded(model(window), ids, real),
        step,
        tokens(B, 9),
        prefills=[0, 1, 5, 8],
        left_padding=True,
        windows=True,
    )
    obeys(f"LanguageModel, {positions}", "cache")


@pytest.mark.parametrize("positions", SCHEMES)
def test_encoder_decoder_laws(positions, obeys):
    model, name = Transformer(config(positions=positions, pad_id=PAD)), f"Transformer, {positions}"
    source, target = tokens(B, S), tokens(B, T)
    insist_on_the_laws_of_an_encoder_decoder(model, source, target, name, obeys, vocab_size=V, prefills=[0, 1, 5, 6])


def test_padding_is_hidden_by_its_id():
    model, source, target = Transformer(config(pad_id=PAD)).eval(), tokens(B, S), tokens(B, T)
    source[1, 3:] = PAD
    alone = model(source[1:2, :3], target[1:2])
    torch.testing.assert_close(model(source, target)[1:2], alone, rtol=1e-4, atol=1e-5)


def test_last_computes_the_last_logits():
    model, ids = LanguageModel(config()).eval(), tokens(B, T)
    torch.testing.assert_close(model(ids, last=2), model(ids)[:, -2:], rtol=1e-5, atol=1e-6)


def test_weights_of_one_pass():
    model, source, target = Transformer(config()).eval(), tokens(B, S), tokens(B, T)
    with record_weights(model) as maps:
        logits = model(source, target)
    torch.testing.assert_close(logits, model(source, target), rtol=1e-4, atol=1e-5)
    assert [maps[f"encoder.layers.{n}.self_attention"].shape for n in range(2)] == [(B, H, S, S)] * 2
    assert maps["decoder.layers.1.cross_attention"].shape == (B, H, T, S)


@pytest.mark.parametrize("init", ["xavier", "normal"])
def test_first_loss_is_near_ln_v(init):
    size = {"d_model": 128, "n_heads": 4, "d_ff": 512, "vocab_size": 1000, "norm_place": "pre", "init": init}
    model, ids = LanguageModel(config(**size, scale_embeddings=init == "xavier")), torch.randint(0, 1000, (8, 33))
    loss = nn.functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
    # Above it: a tied table makes each token a little too likely to follow itself.
    assert math.log(1000) < loss.item() < math.log(1000) + 1.2


def test_ties():
    tied = Transformer(config(share_vocabulary=True))
    assert tied.head.weight is tied.embedding.tokens.weight is tied.source_embedding.tokens.weight
    assert tied.head.weight.std().item() == pytest.approx(D**-0.5, rel=0.2)
    free = Transformer(config(tie_embeddings=False, target_vocab_size=V + 1))
    assert free.head.weight is not free.embedding.tokens.weight
    assert free(tokens(B, S), tokens(B, T)).shape == (B, T, V + 1)
    other = Transformer(config(share_vocabulary=True))
    other.load_state_dict(tied.state_dict())
    assert other.head.weight is other.source_embedding.tokens.weight


def test_counts_of_the_paper():
    """The base model: three tables in one and 37,000 pieces give the paper's 65 million, table 3, to 3 %."""
    with torch.device("meta"):
        base = Transformer(TransformerConfig(vocab_size=37_000, share_vocabulary=True))
    attention, feed_forward, norm = 4 * 512**2 + 4 * 512, 2 * 512 * 2048 + 2048 + 512, 2 * 512
    layers = 6 * (attention + feed_forward + 2 * norm) + 6 * (2 * attention + feed_forward + 3 * norm)
    assert laws.assert_counts(base, parameters=37_000 * 512 + layers).parameters == 63_082_496


def test_counts_of_gpt2():
    with torch.device("meta"):
        model = LanguageModel(
            config(
                d_model=768,
                n_heads=12,
                d_ff=None,
                n_decoder_layers=12,
                vocab_size=50_257,
                max_length=1024,
                positions="learned",
                norm_place="pre",
            )
        )
    laws.assert_counts(model, parameters=124_439_808)


switches = st.fixed_dictionaries(
    {
        "positions": st.sampled_from(list(SCHEMES)),
        "rotary_layout": st.sampled_from(["half", "interleaved"]),
        "norm": st.sampled_from(["layer", "rms", "none"]),
        "norm_place": st.sampled_from(["pre", "post"]),
        "final_norm": st.sampled_from([None, True, False]),
        "embedding_norm": st.booleans(),
        "activation": st.sampled_from(["relu", "gelu", "gelu_tanh", "silu"]),
        "gated": st.booleans(),
        "bias": st.booleans(),
        "n_kv_heads": st.sampled_from([None, 1, 2]),
        "d_head": st.sampled_from([None, 2, 6]),
        "window": st.sampled_from([None, 1, 3]),
        "attention_scale": st.sampled_from([None, 1.0]),
        "tie_embeddings": st.booleans(),
        "share_vocabulary": st.booleans(),
        "scale_embeddings": st.booleans(),
        "head_bias": st.booleans(),
        "logit_scale": st.sampled_from([1.0, 0.5]),
        "init": st.sampled_from(["xavier", "normal"]),
        "scale_residual_init": st.booleans(),
    }
)


@given(fields=switches)
@settings(deadline=None, max_examples=30)
def test_any_combination_of_switches_is_causal_and_cached_as_in_full(fields):
    model = Transformer(config(n_heads=2, n_encoder_layers=1, pad_id=PAD, **fields))
    source, target = tokens(2, S), tokens(2, T)
    source[0, 3:] = PAD
    laws.assert_causal(lambda ids: model(source, ids), target, positions=[3], module=model, vocab_size=V)

    def step(new, state):
        context, cache = state or (model.encode(source), model.new_cache())
        return model.decode(new, context, context_mask=model.mask_of(source, None), cache=cache), (context, cache)

    laws.assert_cache_consistent(lambda ids: model(source, ids), step, target, prefills=[0, 4], module=model)


@pytest.mark.thorough
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")
def test_compiles():
    switches = {"positions": "rotary", "norm": "rms", "norm_place": "pre", "gated": True, "n_kv_heads": 1, "window": 3}
    small = config(dropout=0.0, n_encoder_layers=1, n_decoder_layers=1, pad_id=PAD, **switches)
    model, source, target = Transformer(small), tokens(B, S), tokens(B, T)
    compiled = torch.compile(model, fullgraph=True)
    laws.assert_equivalent(compiled, model, source, target, tolerance=1e-4)


def test_one_batch_can_be_learned():
    model, ids = LanguageModel(config(d_model=32, n_heads=4, d_ff=64, norm_place="pre", dropout=0.0)), tokens(4, 12)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(100):
        loss = nn.functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.3


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda m, s, t: m(s, t[:2]), ValueError, "target: expected batch B=3 like source, got 2"),
        (lambda m, s, t: m(s[:, :0], t), ValueError, r"tokens: expected ids \(B, T\) with T of at least 1"),
        (lambda m, s, t: m(s, t[:, :0]), ValueError, r"tokens: expected ids \(B, T\) with T of at least 1"),
        (lambda m, s, t: m(s, t + V), ValueError, "tokens: expected ids 0 to 22 for vocab_size=23"),
        (
            lambda m, s, t: m(s.float(), t),
            TypeError,
            "tokens: expected a tensor of integer token ids",
        ),
        (lambda m, s, t: m(s, t, source_mask=torch.ones(B, S).bool()), ValueError, "mask: expected shape"),
        (lambda m, s, t: m(s, t, source_mask=torch.ones(B, 1, 1, S)), TypeError, "mask: expected a boolean mask"),
        (
            lambda m, s, t: m.decode(torch.ones(B, 41).long(), m.encode(s)),
            ValueError,
            "tokens: 41 positions, the table of positions has max_length=40",
        ),
        (
            lambda m, s, t: m.decode(t, m.encode(s), positions=torch.arange(T) + 34),
            ValueError,
            "positions: expected 0 to 39",
        ),
    ],
)
def test_bad_input(call, error, message):
    with pytest.raises(error, match=message):
        call(Transformer(config(positions="learned")), tokens(B, S), tokens(B, T))


def test_vectors_in_and_out_without_a_vocabulary():
    model = Transformer(config(vocab_size=None))
    assert model(torch.randn(B, S, D), torch.randn(B, T, D)).shape == (B, T, D)
    with pytest.raises(ValueError, match=r"tokens: expected vectors \(B, T, D\)"):
        model(tokens(B, S), tokens(B, T))
