"""Attention by features: softmax's exp(q . k) replaced by phi(q) . phi(k), so that keys and values can be summed first.

The cost is linear in the length, and with a causal mask the sums are the state of a recurrent network.

Shapes: B batch, H heads, T query positions, S key positions, E width of a head, F features.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from course_lib.attention import Options
from course_lib.checks import Count, checked
from course_lib.masks import causal_mask
from course_lib.variants.efficient.base import EfficientAttention

State = tuple[Tensor, Tensor]  # sums over keys: features times values (B, H, F, E'), and features (B, H, F)

_TINY = 1e-12  # a sum of features below this says that all of them vanished


class KernelAttention(EfficientAttention):
    """What attentions by positive features share: the parallel, the chunked causal and the recurrent form."""

    takes_bias = False
    takes_dropout = False
    takes_any_mask = False
    chunk = 64

    def features(self, x: Tensor, scale: float) -> Tensor:
        """phi: (..., E) -> (..., F), none negative."""
        raise NotImplementedError

    def form(self, query: Tensor, key: Tensor, value: Tensor, options: Options) -> Tensor:
        """Sum over the keys first, or chunk by chunk."""
        left, right = self._features(query, key, options.mask, options.scale)
        value_wide = value.to(left.dtype)
        if options.causal:
            mixed, total = self._chunked(left, right, value_wide)
        else:
            mixed = left @ (right.mT @ value_wide)  # (B, H, T, F) @ (B, H, F, E')
            total = left @ right.sum(-2)[..., None]  # (B, H, T, 1)
        return (mixed / total.clamp(min=_TINY)).to(query.dtype)

    def step(self, query: Tensor, key: Tensor, value: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """One position of the recurrent form: all (B, H, 1, E), and the state so far -> the output and the new state.

        Called position by position it gives what the causal parallel form gives; the state does not grow.
        """
        left, right = self._features(query, key, None, query.size(-1) ** -0.5)
        new = right.mT @ value.to(right.dtype), right.squeeze(-2)  # (B, H, F, E'), (B, H, F)
        state = new if state is None else (state[0] + new[0], state[1] + new[1])
        total = (left * state[1][..., None, :]).sum(-1, keepdim=True)  # (B, H, 1, 1)
        return (left @ state[0] / total.clamp(min=_TINY)).to(query.dtype), state

    def weights(self, query: Tensor, key: Tensor, options: Options) -> Tensor:
        """phi(q) . phi(k), normed over the visible keys."""
        left, right = self._features(query, key, options.mask, options.scale)
        products = left @ right.mT
        if options.causal:
            products = products * causal_mask(query.size(-2), key.size(-2), device=query.device)
        return (products / products.sum(-1, keepdim=True).clamp(min=_TINY)).to(query.dtype)

    def _features(self, query: Tensor, key: Tensor, mask: Tensor | None, scale: float) -> tuple[Tensor, Tensor]:
        wide = torch.promote_types(query.dtype, torch.float32)
        left, right = self.features(query.to(wide), scale), self.features(key.to(wide), scale)
        if mask is not None:
            right = right * mask.mT  # (B, 1, 1, S) -> (B, 1, S, 1): a hidden key adds nothing to any sum
        return left, right

    def _chunked(self, left: Tensor, right: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Causal: within a chunk by products under a mask, from earlier chunks by their sums."""
        T, S = left.size(-2), right.size(-2)
        if T > S:  # the first T - S queries see nothing
            mixed, total = self._chunked(left[..., T - S :, :], right, value)
            return F.pad(mixed, (0, 0, T - S, 0)), F.pad(total, (0, 0, T - S, 0))
        # A column of ones gives the sum of the features beside the sum of the values.
        value = torch.cat([value, value.new_ones(*value.shape[:-1], 1)], dim=-1)
        before, value = value[..., : S - T, :], value[..., S - T :, :]
        start = right[..., : S - T, :].mT @ before  # (B, H, F, E' + 1)
        fill, C = -T % self.chunk, self.chunk
        left, right, value = (
            F.pad(t, (0, 0, 0, fill)).unflatten(-2, (-1, C)) for t in (left, right[..., S - T :, :], value)
        )  # (B, H, T, .) -> (B, H, T / C, C, .)
        sums = right.mT @ value  # (B, H, T / C, F, E' + 1)
        earlier = start[..., None, :, :] + F.pad(sums, (0, 0, 0, 0, 1, 0))[..., :-1, :, :].cumsum(-3)
        inside = (left @ right.mT).tril()  # (B, H, T / C, C, C)
        both = (left @ earlier + inside @ value).flatten(-3, -2)[..., :T, :]  # -> (B, H, T, E' + 1)
        return both[..., :-1], both[..., -1:]


class LinearAttention(KernelAttention):
    """phi(x) = elu(x) + 1: another function than softmax, not an approximation of it; no parameters.

    Source: Katharopoulos et al. 2020, "Transformers are RNNs", equations 7, 12 and 18 to 20.
    """

    takes_scale = False

    def features(self, x: Tensor, scale: float) -> Tensor:
        """elu(x) + 1: (..., E) -> (..., E)."""
        return F.elu(x) + 1


class PerformerAttention(KernelAttention):
    """Positive random features whose expected product is exp(q . k / sqrt(E)), the score of softmax.

    phi(x) = exp(w . x - |x|^2 / 2) / sqrt(F) for random w, orthogonal in blocks of E, which lowers the variance. The
    draw is a buffer: it is saved with a model, which learned to live with it.

    Args:
        d_head: E.
        n_features: F; the error falls as 1 / sqrt(F).
        seed: of the draw.

    Source: Choromanski et al. 2021, "Rethinking Attention with Performers" (FAVOR+), lemma 1 and section 2.4.
    """

    directions: Tensor

    @checked
    def __init__(self, d_head: Count, n_features: Count = 256, *, seed: int = 0) -> None:
        super().__init__()
        self.register_buffer("directions", torch.empty(n_features, d_head))
        self.redraw(seed)

    def redraw(self, seed: int) -> None:
        """Draw other directions."""
        generator = torch.Generator().manual_seed(seed)
        n_features, d_head = self.directions.shape
        blocks = []
        for _ in range(-(-n_features // d_head)):
            normal = torch.randn(d_head, d_head, generator=generator, dtype=torch.float64)
            Q, R = torch.linalg.qr(normal)
            # Uniform over the orthogonal matrices only with these signs (Mezzadri 2007); without, the mean is wrong.
            blocks.append((Q * R.diagonal().sign()).T)
        rows = torch.cat(blocks)[:n_features]  # orthonormal within each block
        # Lengths as independent normal vectors have them, so that each row alone is one.
        lengths = torch.randn(n_features, d_head, generator=generator, dtype=torch.float64).norm(dim=-1, keepdim=True)
        self.directions.copy_(rows * lengths)

    def features(self, x: Tensor, scale: float) -> Tensor:
        """(..., E) -> (..., F)."""
        if x.size(-1) != self.directions.size(-1):
            raise ValueError(f"query: expected heads of width d_head={self.directions.size(-1)}, got {x.size(-1)}")
        x = x * scale**0.5
        logs = x @ self.directions.to(x.dtype).T - x.square().sum(-1, keepdim=True) / 2
        # w . x - |x|^2 / 2 is at most |w|^2 / 2, about E / 2, so exp stays in range; the limit is for very wide heads.
        # No maximum is taken over positions: it would carry a trace of later keys to earlier queries.
        return torch.exp(logs.clamp(max=40.0)) * self.directions.size(0) ** -0.5
