"""The process that checks the assembled module: its parts by their exercises, the laws, and equality with torch."""

import argparse
import contextlib
import functools
import importlib.util
import io
import itertools
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from course_lib import testing
from course_lib.files import write_atomic
from course_lib.testing.devices import assert_follows_device
from coursework.assembly.parts import FUNCTIONS
from coursework.exercises import registry
from coursework.exercises.engine.diagnose import diagnose
from coursework.exercises.engine.finding import RIGHT
from coursework.exercises.spec import Exercise

HOLDS, BROKEN = "holds", "broken"
D, H, F, V = 12, 3, 48, 11  # sizes of the models that are checked


def main(path: Path, chapter: int, report: Path) -> None:
    """Run each check of a module that has come to a chapter, and leave after each what holds so far."""
    lines: list[list[str]] = []
    write_atomic(report, json.dumps({"lines": lines, "now": "the module can be imported"}))
    module = load(path)
    for since, claim, check in CLAIMS:
        if since > chapter:
            continue
        write_atomic(report, json.dumps({"lines": lines, "now": claim}))
        torch.manual_seed(0)
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                lines.append([HOLDS, claim, check(module) or ""])
        except AssertionError as broken:
            lines.append([BROKEN, claim, str(broken).splitlines()[0]])
        except KeyboardInterrupt:
            raise
        except BaseException as problem:  # whatever an answer raises
            lines.append([BROKEN, claim, f"{type(problem).__name__}: {problem}"[:200].splitlines()[0]])
    write_atomic(report, json.dumps({"lines": lines, "now": ""}))


def load(path: Path) -> Any:
    """Import the module; what it prints is not shown."""
    spec = importlib.util.spec_from_file_location("my_transformer", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} cannot be loaded")
    module = importlib.util.module_from_spec(spec)
    sys.modules["my_transformer"] = module  # where its dataclass looks its annotations up
    with contextlib.redirect_stdout(io.StringIO()):
        spec.loader.exec_module(module)
    return module


def _parts(my: Any) -> str:
    own = [one for one, name in FUNCTIONS.items() if hasattr(my, name)]
    for exercise_id in own:
        spec = registry.get(exercise_id)
        if isinstance(spec, Exercise) and diagnose(spec, getattr(my, FUNCTIONS[exercise_id])).verdict != RIGHT:
            raise AssertionError(f"{FUNCTIONS[exercise_id]} does not: another part is not what it expects")
    return f"{len(own)} parts"


# -- laws --------------------------------------------------------------------------------------------------------------


def _config(my: Any, **switches: Any) -> Any:
    return my.Config(**{"d_model": D, "n_heads": H, "n_layers": 2, "dropout": 0.0, **switches})


def _gpt(my: Any, **switches: Any) -> Any:
    return my.make_gpt(V, _config(my, **switches))


def _pair(my: Any, **switches: Any) -> Any:
    return my.EncoderDecoder(V, _config(my, **switches))


def _tokens(*shape: int) -> Tensor:
    return torch.randint(3, V, shape)


SWITCHES: tuple[dict[str, Any], ...] = ({}, {"rotary": False, "tied": False})


def _equivariant(my: Any) -> None:
    attention = my.Attention(D, H)
    testing.assert_permutation_equivariant(lambda x: attention(x, None), torch.randn(2, 5, D), module=attention)


def _moved(my: Any) -> None:
    attention, x = my.MultiHeadAttention(D, 2, rotary=True), torch.randn(1, 5, D)
    mask = my.causal_mask(5, 5)
    twice = torch.cat([torch.zeros_like(x), x], dim=1)  # the same words, five places later
    later = torch.ones(10, 10, dtype=torch.bool).tril()
    later[:, :5] = torch.arange(10)[:, None] < 5
    later[:5, :5] = mask
    gap = (attention(x, x, mask) - attention(twice, twice, later)[:, 5:]).abs().max().item()
    if not gap < 1e-4:
        raise AssertionError(f"moved by five places, the same words give outputs that differ by {gap:.2g}")


