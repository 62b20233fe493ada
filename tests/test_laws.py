"""The laws of positions bite: planted bugs, most of them famous, are caught; right implementations pass."""

import math
import re

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from course_lib import testing as laws
from course_lib.attention import CausalSelfAttention, CrossAttention, SelfAttention, scaled_dot_product_attention
from course_lib.masks import causal_mask, sliding_window_mask

V, D, H = 13, 8, 2


def softmax_average(query, key, value, mask, hidden=-math.inf):
    """Attention with empty rows at zero, or with a finite sentinel in place of minus infinity."""
    scores = query @ key.transpose(-2, -1) / math.sqrt(query.size(-1))
    if hidden != -math.inf:
        return scores.masked_fill(~mask, hidden).softmax(-1) @ value
    empty = ~mask.any(-1, keepdim=True)
    return scores.masked_fill(~(mask | empty), hidden).softmax(-1).masked_fill(empty, 0.0) @ value


class Toy(nn.Module):
    """A causal attention layer over tokens with positions, padding, a window and a cache; `bug` plants one mistake."""

    def __init__(self, bug=""):
        super().__init__()
        torch.manual_seed(0)
        self.bug = bug
        self.tokens, self.positions = nn.Embedding(V, D), nn.Embedding(40, D)
        self.qkv, self.out = nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.norm = nn.BatchNorm1d(D)

    def forward(self, tokens, *, real=None, window=None):
        return self.step(tokens, None, real=real, window=window)[0]

    def step(self, tokens, cache=None, *, real=None, window=None):
        (B, T), past = tokens.shape, 0 if cache is None else cache[2]
        x = self.tokens(tokens) + self.positions(self._places(B, T, past, real))
        if self.bug == "normalised over the batch":
            x = self.norm(x.transpose(1, 2)).transpose(1, 2)
        if self.bug == "fed the targets":
            x = x.roll(-1, 1)
        query, key, value = self.qkv(x).chunk(3, dim=-1)
        if cache is not None and self.bug != "cache forgotten":
            key, value = torch.cat([cache[0], key], 1), torch.cat([cache[1], value], 1)
        if window is not None and self.bug == "cache evicts one too many" and cache is not None:
            key, value = key[:, -(window - 1 + T - 1) :], value[:, -(window - 1 + T - 1) :]
        mask = self._mask(B, T, past, key.size(1), cache is not None, real, window)
        output = self._attend(query, key, value, mask)
        return self.out(output), (key, value, past + T)

    def _places(self, B, T, past, real):
        if self.bug == "every cached token at position 0":
            return torch.arange(T).expand(B, T)
        if real is not None and self.bug != "left padding without its own positions":
            return (real.long().cumsum(1) - 1).clamp(min=0)[:, past:]
        return torch.arange(past, past + T).expand(B, T)

    def _mask(self, B, T, past, S, cached, real, window):
        i, j = torch.arange(past, past + T)[:, None], torch.arange(past + T - S, past + T)
        if self.bug == "aligned top-left with a cache":
            i = torch.arange(T)[:, None]
        mask = j <= i
        if self.bug == "off by one":
            mask = j <= i + 1
        if self.bug == "hides the token itself":
            mask = j < i
        open_ = {
            "mask accepted and never used": True,
            "causal only while training": not self.training,
            "causal only in evaluation": self.training,
            "new tokens see each other through the cache": cached,
        }
        if open_.get(self.bug, False):
            mask = torch.ones_like(mask)
        if window is not None and not (self.bug == "window forgotten with a cache" and cached):
            mask = mask & (j > i - window - int(self.bug == "window one too wide"))
        mask = mask.expand(B, T, S)
        if real is None or self.bug == "padding never masked":
            return mask
        if self.bug == "padding mask forgotten with a cache" and cached:
            return mask
        return mask & real[:, None, -S:]

    def _attend(self, query, key, value, mask):
        if self.bug == "view after transpose":
            B, T, _ = query.shape
            query, key, value = (x.view(B, -1, H, D // H).transpose(1, 2) for x in (query, key, value))
            return softmax_average(query, key, value, mask[:, None]).reshape(B, T, D)  # heads never moved back
        return softmax_average(query, key, value, mask, -3.0 if self.bug == "sentinel too small" else -math.inf)


@pytest.fixture
def tokens():
    return torch.randint(0, V, (3, 7), generator=torch.Generator().manual_seed(1))


@pytest.fixture
def x():
    return torch.randn(3, 7, D, generator=torch.Generator().manual_seed(2))


def caught(message, law, *args, **kwargs):
    with pytest.raises(AssertionError, match=message) as raised:
        law(*args, **kwargs)
    sentence = str(raised.value)
    assert len(sentence) < 400
    assert "nan" not in re.findall(r"by (\S+)", sentence)


# ---------------------------------------------------------------------------------------------------------- causal


@pytest.mark.parametrize(
    ("bug", "message"),
    [
        ("off by one", r"changing token 1 changed the output at position 0 by \d"),
        ("mask accepted and never used", r"changing token 1 changed the output at position 0"),
        ("causal only while training", r"changed the output at position 0 by .* in eval mode"),
        ("causal only in evaluation", r"changed the output at position 0 by .* in train mode"),
        ("fed the targets", r"changing token 1 changed the output at position 0"),
        ("view after transpose", r"changed the output at position"),
        ("normalised over the batch", r"changing token \d changed the output at position \d by .* in train mode"),
        ("sentinel too small", r"changing token 1 changed the output at position 0"),
        ("hides the token itself", r"changing token 0 left the output at position 0 as it was"),
    ],
)
def test_causal_catches(bug, message, tokens):
    caught(message, laws.assert_causal, Toy(bug), tokens)


@pytest.mark.parametrize("bug", ["new tokens see each other through the cache", "off by one"])
def test_causal_catches_with_a_cache(bug, tokens):
    good, toy = Toy(), Toy(bug)

    def cached(prompt, rest):
        return toy.step(rest, toy.step(prompt)[1])[0]

    laws.assert_causal(good, tokens)
    caught(
        r"changing token 2 changed the output at position 1 by .* with a cache of 1",
        laws.assert_causal,
        good,
        tokens,
        cached=cached,
    )


def test_causal_catches_what_is_not_attention(x):
    convolution = nn.Conv1d(D, D, 3, padding=1)
    caught(
        "changing token 1 changed the output at position 0",
        laws.assert_causal,
        lambda x: convolution(x.transpose(1, 2)).transpose(1, 2),
        x,
    )
    caught("changing token 1 changed", laws.assert_causal, lambda x: x - x.mean(1, keepdim=True), x)
    caught("left the output at position 0 as it was", laws.assert_causal, torch.zeros_like, x)
    caught("not finite", laws.assert_causal, lambda x: x / torch.zeros(()), x)


def test_causal_passes_what_is_right(x, tokens):
    good = Toy()
    laws.assert_causal(good, tokens, cached=lambda prompt, rest: good.step(rest, good.step(prompt)[1])[0])
    laws.assert_causal(CausalSelfAttention(D, dropout=0.5), x)
    laws.assert_causal(lambda x: scaled_dot_product_attention(x, x, x, causal=True), x[:, None], dim=2)
    laws.assert_causal(lambda x: x.cumsum(0), x[0], dim=0)
    shift = lambda x: F.pad(x, (0, 0, 1, 0))[:, :-1]  # noqa: E731
    laws.assert_causal(shift, x, sees_itself=False)
    for dtype in (torch.float64, torch.bfloat16):
        laws.assert_causal(CausalSelfAttention(D).to(dtype), x.to(dtype))


def test_causal_agrees_with_the_jacobian(x):
    """The law and the derivative say the same: nothing above the diagonal, everything on it."""
    head = CausalSelfAttention(D)
    jacobian = torch.func.jacrev(lambda x: head(x))(x[0])  # (T, D, T, D)
    reach = jacobian.abs().amax((1, 3))  # (T, T)
    assert torch.equal(reach > 0, causal_mask(7))


# --------------------------------------------------------------------------------------------------------- padding


def padded(head, how):
    def fn(x, real):
        if how == "mask never used":
            mask = None
        elif how == "(B, T) taken as (T, T)":
            mask = real if x.shape[0] == x.shape[1] else real[:, None]
        elif how == "polarity swapped":
            mask = ~real[:, None]
        elif how == "queries masked, not keys":
            mask = real[:, :, None]
        else:
            mask = real[:, None]
        return head(x, mask=mask)

    return fn


@pytest.mark.parametrize(
    ("how", "where"),
    [
        ("mask never used", "B=3, T=7"),
        ("(B, T) taken as (T, T)", "B=7, T=7"),
        ("polarity swapped", "B=3, T=7"),
        ("queries masked, not keys", "B=3, T=7"),
    ],
)
def test_padding_catches(how, where, x):
    message = rf"changing the content of padding changed the output of example \d at position \d by .* {where}"
    caught(message, laws.assert_padding_invariant, padded(SelfAttention(D), how), x)
    laws.assert_padding_invariant(padded(SelfAttention(D), ""), x)


def test_padding_catches_what_is_added_to_a_mask(x):
    def filled(size):
        return lambda x, real: softmax_average(x, x, x, real[:, None], hidden=size)

    def added(size):
        return lambda x, real: (x @ x.mT / math.sqrt(D) + size * ~real[:, None]).softmax(-1) @ x

    caught("changing the content of padding changed", laws.assert_padding_invariant, filled(-8.0), x)
    caught("changing the content of padding changed", laws.assert_padding_invariant, added(-1e3), x)
    laws.assert_padding_invariant(filled(-1e9), x)
    laws.assert_padding_invariant(added(-1e9), x)


def test_padding_catches_pooling(x):
    right = lambda x, real: (x * real[..., None]).sum(1) / real.sum(1, keepdim=True)  # noqa: E731
    plain = lambda x, real: x.mean(1)  # noqa: E731
    zeros = lambda x, real: (x * real[..., None]).mean(1)  # noqa: E731
    laws.assert_padding_invariant(right, x, per_token=False)
    caught("changing the content of padding", laws.assert_padding_invariant, plain, x, per_token=False)
    caught("against the example alone", laws.assert_padding_invariant, zeros, x, per_token=False)


@pytest.mark.parametrize(
    ("bug", "message"),
    [
        ("left padding without its own positions", "padding example 0 to T=7 changed its output at its real token"),
        ("padding never masked", "changing the content of padding changed the output of example 0"),
    ],
)
def test_padding_catches_on_the_left(bug, message, tokens):
    caught(
        message,
        laws.assert_padding_invariant,
        lambda t, real: toy(t, real=real),
        tokens,
        side="left",
        module=(toy := Toy(bug)),
    )


def test_padding_passes_what_is_right(x, tokens):
    toy, cross = Toy(), CrossAttention(D, 5, 3)
    for side in ("left", "right"):
        laws.assert_padding_invariant(lambda t, real: toy(t, real=real), tokens, side=side, vocab_size=V)
    queries = torch.randn(1, 4, D)
    laws.assert_padding_invariant(
        lambda x, real: cross(queries.expand(len(x), 4, D), x, mask=real[:, None]), x, per_token=False
    )
    laws.assert_padding_invariant(
        padded(SelfAttention(D), ""), x, lengths=[7, 0, 3], alone=False
    )  # an example of padding only


# ----------------------------------------------------------------------------------------------------- permutation


def test_permutation_catches(x):
    law, table = laws.assert_permutation_equivariant, torch.randn(7, D)
    message = r"the one moved from position 6 to 0 has another output, by \d"
    caught(message, law, CausalSelfAttention(D), x)
    caught(message, law, lambda x: SelfAttention(D)(x + table), x)
    caught(message, law, lambda x: x.cumsum(1), x)
    split = lambda x: x.view(3, 7, H, D // H).transpose(1, 2).reshape(3, 7, D)  # noqa: E731
    caught("has another output", law, split, x)
    caught("has another output", law, lambda x: x.sort(dim=1).values, x)


def test_permutation_passes_what_is_right(x):
    laws.assert_permutation_equivariant(SelfAttention(D, dropout=0.5), x)
    laws.assert_permutation_equivariant(nn.LayerNorm(D), x)
    laws.assert_permutation_equivariant(lambda x: scaled_dot_product_attention(x, x, x), x[:, None], dim=2)
    laws.assert_permutation_equivariant(SelfAttention(D).bfloat16(), x.bfloat16())


# ----------------------------------------------------------------------------------------------------------- cache


@pytest.mark.parametrize(
    ("bug", "message"),
    [
        ("aligned top-left with a cache", r"prefill 0, then 1 at a time\) .* at position 1 differs .* by \d"),
        ("every cached token at position 0", r"at position 1 differs from the full pass by \d"),
        ("cache forgotten", r"at position 1 differs from the full pass by \d"),
        ("new tokens see each other through the cache", r"then 3 at a time\) .* at position \d differs"),
        ("window forgotten with a cache", r"window 2\) .* at position 2 differs"),
        ("window one too wide", r"window 2\) .* at position 2 differs"),
        ("cache evicts one too many", r"window 2\) .* differs"),
        ("left padding without its own positions", r"padded on the left\) the output of example [12] at position \d"),
        ("padding mask forgotten with a cache", r"padded on the left\) the output of example [12] at position \d"),
    ],
)
def test_cache_catches(bug, message, tokens):
    good, toy = Toy(), Toy(bug).eval()
    caught(message, laws.assert_cache_consistent, good, toy.step, tokens, left_padding=True, windows=True)


def test_cache_catches_wrong_shapes(tokens):
    good = Toy()

    def last_only(new, cache):
        output, cache = good.step(new, cache)
        return output[:, -1:], cache

    caught("returned shape", laws.assert_cache_consistent, good, last_only, tokens)


def test_cache_passes_what_is_right(tokens):
    good = Toy()
    laws.assert_cache_consistent(good, good.step, tokens, left_padding=True, windows=True)
    laws.assert_cache_consistent(good, good.step, tokens[:1], prefills=[2, 5], chunks=[2], left_padding=True)


def test_cache_tries_what_it_promises(tokens):
    good, calls = Toy(), set()

    def step(new, cache, real=None, window=None):
        calls.add((cache is None, new.size(1), window, real is None))
        return good.step(new, cache, real=real, window=window)

    laws.assert_cache_consistent(good, step, tokens, left_padding=True, windows=True)
    T = tokens.size(1)
    assert {size for first, size, _, _ in calls if first} >= {1, T // 2, T - 1}
    windows = {window for _, _, window, _ in calls} - {None}
    assert min(windows) < T // 2
    assert max(windows) > T
    assert {padded for _, _, _, padded in calls} == {True, False}


# -------------------------------------------------------------------------------------------------- good manners


def test_laws_leave_the_world_as_it_was(x):
    block, plain = nn.Sequential(CausalSelfAttention(D, dropout=0.5), nn.BatchNorm1d(7)), SelfAttention(D)
    block[0].eval()
    before, expected = x.clone(), torch.random.get_rng_state()
    laws.assert_causal(block[0], x)
    laws.assert_permutation_equivariant(plain, x)
    laws.assert_padding_invariant(lambda x, real: plain(x, mask=real[:, None]), x)
    laws.assert_gradients_flow(block, x)
    laws.assert_finite(plain, x)
    laws.assert_equivalent(plain, plain, x)
    assert torch.equal(torch.random.get_rng_state(), expected)
    assert torch.equal(x, before)
    assert not x.requires_grad
    assert all(parameter.grad is None for parameter in [*block.parameters(), *plain.parameters()])
    assert (block.training, block[0].training, block[1].training, plain.training) == (True, False, True, True)


@pytest.mark.parametrize(
    ("law", "args", "kwargs", "name"),
    [
        (laws.assert_causal, (torch.zeros_like, torch.zeros(2, 1, 3)), {}, "x: expected at least 2 positions"),
        (laws.assert_causal, (torch.zeros_like, torch.zeros(2, 4)), {"dim": 2}, "dim"),
        (laws.assert_causal, (lambda x: x.sum(1) * 1.0, torch.zeros(2, 4, 3)), {}, "fn: expected an output with the 4"),
        (laws.assert_padding_invariant, (lambda x, r: x, torch.zeros(4)), {}, "x"),
        (laws.assert_padding_invariant, (lambda x, r: x, torch.zeros(2, 4, 3)), {"side": "top"}, "side"),
        (laws.assert_padding_invariant, (lambda x, r: x, torch.zeros(2, 4, 3)), {"lengths": [5, 1]}, "lengths"),
        (laws.assert_cache_consistent, (abs, abs, torch.zeros(2, 1)), {}, "x"),
        (laws.assert_cache_consistent, (abs, abs, torch.zeros(2, 4)), {"prefills": [4]}, "prefills"),
        (laws.assert_equivalent, (abs, abs, torch.zeros(2)), {"names": ["q", "k"]}, "names"),
    ],
)
def test_laws_refuse_wrong_use(law, args, kwargs, name):
    with pytest.raises(ValueError, match=name):
        law(*args, **kwargs)


def test_laws_refuse_functions_that_return_something_else(x):
    with pytest.raises(TypeError, match="fn: expected a function that returns one floating-point tensor, got tuple"):
        laws.assert_causal(lambda x: (x, x), x)


def test_window_of_the_library_obeys_the_laws(x):
    mask = sliding_window_mask(7, window=3)
    laws.assert_causal(lambda x: scaled_dot_product_attention(x, x, x, mask=mask), x)
