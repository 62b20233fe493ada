"""Laws about numbers: equal outputs and gradients, finite values, gradients that arrive, counts that agree."""

import copy
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from course_lib.checks import Several, Tolerance, checked

from .common import apart, as_output, insist_finite, largest, magnitude, rounding, seeded


class Differences(NamedTuple):
    """The largest absolute differences that `assert_equivalent` found."""

    output: float
    gradient: float


class Counts(NamedTuple):
    """What `assert_counts` measured; None where no formula was given."""

    parameters: int | None = None
    flops: int | None = None
    output_bytes: int | None = None
    saved_bytes: int | None = None


@checked
def assert_equivalent(
    first: Callable[..., Any],
    second: Callable[..., Any],
    *inputs: Any,
    names: Sequence[str] | None = None,
    parameters: Sequence[tuple[Tensor, Tensor]] | None = None,
    gradients: bool = True,
    tolerance: Tolerance | None = None,
    gradient_tolerance: Tolerance | None = None,
) -> Differences:
    """Run two implementations on the same inputs: outputs and gradients must agree; return the largest differences.

    Args:
        first, second: callables of `inputs` that return a tensor or a tuple of tensors. Dropout must be off.
        inputs: tensors and other values; gradients are taken with respect to each floating-point tensor.
        names: names of the inputs for the message, "input 0" ... unless given.
        parameters: pairs (parameter of first, the same parameter of second) whose gradients are compared too. If both
            are modules with the same parameter names, those are the pairs unless given.
        gradients: False compares outputs only.
        tolerance: allowed difference of the outputs, relative to the largest value of `second`; that of rounding in
            its dtype unless given.
        gradient_tolerance: the same for gradients, relative to the largest gradient; three times `tolerance` unless
            given.

    Raises:
        AssertionError: "the gradients for key differ by 0.12 (first 0.3, second 0.42 at (0, 2, 1))".
    """
    names = _names_of(inputs, names)
    pairs = _named_pairs(first, second, parameters)
    one, one_gradients = _outputs_and_gradients(first, inputs, [pair[1] for pair in pairs], gradients)
    two, two_gradients = _outputs_and_gradients(second, inputs, [pair[2] for pair in pairs], gradients)
    if len(one) != len(two):
        raise AssertionError(f"the first returned {len(one)} tensors, the second {len(two)}")

    worst = 0.0
    limit = rounding(two[0].dtype) if tolerance is None else tolerance
    for i, (left, right) in enumerate(zip(one, two, strict=True)):
        what = "the outputs differ" if len(one) == 1 else f"the outputs number {i} differ"
        worst = max(worst, _insist_equal(left, right, limit * magnitude(right), what))
    if not gradients:
        return Differences(worst, 0.0)

    limit = 3 * limit if gradient_tolerance is None else gradient_tolerance
    allowed = limit * max((magnitude(g) for g in two_gradients), default=0.0)
    labels = [name for name, value in zip(names, inputs, strict=True) if _is_floating(value)]
    labels += [pair[0] for pair in pairs]
    worst_gradient = 0.0
    for label, left, right in zip(labels, one_gradients, two_gradients, strict=True):
        gap = _insist_equal(left, right, allowed, f"the gradients for {label} differ")
        worst_gradient = max(worst_gradient, gap)
    return Differences(worst, worst_gradient)


def _names_of(inputs: Sequence[Any], names: Sequence[str] | None) -> Sequence[str]:
    names = [f"input {i}" for i in range(len(inputs))] if names is None else names
    if len(names) != len(inputs):
        raise ValueError(f"names: expected {len(inputs)}, one an input, got {len(names)}")
    return names


def _named_pairs(
    first: Any, second: Any, parameters: Sequence[tuple[Tensor, Tensor]] | None
) -> list[tuple[str, Tensor, Tensor]]:
    if parameters is not None:
        return [(f"parameter pair {i}", left, right) for i, (left, right) in enumerate(parameters)]
    if isinstance(first, nn.Module) and isinstance(second, nn.Module):
        left, right = dict(first.named_parameters()), dict(second.named_parameters())
        if left.keys() == right.keys():
            return [(name, left[name], right[name]) for name in left]
    return []


