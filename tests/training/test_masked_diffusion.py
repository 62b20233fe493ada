"""The loss and the loop of the lab on masked diffusion: a law, transformers' masked loss, x-transformers' sampler."""

import itertools
import math

import numpy as np
import pytest
import torch
from torch import nn

from course_lib.transformer import Embedding, TransformerConfig, TransformerEncoder
from coursework.exercises.bank.diffusion_loss import diffusion_loss
from coursework.exercises.bank.uncover import uncover

T, V = 4, 5


class Writer(nn.Module):
    """One layer, with a head for V words; the id V hides one."""

    def __init__(self, seed: int, length: int = T) -> None:
        super().__init__()
        torch.manual_seed(seed)
        sizes = {"d_model": 8, "n_heads": 2, "n_encoder_layers": 1, "vocab_size": V + 1, "max_length": length}
        config = TransformerConfig(**sizes, dropout=0.0, positions="learned")
        self.embedding, self.encoder = Embedding(config, V + 1), TransformerEncoder(config)
        self.head = nn.Linear(8, V)
        nn.init.normal_(self.head.weight)
        self.emb_dim, self.num_tokens, self.max_seq_len = 8, V + 1, length  # what x-transformers asks for
        self.double()

    def forward(self, ids, sum_embeds=None, return_logits_and_embeddings=False):
        vectors = self.encoder(self.embedding(ids))
        return (self.head(vectors), vectors) if return_logits_and_embeddings else self.head(vectors)


@torch.no_grad()
def test_the_loss_is_the_mean_over_all_orders_of_writing():
    model, ids = Writer(0), torch.tensor([[1, 3, 0, 3]])
    orders = []
    for order in itertools.permutations(range(T)):
        text, cost = torch.full((1, T), V), 0.0
        for place in order:
            cost -= model(text).log_softmax(-1)[0, place, ids[0, place]].item()
            text[0, place] = ids[0, place]
        orders.append(cost)
    nodes, weights = np.polynomial.legendre.leggauss(T)  # exact: what is integrated over t is a polynomial
    expected = 0.0
    for t, weight in zip((nodes + 1) / 2, weights / 2, strict=True):
        for hidden in itertools.product([False, True], repeat=T):
            chance = torch.tensor([[t / 2 if one else (1 + t) / 2 for one in hidden]], dtype=torch.float64)
            loss = diffusion_loss(model, ids, torch.tensor([t], dtype=torch.float64), chance, V).item()
            expected += weight * t ** sum(hidden) * (1 - t) ** (T - sum(hidden)) * loss
    assert expected == pytest.approx(sum(orders) / math.factorial(T), rel=1e-9)
    mixture = -math.log(sum(math.exp(-cost) for cost in orders) / math.factorial(T))
    assert mixture <= expected  # the loss bounds what a text costs when the order is drawn by lot


def test_the_loss_is_that_of_transformers_for_masked_words():
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    bert = transformers.BertForMaskedLM(transformers.BertConfig(vocab_size=V + 1, **sizes)).eval().double()
    draw = torch.Generator().manual_seed(1)
    ids, chance = torch.randint(V, (3, 7), generator=draw), torch.rand(3, 7, generator=draw, dtype=torch.float64)
    t = torch.full((3,), 0.6, dtype=torch.float64)
    hidden = chance < 0.6
    theirs = bert(input_ids=ids.masked_fill(hidden, V), labels=ids.masked_fill(~hidden, -100)).loss
    ours = diffusion_loss(lambda shown: bert(input_ids=shown).logits, ids, t, chance, V).mean()
    factor = int(hidden.sum()) / 0.6 / 3  # theirs is a mean over the hidden words
    torch.testing.assert_close(ours, theirs * factor)
    weights = list(bert.parameters())
    a, b = (torch.autograd.grad(loss, weights, allow_unused=True) for loss in (ours, theirs * factor))
    for one, other in zip(a, b, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("per_pass", [1, 2, 3, 6])
def test_the_loop_writes_what_x_transformers_writes(per_pass, monkeypatch):
    wrapper = pytest.importorskip("x_transformers.nonautoregressive_wrapper")
    monkeypatch.setattr(wrapper, "gumbel_noise", torch.zeros_like)  # the likeliest words

    def likeliest(logits):
        best = logits.softmax(dim=-1).max(dim=-1)
        return best.indices, best.values

    for seed in range(5):
        model = Writer(seed, length=6).eval()
        # What is still hidden after each pass, a little above a whole number that is then rounded down.
        sampler = wrapper.NonAutoregressiveWrapper(model, mask_id=V, steps=6 // per_pass, schedule=lambda t: 1.0001 - t)
        theirs = sampler.generate(batch_size=1, filter_thres=None)
        ours = uncover(model, torch.full((1, 6), V), per_pass, likeliest, V)
        assert torch.equal(ours, theirs)