def _padding(my: Any) -> None:
    encoder = my.Encoder(V, 20, D, H, 2)
    ids = _tokens(3, 5)
    ids[1, 3:], ids[2, 1:] = my.PAD, my.PAD
    gap = max(
        (encoder(ids)[row, :n] - encoder(ids[row : row + 1, :n])[0]).abs().max().item() for row, n in ((1, 3), (2, 1))
    )
    if not gap < 1e-4:
        raise AssertionError(f"alone and beside a longer text, a text has vectors that differ by {gap:.2g}")


def _causal_gpt(my: Any) -> None:
    for switches in SWITCHES:
        gpt = _gpt(my, **switches)
        testing.assert_causal(gpt, _tokens(2, 6), module=gpt, vocab_size=V)


def _causal_pair(my: Any) -> None:
    for switches in SWITCHES:
        pair = _pair(my, **switches)
        source = _tokens(2, 4)
        testing.assert_causal(functools.partial(pair, source), _tokens(2, 5), module=pair, vocab_size=V)


def _padded_pair(my: Any) -> None:
    for switches in SWITCHES:
        pair = _pair(my, **switches)
        source, read = _tokens(1, 4), _tokens(1, 3)
        padded = torch.cat([source, torch.full((1, 3), my.PAD)], dim=1)
        gap = (pair(source, read) - pair(padded, read)).abs().max().item()
        if not gap < 1e-4:
            raise AssertionError(f"three filled places behind the source moved the scores by {gap:.2g}")


def _cache(my: Any) -> None:
    for switches in SWITCHES:
        gpt = _gpt(my, **switches)

        def step(new: Tensor, caches: Any, gpt: Any = gpt) -> tuple[Tensor, Any]:
            caches = [{} for _ in gpt.layers] if caches is None else caches
            return gpt(new, caches), caches

        testing.assert_cache_consistent(gpt, step, _tokens(2, 7))


def _gradients(my: Any) -> None:
    for switches in SWITCHES:
        gpt, pair = _gpt(my, **switches), _pair(my, **switches)
        read, source = _tokens(2, 5), _tokens(2, 4)
        weights = {name: weight for name, weight in gpt.named_parameters() if "key.bias" not in name}
        testing.assert_gradients_flow(functools.partial(gpt, read), parameters=weights)
        weights = {name: weight for name, weight in pair.named_parameters() if "key.bias" not in name}
        testing.assert_gradients_flow(functools.partial(pair, source, read), parameters=weights)


def _dropout(my: Any) -> None:
    for model, inputs in (
        (_gpt(my, dropout=0.5), (_tokens(2, 5),)),
        (_pair(my, dropout=0.5), (_tokens(2, 4), _tokens(2, 5))),
    ):
        if torch.equal(model(*inputs), model(*inputs)):
            raise AssertionError(f"in training, {type(model).__name__} drops nothing")
        model.eval()
        if not torch.equal(model(*inputs), model(*inputs)):
            raise AssertionError(f"in eval mode, {type(model).__name__} drops something")


def _devices(my: Any) -> None:
    def choose(logits: Tensor) -> Tensor:
        return my.choose(logits, 0.8, 0.9, torch.Generator())

    for switches in SWITCHES:
        gpt, pair = _gpt(my, **switches).eval(), _pair(my, **switches).eval()
        assert_follows_device(gpt, _tokens(2, 5))
        assert_follows_device(pair, _tokens(2, 4), _tokens(2, 5))
        write = functools.partial(my.generate, gpt)
        assert_follows_device(lambda ids, w=write: w(ids, 3, choose), _tokens(2, 5), module=gpt, gradients=False)
        turn = functools.partial(my.translate, pair, longest=3)
        assert_follows_device(turn, _tokens(2, 5), module=pair, gradients=False)


