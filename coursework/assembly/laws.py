"""The process that checks the assembled module: its parts by their exercises, the laws, and equality with torch."""

import contextlib
import functools
import importlib.util
import io
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from course_lib import testing
from course_lib.files import write_atomic
from coursework.assembly.parts import FUNCTIONS
from coursework.exercises import registry
from coursework.exercises.engine.diagnose import diagnose
from coursework.exercises.engine.finding import RIGHT
from coursework.exercises.spec import Exercise

HOLDS, BROKEN, WAITS = "holds", "broken", "waits"
D, H, F, V = 12, 3, 20, 11  # sizes of the models that are checked


def main(path: Path, own: list[str], report: Path) -> None:
    """Run every check of the module in `path`, and leave after each one the list of [state, claim, remark]."""
    lines: list[list[str]] = []
    write_atomic(report, json.dumps({"lines": lines, "now": "the module can be imported"}))
    module = _load(path)
    for claim, check in _checks(module, own):
        write_atomic(report, json.dumps({"lines": lines, "now": claim}))
        torch.manual_seed(0)
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                lines.append([HOLDS, claim, check() or ""])
        except NotImplementedError as part:
            lines.append([WAITS, claim, str(part)])
        except AssertionError as broken:
            lines.append([BROKEN, claim, str(broken).splitlines()[0]])
        except KeyboardInterrupt:
            raise
        except BaseException as problem:  # whatever an answer raises
            lines.append([BROKEN, claim, f"{type(problem).__name__}: {problem}"[:200].splitlines()[0]])
    write_atomic(report, json.dumps({"lines": lines, "now": ""}))


