"""One step of a decoder as one compiled function: a token goes in, logits come out, and no Python runs between.

Shapes: B batch, T positions, S positions so far, H heads, G key/value heads, E head width, V vocabulary.

With small models a token costs more in Python and in torch's dispatch than in arithmetic. `torch.compile` makes one
function of the whole decoder, once for a batch: the place of the token is a tensor, the length so far a symbol, and the
cache lies in buffers of fixed size. On a CPU, products of one row are written out as sums, which become loops of that
function in place of calls of a library; weights of 8 bits become floats on their way. On a CUDA device nothing is
compiled: see `course_lib.generation.captured`.
"""

import functools
import shutil
import time
import warnings
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from course_lib.attention import Attention, Options
from course_lib.cache import DecoderCache
from course_lib.checks import check_integer
from course_lib.generation.captured import CapturedStep
from course_lib.generation.slots import Step, StepCache
from course_lib.multi_head import MultiHeadAttention
from course_lib.transformer import LanguageModel

_ON_CPU = {
    "cpp_wrapper": True,
    "cpp.enable_floating_point_contract_flag": "fast",  # a product and a sum in one instruction
    "realize_opcount_threshold": 0,  # what a product reads is computed once, and not again for each of its outputs
}
_COMPILING: dict[str, Any] = {
    "automatic_dynamic_shapes": False,
    "recompile_limit": 1000,
    "accumulated_recompile_limit": 10_000,
}
_steps: "weakref.WeakKeyDictionary[nn.Module, dict[Any, CompiledStep | CapturedStep | None]]" = (
    weakref.WeakKeyDictionary()
)


class _Product(nn.Module):
    """A linear map of one row, written as a sum of products: (..., D_in) -> (..., D_out)."""

    def __init__(self, part: Any) -> None:
        super().__init__()
        self.part = part

    def forward(self, x: Tensor) -> Tensor:
        weight, factor, bias = self.part.weight, None, self.part.bias
        if not isinstance(self.part, nn.Linear):
            weight, factor = self.part.factors()
        found = (x.float().unsqueeze(-2).expand(*x.shape[:-1], *weight.shape) * weight.float()).sum(-1)
        found = found if factor is None else found * factor
        return (found if bias is None else found + bias).to(x.dtype)


def _attend(query: Tensor, key: Tensor, value: Tensor, options: Options, window: int | None = None) -> Tensor:
    """Attention of one query for each head, (B, H, 1, E), as sums, which fuse with what stands around them."""
    S = key.size(2)
    scores = (query.expand(key.shape) * key).sum(-1) * options.scale  # (B, H, S)
    if options.bias is not None:
        scores = scores + options.bias.squeeze(2)
    if options.mask is not None:
        scores = scores.masked_fill(~options.mask.squeeze(2), -torch.inf)
    if window is not None:
        scores = scores.masked_fill(torch.arange(S, device=key.device) < S - window, -torch.inf)
    return (scores.softmax(dim=-1)[..., None] * value).sum(2, keepdim=True)  # (B, H, S, 1) * (B, H, S, E)


def _step(
    model: LanguageModel,
    token: Tensor,
    place: Tensor,
    places: Tensor,
    slots: Sequence[tuple[Tensor, Tensor]],
    first: Tensor | None,
) -> Tensor:
    """Feed a token (B, 1) at its place (1,), the last of `places` (S,); return logits (B, 1, V).

    `slots` are the keys and values of each layer, (B, G, capacity, E); `first` (B, 1) is where padding ends.
    """
    cache: Any = StepCache(slots, place, places.size(0))
    if first is None:
        return model.decode(token, positions=place, cache=cache, last=1)
    mask = (places >= first)[:, None, None, :]  # (B, 1, 1, S)
    return model.decode(token, mask=mask, positions=(place - first).clamp(min=0), cache=cache, last=1)


def _build(graph: torch.fx.GraphModule, inputs: list[Any], on_cpu: bool) -> Callable[..., Any]:
    if not on_cpu:
        return torch._inductor.compile(graph, inputs)  # type: ignore[return-value]
    compiled: Any = torch._inductor.compile(graph, inputs, options=_ON_CPU)
    number = functools.cache(torch.tensor)  # the C++ takes tensors alone: a length is made one once, not in each step
    return lambda *arguments: compiled(*[number(one) if type(one) is int else one for one in arguments])