def _resumes(my: Any) -> None:
    """A run of six steps, and one that is stopped in its fifth and goes on from the look at its fourth."""
    ends, step_of = [], my.training_step
    calls = itertools.count(1)

    def interrupted(*args: Any) -> Any:
        if next(calls) == 5:
            raise KeyboardInterrupt
        return step_of(*args)

    with tempfile.TemporaryDirectory(prefix="course-assemble-") as folder:
        pairs = Path(folder, "pairs.txt")
        pairs.write_text("".join(f"{n}{n}\t{n}\n" for n in range(30)), encoding="utf-8")
        config = _config(my, dropout=0.1, steps=6, evaluate_every=2, batch=4)
        for name in ("straight", "stopped"):
            options = argparse.Namespace(data=pairs, out=Path(folder, name), device="cpu")
            if name == "stopped":
                my.training_step = interrupted
                with contextlib.suppress(KeyboardInterrupt):
                    my.learn("translate", config, options)
                my.training_step = step_of
            my.learn("translate", config, options)
            ends.append(torch.load(options.out / "model.pt")["weights"])
    if next(calls) != 6:
        raise AssertionError("the run could not be stopped")
    if not all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0]):
        raise AssertionError("a run that was stopped in step 5 ends with other weights than one that was not")


# -- equality with torch -----------------------------------------------------------------------------------------------


def _said(differences: Any) -> str:
    return f"largest difference {differences.output:.0g} in outputs, {differences.gradient:.0g} in gradients"


def _attention(my: Any) -> str:
    query, key, value = torch.randn(2, 3, 4, 5), torch.randn(2, 3, 6, 5), torch.randn(2, 3, 6, 7)
    mask = torch.rand(2, 1, 4, 6) < 0.6
    mask[..., 0] = True
    theirs = functools.partial(nn.functional.scaled_dot_product_attention, attn_mask=mask)
    return _said(testing.assert_equivalent(lambda *x: my.attention(*x, mask), theirs, query, key, value))


def _joined(name: str, mine: Any) -> dict[str, Tensor]:
    """Our four maps under torch's names: a gradient finds its way back to ours."""
    three = mine.query, mine.key, mine.value
    return {
        f"{name}in_proj_weight": torch.cat([one.weight for one in three]),
        f"{name}in_proj_bias": torch.cat([one.bias for one in three]),
        f"{name}out_proj.weight": mine.output.weight,
        f"{name}out_proj.bias": mine.output.bias,
    }


def _named(**parts: Any) -> dict[str, Tensor]:
    return {f"{name}.{kind}": getattr(part, kind) for name, part in parts.items() for kind in ("weight", "bias")}


def _equal(mine: Any, first: Any, theirs: nn.Module, weights: Any, *x: Tensor, **options: Any) -> Any:
    """Compare with torch's module, run with our weights: outputs, and gradients for inputs and weights."""
    pairs = [(weight, weight) for weight in mine.parameters()]

    def second(*x: Tensor) -> Any:
        result = torch.func.functional_call(theirs, weights(), x, options)
        return result[0] if isinstance(result, tuple) else result

    return testing.assert_equivalent(first, second, *x, parameters=pairs)


def _heads(my: Any) -> str:
    mine, theirs, mask = my.Attention(D, H), nn.MultiheadAttention(D, H, batch_first=True), my.causal_mask(5, 5)
    call = _Called(theirs, lambda x: theirs(x, x, x, attn_mask=~mask))
    weights = lambda: {f"inner.{name}": weight for name, weight in _joined("", mine).items()}  # noqa: E731
    return _said(_equal(mine, lambda x: mine(x, mask), call, weights, torch.randn(2, 5, D)))


class _Called(nn.Module):
    """A module that is called in its own way."""

    def __init__(self, inner: nn.Module, call: Callable[..., Any]) -> None:
        super().__init__()
        self.inner, self.call = inner, call

    def forward(self, *x: Tensor) -> Any:
        return self.call(*x)


def _layer(my: Any) -> str:
    mine, mask = my.Layer(D, H, F), torch.ones(2, 1, 1, 5, dtype=torch.bool)
    theirs = nn.TransformerEncoderLayer(D, H, F, dropout=0.0, batch_first=True, norm_first=True)
    inner = mine.feed_forward

    def weights() -> dict[str, Tensor]:
        rest = _named(linear1=inner.up, linear2=inner.down, norm1=mine.first_norm, norm2=mine.second_norm)
        return _joined("self_attn.", mine.attention) | rest

    return _said(_equal(mine, lambda x: mine(x, mask), theirs, weights, torch.randn(2, 5, D)))


