"""The paged cache: any mixture of texts gives what each gives alone, in as many blocks as it needs."""

import itertools
import math

import pytest
import torch
from each import each
from transformers import GenerationConfig, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM
from transformers.generation.configuration_utils import ContinuousBatchingConfig

from course_lib.config import TransformerConfig
from course_lib.generation import PagedCache, generate
from course_lib.transformer import LanguageModel
from course_lib.variants import from_pretrained
from coursework.exercises import registry

V = 60
SIZES = {"vocab_size": V, "d_model": 32, "n_heads": 4, "n_decoder_layers": 2, "dropout": 0.0, "norm_place": "pre"}
KINDS = {
    "rotary": {"positions": "rotary"},
    "grouped": {"positions": "rotary", "n_kv_heads": 2},
    "learned": {"positions": "learned", "max_length": 64},
    "sinusoidal": {"positions": "sinusoidal"},
    "none": {"positions": "none"},
}
PROMPTS = [[7, 3, 9, 9, 1], [5], [4, 2, 8, 1, 6, 6, 3, 2, 9, 11, 5], [4, 2, 8, 1, 6, 6, 3, 2, 9, 10]]


def model(**options):
    torch.manual_seed(0)
    return LanguageModel(TransformerConfig(**SIZES, **options)).eval().double()


@torch.no_grad()
def read(model, cache, texts, tokens):
    """The next tokens of some texts, (B, T) -> logits (B, T, V)."""
    rows = cache.rows(texts, len(tokens[0]))
    return model(torch.tensor(tokens), mask=rows.mask, positions=rows.positions, cache=rows)


class Engine:
    """A model as the exercise `serve` wants it; texts that begin as an earlier one share its blocks."""

    def __init__(self, model, n_slots, n_blocks, block, end=-1):
        self.model, self.n_slots, self.end = model, n_slots, end
        self.cache, self.held, self.last = PagedCache(model, n_blocks, block), {}, {}
        self.prompts, self.shared = {}, 0  # text -> prompt

    def start(self, slot, prompt):
        n, like = max(((self.alike(one, prompt), one) for one in self.held.values()), default=(0, 0))
        text = self.held[slot] = self.cache.add(like, n) if n else self.cache.add()
        self.shared += self.cache.lengths[text]
        self.prompts[text], self.last[slot] = prompt, prompt[-1]
        unread = prompt[self.cache.lengths[text] : -1]
        if unread:
            read(self.model, self.cache, [text], [unread])

    def alike(self, text, prompt):
        """With how many tokens the two begin alike, the last one of the prompt aside, which must still be read."""
        both = zip(self.prompts[text], prompt[:-1], strict=False)
        return sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], both))

    def step(self, slots):
        logits = read(self.model, self.cache, [self.held[s] for s in slots], [[self.last[s]] for s in slots])
        self.last.update(zip(slots, logits[:, -1].argmax(-1).tolist(), strict=True))
        return {slot: self.last[slot] for slot in slots}

    def stop(self, slot):
        self.cache.drop(self.held.pop(slot))


@each(KINDS)
def test_texts_of_any_lengths_give_what_each_gives_alone(kind):
    mine, generator = model(**KINDS[kind]), torch.Generator().manual_seed(1)
    cache, seen = PagedCache(mine, 40, block=4), {}
    for prompt in PROMPTS:
        text = cache.add()
        read(mine, cache, [text], [prompt])
        seen[text] = list(prompt)
    for texts, T in (([0, 1, 2, 3], 1), ([3, 1], 3), ([2], 5), ([1, 0, 2], 1), ([0, 3], 7)):
        tokens = torch.randint(V, (len(texts), T), generator=generator).tolist()
        logits = read(mine, cache, texts, tokens)
        for text, row, found in zip(texts, tokens, logits, strict=True):
            seen[text] += row
            alone = mine(torch.tensor([seen[text]]))[0, -T:]
            torch.testing.assert_close(found, alone, rtol=1e-9, atol=1e-9)
            assert cache.lengths[text] == len(seen[text])
    used = sum(math.ceil(len(tokens) / 4) for tokens in seen.values())
    assert cache.n_free == 40 - used
    assert len({block for table in cache.tables.values() for block in table}) == used


