"""The gated delta rule: a memory of fixed size that is corrected at each token, and can fade.

The state is a matrix S of shape (E', E) that answers a key k with S k. A token fades it, reads what is left under its
key, and writes the difference from its value:

    S <- g S,    S <- S + beta (v - S k) k^T,    o = S q

Shapes: B batch, H heads, T positions, C positions of a chunk, E width of keys and queries, E' width of values.
"""

import torch
from torch import Tensor

from course_lib.checks import Count, checked


@checked
def gated_delta_rule(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    beta: Tensor,
    log_decay: Tensor,
    state: Tensor | None = None,
    *,
    chunk: Count = 64,
) -> tuple[Tensor, Tensor]:
    """Read and write position by position, computed a chunk at a time by products of matrices.

    Each length of the chunk gives the same numbers; 1 is the recurrence itself. Given the state, a call goes on where
    the last one ended.

    Args:
        query: (B, H, T, E). It is not scaled here; published models divide it by sqrt(E).
        key: (B, H, T, E), of length one in published models: the update is stable while beta |k|^2 is at most 2.
        value: (B, H, T, E').
        beta: (B, H, T), the share of the correction that is made, mostly between 0 and 1.
        log_decay: (B, H, T), the logarithm of g, finite and at most 0.
        state: (B, H, E', E), or None for zeros.
        chunk: positions computed at once.

    Returns the outputs (B, H, T, E') in the dtype of `query`, and the last state (B, H, E', E), float32 or wider.
    A position with beta 0 and log_decay 0, such as padding, leaves the state as it is.

    Raises ValueError for shapes that do not belong together.

    Sources: Yang et al. 2024, "Parallelizing Linear Transformers with the Delta Rule over Sequence Length", section 3;
    Yang, Kautz and Hatamizadeh 2025, "Gated Delta Networks", section 3.
    """
    _check_shapes(query, key, value, beta, log_decay, state)
    dtype, wide = query.dtype, torch.promote_types(query.dtype, torch.float32)
    query, key, value, beta, log_decay = (t.to(wide) for t in (query, key, value, beta, log_decay))
    B, H, T, E = key.shape
    state = key.new_zeros(B, H, value.size(-1), E) if state is None else state.to(wide)
    outputs = [query.new_zeros(B, H, 0, value.size(-1))]
    for start in range(0, T, chunk):
        q, k, v, b, log = (t[:, :, start : start + chunk] for t in (query, key, value, beta, log_decay))
        output, state = _one_chunk(q, k, v, b, log, state)
        outputs.append(output)
    return torch.cat(outputs, dim=2).to(dtype), state


def _one_chunk(
    query: Tensor, key: Tensor, value: Tensor, beta: Tensor, log_decay: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """Outputs (B, H, C, E') and the state after the chunk.

    Position t writes w_t = beta_t (v_t - what it reads under k_t). What it reads is what is left of the old state, and
    of each w_s k_s^T with s < t. So the w of a chunk solve a triangular system, and no state within it is formed.
    """
    since = log_decay.cumsum(-1)  # (B, H, C): log of what is left at t of the state before the chunk
    left = since.exp()[..., None]  # (B, H, C, 1)
    later = torch.ones(key.size(2), key.size(2), dtype=torch.bool, device=key.device).triu(1)
    # The mask comes before exp: of later positions it would be of positive numbers, which may overflow.
    between = (since[..., :, None] - since[..., None, :]).masked_fill(later, -torch.inf).exp()  # (B, H, C, C)
    system = beta[..., None] * (key @ key.mT) * between  # below its diagonal; the solver takes ones on it
    wanted = beta[..., None] * (value - left * (key @ state.mT))  # (B, H, C, E')
    written = torch.linalg.solve_triangular(system, wanted, upper=False, unitriangular=True)
    output = left * (query @ state.mT) + (query @ key.mT * between) @ written
    kept = (since[..., -1:] - since).exp()[..., None]  # (B, H, C, 1): of each write, at the end of the chunk
    return output, left[..., -1:, :] * state + (kept * written).mT @ key


def _check_shapes(
    query: Tensor, key: Tensor, value: Tensor, beta: Tensor, log_decay: Tensor, state: Tensor | None
) -> None:
    """Raise ValueError naming the first argument whose shape does not fit that of the key."""
    if key.dim() != 4:
        raise ValueError(f"key: expected (B, H, T, E), got {tuple(key.shape)}")
    B, H, T, E = key.shape
    if query.shape != key.shape:
        raise ValueError(f"query: expected the shape of key, {tuple(key.shape)}, got {tuple(query.shape)}")
    if value.dim() != 4 or value.shape[:3] != (B, H, T):
        raise ValueError(f"value: expected ({B}, {H}, {T}, E'), got {tuple(value.shape)}")
    for name, given in (("beta", beta), ("log_decay", log_decay)):
        if given.shape != (B, H, T):
            raise ValueError(f"{name}: expected {(B, H, T)}, got {tuple(given.shape)}")
    if state is not None and state.shape != (B, H, value.size(-1), E):
        raise ValueError(f"state: expected {(B, H, value.size(-1), E)}, got {tuple(state.shape)}")