def _decoder_layer(my: Any) -> str:
    attentions = my.MultiHeadAttention(D, H), my.MultiHeadAttention(D, H)
    mine = my.DecoderLayer(D, *attentions, my.FeedForward(D, F), 0.0)
    theirs = nn.TransformerDecoderLayer(D, H, F, dropout=0.0, batch_first=True, norm_first=True)
    inner = mine.feed_forward

    def weights() -> dict[str, Tensor]:
        both = _joined("self_attn.", attentions[0]) | _joined("multihead_attn.", attentions[1])
        norms = _named(norm1=mine.norm1, norm2=mine.norm2, norm3=mine.norm3)
        return both | norms | _named(linear1=inner.up, linear2=inner.down)

    real = (torch.arange(6) < torch.tensor([[6], [3]]))[:, None, None]  # (B, 1, 1, S)
    causal = my.causal_mask(4, 4)
    hidden = {"tgt_mask": ~causal, "memory_key_padding_mask": ~real[:, 0, 0]}
    first = lambda x, context: mine(x, context, causal, real)  # noqa: E731
    return _said(_equal(mine, first, theirs, weights, torch.randn(2, 4, D), torch.randn(2, 6, D), **hidden))


def _adamw(my: Any) -> str:
    mine, theirs = nn.Linear(3, 4), nn.Linear(3, 4)
    theirs.load_state_dict(mine.state_dict())
    groups = [{"params": [theirs.weight], "weight_decay": 0.01}, {"params": [theirs.bias], "weight_decay": 0.0}]
    optimizers = my.AdamW(mine), torch.optim.AdamW(groups, lr=0.1, betas=(0.9, 0.98), eps=1e-9)
    for _ in range(3):
        x = torch.randn(5, 3)
        for layer, optimizer in zip((mine, theirs), optimizers, strict=True):
            layer(x).square().sum().backward()
            for group in optimizer.param_groups:
                group["lr"] = 0.1
            optimizer.step()
            optimizer.zero_grad()
    gap = max((a - b).abs().max().item() for a, b in zip(mine.parameters(), theirs.parameters(), strict=True))
    if not gap < 1e-5:
        raise AssertionError(f"after three steps the weights differ by {gap:.2g}")
    return f"largest difference {gap:.0g} after three steps"


CLAIMS: tuple[tuple[int, str, Callable[[Any], str | None]], ...] = (
    (1, "the parts, as they stand in the file, pass the checks of their exercises", _parts),
    (1, "attention equals torch's scaled_dot_product_attention", _attention),
    (2, "Attention without mask: reordered tokens give reordered outputs", _equivariant),
    (2, "Attention equals torch's MultiheadAttention", _heads),
    (3, "MultiHeadAttention with rotary positions: moved words give the same outputs", _moved),
    (4, "Layer equals torch's TransformerEncoderLayer", _layer),
    (4, "Encoder: a text has the same vectors alone and beside a longer one", _padding),
    (5, "DecoderLayer equals torch's TransformerDecoderLayer", _decoder_layer),
    (5, "GPT: no output depends on a later token", _causal_gpt),
    (5, "EncoderDecoder: no output depends on a later token", _causal_pair),
    (5, "EncoderDecoder: padding behind the source changes no score", _padded_pair),
    (5, "GPT: tokens fed through the cache give the scores of the whole text", _cache),
    (5, "GPT, EncoderDecoder: a gradient reaches every weight", _gradients),
    (5, "GPT, EncoderDecoder: dropout in training, none in eval mode", _dropout),
    (5, "GPT, EncoderDecoder: reading and writing make every tensor on the device of the input", _devices),
    (6, "AdamW equals torch's", _adamw),
    (6, "a run that was stopped ends as one that was not, bit for bit", _resumes),
)
"""The chapter from which on it can be made, the claim, its check; those of models with the switches on and off."""


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