def _load(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location("my_transformer", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} cannot be loaded")
    module = importlib.util.module_from_spec(spec)
    sys.modules["my_transformer"] = module  # where its dataclass looks its annotations up
    with contextlib.redirect_stdout(io.StringIO()):
        spec.loader.exec_module(module)
    return module


def _checks(module: Any, own: list[str]) -> Iterator[tuple[str, Callable[[], str | None]]]:
    yield "the parts, as they stand in the file, pass the checks of their exercises", lambda: _parts(module, own)
    for claim, check in (*LAWS, *PARITY):
        yield claim, functools.partial(check, module)


def _parts(my: Any, own: list[str]) -> str:
    for exercise_id in own:
        spec = registry.get(exercise_id)
        if isinstance(spec, Exercise) and diagnose(spec, getattr(my, FUNCTIONS[exercise_id])).verdict != RIGHT:
            raise AssertionError(f"{FUNCTIONS[exercise_id]} does not: another part is not what it expects")
    return f"{len(own)} parts"


# -- laws --------------------------------------------------------------------------------------------------------------


def _gpt(my: Any) -> Any:
    return my.GPT(my.Config(V, d_model=D, n_heads=H, d_ff=F))


def _pair(my: Any) -> Any:
    return my.EncoderDecoder(my.Config(V, d_model=D, n_heads=H, d_ff=F))


def _tokens(*shape: int) -> torch.Tensor:
    return torch.randint(3, V, shape)


def _causal_gpt(my: Any) -> None:
    # Id 0 is padding, which the mask hides, so the law changes vectors, not ids.
    gpt = _gpt(my)

    def fn(x: torch.Tensor) -> torch.Tensor:
        for block in gpt.blocks:
            x = block(x, my.causal_mask(x.size(1), x.size(1)))
        return gpt.norm(x) @ gpt.head

    testing.assert_causal(fn, torch.randn(2, 6, D), module=gpt)


def _causal_decoder(my: Any) -> None:
    pair = _pair(my)
    context, mask = torch.randn(2, 4, D), torch.ones(2, 1, 4, dtype=torch.bool)

    def fn(x: torch.Tensor) -> torch.Tensor:
        for layer in pair.decoder.layers:
            x = layer(x, context, mask)
        return x

    testing.assert_causal(fn, torch.randn(2, 5, D), module=pair)


def _padding(my: Any) -> None:
    encoder = _pair(my).encoder
    fn = lambda x, real: encoder.read(x, real[:, None, None, :])  # noqa: E731
    testing.assert_padding_invariant(fn, torch.randn(3, 5, D), module=encoder)


def _padded_pair(my: Any) -> None:
    pair = _pair(my)
    source, target = _tokens(1, 4), _tokens(1, 3)
    padded = torch.cat([source, torch.full((1, 3), my.PAD)], dim=1)
    gap = (pair(source, target) - pair(padded, target)).abs().max().item()
    if not gap < 1e-4:
        raise AssertionError(f"three filled places behind the source moved the scores by {gap:.2g}")


def _equivariant(my: Any) -> None:
    attention = my.SelfAttention(D, H)
    testing.assert_permutation_equivariant(lambda x: attention(x, None), torch.randn(2, 5, D), module=attention)


def _cache(my: Any) -> None:
    gpt = _gpt(my)

    def step(new: torch.Tensor, caches: Any) -> tuple[torch.Tensor, Any]:
        caches = [{} for _ in gpt.blocks] if caches is None else caches
        return gpt.step(new, caches), caches

    testing.assert_cache_consistent(gpt, step, _tokens(2, 7))


def _gradients(my: Any) -> None:
    gpt, pair = _gpt(my), _pair(my)
    inputs, source = _tokens(2, 5), _tokens(2, 4)
    testing.assert_gradients_flow(lambda: gpt(inputs), parameters=dict(gpt.named_parameters()))
    testing.assert_gradients_flow(lambda: pair(source, inputs), parameters=dict(pair.named_parameters()))


LAWS: tuple[tuple[str, Callable[[Any], str | None]], ...] = (
    ("GPT: no output depends on a later token", _causal_gpt),
    ("Decoder: no output depends on a later token", _causal_decoder),
    ("Encoder: what stands in padding reaches no real token", _padding),
    ("EncoderDecoder: padding behind the source changes no score", _padded_pair),
    ("SelfAttention without mask: reordered tokens give reordered outputs", _equivariant),
    ("GPT: tokens fed through the cache give the scores of the whole text", _cache),
    ("GPT, EncoderDecoder: a gradient reaches every weight", _gradients),
)


# -- equality with torch -----------------------------------------------------------------------------------------------


def _said(differences: Any) -> str:
    return f"largest difference {differences.output:.0g} in outputs, {differences.gradient:.0g} in gradients"


def _attention(my: Any) -> str:
    query, key, value = torch.randn(2, 3, 4, 5), torch.randn(2, 3, 6, 5), torch.randn(2, 3, 6, 7)
    mask = torch.rand(2, 1, 4, 6) < 0.6
    mask[..., 0] = True
    theirs = functools.partial(nn.functional.scaled_dot_product_attention, attn_mask=mask)
    return _said(testing.assert_equivalent(lambda *x: my.attention(*x, mask), theirs, query, key, value))


def _projections(name: str, weights: Any) -> dict[str, torch.Tensor]:
    """Our four matrices under torch's names, and biases of 0: a gradient finds its way back to ours."""
    query, key, value, output = weights
    return {
        f"{name}in_proj_weight": torch.cat([query.T, key.T, value.T]),
        f"{name}in_proj_bias": torch.zeros(3 * D),
        f"{name}out_proj.weight": output.T,
        f"{name}out_proj.bias": torch.zeros(D),
    }


def _linear(name: str, weight: torch.Tensor, bias: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
    return {f"{name}.weight": weight.T, f"{name}.bias": torch.zeros(weight.size(1)) if bias is None else bias}


def _four(mine: Any) -> tuple[torch.Tensor, ...]:
    return mine.query, mine.key, mine.value, mine.output


def _equal(mine: Any, first: Any, theirs: nn.Module, weights: Any, *x: torch.Tensor, **options: Any) -> Any:
    """Compare with torch's module, run with our weights: outputs, and gradients for inputs and weights."""
    pairs = [(weight, weight) for weight in mine.parameters()]

    def second(*x: torch.Tensor) -> Any:
        result = torch.func.functional_call(theirs, weights(), x, options)
        return result[0] if isinstance(result, tuple) else result

    return testing.assert_equivalent(first, second, *x, parameters=pairs)


def _heads(my: Any) -> str:
    theirs, mask = nn.MultiheadAttention(D, H, batch_first=True), my.causal_mask(5, 5)
    x, nowhere = torch.randn(2, 5, D), torch.zeros(5, dtype=torch.long)  # at position 0 nothing is turned
    found = []
    for mine, more in ((my.SelfAttention(D, H), ()), (my.RotaryAttention(D, H), (nowhere,))):
        weights = lambda mine=mine: _projections("", _four(mine))  # noqa: E731
        first = lambda x, mine=mine, more=more: mine(x, mask, *more)  # noqa: E731
        call = lambda x: theirs(x, x, x, attn_mask=~mask)  # noqa: E731
        found.append(_equal(mine, first, _Called(theirs, call), _inside(weights), x))
    return _said(max(found, key=lambda one: one.output))


class _Called(nn.Module):
    """A module that is called in its own way."""

    def __init__(self, inner: nn.Module, call: Callable[..., Any]) -> None:
        super().__init__()
        self.inner, self.call = inner, call

    def forward(self, *x: torch.Tensor) -> Any:
        return self.call(*x)


def _inside(weights: Callable[[], dict[str, torch.Tensor]]) -> Callable[[], dict[str, torch.Tensor]]:
    return lambda: {f"inner.{name}": weight for name, weight in weights().items()}


def _encoder_layer(my: Any) -> str:
    found = []
    for pre in (False, True):
        mine = my.Block(my.SelfAttention, D, H, F, pre=pre)
        for vector in (weight for weight in mine.parameters() if weight.dim() == 1):
            nn.init.normal_(vector)
        theirs = nn.TransformerEncoderLayer(D, H, F, dropout=0.0, batch_first=True, norm_first=pre)

        def weights(mine: Any = mine) -> dict[str, torch.Tensor]:
            inner, first, second = mine.feed_forward, mine.first_norm, mine.second_norm
            return {
                **_projections("self_attn.", _four(mine.attention)),
                **_linear("linear1", inner.up, inner.up_bias),
                **_linear("linear2", inner.down, inner.down_bias),
                **{"norm1.weight": first.weight, "norm1.bias": first.bias},
                **{"norm2.weight": second.weight, "norm2.bias": second.bias},
            }

        found.append(_equal(mine, mine, theirs, weights, torch.randn(2, 5, D)))
    return _said(max(found, key=lambda one: one.output))


def _decoder_layer(my: Any) -> str:
    mine = my.DecoderLayer(D, F)
    theirs = nn.TransformerDecoderLayer(D, 1, F, dropout=0.0, batch_first=True, norm_first=True)

    def weights() -> dict[str, torch.Tensor]:
        attentions = _projections("self_attn.", mine.own) | _projections("multihead_attn.", mine.cross)
        return attentions | _linear("linear1", mine.up) | _linear("linear2", mine.down)

    real = torch.arange(6) < torch.tensor([[6], [3]])  # (B, S)
    hidden = {"tgt_mask": ~torch.ones(4, 4, dtype=torch.bool).tril(), "memory_key_padding_mask": ~real}
    first = lambda x, context: mine(x, context, real[:, None])  # noqa: E731
    return _said(_equal(mine, first, theirs, weights, torch.randn(2, 4, D), torch.randn(2, 6, D), **hidden))


def _loss(my: Any) -> str:
    logits, labels = torch.randn(3, 4, V), _tokens(3, 4)
    labels[0, 2:] = my.PAD
    theirs = lambda x: nn.functional.cross_entropy(  # noqa: E731
        x.flatten(0, 1), labels.flatten(), ignore_index=my.PAD, label_smoothing=0.1
    )
    return _said(testing.assert_equivalent(lambda x: my.label_smoothed_loss(x, labels, 0.1, my.PAD)[0], theirs, logits))


def _adam(my: Any) -> str:
    start = torch.randn(3, 4)
    theirs = nn.Parameter(start.clone())
    optimizer = torch.optim.Adam([theirs], lr=0.01, betas=(0.9, 0.98), eps=1e-9)
    mine, m, v = start, torch.zeros(3, 4), torch.zeros(3, 4)
    for step in range(1, 4):
        gradient = torch.randn(3, 4)
        mine, m, v = my.adam_step(mine, gradient, m, v, step, 0.01, 0.9, 0.98, 1e-9)
        theirs.grad = gradient
        optimizer.step()
    gap = (mine - theirs).abs().max().item()
    if not gap < 1e-5:
        raise AssertionError(f"after three steps the weights differ by {gap:.2g}")
    return f"largest difference {gap:.0g} after three steps"


PARITY: tuple[tuple[str, Callable[[Any], str | None]], ...] = (
    ("attention equals torch's scaled_dot_product_attention", _attention),
    ("SelfAttention and RotaryAttention (not turned) equal torch's MultiheadAttention", _heads),
    ("Block equals torch's TransformerEncoderLayer, post-norm and pre-norm", _encoder_layer),
    ("DecoderLayer equals torch's TransformerDecoderLayer", _decoder_layer),
    ("label_smoothed_loss equals torch's cross_entropy", _loss),
    ("adam_step equals torch's Adam", _adam),
)


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]), Path(sys.argv[3]))