class CompiledStep(Step):
    """The compiled step of one model for batches of one size.

    Making one compiles it, and says in `seconds` how long that took. What was compiled before is kept on the disk.

    Args:
        model: dropout is off in the step, also while the model is in training.
        rows: B.
        padded: whether the examples begin at different places.
    """

    def __init__(self, model: LanguageModel, rows: int, *, padded: bool = False) -> None:
        began = time.perf_counter()
        super().__init__(model, rows)
        self._compiled = torch.compile(_step, backend=self._keep, fullgraph=True)
        self._run: Callable[..., Any] | None = None
        self._arguments: list[Any] = []
        self._numbers: list[int] = []  # where among the arguments the length so far stands
        self._views: list[int] = []  # ... and the places
        with torch.no_grad():
            cache = model.new_cache(8, sliding=False, dtype=dtype_to_keep(model))
            start = torch.zeros_like(self._token)
            for _ in range(2):  # so length and capacity are 3 and 8, and not taken for the same
                self._model.decode(start, cache=cache)
            _rewrite(self._model, as_sums=self._token.is_cpu and rows == 1)
            self(start, cache, torch.zeros_like(self._token) if padded else None)
        self.seconds = time.perf_counter() - began

    def __call__(self, tokens: Tensor, cache: DecoderCache, first: Tensor | None) -> Tensor:
        """See `Step`."""
        S = cache.length + 1
        self._token.copy_(tokens)
        self._place.fill_(S - 1)
        if self._current() is cache and self._run is not None:
            for i in self._numbers:
                self._arguments[i] = S
            for i in self._views:
                self._arguments[i] = self._places[:S]
            (logits,) = self._run(*self._arguments)
        else:
            logits = self._begin(cache, S, first)
        cache.advance()
        return logits

    def _begin(self, cache: DecoderCache, S: int, first: Tensor | None) -> Tensor:
        """The first step with a cache: through `torch.compile`, which compiles if it must, and names the arguments."""
        slots = [layer.self_attention.slots for layer in cache.layers]
        self._places = torch.arange(slots[0][0].size(2), device=self._place.device)
        self._now = self._places[:S]
        torch._dynamo.mark_dynamic(self._now, 0)
        for tensor in [tensor for pair in slots for tensor in pair]:
            torch._dynamo.mark_dynamic(tensor, 2)
        with torch._dynamo.config.patch(_COMPILING):
            logits = self._compiled(self._model, self._token, self._place, self._now, slots, first)
        self._current = weakref.ref(cache, lambda _: self._arguments.clear())
        return logits

    def _keep(self, graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        """The backend: compile, and keep the result with its arguments.

        From one step to the next only a length changes. Called directly with the rest as it was, the function is spared
        the look-up of `torch.compile`, which for a small model takes as long as the step.
        """
        compiled = _build(graph, inputs, self._place.device.type == "cpu")

        def call(*arguments: Any) -> Any:
            S = self._now.size(0)  # the capacity, the only other number, is larger
            self._numbers = [i for i, argument in enumerate(arguments) if type(argument) is int and argument == S]
            self._views = [i for i, argument in enumerate(arguments) if argument is self._now]
            if not self._numbers:
                raise RuntimeError("the length so far became a constant of the graph")
            self._run, self._arguments = compiled, list(arguments)
            return compiled(*arguments)

        return call


def compile_step(model: nn.Module, *, rows: int = 1, padded: bool = False) -> Step | None:
    """Compile the step of a model, or record it on a CUDA device, unless that was done.

    `generate` with `compile=True` does it by itself.

    Args:
        model: any; the step is used for it as it is now, and compiled anew after a change of its parts.
        rows: how many examples are written at once.
        padded: whether they are prompts of different lengths, with a mask.

    Returns None, with a warning that has the reason, where it cannot be compiled.
    """
    check_integer("rows", rows)
    known = _steps.setdefault(model, {})
    parts = [*model.modules(), *model.parameters(), *model.buffers()]
    state = [(id(part), getattr(part, "dtype", None), getattr(part, "device", None)) for part in parts]
    key = (rows, padded, torch.get_num_threads(), tuple(state))
    if key not in known:
        reason = _obstacle(model)
        step = None
        if reason is None:
            made: Any = CapturedStep if next(model.parameters()).is_cuda else CompiledStep
            try:
                step = made(model, rows, padded=padded)
            except Exception as error:  # whatever the compilers do not like, the model still works without
                reason = f"{type(error).__name__}: {str(error).strip()[:200]}"
        if reason is not None:
            warnings.warn(
                f"compile: the model is used as it is, since its step was not compiled. {reason}", stacklevel=2
            )
        known[key] = step
    return known[key]


def _obstacle(model: nn.Module) -> str | None:
    """Why no step can be made of a model, as far as that is known beforehand."""
    if not isinstance(model, LanguageModel):
        return f"It is a {type(model).__name__} and no LanguageModel."
    if model.vocab_size is None:
        return "It takes vectors and no tokens."
    if next(model.parameters()).is_cpu and not any(shutil.which(name) for name in _compilers()):
        return "There is no C++ compiler on this machine."
    if any(isinstance(part, Attention) and part.records for part in model.modules()):
        return "Its attention is being recorded."
    if next(model.parameters()).is_cuda:
        if getattr(model.decoder.positions, "acts_on", None) == "scores":
            return "Its positions are numbers added to the scores, which a recorded step does not move along."
        if any(isinstance(part, MultiHeadAttention) and part.inner is not None for part in model.modules()):
            return "Its attention is one of another form."
    return None


def dtype_to_keep(model: nn.Module) -> torch.dtype | None:
    """Float32 for bfloat16 on a CPU, where attention of few queries in bfloat16 takes several times as long."""
    weight = next(model.parameters())
    return torch.float32 if weight.device.type == "cpu" and weight.dtype == torch.bfloat16 else None


def _compilers() -> list[str]:
    named = torch._inductor.config.cpp.cxx
    return [name for name in (named if isinstance(named, tuple) else (named,)) if name] + ["g++", "clang++", "cl"]


def _rewrite(model: nn.Module, *, as_sums: bool) -> None:
    """Let attention compute one query without a kernel of its own, and linear maps one row."""
    for name, part in list(model.named_modules()):
        if isinstance(part, MultiHeadAttention) and part.inner is None:
            part.form, part.window = functools.partial(_attend, window=part.window), None
        elif as_sums and (isinstance(part, nn.Linear) or getattr(part, "factors", lambda: None)() is not None):
            model.set_submodule(name, _Product(part))
