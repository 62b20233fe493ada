"""Latent attention: equal to the paper's equations and to DeepSeek's code, in both its forms, and lawful."""

import math

import pytest
import torch
from recorded import recorded
from tiny_models import insist_on_the_laws_of_a_language_model
from torch import nn

from course_lib import testing as laws
from course_lib.cache import KVCache
from course_lib.generation import beam_search, generate
from course_lib.masks import causal_mask, length_mask
from course_lib.positions import RotaryEmbedding
from course_lib.variants import BERT, GPT, Llama
from course_lib.variants.latent import LatentAttention, use_latent_attention

B, T, D, H, E, C, R, V = 2, 7, 24, 3, 8, 10, 6, 19


def attention(dtype=torch.float32, **changes):
    """With weights so large that the attention is far from even, and norms that are not one."""
    sizes = {"d_latent": C, "d_rotary": R, "d_head": E, **changes}
    made = LatentAttention(D, H, **sizes).to(dtype)
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            nn.init.normal_(parameter, mean=1.0 if "norm" in name else 0.0, std=0.4)
    return made


def turn(length=T, layout="half", positions=None):
    positions = torch.arange(length) if positions is None else positions
    return RotaryEmbedding(R, layout=layout)(positions)


def model(d_query_latent=None, **changes):
    sizes = {"d_model": D, "n_heads": H, "d_ff": 20, "vocab_size": V, "n_decoder_layers": 2, "max_length": 32}
    made = Llama(Llama.configure(**sizes, **changes))
    use_latent_attention(made.decoder, d_latent=C, d_rotary=R, d_head=E, d_query_latent=d_query_latent)
    for parameter in made.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.3)
    return made.eval()


