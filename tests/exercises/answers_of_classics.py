"""Mistakes that many learners make, written from the prompts alone, and right answers that look unusual."""

import math

import torch


def strided_heads(x, W_query, W_key, W_value, W_output, n_heads, mask=None):
    """Reshapes to (E, H) in place of (H, E)."""
    B, T, _ = x.shape
    query, key, value = ((x @ W).view(B, T, -1, n_heads).permute(0, 3, 1, 2) for W in (W_query, W_key, W_value))
    scores = query @ key.mT / math.sqrt(query.size(-1))
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    return (scores.softmax(-1) @ value).transpose(1, 2).reshape(B, T, -1) @ W_output


def keys_for_values(x, W_query, W_key, W_value, W_output, n_heads, mask=None):
    """Unpacks the three in the order query, value, key."""
    B, T, _ = x.shape
    query, value, key = ((x @ W).view(B, T, n_heads, -1).transpose(1, 2) for W in (W_query, W_key, W_value))
    scores = query @ key.mT / math.sqrt(query.size(-1))
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    return (scores.softmax(-1) @ value).transpose(1, 2).reshape(B, T, -1) @ W_output


def inverted_fill(query, key, value, mask=None):
    """Believes that masked_fill fills where the mask is False."""
    scores = query @ key.mT / math.sqrt(query.size(-1))
    if mask is not None:
        scores = scores.masked_fill(mask, -math.inf)
    return scores.softmax(-1).nan_to_num(0.0) @ value


def sinusoids_with_a_step(positions, d_model):
    """Takes 2 * i / d where i already steps by two."""
    i = torch.arange(0, d_model, 2)
    angle = positions[:, None] / 10000 ** (2 * i / d_model)
    return torch.stack([angle.sin(), angle.cos()], -1).flatten(-2)


def last_column_cut(sentences, bos_id, eos_id, pad_id):
    """Pads start, sentence and end, and takes all but the last and all but the first column."""
    T = max(map(len, sentences)) + 2
    full = torch.tensor([[bos_id, *ids, eos_id] + [pad_id] * (T - 2 - len(ids)) for ids in sentences])
    return full[:, :-1], full[:, 1:]


def loop_reads_what_it_wrote(targets, start_id):
    """Shifts in place from left to right."""
    moved = targets.clone()
    for place in range(1, moved.size(1)):
        moved[:, place] = moved[:, place - 1]
    moved[:, 0] = start_id
    return moved


def masked_words_replaced(tokens, special, chance, fate, others, mask_id):
    """The second `where` asks only for a fate below 0.9."""
    chosen = (chance < 0.15) & ~special
    inputs = torch.where(chosen & (fate < 0.8), mask_id, tokens)
    inputs = torch.where(chosen & (fate < 0.9), others, inputs)
    return inputs, torch.where(chosen, tokens, -100)


def zeros_taken_for_padding(x, real):
    """Counts what is not zero after padding was set to zero."""
    kept = x * real[..., None]
    return kept.sum(1) / (kept != 0).sum(1)


def plain_exponentials(query, keys, values):
    """The formula as it stands in books."""
    powers = (keys @ query).exp()
    return powers @ values / powers.sum()


def filter_gets_probabilities(logits, temperature, p):
    """Filters probabilities as if they were logits."""
    ordered, order = (logits / temperature).softmax(-1).sort(dim=-1, descending=True)
    share = ordered.softmax(dim=-1)
    cut = torch.zeros_like(logits, dtype=torch.bool).scatter(-1, order, share.cumsum(-1) - share >= p)
    return (logits / temperature).softmax(-1).masked_fill(cut, -math.inf).softmax(-1)


def gram_before_the_loop(matrix, n_steps=5):
    """Computes A where it is defined first."""
    x = matrix / matrix.norm()
    gram = x @ x.T
    for _ in range(n_steps):
        x = 3.4445 * x - 4.7750 * gram @ x + 2.0315 * gram @ gram @ x
    return x


def heads_by_view(x, n_heads):
    """A view that only splits an axis works on any memory layout."""
    B, T, width = x.shape
    return x.view(B, T, n_heads, width // n_heads).transpose(1, 2)


def ascending_nucleus(logits, p):
    """Cuts the least likely tokens as long as they have less than 1 - p together."""
    ordered, order = logits.sort(dim=-1)
    cut = ordered.softmax(-1).cumsum(-1) < 1 - p
    return logits.masked_fill(torch.zeros_like(cut).scatter(-1, order, cut), -math.inf)


def singular_values_by_hand(matrix, n_steps=5):
    """The polynomial on the singular values themselves."""
    U, spectrum, Vh = torch.linalg.svd(matrix, full_matrices=False)
    spectrum = spectrum / spectrum.square().sum().sqrt()
    for _ in range(n_steps):
        spectrum = 3.4445 * spectrum - 4.7750 * spectrum**3 + 2.0315 * spectrum**5
    return U @ torch.diag(spectrum) @ Vh


WRONG_ANSWERS = [
    ("multi_head_attention", strided_heads, "strided-heads"),
    ("multi_head_attention", keys_for_values, "keys-and-values-exchanged"),
    ("scaled_dot_product_attention", inverted_fill, "mask-inverted"),
    ("sinusoidal_encoding", sinusoids_with_a_step, "doubled-exponent"),
    ("shift_targets", last_column_cut, "end-sign-read-in-short-rows"),
    ("shift_right", loop_reads_what_it_wrote, "overwritten-while-read"),
    ("mask_tokens", masked_words_replaced, "mask-overwritten"),
    ("sentence_vector", zeros_taken_for_padding, "zeros-not-counted"),
    ("soft_lookup", plain_exponentials, "softmax-overflows"),
    ("sampling_order", filter_gets_probabilities, "softmax-twice"),
    ("newton_schulz", gram_before_the_loop, "gram-computed-once"),
]
RIGHT_ANSWERS = [
    ("split_heads", heads_by_view),
    ("top_p_filter", ascending_nucleus),
    ("newton_schulz", singular_values_by_hand),
]
