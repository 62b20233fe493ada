"""Small tasks whose texts are drawn anew, and what a capstone asks of models that were trained on them."""

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from course_lib.testing import assert_causal, assert_permutation_equivariant
from coursework.exercises.claims import Found, Missing, distributions, law, needs, shape


def three_back(n: int, seed: int = 0, T: int = 16, V: int = 10) -> tuple[Tensor, Tensor]:
    """Draw texts (n, T) of ids below V, and labels (n, T): the token three places back, -100 at the first three."""
    ids = torch.randint(0, V, (n, T), generator=torch.Generator().manual_seed(seed))
    return ids, torch.cat([torch.full((n, 3), -100), ids[:, :-3]], dim=1)


def fill_in(n: int, seed: int = 0, T: int = 12, V: int = 10) -> tuple[Tensor, Tensor]:
    """Draw texts (n, T) with one id 0 in each, which hides a copy of the token to its right; labels -100 elsewhere."""
    stream = torch.Generator().manual_seed(seed)
    ids = torch.randint(1, V, (n, T), generator=stream)
    place = torch.randint(0, T - 1, (n,), generator=stream)
    labels = torch.full((n, T), -100)
    labels[torch.arange(n), place] = ids[torch.arange(n), place + 1]
    ids[torch.arange(n), place] = 0
    return ids, labels


def reverse(n: int, seed: int = 0, T: int = 8, V: int = 10) -> tuple[Tensor, Tensor, Tensor]:
    """Draw sources (n, T), what the decoder reads (n, T), beginning with 0, and labels: the source backwards."""
    source = torch.randint(1, V, (n, T), generator=torch.Generator().manual_seed(seed))
    labels = source.flip(1)
    return source, torch.cat([torch.zeros(n, 1, dtype=torch.long), labels[:, :-1]], dim=1), labels


def _share(logits: Tensor, labels: Tensor) -> float:
    shape("the scores", logits, (*labels.shape, 10))
    asked = labels != -100
    return (logits.argmax(-1) == labels)[asked].float().mean().item()


NEW = 987_654  # a seed for texts that nobody trained on


def trained_heads(predict: Callable[[Tensor], Tensor], attend: Callable[[Tensor], Tensor]) -> Found:
    """A causal model that finds the token three back, and the weights of its heads."""
    ids, labels = three_back(200, seed=NEW)
    with torch.no_grad():
        logits, weights = predict(ids), attend(ids)
    yield law("no score depends on a later token", assert_causal, predict, ids[:2], vocab_size=10, sees_itself=False)
    yield needs("right on new texts", _share(logits, labels), 0.9, "guessing gives 0.1")
    if not isinstance(weights, Tensor) or (*weights.shape[:1], *weights.shape[2:]) != (200, 16, 16):
        raise Missing("attend(ids): expected weights (texts, heads, 16, 16)")
    yield distributions(weights)
    late = weights.triu(1).amax().item()
    yield "no weight lies on a later token", "" if late < 1e-6 else f"one is {late:.2g}"
    back = weights.diagonal(-3, 2, 3).mean((0, 2))  # (H,)
    even = sum(1 / (t + 1) for t in range(3, 16)) / 13
    yield needs("the best head's weight three places back", back.max().item(), 0.5, f"even weights give {even:.2f}")


def families(
    encoder: Callable[[Tensor], Tensor],
    decoder: Callable[[Tensor], Tensor],
    encoder_decoder: Callable[[Tensor, Tensor], Tensor],
) -> Found:
    """An encoder, a decoder and an encoder-decoder, each on its task."""
    hidden, filled = fill_in(200, seed=NEW)
    ids, labels = three_back(200, seed=NEW)
    source, inputs, turned = reverse(200, seed=NEW)
    with torch.no_grad():
        shares = _share(encoder(hidden), filled), _share(decoder(ids), labels)
        third = _share(encoder_decoder(source, inputs), turned)
        blind = _share(decoder(hidden), filled)
        without = _share(encoder_decoder(source.roll(1, 0), inputs), turned)
        left, right = hidden[:1].clone(), hidden[:1].clone()
        right[0, -1] = right[0, -1] % 9 + 1
        sees = not torch.equal(encoder(left)[:, 0], encoder(right)[:, 0])
    yield needs("encoder: hidden tokens filled in", shares[0], 0.9, "guessing gives 0.11")
    yield "encoder: the first place sees the last", "" if sees else "a change of the last token does not reach it"
    yield needs("decoder: tokens three back", shares[1], 0.9, "guessing gives 0.1")
    causal = {"vocab_size": 10, "sees_itself": False}
    yield law("decoder: no score depends on a later token", assert_causal, decoder, ids[:2], **causal)
    said = f"the decoder on the encoder's task: {blind:.2f}, for it does not see what it needs"
    yield said, "" if blind < 0.4 else "expected near 0.11; is it a decoder?"
    yield needs("encoder-decoder: texts turned round", third, 0.9, "guessing gives 0.11")
    fn = lambda x: encoder_decoder(source[:2], x)  # noqa: E731
    yield law("encoder-decoder: no score depends on a later target", assert_causal, fn, inputs[:2], **causal)
    said = f"with the source of another text: {without:.2f}"
    yield said, "" if without < 0.4 else "expected near 0.11; does it read the source?"


def positions(models: Mapping[str, Callable[[Tensor], Tensor]]) -> Found:
    """Three encoders that differ in their positions."""
    if not isinstance(models, Mapping) or set(models) != {"none", "learned", "sinusoidal"}:
        raise Missing('models: expected a dict with "none", "learned" and "sinusoidal"')
    ids, labels = three_back(200, seed=NEW)
    with torch.no_grad():
        share = {name: _share(model(ids), labels) for name, model in models.items()}
    frequent = _share(F.one_hot(ids, 10).sum(1, keepdim=True).expand(-1, ids.size(1), -1), labels)
    claim, against = law(
        "none: reordered tokens give reordered scores", assert_permutation_equivariant, models["none"], ids[:3]
    )
    yield claim, against and f"{against}; so it knows positions (a causal mask tells them, too)"
    said = f"none: {share['none']:.2f} right, guessing gives 0.1, the most frequent token of a text {frequent:.2f}"
    yield said, "" if share["none"] < 0.5 else "expected below 0.5: nothing tells it what is three back"
    for name in ("learned", "sinusoidal"):
        _, same = law("", assert_permutation_equivariant, models[name], ids[:3])
        yield f"{name}: the order counts", "" if same else "reordered tokens give reordered scores"
        yield needs(f"{name}: right on new texts", share[name], share["none"] + 0.2, f"none has {share['none']:.2f}")