def by_hand(block, x):
    """Equations 37 to 47 of the paper, one position and head at a time; pairs i and i + R / 2 are turned."""

    def turned(vector, position):
        first, second = vector.chunk(2)
        angles = position * 10000.0 ** (-2 * torch.arange(R // 2) / R)
        return torch.cat([first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()])

    rows = []
    for example in x:
        low = [block.down.weight @ vector for vector in example]
        latents = [v[:C] * torch.rsqrt(v[:C].square().mean() + 1e-6) * block.norm.weight for v in low]  # c
        shared = [turned(v[C:], position) for position, v in enumerate(low)]
        for t, vector in enumerate(example):
            heads = []
            for h in range(H):
                query = (block.query.weight @ vector)[h * (E + R) : (h + 1) * (E + R)]
                query = torch.cat([query[:E], turned(query[E:], t)])
                made = [(block.up.weight @ c)[h * 2 * E : (h + 1) * 2 * E] for c in latents[: t + 1]]
                keys = [torch.cat([m[:E], shared[s]]) for s, m in enumerate(made)]
                weights = torch.stack([query @ key / math.sqrt(E + R) for key in keys]).softmax(0)
                heads.append(sum(w * m[E:] for w, m in zip(weights, made, strict=True)))
            rows.append(block.output.weight @ torch.cat(heads))
    return torch.stack(rows).view(B, T, D)


@pytest.mark.parametrize("absorbed", [False, True], ids=["plain", "absorbed"])
def test_equals_the_equations_of_the_paper(absorbed, parity):
    block = attention()
    block.absorbed = absorbed
    found = laws.assert_equivalent(
        lambda x: block(x, causal=True, rotation=turn()),
        lambda x: by_hand(block, x),
        torch.randn(B, T, D),
        parameters=[(p, p) for p in block.parameters()],
    )
    parity(f"latent attention, {'absorbed' if absorbed else 'plain'}", "its equations", found)


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("d_query_latent", [None, 11], ids=["queries whole", "queries compressed"])
def test_equals_deepseek(version, d_query_latent, parity):
    transformers = pytest.importorskip("transformers")
    if version == 2:
        from transformers.models.deepseek_v2 import modeling_deepseek_v2 as published

        config, kind = transformers.DeepseekV2Config, published.DeepseekV2Attention
    else:
        from transformers.models.deepseek_v3 import modeling_deepseek_v3 as published

        config, kind = transformers.DeepseekV3Config, published.DeepseekV3Attention
    theirs = kind(
        config(
            hidden_size=D, num_attention_heads=H, num_key_value_heads=H, kv_lora_rank=C, q_lora_rank=d_query_latent,
            qk_rope_head_dim=R, qk_nope_head_dim=E, v_head_dim=E, attn_implementation="eager",
        ),
        layer_idx=0,
    )  # fmt: skip
    ours = attention(d_query_latent=d_query_latent)
    names = {"down": "kv_a_proj_with_mqa", "norm": "kv_a_layernorm", "up": "kv_b_proj", "output": "o_proj"}
    names |= {"query": "q_proj" if d_query_latent is None else "q_b_proj"}
    names |= {} if d_query_latent is None else {"query_down": "q_a_proj", "query_norm": "q_a_layernorm"}
    pairs = [(ours.get_parameter(f"{a}.weight"), theirs.get_parameter(f"{b}.weight")) for a, b in names.items()]
    assert len(pairs) == len(list(theirs.parameters())) == len(list(ours.parameters()))
    with torch.no_grad():
        for mine, other in pairs:
            other.copy_(mine)

    # Version 2 takes the angles as complex numbers, version 3 as cosines and sines, each twice.
    rotation = turn(layout="interleaved")
    angles = torch.complex(rotation.cos, rotation.sin)[None]
    both = tuple(part.repeat(1, 2)[None] for part in (rotation.cos, rotation.sin))
    hidden = torch.zeros(T, T).masked_fill(~causal_mask(T), -math.inf).expand(B, 1, T, T)
    found = laws.assert_equivalent(
        lambda x: ours(x, causal=True, rotation=rotation),
        lambda x: theirs(x, attention_mask=hidden, position_embeddings=angles if version == 2 else both)[0],
        torch.randn(B, T, D),
        parameters=pairs,
    )
    words = "" if d_query_latent is None else ", queries compressed"
    parity(f"latent attention{words}", f"transformers, DeepSeek-V{version}", found)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("padded", [False, True], ids=["", "padded"])
@pytest.mark.parametrize("causal", [False, True], ids=["", "causal"])
def test_absorbed_form_equals_the_plain_form(causal, padded, dtype, parity):
    block = attention(dtype, d_query_latent=11)
    mask = length_mask([T, 4], T) if padded else None

    def form(absorbed):
        def run(x):
            block.absorbed = absorbed
            return recorded(block, x, mask=mask, causal=causal, rotation=turn())

        return run

    found = laws.assert_equivalent(
        form(True), form(False), torch.randn(B, T, D, dtype=dtype), parameters=[(p, p) for p in block.parameters()]
    )
    assert found.output < (1e-5 if dtype == torch.float32 else 1e-12)
    parity("latent attention, absorbed", "plain", found, dtype)


@pytest.mark.parametrize("d_query_latent", [None, 11])
def test_laws_of_a_model(d_query_latent, obeys):
    made, ids = model(d_query_latent), torch.randint(V, (3, 9))
    name = "latent attention in Llama" + ("" if d_query_latent is None else ", queries compressed")

    insist_on_the_laws_of_a_language_model(made, ids, name, obeys, vocab_size=V)


@pytest.mark.parametrize("absorbed", [False, True], ids=["plain", "absorbed"])
def test_rows_without_anything_to_see(absorbed):
    block = attention()
    block.absorbed = absorbed
    masks = {"empty": torch.zeros(T, T, dtype=torch.bool), "first row empty": causal_mask(T).tril(-1)}
    laws.assert_finite(
        lambda x, mask: block.to(x.dtype)(x, mask=mask, rotation=turn()), torch.randn(B, T, D), masks=masks
    )


@pytest.mark.parametrize("absorbed", [False, True], ids=["plain", "absorbed"])
def test_under_autocast(absorbed):
    block, x = attention(d_query_latent=11), torch.randn(B, T, D)
    block.absorbed = absorbed
    exact = block(x, causal=True, rotation=turn())
    with torch.autocast("cpu", torch.bfloat16):
        rough = block(x, causal=True, rotation=turn())
    assert rough.dtype == torch.bfloat16
    assert (rough - exact).abs().max() < 0.05 * exact.abs().max()
    rough.float().sum().backward()
    laws.assert_gradients_flow(
        lambda x: block(x, causal=True, rotation=turn()), x, parameters=dict(block.named_parameters())
    )


def test_a_cache_holds_the_latents_and_nothing_else():
    made, ids = model(), torch.randint(V, (B, 5))

    def filled(ids):
        cache = made.decoder.new_cache(capacity=12)
        made(ids, cache=cache)
        return cache

    formula = 2 * B * 12 * (C + R) * 4  # layers, examples, positions, numbers, bytes
    laws.assert_counts(filled, ids, output_bytes=formula)
    cache = filled(ids)
    assert cache.n_bytes == formula
    kept = cache.layers[0].self_attention
    assert kept.keys.shape == (B, 1, 5, C + R)
    assert kept.values.numel() == 0


@torch.no_grad()
def test_a_cache_of_another_dtype():
    made, ids = model(), torch.randint(V, (B, 9))
    cache = made.decoder.new_cache(dtype=torch.bfloat16)
    exact = made(ids)
    written = torch.cat(
        [made(ids[:, :5], cache=cache), made(ids[:, 5:6], cache=cache), made(ids[:, 6:], cache=cache)], 1
    )
    assert written.dtype == torch.float32
    assert cache.layers[0].self_attention.keys.dtype == torch.bfloat16
    assert (written - exact).abs().max() < 0.05 * exact.abs().max()


def test_counts():
    block = LatentAttention(D, H, d_latent=C, d_rotary=R, d_head=E, d_query_latent=11)
    queries = D * 11 + 11 + 11 * H * (E + R)
    laws.assert_counts(block, parameters=queries + D * (C + R) + C + C * H * 2 * E + H * E * D)


def test_writes_the_same_with_and_without_a_cache():
    made, prompt = model(), torch.randint(V, (B, 4))
    for options in ({"temperature": 0.0}, {"temperature": 0.9}):
        written = [
            generate(
                made, prompt, max_new_tokens=12, use_cache=use, generator=torch.Generator().manual_seed(3), **options
            )
            for use in (True, False)
        ]
        assert torch.equal(*written)
    beams = [beam_search(made, prompt, n_beams=3, max_new_tokens=8, use_cache=use) for use in (True, False)]
    assert torch.equal(beams[0].tokens, beams[1].tokens)


def test_in_a_bidirectional_encoder():
    sizes = {"d_model": D, "n_heads": H, "d_ff": 20, "vocab_size": V, "n_encoder_layers": 2, "pad_id": None}
    made = BERT(BERT.configure(**sizes), head="masked_lm")
    with pytest.raises(ValueError, match="stack: expected one with rotary positions, got 'learned'"):
        use_latent_attention(made.encoder, d_latent=C, d_rotary=R)
    block, x = attention().eval(), torch.randn(B, T, D)
    changed = x.clone()
    changed[:, -1] += 1.0
    moved = (block(x, rotation=turn()) - block(changed, rotation=turn())).abs().amax((0, 2))
    assert (moved > 1e-4).all()


def test_bad_input_names_the_argument():
    with pytest.raises(ValueError, match="d_rotary: expected an even width, got 5"):
        LatentAttention(D, H, d_latent=C, d_rotary=5)
    with pytest.raises(ValueError, match="d_latent: expected an integer of at least 1, got 0"):
        LatentAttention(D, H, d_latent=0, d_rotary=R)
    with pytest.raises(ValueError, match="d_model: expected a multiple of n_heads=5, got 24"):
        LatentAttention(D, 5, d_latent=C, d_rotary=R)
    with pytest.raises(ValueError, match="dropout: expected a probability"):
        LatentAttention(D, H, d_latent=C, d_rotary=R, dropout=1.0)
    block, x = attention(), torch.randn(B, T, D)
    with pytest.raises(ValueError, match="rotation: needed, what `RotaryEmbedding\\(6\\)` gives"):
        block(x)
    with pytest.raises(ValueError, match="x: expected"):
        block(x[0], rotation=turn())
    with pytest.raises(ValueError, match="cache: forgets after 4 positions"):
        block(x, rotation=turn(), cache=KVCache(window=4))
    with pytest.raises(ValueError, match="stack: latent attention has no window, this one has window=4"):
        model(window=4)
    gpt = GPT(GPT.configure(d_model=D, n_heads=H, n_decoder_layers=1, vocab_size=V, max_length=9))
    with pytest.raises(ValueError, match="stack: expected one with rotary positions, got 'learned'"):
        use_latent_attention(gpt.decoder, d_latent=C, d_rotary=R)