def _is_floating(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def _outputs_and_gradients(
    fn: Callable[..., Any], inputs: Sequence[Any], parameters: Sequence[Tensor], gradients: bool
) -> tuple[list[Tensor], list[Tensor]]:
    """Run on copies of the inputs; pull back the same random direction for any function with these output shapes.

    A target that no gradient reaches gets zeros.
    """
    copies = [v.detach().clone().requires_grad_(gradients) if _is_floating(v) else v for v in inputs]
    with seeded(), torch.set_grad_enabled(gradients):
        result = fn(*copies)
    outputs = [as_output(o) for o in (result if isinstance(result, tuple | list) else [result])]
    if not gradients:
        return outputs, []
    targets = [v for v in copies if _is_floating(v)] + [*parameters]
    found = zip(targets, _pull_back(outputs, targets), strict=True)
    return [o.detach() for o in outputs], [torch.zeros_like(t) if g is None else g for t, g in found]


def _pull_back(outputs: Sequence[Tensor], targets: Sequence[Tensor]) -> list[Tensor | None]:
    """Gradients of a random weighted sum of the outputs: a plain sum is constant after a softmax or a norm."""
    generator = torch.Generator().manual_seed(0)
    directions = [torch.randn(o.shape, generator=generator).to(o.dtype).to(o.device) for o in outputs]
    connected = [(o, d) for o, d in zip(outputs, directions, strict=True) if o.requires_grad]
    wanted = [i for i, target in enumerate(targets) if target.requires_grad]
    found: list[Tensor | None] = [None] * len(targets)
    if connected and wanted:
        results = torch.autograd.grad(
            [o for o, _ in connected], [targets[i] for i in wanted], [d for _, d in connected], allow_unused=True
        )
        for i, gradient in zip(wanted, results, strict=True):
            found[i] = gradient
    return found


def _insist_equal(left: Tensor, right: Tensor, allowed: float, what: str) -> float:
    if left.shape != right.shape:
        raise AssertionError(f"{what} in shape: first {tuple(left.shape)}, second {tuple(right.shape)}")
    gap = largest(left, right)
    if gap > allowed:
        gaps = apart(left, right)
        place = tuple(int(i) for i in (gaps == gaps.max()).nonzero()[0])
        raise AssertionError(
            f"{what} by {gap:.2g} (first {left[place].item():.4g}, second {right[place].item():.4g} at {place}; "
            f"allowed {allowed:.1g})"
        )
    return gap


@checked
def assert_finite(
    fn: Callable[..., Tensor],
    *inputs: Tensor,
    masks: Mapping[str, Tensor] | None = None,
    scales: Annotated[Sequence[float], Several] = (0.0, 1.0, 1e4),
    dtypes: Annotated[Sequence[torch.dtype], Several] | None = None,
    empty_rows_zero: bool = False,
    gradients: bool = True,
) -> None:
    """Try masked rows, extreme values and bfloat16: outputs and gradients must be finite.

    Args:
        fn: inputs -> tensor; with `masks`, it is called as fn(*inputs, mask=mask). A module is copied for each dtype.
        inputs: tensors; those of floating point are multiplied by each scale and cast to each dtype.
        masks: name -> bool mask (..., T, S), True = may attend; include one with rows that see nothing.
        scales: factors on the inputs; 0 makes all tokens alike, 1e4 saturates a softmax.
        dtypes: the dtype of the first floating-point input and bfloat16, unless given.
        empty_rows_zero: a query that may attend to nothing must have output exactly 0.
        gradients: also check the gradients of inputs and, for a module, of parameters.

    Raises:
        AssertionError: "the output in torch.bfloat16 at scale 10000 with the mask 'empty rows' holds 3 value(s) ...".
    """
    floating = [v for v in inputs if _is_floating(v)]
    if not floating and dtypes is None:
        dtypes = [torch.float32]
    dtypes = list(dict.fromkeys([floating[0].dtype, torch.bfloat16])) if dtypes is None else dtypes
    tries: list[tuple[str, dict[str, Tensor]]] = [
        (f" with the mask {n!r}", {"mask": m}) for n, m in (masks or {}).items()
    ]
    for dtype in dtypes:
        cast = copy.deepcopy(fn).to(dtype) if isinstance(fn, nn.Module) else fn
        for scale, (words, extra) in itertools.product(scales if floating else [1.0], tries or [("", {})]):
            where = f" in {dtype} at scale {scale:g}{words}"
            scaled = [(v.detach() * scale).to(dtype) if _is_floating(v) else v for v in inputs]
            _finite_once(cast, scaled, extra, where, empty_rows_zero, gradients)


def _finite_once(
    fn: Callable[..., Tensor],
    inputs: list[Tensor],
    extra: dict[str, Tensor],
    where: str,
    empty_rows_zero: bool,
    gradients: bool,
) -> None:
    targets = [(f"input {i}", v.requires_grad_(gradients)) for i, v in enumerate(inputs) if _is_floating(v)]
    targets += list(fn.named_parameters()) if isinstance(fn, nn.Module) else []
    with seeded(), torch.set_grad_enabled(gradients):
        output = as_output(fn(*inputs, **extra))
    insist_finite(output, f"the output{where}")
    if empty_rows_zero and extra:
        _insist_zero(output, extra["mask"], where)
    if gradients:
        found = _pull_back([output], [target for _, target in targets])
        for (name, _), gradient in zip(targets, found, strict=True):
            if gradient is not None:
                insist_finite(gradient, f"the gradient for {name}{where}")


def _insist_zero(output: Tensor, mask: Tensor, where: str) -> None:
    empty = (~mask.any(dim=-1)).expand(output.shape[:-1])  # (..., T)
    size = magnitude(output[empty])
    if size > 0:
        place = tuple(int(i) for i in (empty & (output.abs().amax(-1) > 0)).nonzero()[0])
        raise AssertionError(
            f"the output{where} is up to {size:.2g} for the query at {place}, which may attend to nothing; expected 0"
        )


@checked
def assert_gradients_flow(
    fn: Callable[..., Tensor],
    *inputs: Any,
    names: Sequence[str] | None = None,
    parameters: Mapping[str, Tensor] | None = None,
    without: Collection[str] = (),
) -> None:
    """Every floating-point input and every parameter must get a gradient that is finite and not zero throughout.

    Args:
        fn: inputs -> tensor, in its training form.
        names: names of the inputs for the message and for `without`, "input 0" ... unless given.
        parameters: name -> parameter; those of `fn` that ask for gradients, if it is a module, unless given.
        without: names that rightly get none, such as the bias of the keys, which the softmax cancels.

    Raises:
        AssertionError: "no gradient reaches query.weight".
    """
    names = _names_of(inputs, names)
    if parameters is None:
        parameters = dict(fn.named_parameters()) if isinstance(fn, nn.Module) else {}
    unknown = set(without) - set(names) - set(parameters)
    if unknown:
        raise ValueError(f"without: expected names of inputs or parameters, got {sorted(unknown)}")
    copies = [v.detach().clone().requires_grad_() if _is_floating(v) else v for v in inputs]
    targets = {n: v for n, v in zip(names, copies, strict=True) if _is_floating(v)}
    targets |= {n: p for n, p in parameters.items() if p.requires_grad}
    with seeded(), torch.enable_grad():
        output = as_output(fn(*copies))
    insist_finite(output, "the output")
    for name, gradient in zip(targets, _pull_back([output], list(targets.values())), strict=True):
        if gradient is not None:
            insist_finite(gradient, f"the gradient for {name}")
        if name not in without and (gradient is None or magnitude(gradient) == 0.0):
            why = "" if gradient is None else ", it is exactly 0 everywhere"
            raise AssertionError(f"no gradient reaches {name}{why}")


@checked
def assert_counts(
    fn: Callable[..., Any],
    *inputs: Any,
    parameters: int | None = None,
    flops: int | None = None,
    output_bytes: int | None = None,
    saved_bytes: int | None = None,
    tolerance: Tolerance = 0.0,
) -> Counts:
    """Compare numbers from formulas with measurement; return what was measured.

    Args:
        fn: a module for `parameters`; for the others, a callable of `inputs`.
        parameters: numbers held by the module; a tensor used in two places (tied) counts once.
        flops: floating-point operations of matrix products in one forward pass, 2 for a multiplication and addition,
            as torch's FlopCounterMode counts them (it does not know every fused kernel on a CPU).
        output_bytes: memory of all tensors in what `fn` returns, such as a cache; shared memory counts once.
        saved_bytes: memory that autograd keeps for the backward pass, without inputs and parameters.
        tolerance: allowed relative difference, none unless given.

    Raises:
        AssertionError: "parameters: the formula gives 96, measured 100 (query 48, key 52)".
    """
    if parameters is not None and not isinstance(fn, nn.Module):
        raise TypeError(f"fn: expected a torch.nn.Module to count parameters of, got {type(fn).__name__}")
    if {parameters, flops, output_bytes, saved_bytes} == {None}:
        raise ValueError("parameters: expected a formula for it, or for flops, output_bytes or saved_bytes, got none")
    measured: dict[str, int] = {}
    details = ""
    if parameters is not None and isinstance(fn, nn.Module):
        measured["parameters"] = sum(p.numel() for p in fn.parameters())  # parameters() yields a tied one once
        parts = [(n, sum(p.numel() for p in m.parameters())) for n, m in fn.named_children()]
        details = f" ({', '.join(f'{n} {count}' for n, count in parts)})" if parts else ""
    if flops is not None:
        counter = FlopCounterMode(display=False)
        with counter, torch.no_grad(), seeded():
            fn(*inputs)
        measured["flops"] = int(counter.get_total_flops())
    if output_bytes is not None:
        with torch.no_grad(), seeded():
            measured["output_bytes"] = _bytes(_tensors(fn(*inputs)))
    if saved_bytes is not None:
        measured["saved_bytes"] = _saved(fn, inputs)
    expected = {"parameters": parameters, "flops": flops, "output_bytes": output_bytes, "saved_bytes": saved_bytes}
    for name, formula in expected.items():
        if formula is not None and abs(measured[name] - formula) > tolerance * abs(formula):
            more = details if name == "parameters" else ""
            raise AssertionError(f"{name}: the formula gives {formula:,}, measured {measured[name]:,}{more}")
    return Counts(**measured)


def _saved(fn: Callable[..., Any], inputs: Sequence[Any]) -> int:
    kept: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        kept.append(tensor)
        return tensor

    copies = [v.detach().clone().requires_grad_() if _is_floating(v) else v for v in inputs]
    held = [v for v in copies if isinstance(v, Tensor)] + (list(fn.parameters()) if isinstance(fn, nn.Module) else [])
    own = {v.untyped_storage().data_ptr() for v in held}
    with torch.enable_grad(), seeded(), torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = fn(*copies)  # noqa: F841  keeps the graph, and so the memory of what it saved, alive
    return _bytes([t for t in kept if t.untyped_storage().data_ptr() not in own])


def _bytes(tensors: Sequence[Tensor]) -> int:
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    return sum(storages.values())


def _tensors(value: Any) -> list[Tensor]:
    """Find the tensors in nested containers and in the attributes of plain objects."""
    return list(_walk(value, set()))


def _walk(value: Any, seen: set[int]) -> Iterator[Tensor]:
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _walk(item, seen)
    elif isinstance(value, list | tuple | set):
        for item in value:
            yield from _walk(item, seen)
    elif isinstance(value, nn.Module):
        yield from value.buffers()
    elif hasattr(value, "__dict__"):
        yield from _walk(vars(value), seen)