def test_blocks_are_shared_kept_and_given_back():
    mine = model()
    cache, prompt = PagedCache(mine, 6, block=4), PROMPTS[2]
    first = cache.add()
    read(mine, cache, [first], [prompt[:10]])
    second = cache.add(like=first)
    assert cache.lengths[second] == 8
    assert cache.tables[second] == cache.tables[first][:2]
    assert cache.n_free == 3
    part = cache.add(like=first, alike=7)
    assert (cache.lengths[part], cache.tables[part]) == (4, cache.tables[first][:1])
    cache.drop(part)
    found = read(mine, cache, [second], [prompt[8:]])
    cache.drop(first)
    assert cache.n_free == 3  # two blocks are the second's now, and its own third
    torch.testing.assert_close(found, mine(torch.tensor([prompt]))[:, 8:], rtol=1e-9, atol=1e-9)
    third = cache.add()
    read(mine, cache, [third], [PROMPTS[0]])  # into blocks that were used before
    again = read(mine, cache, [second, third], [[1], [2]])
    torch.testing.assert_close(again[0], mine(torch.tensor([[*prompt, 1]]))[0, -1:], rtol=1e-9, atol=1e-9)
    cache.drop(second)
    cache.drop(third)
    assert cache.n_free == 6


@each(["Llama", "GPT2"])
def test_the_server_writes_what_that_of_transformers_writes(family, tmp_path):
    """Continuous batching over a paged cache that shares blocks, on both sides; and `generate` here, one by one."""
    torch.manual_seed(0)
    if family == "Llama":
        sizes = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 64}
        theirs = LlamaForCausalLM(LlamaConfig(vocab_size=V, hidden_size=32, max_position_embeddings=64, **sizes))
    else:
        sizes = {"n_layer": 2, "n_head": 4, "n_positions": 64, "bos_token_id": 0, "eos_token_id": 1}
        theirs = GPT2LMHeadModel(GPT2Config(vocab_size=V, n_embd=32, **sizes))
    theirs.eval().save_pretrained(tmp_path)
    theirs.set_attn_implementation("sdpa")
    written = theirs.generate_batch(
        PROMPTS,
        GenerationConfig(max_new_tokens=12, do_sample=False, eos_token_id=-1, pad_token_id=0),
        ContinuousBatchingConfig(page_size=4, num_blocks=64, max_batch_tokens=64),
    )
    expected = {tuple(one.prompt_ids): one.generated_tokens for one in written.values()}
    mine = from_pretrained(tmp_path).eval()
    engine = Engine(mine, n_slots=3, n_blocks=24, block=4)
    lengths = [12, 5, 12, 9]  # the fourth text takes the slot of the second while the third is being written
    answers = registry.get("serve").reference(engine, list(zip(PROMPTS, lengths, strict=True)), 90)
    assert answers == [expected[tuple(prompt)][:n] for prompt, n in zip(PROMPTS, lengths, strict=True)]
    assert engine.cache.n_free == 24
    assert engine.shared == 8  # the first two blocks of the third prompt, for the fourth
    for prompt, answer in zip(PROMPTS, answers, strict=True):
        alone = generate(mine, torch.tensor([prompt]), max_new_tokens=len(answer), temperature=0)
        assert alone[0, len(prompt) :].tolist() == answer


def test_a_full_pool_refuses_and_stays_as_it_was():
    mine = model()
    cache = PagedCache(mine, 3, block=4)
    texts = [cache.add(), cache.add()]
    cache.rows(texts, 4)
    with pytest.raises(ValueError, match="texts: this pass takes 2 more blocks, 1 are free"):
        cache.rows(texts, 1)
    assert cache.n_free == 1
    assert cache.lengths == {0: 4, 1: 4}
    cache.rows(texts[:1], 1)
    assert cache.n_free == 0


def test_what_it_cannot_keep_is_refused():
    with pytest.raises(ValueError, match="model: expected layers without a window"):
        PagedCache(model(window=4), 3)
    with pytest.raises(ValueError, match="model: expected positions on the input"):
        PagedCache(model(positions="alibi"), 3)
    cache = PagedCache(model(), 3)
    with pytest.raises(ValueError, match=r"like: expected one of the texts \[\], got 0"):
        cache.add(like=0)
    text = cache.add()
    for texts in ([], [text, text], [text, 5]):
        with pytest.raises(ValueError, match=r"texts: expected some of \[0\], each once"):
            cache.rows(texts, 1)
